//! Keys and values of the tokens seen so far. The only type that writes a storage in part.
//!
//! The cache owns its storages, so no other tensor can see them change. An append writes rows
//! that no command reads yet: it waits only for readers whose rows overlap.

use fucina_dtype::DType;
use fucina_kernels::attention::Params;
use fucina_kernels::convert;
use zerocopy::FromBytes;

use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::tensor::DynTensor;

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
}

impl KvShape {
    /// Bytes that a cache of f16 takes. `None` if they do not fit `usize`.
    pub fn bytes(&self) -> Option<usize> {
        let row = self.k_dim.checked_add(self.v_dim)?.checked_mul(self.kv_heads)?.checked_mul(2)?;
        row.checked_mul(self.capacity)?.checked_mul(self.layers)
    }
}

/// An f16 cache: for each layer, `[capacity, kv_heads, dim]` of keys and of values.
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
    /// Fails without room for a position, or without memory.
    pub fn new(rt: &Runtime, shape: KvShape) -> Result<Self> {
        if shape.capacity == 0 || shape.bytes().is_none() {
            return Err(Error::CacheFull {
                capacity: shape.capacity,
                wanted: shape.capacity.max(1),
            });
        }
        let half = |dim| rt.empty(DType::F16, &[shape.capacity, shape.kv_heads, dim], "kv_cache");
        let layer = |_| Ok((half(shape.k_dim)?, half(shape.v_dim)?));
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
        let (op, KvShape { kv_heads, k_dim, v_dim, .. }) = ("kv_cache", self.shape);
        let tokens = k.shape().first().copied().unwrap_or(0);
        for (new, dim) in [(k, k_dim), (v, v_dim)] {
            if new.shape() != [tokens, kv_heads, dim] {
                let why = "keys and values are [tokens, kv_heads, dim] of the cache";
                return Err(Error::Shape { op, shape: new.dims(), why });
            }
        }
        self.reserve(tokens)?;
        let start = self.len;
        let (keys, values) = &mut self.layers[layer];
        for (into, new, dim) in [(keys, k, k_dim), (values, v, v_dim)] {
            let new = new.to_f32()?.contiguous()?;
            let row = kv_heads * dim;
            let isa = new.runtime().isa();
            let bytes = into.bytes_range_mut(start * row * 2..(start + tokens) * row * 2, op)?;
            let halves = <[u16]>::mut_from_bytes(bytes)
                .map_err(|_| Error::Unaligned { op, dtype: DType::F16 })?;
            convert::f32_to_f16(isa, new.data()?, halves);
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

    /// Attention of `q`, `[tokens, heads, dim]`, over the held positions of one layer and the
    /// `tokens` just appended.
    ///
    /// # Errors
    ///
    /// As [`DynTensor::attention`].
    ///
    /// # Panics
    ///
    /// Panics if there is no such layer.
    pub fn attend(&self, layer: usize, q: &DynTensor, params: &Params) -> Result<DynTensor> {
        let tokens = q.shape().first().copied().unwrap_or(0);
        self.reserve(tokens)?;
        let (keys, values) = &self.layers[layer];
        let len = self.len + tokens;
        q.attention(&keys.narrow(0, 0, len)?, &values.narrow(0, 0, len)?, params)
    }
}
