//! Writes GGUF files: metadata and descriptions from memory, tensor data streamed.
//!
//! The writer refuses what the reader would refuse, at the call that brings it in.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use fucina_dtype::DType;

use crate::encode::{depth, put_str, put_value};
use crate::error::Error;
use crate::metadata::Metadata;
use crate::sink::{Counted, Temporary, padding, write_zeros};
use crate::tensors::Described;
use crate::value::Value;

/// Where a tensor's bytes come from: from memory, or from a function that writes them when the
/// file is written, so that a large model never has to be in memory at once.
///
/// ```
/// use fucina_gguf::Data;
///
/// let from_memory = Data::from(vec![1_u8, 2, 3]);
/// let streamed = Data::from_fn(|out| out.write_all(&[1, 2, 3]));
/// # let _ = (from_memory, streamed);
/// ```
pub struct Data<'a>(Source<'a>);

type WriteFn<'a> = dyn FnMut(&mut dyn Write) -> io::Result<()> + Send + 'a;

enum Source<'a> {
    Bytes(Bytes),
    Slice(&'a [u8]),
    Fn(Box<WriteFn<'a>>),
}

impl<'a> Data<'a> {
    /// Data that `write` produces; it may be called once for each time the file is written.
    pub fn from_fn(write: impl FnMut(&mut dyn Write) -> io::Result<()> + Send + 'a) -> Self {
        Self(Source::Fn(Box::new(write)))
    }
}

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Bytes(bytes) => write!(f, "Data({} bytes)", bytes.len()),
            Source::Slice(bytes) => write!(f, "Data({} bytes)", bytes.len()),
            Source::Fn(_) => f.write_str("Data(streamed)"),
        }
    }
}

impl From<Bytes> for Data<'_> {
    fn from(bytes: Bytes) -> Self {
        Self(Source::Bytes(bytes))
    }
}

impl From<Vec<u8>> for Data<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Source::Bytes(bytes.into()))
    }
}

impl<'a> From<&'a [u8]> for Data<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Source::Slice(bytes))
    }
}

/// Builds a GGUF file.
///
/// ```
/// use fucina_dtype::DType;
/// use fucina_gguf::{Data, Writer};
///
/// let mut writer = Writer::new();
/// writer
///     .set("general.architecture", "llama")?
///     .set("tokenizer.ggml.tokens", vec!["a", "b"])?
///     .tensor("token_embd.weight", DType::F16, &[64, 2], Data::from_fn(|out| {
///         (0..128).try_for_each(|_| out.write_all(&[0, 60]))
///     }))?;
/// let bytes = writer.to_bytes()?;
/// assert_eq!(bytes[..4], *b"GGUF");
/// # Ok::<(), fucina_gguf::Error>(())
/// ```
#[derive(Debug)]
pub struct Writer<'a> {
    file: Arc<str>,
    version: u32,
    alignment: u64,
    metadata: Metadata,
    names: HashSet<Arc<str>>,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Debug)]
struct Tensor<'a> {
    name: Arc<str>,
    shape: Box<[u64]>,
    ggml_type: u32,
    len_bytes: u64,
    data: Data<'a>,
}

impl Default for Writer<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Writer<'a> {
    /// An empty file of version 3.
    #[must_use]
    pub fn new() -> Self {
        let file: Arc<str> = "<new file>".into();
        Self {
            version: 3,
            alignment: crate::DEFAULT_ALIGNMENT as u64,
            metadata: Metadata::new(Arc::clone(&file)),
            names: HashSet::new(),
            tensors: Vec::new(),
            file,
        }
    }

    /// Sets the version, 2 or 3. The two differ in nothing but the number.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedVersion`].
    pub fn version(&mut self, version: u32) -> Result<&mut Self, Error> {
        if !matches!(version, 2 | 3) {
            return Err(Error::UnsupportedVersion { file: Arc::clone(&self.file), version });
        }
        self.version = version;
        Ok(self)
    }

    /// Appends a metadata entry. `general.alignment` also sets the alignment of tensor data.
    ///
    /// # Errors
    ///
    /// [`Error::BadName`], [`Error::DuplicateKey`], [`Error::NestedTooDeep`], and for
    /// `general.alignment` [`Error::WrongType`] and [`Error::BadAlignment`].
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<&mut Self, Error> {
        let value = value.into();
        self.check_name(key, "a key")?;
        if let Value::Array(array) = &value
            && depth(array) > crate::MAX_ARRAY_DEPTH
        {
            let (file, limit) = (Arc::clone(&self.file), crate::MAX_ARRAY_DEPTH);
            return Err(Error::NestedTooDeep { file, key: key.into(), limit });
        }
        let mut alignment = self.alignment;
        if key == "general.alignment" {
            let mut probe = Metadata::new(Arc::clone(&self.file));
            probe.push(key.into(), value.clone())?;
            alignment = crate::header::alignment(&probe, &self.file)? as u64;
        }
        self.metadata.push(key.into(), value)?;
        self.alignment = alignment;
        Ok(self)
    }

    /// Appends a tensor; `shape` has the innermost dimension first.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with name, shape or the length of data that is in memory:
    /// [`Error::BadName`], [`Error::DuplicateTensor`], [`Error::TooManyDims`],
    /// [`Error::ZeroDim`], [`Error::PartialBlock`], [`Error::SizeOverflow`],
    /// [`Error::DataLength`], [`Error::NotInGguf`].
    pub fn tensor(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        data: impl Into<Data<'a>>,
    ) -> Result<&mut Self, Error> {
        let ggml_type = dtype.ggml_id().ok_or_else(|| Error::NotInGguf {
            file: Arc::clone(&self.file),
            tensor: name.into(),
            dtype,
        })?;
        self.tensor_ggml(name, ggml_type, shape, data)
    }

    /// Appends a tensor of any type that GGML defines, also one that has no [`DType`].
    ///
    /// # Errors
    ///
    /// As for [`tensor`](Self::tensor), and [`Error::UnsupportedType`] if GGML has no such type.
    pub fn tensor_ggml(
        &mut self,
        name: &str,
        ggml_type: u32,
        shape: &[usize],
        data: impl Into<Data<'a>>,
    ) -> Result<&mut Self, Error> {
        self.check_name(name, "a tensor name")?;
        let shape: Box<[u64]> = shape.iter().map(|&dim| dim as u64).collect();
        let described = Described { file: &self.file, name, shape: &shape, ggml_type };
        let len_bytes = described.len_bytes()?.ok_or_else(|| Error::UnsupportedType {
            file: Arc::clone(&self.file),
            tensor: name.into(),
            ggml_type,
            type_name: "unknown",
        })?;
        let data = data.into();
        let given = match &data.0 {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Slice(bytes) => bytes.len() as u64,
            Source::Fn(_) => len_bytes,
        };
        let name: Arc<str> = name.into();
        if given != len_bytes {
            return Err(self.data_length(&name, len_bytes, given));
        }
        if !self.names.insert(Arc::clone(&name)) {
            let file = Arc::clone(&self.file);
            return Err(Error::DuplicateTensor { file, tensor: (&*name).into() });
        }
        self.tensors.push(Tensor { name, shape, ggml_type, len_bytes, data });
        Ok(self)
    }

    /// Writes the file under a temporary name beside `path`, then renames it: `path` is either
    /// what it was, or complete.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], or [`Error::DataLength`] if a function wrote too little or too much. `path`
    /// is untouched then and the temporary file removed.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        self.file = path.to_string_lossy().into();
        let name = Arc::clone(&self.file);
        let io = |action, e: &io::Error| Error::io(&name, action, e);
        let (file, temporary) = Temporary::beside(path).map_err(|e| io("create", &e))?;
        let mut out = io::BufWriter::with_capacity(1 << 16, file);
        self.write_to(&mut out)?;
        let written = out.into_inner().map_err(io::IntoInnerError::into_error);
        written.and_then(|file| file.sync_all()).map_err(|e| io("write", &e))?;
        temporary.rename(path).map_err(|e| io("rename into place", &e))
    }

    /// The file in memory.
    ///
    /// # Errors
    ///
    /// As for [`write_to`](Self::write_to).
    pub fn to_bytes(&mut self) -> Result<Bytes, Error> {
        let mut out = Vec::new();
        self.write_to(&mut out)?;
        Ok(out.into())
    }

    /// Writes the file to any sink. To write to disk, [`save`](Self::save) is safer.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::DataLength`] if a function wrote too little or too much,
    /// [`Error::CountTooLarge`] if the header is longer than
    /// [`MAX_HEADER_BYTES`](crate::MAX_HEADER_BYTES).
    pub fn write_to(&mut self, out: &mut dyn Write) -> Result<(), Error> {
        let header = self.header()?;
        let file = Arc::clone(&self.file);
        let io = |e: io::Error| Error::io(&file, "write", &e);
        out.write_all(&header).map_err(io)?;
        let mut position = header.len() as u64;
        for at in 0..self.tensors.len() {
            let gap = padding(position, self.alignment);
            write_zeros(out, gap).map_err(io)?;
            self.write_data(at, out)?;
            position += gap + self.tensors[at].len_bytes;
        }
        if !self.tensors.is_empty() {
            // Some readers expect the last tensor to be padded like the others.
            write_zeros(out, padding(position, self.alignment)).map_err(io)?;
        }
        Ok(())
    }

    fn write_data(&mut self, at: usize, out: &mut dyn Write) -> Result<(), Error> {
        let Tensor { name, len_bytes, data, .. } = &mut self.tensors[at];
        let (name, expected) = (Arc::clone(name), *len_bytes);
        let mut counted = Counted { out, left: expected, overrun: false };
        let written = match &mut data.0 {
            Source::Bytes(bytes) => counted.write_all(bytes),
            Source::Slice(bytes) => counted.write_all(bytes),
            Source::Fn(write) => write(&mut counted),
        };
        let Counted { left, overrun, .. } = counted;
        if overrun {
            return Err(self.data_length(&name, expected, expected.saturating_add(1)));
        }
        written.map_err(|e| Error::io(&self.file, "write", &e))?;
        if left > 0 {
            return Err(self.data_length(&name, expected, expected - left));
        }
        Ok(())
    }

    fn header(&self) -> Result<Vec<u8>, Error> {
        let mut out = Vec::from(*b"GGUF");
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            put_str(&mut out, key);
            out.extend(value.type_id().to_le_bytes());
            put_value(&mut out, value);
        }
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            put_str(&mut out, &tensor.name);
            // At most 4 dimensions.
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_DIMS")]
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.ggml_type.to_le_bytes());
            out.extend(offset.to_le_bytes());
            let end = offset.checked_add(tensor.len_bytes);
            let next = end.and_then(|end| end.checked_next_multiple_of(self.alignment));
            offset = next.ok_or_else(|| Error::SizeOverflow {
                file: Arc::clone(&self.file),
                tensor: (&*tensor.name).into(),
                shape: tensor.shape.clone(),
            })?;
        }
        if out.len() > crate::MAX_HEADER_BYTES {
            return Err(Error::CountTooLarge {
                file: Arc::clone(&self.file),
                what: "the header in bytes".into(),
                count: out.len() as u64,
                most: crate::MAX_HEADER_BYTES as u64,
            });
        }
        Ok(out)
    }

    fn check_name(&self, name: &str, what: &str) -> Result<(), Error> {
        if (1..=crate::MAX_NAME_BYTES).contains(&name.len()) {
            return Ok(());
        }
        let (what, len_bytes) = (what.into(), name.len() as u64);
        Err(Error::BadName { file: Arc::clone(&self.file), what, len_bytes })
    }

    fn data_length(&self, tensor: &str, expected: u64, found: u64) -> Error {
        Error::DataLength { file: Arc::clone(&self.file), tensor: tensor.into(), expected, found }
    }
}
