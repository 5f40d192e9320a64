//! Keys and values of the tokens seen so far. The only type that writes a storage in part.
//!
//! The cache owns its storages, so no other tensor can see them change. An append writes rows
//! that no command reads yet: it waits only for readers whose rows overlap.

use std::ops::Range;

use fucina_accel::Storage;
use fucina_dtype::{BlockQ8_0, DType};
use fucina_kernels::attention::Params;
use fucina_kernels::convert;
use fucina_kernels::isa::Isa;
use zerocopy::FromBytes as _;

use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::tensor::DynTensor;

/// How a [`KvCache`] stores keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum CacheType {
    /// 16 bits for each element. Magnitudes beyond 65504 become infinite.
    #[default]
    F16,
    /// Blocks of 32 elements with a scale: 8.5 bits for each element. Heads are whole blocks.
    Q8_0,
}

impl CacheType {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::F16, Self::Q8_0];

    /// The name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Element type.
    pub const fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::Q8_0 => DType::Q8_0,
        }
    }
}

impl std::fmt::Display for CacheType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Sizes of a [`KvCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub layers: usize,
    /// Positions that fit.
    pub capacity: usize,
    /// Key heads of each layer.
    pub kv_heads: usize,
    /// Size of a key head.
    pub k_dim: usize,
    /// Size of a value head.
    pub v_dim: usize,
    /// How they are stored.
    pub cache: CacheType,
}

impl KvShape {
    /// Bytes of the keys, and of the values, of one position of one layer. `None` if heads are not
    /// whole blocks, or if the bytes do not fit `usize`.
    pub fn row_bytes(&self) -> Option<[usize; 2]> {
        let bytes = |dim| self.cache.dtype().row_bytes(dim)?.checked_mul(self.kv_heads);
        Some([bytes(self.k_dim)?, bytes(self.v_dim)?])
    }

    /// Bytes of a cache. `None` as for [`row_bytes`](Self::row_bytes).
    pub fn bytes(&self) -> Option<usize> {
        let [keys, values] = self.row_bytes()?;
        keys.checked_add(values)?.checked_mul(self.capacity)?.checked_mul(self.layers)
    }

    fn check(&self) -> Result<()> {
        for dim in [self.k_dim, self.v_dim] {
            if !dim.is_multiple_of(self.cache.dtype().unit().0) {
                return Err(Error::CacheHead { cache: self.cache, dim });
            }
        }
        if self.capacity > 0 && self.bytes().is_some() {
            return Ok(());
        }
        Err(Error::CacheFull { capacity: self.capacity, wanted: self.capacity.max(1) })
    }
}

const OP: &str = "kv_cache";

/// For each layer, `[capacity, kv_heads, dim]` of keys and of values.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<(DynTensor, DynTensor)>,
    shape: KvShape,
    len: usize,
}

impl KvCache {
    /// A cache without positions.
    ///
    /// # Errors
    ///
    /// Fails without room for a position, if heads are not whole blocks of the type, or without
    /// memory.
    pub fn new(rt: &Runtime, shape: KvShape) -> Result<Self> {
        shape.check()?;
        let dtype = shape.cache.dtype();
        let rows = |dim| rt.empty(dtype, &[shape.capacity, shape.kv_heads, dim], OP);
        let layer = |_| Ok((rows(shape.k_dim)?, rows(shape.v_dim)?));
        let layers = (0..shape.layers).map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, shape, len: 0 })
    }

    /// Sizes.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reports whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Checks that `tokens` more positions fit.
    ///
    /// # Errors
    ///
    /// Fails if they do not.
    pub fn reserve(&self, tokens: usize) -> Result<()> {
        let wanted = self.len.saturating_add(tokens);
        if wanted <= self.shape.capacity {
            return Ok(());
        }
        Err(Error::CacheFull { capacity: self.shape.capacity, wanted })
    }

    /// Writes `k` and `v`, `[tokens, kv_heads, dim]`, after the held positions of one layer. The
    /// positions count once [`advance`](Self::advance) is called, after the last layer.
    ///
    /// # Errors
    ///
    /// Fails if they do not fit, or with the device's fault.
    ///
    /// # Panics
    ///
    /// Panics if there is no such layer.
    pub fn append(&mut self, layer: usize, k: &DynTensor, v: &DynTensor) -> Result<()> {
        let KvShape { kv_heads, k_dim, v_dim, cache, .. } = self.shape;
        let tokens = k.shape().first().copied().unwrap_or(0);
        for (new, dim) in [(k, k_dim), (v, v_dim)] {
            if new.shape() != [tokens, kv_heads, dim] {
                let why = "keys and values are [tokens, kv_heads, dim] of the cache";
                return Err(Error::Shape { op: OP, shape: new.dims(), why });
            }
        }
        self.reserve(tokens)?;
        // Both come from a device together.
        Storage::fetch([&**k.storage(), &**v.storage()])?;
        let rows = self.len..self.len + tokens;
        let (keys, values) = &mut self.layers[layer];
        for (into, new, dim) in [(keys, k, k_dim), (values, v, v_dim)] {
            let new = new.to_f32()?.contiguous()?;
            let bytes = byte_range(into, kv_heads * dim, rows.clone());
            let bytes = into.bytes_range_mut(bytes, OP)?;
            write(new.runtime().isa(), cache, new.data()?, bytes)?;
        }
        Ok(())
    }

    /// Counts `tokens` appended positions as held.
    ///
    /// # Errors
    ///
    /// Fails if there is no room for as many.
    pub fn advance(&mut self, tokens: usize) -> Result<()> {
        self.reserve(tokens)?;
        self.len += tokens;
        Ok(())
    }

    /// The stored bytes of the keys, and of the values, of the held positions of one layer.
    ///
    /// # Errors
    ///
    /// Fails with a device's fault.
    ///
    /// # Panics
    ///
    /// Panics if there is no such layer.
    pub fn stored(&self, layer: usize) -> Result<[&[u8]; 2]> {
        let KvShape { kv_heads, k_dim, v_dim, .. } = self.shape;
        let (keys, values) = &self.layers[layer];
        let bytes = |of: &DynTensor, dim| byte_range(of, kv_heads * dim, 0..self.len).end;
        Ok([keys.span(bytes(keys, k_dim))?, values.span(bytes(values, v_dim))?])
    }

    /// Holds `len` positions instead of those held, with the bytes that `fill` writes: for each
    /// layer the keys, then the values, as [`stored`](Self::stored) gives them. After an error no
    /// position is held.
    ///
    /// # Errors
    ///
    /// Fails if they do not fit, with a device's fault, or as `fill` does.
    pub fn restore<E: From<Error>>(
        &mut self,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.len = 0;
        self.reserve(len)?;
        let KvShape { kv_heads, k_dim, v_dim, .. } = self.shape;
        for (keys, values) in &mut self.layers {
            for (into, dim) in [(keys, k_dim), (values, v_dim)] {
                let bytes = byte_range(into, kv_heads * dim, 0..len);
                fill(into.bytes_range_mut(bytes, OP)?)?;
            }
        }
        self.len = len;
        Ok(())
    }

    /// Attention of `q`, `[tokens, heads, dim]`, over the positions of one layer up to the last
    /// query's. The first query is at [`Params::q_offset`], and may come after others of those that
    /// were just appended.
    ///
    /// # Errors
    ///
    /// As [`DynTensor::attention`], and if the last query is outside the cache.
    ///
    /// # Panics
    ///
    /// Panics if there is no such layer.
    pub fn attend(&self, layer: usize, q: &DynTensor, params: &Params) -> Result<DynTensor> {
        let tokens = q.shape().first().copied().unwrap_or(0);
        let len = params.q_offset.saturating_add(tokens);
        self.reserve(len.saturating_sub(self.len))?;
        let (keys, values) = &self.layers[layer];
        q.attention(&keys.narrow(0, 0, len)?, &values.narrow(0, 0, len)?, params)
    }
}

/// The bytes of some rows of `row` elements each.
fn byte_range(tensor: &DynTensor, row: usize, rows: Range<usize>) -> Range<usize> {
    let (unit, unit_bytes) = tensor.dtype().unit();
    let row_bytes = row / unit * unit_bytes;
    rows.start * row_bytes..rows.end * row_bytes
}

/// Rounds `x` to the type of the cache.
fn write(isa: Isa, cache: CacheType, x: &[f32], out: &mut [u8]) -> Result<()> {
    let unaligned = Error::Unaligned { op: OP, dtype: cache.dtype() };
    match cache {
        CacheType::F16 => {
            let halves = <[u16]>::mut_from_bytes(out).map_err(|_| unaligned)?;
            convert::f32_to_f16(isa, x, halves);
        }
        CacheType::Q8_0 => {
            let blocks = <[BlockQ8_0]>::mut_from_bytes(out).map_err(|_| unaligned)?;
            convert::f32_to_q8_0(isa, x, blocks);
        }
    }
    Ok(())
}
