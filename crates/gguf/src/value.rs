//! Metadata values: scalars, strings and arrays.

use std::fmt;

use crate::strings::{StrArray, Strings};

/// One metadata value, in the type in which the file stores it.
///
/// ```
/// use fucina_gguf::{Array, Value};
///
/// let value = Value::from(vec!["a", "b"]);
/// assert!(matches!(&value, Value::Array(Array::Str(strings)) if strings.len() == 2));
/// assert_eq!(value.type_name(), "an array of str");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Unsigned 8-bit integer.
    U8(u8),
    /// Signed 8-bit integer.
    I8(i8),
    /// Unsigned 16-bit integer.
    U16(u16),
    /// Signed 16-bit integer.
    I16(i16),
    /// Unsigned 32-bit integer.
    U32(u32),
    /// Signed 32-bit integer.
    I32(i32),
    /// Single-precision number.
    F32(f32),
    /// Truth value.
    Bool(bool),
    /// UTF-8 string.
    Str(Box<str>),
    /// Array of one element type.
    Array(Array),
    /// Unsigned 64-bit integer.
    U64(u64),
    /// Signed 64-bit integer.
    I64(i64),
    /// Double-precision number.
    F64(f64),
}

/// A metadata array. Elements have one type; elements of a nested array each have their own.
///
/// ```
/// use fucina_gguf::Array;
///
/// let nested = Array::Array(vec![Array::U8(vec![1, 2]), Array::U8(vec![])]);
/// assert_eq!(nested.len(), 2);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Array {
    /// Unsigned 8-bit integers.
    U8(Vec<u8>),
    /// Signed 8-bit integers.
    I8(Vec<i8>),
    /// Unsigned 16-bit integers.
    U16(Vec<u16>),
    /// Signed 16-bit integers.
    I16(Vec<i16>),
    /// Unsigned 32-bit integers.
    U32(Vec<u32>),
    /// Signed 32-bit integers.
    I32(Vec<i32>),
    /// Single-precision numbers.
    F32(Vec<f32>),
    /// Truth values.
    Bool(Vec<bool>),
    /// UTF-8 strings.
    Str(Strings),
    /// Arrays.
    Array(Vec<Self>),
    /// Unsigned 64-bit integers.
    U64(Vec<u64>),
    /// Signed 64-bit integers.
    I64(Vec<i64>),
    /// Double-precision numbers.
    F64(Vec<f64>),
}

/// Runs the expression with `$items` bound to the `Vec` or [`Strings`] in any array.
macro_rules! each_array {
    ($array:expr, $items:ident => $body:expr) => {
        match $array {
            Array::U8($items) => $body,
            Array::I8($items) => $body,
            Array::U16($items) => $body,
            Array::I16($items) => $body,
            Array::U32($items) => $body,
            Array::I32($items) => $body,
            Array::F32($items) => $body,
            Array::Bool($items) => $body,
            Array::Str($items) => $body,
            Array::Array($items) => $body,
            Array::U64($items) => $body,
            Array::I64($items) => $body,
            Array::F64($items) => $body,
        }
    };
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each_array!(self, items => items.len())
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type in words, such as "an array of i32".
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "an array of u8",
            Self::I8(_) => "an array of i8",
            Self::U16(_) => "an array of u16",
            Self::I16(_) => "an array of i16",
            Self::U32(_) => "an array of u32",
            Self::I32(_) => "an array of i32",
            Self::F32(_) => "an array of f32",
            Self::Bool(_) => "an array of bool",
            Self::Str(_) => "an array of str",
            Self::Array(_) => "an array of arrays",
            Self::U64(_) => "an array of u64",
            Self::I64(_) => "an array of i64",
            Self::F64(_) => "an array of f64",
        }
    }

    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Str(_) => 8,
            Self::Array(_) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    /// Elements as wide integers, or `None` if they are not integers.
    pub(crate) fn integers(&self) -> Option<Vec<i128>> {
        fn widen<T: Copy + Into<i128>>(items: &[T]) -> Option<Vec<i128>> {
            Some(items.iter().map(|&item| item.into()).collect())
        }
        match self {
            Self::U8(items) => widen(items),
            Self::I8(items) => widen(items),
            Self::U16(items) => widen(items),
            Self::I16(items) => widen(items),
            Self::U32(items) => widen(items),
            Self::I32(items) => widen(items),
            Self::U64(items) => widen(items),
            Self::I64(items) => widen(items),
            _ => None,
        }
    }
}

impl Value {
    /// The type in words, such as "u32" or "an array of str".
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::Str(_) => "str",
            Self::Array(array) => array.type_name(),
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Str(_) => 8,
            Self::Array(_) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    /// The value as a wide integer, or `None` if it is not an integer.
    pub(crate) fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            _ => None,
        }
    }
}

/// Scalars and strings as written; arrays as their first items and their length.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::Str(v) => v.fmt(f),
            Self::Array(v) => v.fmt(f),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
        }
    }
}

const SHOWN: usize = 6;

/// The first items, and the length where there are more.
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn show<T: fmt::Debug>(
            items: impl Iterator<Item = T>,
            f: &mut fmt::Formatter<'_>,
        ) -> fmt::Result {
            for (i, item) in items.take(SHOWN).enumerate() {
                write!(f, "{}{item:?}", if i == 0 { "" } else { ", " })?;
            }
            Ok(())
        }
        f.write_str("[")?;
        match self {
            Self::Array(items) => show(items.iter().map(Self::type_name), f)?,
            Self::Str(items) => show(items.view().iter(), f)?,
            Self::U8(items) => show(items.iter(), f)?,
            Self::I8(items) => show(items.iter(), f)?,
            Self::U16(items) => show(items.iter(), f)?,
            Self::I16(items) => show(items.iter(), f)?,
            Self::U32(items) => show(items.iter(), f)?,
            Self::I32(items) => show(items.iter(), f)?,
            Self::F32(items) => show(items.iter(), f)?,
            Self::Bool(items) => show(items.iter(), f)?,
            Self::U64(items) => show(items.iter(), f)?,
            Self::I64(items) => show(items.iter(), f)?,
            Self::F64(items) => show(items.iter(), f)?,
        }
        match self.len() {
            0..=SHOWN => f.write_str("]"),
            len => write!(f, ", .. {len} items]"),
        }
    }
}

macro_rules! from_scalar {
    ($($type:ty => $variant:ident;)+) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        }

        impl From<Vec<$type>> for Value {
            fn from(items: Vec<$type>) -> Self {
                Self::Array(Array::$variant(items))
            }
        }
    )+};
}

from_scalar! {
    u8 => U8;
    i8 => I8;
    u16 => U16;
    i16 => I16;
    u32 => U32;
    i32 => I32;
    f32 => F32;
    bool => Bool;
    u64 => U64;
    i64 => I64;
    f64 => F64;
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Str(value.into())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Str(value.into())
    }
}

impl From<Vec<&str>> for Value {
    fn from(items: Vec<&str>) -> Self {
        Self::Array(Array::Str(items.into_iter().collect()))
    }
}

impl From<Vec<String>> for Value {
    fn from(items: Vec<String>) -> Self {
        Self::Array(Array::Str(items.into_iter().collect()))
    }
}

impl From<Strings> for Value {
    fn from(items: Strings) -> Self {
        Self::Array(Array::Str(items))
    }
}

impl From<StrArray<'_>> for Value {
    fn from(items: StrArray<'_>) -> Self {
        Self::Array(Array::Str(items.iter().collect()))
    }
}

impl From<Array> for Value {
    fn from(items: Array) -> Self {
        Self::Array(items)
    }
}
