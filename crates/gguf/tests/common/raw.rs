//! Assembles GGUF bytes field by field, right or wrong, without the crate's writer.

/// Value type ids.
pub(crate) const U32: u32 = 4;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STR: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const U64: u32 = 10;

/// Tensor type ids.
pub(crate) const F32: u32 = 0;
pub(crate) const Q8_0: u32 = 8;

/// Bytes in the making.
#[derive(Default)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// Magic, version 3 and the two counts.
    pub(crate) fn header(n_tensors: u64, n_entries: u64) -> Self {
        Self::default().bytes(b"GGUF").u32(3).u64(n_tensors).u64(n_entries)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn str(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    /// Key and value type.
    pub(crate) fn key(self, key: &str, value_type: u32) -> Self {
        self.str(key.as_bytes()).u32(value_type)
    }

    pub(crate) fn entry_u32(self, key: &str, value: u32) -> Self {
        self.key(key, U32).u32(value)
    }

    /// A description of a tensor called `w`.
    pub(crate) fn tensor(self, dims: &[u64], ggml_type: u32, offset: u64) -> Self {
        self.named("w", dims, ggml_type, offset)
    }

    pub(crate) fn named(self, name: &str, dims: &[u64], ggml_type: u32, offset: u64) -> Self {
        let n_dims = u32::try_from(dims.len()).expect("few dimensions");
        let out = self.str(name.as_bytes()).u32(n_dims);
        dims.iter().fold(out, |out, &dim| out.u64(dim)).u32(ggml_type).u64(offset)
    }

    /// Zeros up to a multiple of `alignment`.
    pub(crate) fn pad(mut self, alignment: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self
    }

    /// Padding as the default alignment has it, then `len` bytes of tensor data.
    pub(crate) fn data(self, len: u8) -> Self {
        let bytes: Vec<u8> = (0..len).collect();
        self.pad(32).bytes(&bytes)
    }
}
