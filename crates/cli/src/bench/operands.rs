//! Operands of a benchmark: pseudo-random, so that no kernel and no memory has it easier than with
//! a model.

use bytes::Bytes;
use fucina::{DType, DynTensor, Runtime};

/// Magnitudes of the source's operands.
const X: f32 = 0.25;
const WEIGHT: f32 = 0.0625;

/// Rows of weights that differ; further ones repeat them. A prime, so that no tile of a kernel
/// sees the same rows as the next.
const DISTINCT_ROWS: usize = 251;

/// Pseudo-random numbers.
pub(in crate::bench) struct Random(u64);

impl Random {
    pub(in crate::bench) fn new(seed: usize) -> Self {
        Self(seed as u64 ^ 0x9e37_79b9_7f4a_7c15)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.0 >> 32
    }

    /// From `-size` to `size`.
    #[expect(clippy::cast_precision_loss, reason = "24 bits fit an f32")]
    pub(in crate::bench) fn within(&mut self, size: f32) -> f32 {
        ((self.bits() >> 8) as f32 / 8_388_608.0 - 1.0) * size
    }

    pub(in crate::bench) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.bits()).unwrap_or(0) % limit.max(1)
    }
}

/// Weights `[n, k]` as a file has them.
#[derive(Clone)]
pub(in crate::bench) struct Weights {
    pub(in crate::bench) dtype: DType,
    pub(in crate::bench) n: usize,
    pub(in crate::bench) k: usize,
    pub(in crate::bench) bytes: Bytes,
}

impl Weights {
    pub(in crate::bench) fn random(dtype: DType, n: usize, k: usize) -> anyhow::Result<Self> {
        let mut random = Random::new(n * 31 + k);
        let distinct = DISTINCT_ROWS.min(n);
        let values: Vec<f32> = (0..distinct * k).map(|_| random.within(WEIGHT)).collect();
        let size = |rows: usize| dtype.row_bytes(rows * k).unwrap_or(0);
        let mut rows = vec![0; size(distinct)];
        dtype.encode(&values, &mut rows)?;
        let len = size(n);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len)?;
        while bytes.len() < len {
            let more = rows.len().min(len - bytes.len());
            bytes.extend_from_slice(&rows[..more]);
        }
        Ok(Self { dtype, n, k, bytes: Bytes::from(bytes) })
    }

    /// The same in memory of its own.
    pub(in crate::bench) fn copy(&self) -> anyhow::Result<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.bytes.len())?;
        bytes.extend_from_slice(&self.bytes);
        Ok(Self { bytes: Bytes::from(bytes), ..self.clone() })
    }

    pub(in crate::bench) fn tensor(&self, rt: &Runtime) -> anyhow::Result<DynTensor> {
        Ok(rt.tensor_from_bytes(self.dtype, &[self.n, self.k], self.bytes.clone())?)
    }

    /// The values of one row.
    pub(in crate::bench) fn row(&self, row: usize) -> anyhow::Result<Vec<f32>> {
        let row_bytes = self.bytes.len() / self.n;
        let mut values = vec![0.0; self.k];
        self.dtype.decode(&self.bytes[row * row_bytes..][..row_bytes], &mut values)?;
        Ok(values)
    }
}

/// Activations `[m, k]`.
pub(in crate::bench) fn activations(m: usize, k: usize, seed: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..m * k).map(|_| random.within(X)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_weights_repeat_after_a_prime() {
        let weights = Weights::random(DType::Q8_0, DISTINCT_ROWS + 2, 32).unwrap();
        assert_eq!(weights.row(0).unwrap(), weights.row(DISTINCT_ROWS).unwrap());
        assert_ne!(weights.row(0).unwrap(), weights.row(1).unwrap());
        assert!(weights.row(1).unwrap().iter().all(|w| w.abs() <= 1.01 * WEIGHT));
    }
}
