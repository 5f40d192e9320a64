//! Metadata: ordered keys with typed values, and getters whose errors say what is wrong.
//!
//! Missing and wrongly typed are different things. The plain getters refuse both; the `_opt` and
//! `_or` forms forgive a missing key, never a wrong type.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Error;
use crate::strings::StrArray;
use crate::value::{Array, Value};

/// The metadata of a file, in file order.
///
/// ```
/// use fucina_gguf::{File, Writer};
///
/// let mut writer = Writer::new();
/// writer.set("general.architecture", "qwen3")?;
/// writer.set("qwen3.block_count", 4_u32)?;
/// let file = File::from_bytes(writer.to_bytes()?)?;
///
/// let meta = file.metadata();
/// assert_eq!(meta.str("general.architecture")?, "qwen3");
/// assert_eq!(meta.usize("qwen3.block_count")?, 4);
/// assert_eq!(meta.f32_or("qwen3.rope.freq_base", 10_000.0)?, 10_000.0);
/// assert!(meta.str("qwen3.block_count").is_err(), "a wrong type is always an error");
/// # Ok::<(), fucina_gguf::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Metadata {
    file: Arc<str>,
    entries: Vec<(Arc<str>, Value)>,
    index: HashMap<Arc<str>, usize>,
}

impl Metadata {
    pub(crate) fn new(file: Arc<str>) -> Self {
        Self { file, entries: Vec::new(), index: HashMap::new() }
    }

    /// Appends an entry; a key that is there already is an error.
    pub(crate) fn push(&mut self, key: Arc<str>, value: Value) -> Result<(), Error> {
        if self.contains(&key) {
            return Err(Error::DuplicateKey { file: Arc::clone(&self.file), key: (&*key).into() });
        }
        self.index.insert(Arc::clone(&key), self.entries.len());
        self.entries.push((key, value));
        Ok(())
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// The value of `key` in whatever type it has.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// Whether `key` is there.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    fn missing(&self, key: &str) -> Error {
        Error::MissingKey { file: Arc::clone(&self.file), key: key.into() }
    }

    fn wrong_type(&self, key: &str, wanted: &'static str, found: &Value) -> Error {
        let (file, found) = (Arc::clone(&self.file), found.type_name());
        Error::WrongType { file, key: key.into(), wanted, found }
    }

    fn narrow<T: TryFrom<i128>>(
        &self,
        key: &str,
        value: i128,
        wanted: &'static str,
    ) -> Result<T, Error> {
        T::try_from(value).map_err(|_| {
            let file = Arc::clone(&self.file);
            Error::OutOfRange { file, key: key.into(), value, wanted }
        })
    }

    fn integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        wanted: &'static str,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.integer() {
            Some(wide) => self.narrow(key, wide, wanted).map(Some),
            None => Err(self.wrong_type(key, wanted, value)),
        }
    }

    /// A number. An integer is refused, because GGUF writers do not mix the two.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is neither f32 nor f64.
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32, as documented")]
    pub fn f32_opt(&self, key: &str) -> Result<Option<f32>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(&Value::F32(number)) => Ok(Some(number)),
            Some(&Value::F64(number)) => Ok(Some(number as f32)),
            Some(other) => Err(self.wrong_type(key, "f32", other)),
        }
    }

    /// A number; f64 is rounded to f32.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKey`], or [`Error::WrongType`] if it is neither f32 nor f64.
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        self.f32_opt(key)?.ok_or_else(|| self.missing(key))
    }

    /// A number, or `default` if the key is missing.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is neither f32 nor f64.
    pub fn f32_or(&self, key: &str, default: f32) -> Result<f32, Error> {
        Ok(self.f32_opt(key)?.unwrap_or(default))
    }

    /// A truth value, if the key is there.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is not a bool.
    pub fn bool_opt(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(&Value::Bool(truth)) => Ok(Some(truth)),
            Some(other) => Err(self.wrong_type(key, "bool", other)),
        }
    }

    /// A truth value.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKey`], or [`Error::WrongType`] if it is not a bool.
    pub fn bool(&self, key: &str) -> Result<bool, Error> {
        self.bool_opt(key)?.ok_or_else(|| self.missing(key))
    }

    /// A truth value, or `default` if the key is missing.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is not a bool.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool, Error> {
        Ok(self.bool_opt(key)?.unwrap_or(default))
    }

    /// A string, if the key is there.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is not a string.
    pub fn str_opt(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Str(string)) => Ok(Some(string)),
            Some(other) => Err(self.wrong_type(key, "str", other)),
        }
    }

    /// A string.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKey`], or [`Error::WrongType`] if it is not a string.
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        self.str_opt(key)?.ok_or_else(|| self.missing(key))
    }

    /// A string, or `default` if the key is missing.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is not a string.
    pub fn str_or<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str, Error> {
        Ok(self.str_opt(key)?.unwrap_or(default))
    }

    fn array(&self, key: &str, wanted: &'static str) -> Result<Option<&Array>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(other) => Err(self.wrong_type(key, wanted, other)),
        }
    }

    /// An array of strings, if the key is there.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is not an array of strings.
    pub fn str_array_opt(&self, key: &str) -> Result<Option<StrArray<'_>>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Str(strings))) => Ok(Some(strings.view())),
            Some(other) => Err(self.wrong_type(key, "an array of str", other)),
        }
    }

    /// An array of strings.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKey`], or [`Error::WrongType`] if it is not an array of strings.
    pub fn str_array(&self, key: &str) -> Result<StrArray<'_>, Error> {
        self.str_array_opt(key)?.ok_or_else(|| self.missing(key))
    }

    /// An array of numbers, if the key is there; f64 is rounded to f32.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is not an array of f32 or f64.
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32, as documented")]
    pub fn f32_array_opt(&self, key: &str) -> Result<Option<Cow<'_, [f32]>>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::F32(items))) => Ok(Some(Cow::Borrowed(items))),
            Some(Value::Array(Array::F64(items))) => {
                Ok(Some(items.iter().map(|&item| item as f32).collect()))
            }
            Some(other) => Err(self.wrong_type(key, "an array of f32", other)),
        }
    }

    /// An array of numbers; f64 is rounded to f32.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKey`], or [`Error::WrongType`] if it is not an array of f32 or f64.
    pub fn f32_array(&self, key: &str) -> Result<Cow<'_, [f32]>, Error> {
        self.f32_array_opt(key)?.ok_or_else(|| self.missing(key))
    }

    /// An array of truth values, if the key is there.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is not an array of bool.
    pub fn bool_array_opt(&self, key: &str) -> Result<Option<&[bool]>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Bool(items))) => Ok(Some(items)),
            Some(other) => Err(self.wrong_type(key, "an array of bool", other)),
        }
    }

    /// An array of truth values.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKey`], or [`Error::WrongType`] if it is not an array of bool.
    pub fn bool_array(&self, key: &str) -> Result<&[bool], Error> {
        self.bool_array_opt(key)?.ok_or_else(|| self.missing(key))
    }
}

/// The three forms of a getter for one integer type, and those for arrays of it.
macro_rules! integer_getters {
    ($($type:ident, $name:ident, $opt:ident, $or:ident;)+) => {
        impl Metadata {$(
            #[doc = concat!("An integer of any stored width, as ", stringify!($type), ".")]
            ///
            /// # Errors
            ///
            /// [`Error::MissingKey`], [`Error::WrongType`] if it is not an integer,
            /// [`Error::OutOfRange`] if it does not fit.
            pub fn $name(&self, key: &str) -> Result<$type, Error> {
                self.$opt(key)?.ok_or_else(|| self.missing(key))
            }

            #[doc = concat!("An integer as ", stringify!($type), ", if the key is there.")]
            ///
            /// # Errors
            ///
            /// [`Error::WrongType`] if it is not an integer, [`Error::OutOfRange`] if it does
            /// not fit.
            pub fn $opt(&self, key: &str) -> Result<Option<$type>, Error> {
                self.integer(key, stringify!($type))
            }

            #[doc = concat!("An integer as ", stringify!($type), ", or `default` if the key is")]
            /// missing.
            ///
            /// # Errors
            ///
            /// [`Error::WrongType`] if it is not an integer, [`Error::OutOfRange`] if it does
            /// not fit.
            pub fn $or(&self, key: &str, default: $type) -> Result<$type, Error> {
                Ok(self.$opt(key)?.unwrap_or(default))
            }
        )+}
    };
}

integer_getters! {
    u32, u32, u32_opt, u32_or;
    i32, i32, i32_opt, i32_or;
    u64, u64, u64_opt, u64_or;
    i64, i64, i64_opt, i64_or;
    usize, usize, usize_opt, usize_or;
}

macro_rules! integer_array_getters {
    ($($type:ident, $variant:ident, $wanted:literal, $name:ident, $opt:ident;)+) => {
        impl Metadata {$(
            #[doc = concat!("An array of integers of any stored width, as ", stringify!($type), ".")]
            /// Borrowed if stored in this type.
            ///
            /// # Errors
            ///
            /// [`Error::MissingKey`], [`Error::WrongType`] if it is not an array of integers,
            /// [`Error::OutOfRange`] if an element does not fit.
            pub fn $name(&self, key: &str) -> Result<Cow<'_, [$type]>, Error> {
                self.$opt(key)?.ok_or_else(|| self.missing(key))
            }

            #[doc = concat!("An array of integers as ", stringify!($type), ", if the key is there.")]
            ///
            /// # Errors
            ///
            /// [`Error::WrongType`] if it is not an array of integers, [`Error::OutOfRange`] if
            /// an element does not fit.
            pub fn $opt(&self, key: &str) -> Result<Option<Cow<'_, [$type]>>, Error> {
                let Some(array) = self.array(key, $wanted)? else { return Ok(None) };
                if let Array::$variant(items) = array {
                    return Ok(Some(Cow::Borrowed(items)));
                }
                let wide = array.integers().ok_or_else(|| Error::WrongType {
                    file: Arc::clone(&self.file),
                    key: key.into(),
                    wanted: $wanted,
                    found: array.type_name(),
                })?;
                let narrow = |&item| self.narrow(key, item, stringify!($type));
                wide.iter().map(narrow).collect::<Result<_, _>>().map(|v| Some(Cow::Owned(v)))
            }
        )+}
    };
}

integer_array_getters! {
    i32, I32, "an array of i32", i32_array, i32_array_opt;
    u32, U32, "an array of u32", u32_array, u32_array_opt;
    u64, U64, "an array of u64", u64_array, u64_array_opt;
}
