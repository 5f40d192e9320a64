//! An open model: one file, or all parts of a split one.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::Error;
use crate::header::{self, Header};
use crate::map::{self, Access, AccessUsed, Contents};
use crate::metadata::Metadata;
use crate::split::{self, Split};
use crate::tensors::TensorInfo;

/// An open GGUF model.
///
/// Cloning is cheap where it matters: the data is shared.
///
/// ```no_run
/// let file = fucina_gguf::File::open("model.gguf")?;
/// println!("{} keys, {} tensors", file.metadata().len(), file.tensors().len());
/// for info in file.tensors() {
///     println!("{} {:?} {}", info.name(), info.shape(), info.type_name());
/// }
/// # Ok::<(), fucina_gguf::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct File {
    name: Arc<str>,
    version: u32,
    alignment: usize,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<Arc<str>, usize>,
    parts: Vec<Contents>,
    access: AccessUsed,
}

impl File {
    /// Opens a model, mapped if possible. The first part of a split model opens all parts.
    ///
    /// # Errors
    ///
    /// Any [`Error`] of reading: I/O, a damaged file, a missing part.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, Access::default())
    }

    /// Opens a model, with a choice between mapping and reading.
    ///
    /// # Errors
    ///
    /// Any [`Error`] of reading: I/O, a damaged file, a missing part.
    pub fn open_with(path: impl AsRef<Path>, access: Access) -> Result<Self, Error> {
        let path = path.as_ref();
        let name: Arc<str> = path.to_string_lossy().into();
        let contents = map::contents(path, &name, access)?;
        let header = header::parse(&contents.bytes, &name, 0)?;
        let split = Split::of(&header.metadata)?;
        let mut file = Self::new(name, contents, header)?;
        if let Some(split) = split {
            split.check_first(path, &file.name)?;
            file.add_parts(path, access, split)?;
        }
        Ok(file)
    }

    /// Opens a model that is in memory, such as one embedded in a program.
    ///
    /// # Errors
    ///
    /// Any [`Error`] of a damaged file; [`Error::SplitInMemory`] if it is one part of several.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use fucina_gguf::{Error, File};
    ///
    /// let error = File::from_bytes(Bytes::from_static(b"GGML")).unwrap_err();
    /// assert!(matches!(error, Error::NotGguf { .. }));
    /// ```
    pub fn from_bytes(bytes: Bytes) -> Result<Self, Error> {
        let name: Arc<str> = "<memory>".into();
        let header = header::parse(&bytes, &name, 0)?;
        if let Some(split) = Split::of(&header.metadata)? {
            return Err(split.in_memory(&name));
        }
        Self::new(name, Contents::given(bytes), header)
    }

    fn new(name: Arc<str>, contents: Contents, header: Header) -> Result<Self, Error> {
        let Header { version, alignment, metadata, tensors } = header;
        let mut file = Self {
            name,
            version,
            alignment,
            metadata,
            tensors: Vec::new(),
            index: HashMap::with_capacity(tensors.len()),
            parts: Vec::new(),
            access: contents.used.clone(),
        };
        file.add_part(contents, tensors)?;
        Ok(file)
    }

    fn add_part(&mut self, contents: Contents, tensors: Vec<TensorInfo>) -> Result<(), Error> {
        self.parts.push(contents);
        for info in tensors {
            if self.index.insert(Arc::clone(&info.name), self.tensors.len()).is_some() {
                let (file, tensor) = (Arc::clone(&info.file), (&*info.name).into());
                return Err(Error::DuplicateTensor { file, tensor });
            }
            self.tensors.push(info);
        }
        Ok(())
    }

    /// Opens the second and later parts.
    fn add_parts(&mut self, first: &Path, access: Access, split: Split) -> Result<(), Error> {
        for part in 1..split.count {
            let path = split::part_path(first, part, split.count)
                .ok_or_else(|| split.bad_name(&self.name))?;
            let name: Arc<str> = path.to_string_lossy().into();
            let contents = map::contents(&path, &name, access)
                .map_err(|e| split.missing_part(e, &self.name, part))?;
            let header = header::parse(&contents.bytes, &name, self.parts.len())?;
            split.check_part(&header.metadata, &name, part)?;
            if contents.used != AccessUsed::Mapped {
                self.access = contents.used.clone();
            }
            self.add_part(contents, header.tensors)?;
        }
        split.check_tensors(self.tensors.len(), &self.name)
    }

    /// The path that was opened, or `<memory>`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The GGUF version, 2 or 3. Of a split model, that of the first part.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whether the file is mapped or read, and why.
    #[must_use]
    pub fn access(&self) -> &AccessUsed {
        &self.access
    }

    /// Alignment of tensor data inside the file, in bytes. The address in memory may be aligned
    /// less if the bytes were [given](Self::from_bytes).
    #[must_use]
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// The bytes of a part before its first tensor: counts, metadata and tensor table. `None` if
    /// there is no such part.
    #[must_use]
    pub fn header_bytes(&self, part: usize) -> Option<&[u8]> {
        let bytes = &self.parts.get(part)?.bytes;
        let tensors = self.tensors.iter().filter(|info| info.part == part);
        Some(&bytes[..tensors.map(|info| info.start).min().unwrap_or(bytes.len())])
    }

    /// Length of the file in bytes; of a split model, all parts together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.len() as u64).sum()
    }

    /// Bytes of all tensors together, without header and padding.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|info| info.len_bytes as u64).sum()
    }

    /// Number of files: 1 unless the model is split.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The metadata. Of a split model, that of the first part.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`, if there is one.
    #[must_use]
    pub fn tensor_opt(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    ///
    /// [`Error::MissingTensor`].
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.tensor_opt(name).ok_or_else(|| Error::MissingTensor {
            file: Arc::clone(&self.name),
            tensor: name.into(),
        })
    }

    /// The bytes of a tensor of this file: a slice of the file that shares ownership, not a copy.
    /// It may start at any address.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignTensor`] if `info` is not from this file.
    pub fn tensor_data(&self, info: &TensorInfo) -> Result<Bytes, Error> {
        // Equality includes position and size, which are checked against the file.
        match self.tensor_opt(&info.name) {
            Some(own) if own == info => {
                Ok(self.parts[own.part].bytes.slice(own.start..own.start + own.len_bytes))
            }
            _ => Err(Error::ForeignTensor {
                file: Arc::clone(&self.name),
                tensor: (&*info.name).into(),
            }),
        }
    }

    /// Says that the first `len_bytes` bytes of a tensor are not needed soon. If the file is
    /// mapped, their pages leave this process's memory; a later access reads them from the file
    /// again. For a loader that makes a copy in a layout of its own.
    pub fn release(&self, info: &TensorInfo, len_bytes: usize) {
        if self.tensor_opt(&info.name) == Some(info) {
            let end = info.start + len_bytes.min(info.len_bytes);
            self.parts[info.part].release(info.start..end);
        }
    }
}
