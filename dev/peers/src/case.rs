//! One product with its operands, and how right a result is.

use anyhow::{Context as _, Result, ensure};
use fucina_dtype::DType;

use crate::contenders::Out;

/// Rows of weights that differ; further ones repeat them.
const DISTINCT_ROWS: usize = 251;
/// Bytes of weights that calls go through before they meet the first again, and most copies.
const CYCLE_BYTES: usize = 256 << 20;
const MAX_COPIES: usize = 128;
/// Elements of a result that are computed again in f64.
const SAMPLES: usize = 256;
/// Most elements of an operand.
const MAX_ELEMS: usize = 1 << 28;

/// `[n, k]`, as a file has them.
pub(crate) struct Weights {
    pub(crate) dtype: DType,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) bytes: Vec<u8>,
}

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 32) as u32
    }

    fn within(&mut self, size: f32) -> f32 {
        ((self.bits() >> 8) as f32 / 8_388_608.0 - 1.0) * size
    }

    fn below(&mut self, limit: usize) -> usize {
        self.bits() as usize % limit
    }
}

impl Weights {
    pub(crate) fn new(format: &str, n: usize, k: usize) -> Result<Self> {
        let dtype = DType::from_name(format).context("unknown format")?;
        ensure!(n > 0 && k > 0 && fits(n, k) && k.is_multiple_of(dtype.unit().0), "size");
        let mut random = Random((n * 31 + k) as u64 ^ 0x9e37_79b9_7f4a_7c15);
        let distinct = DISTINCT_ROWS.min(n);
        let values: Vec<f32> = (0..distinct * k).map(|_| random.within(0.0625)).collect();
        let size = |rows: usize| dtype.row_bytes(rows * k).context("size");
        let mut rows = vec![0; size(distinct)?];
        dtype.encode(&values, &mut rows)?;
        let len = size(n)?;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            bytes.extend_from_slice(&rows[..rows.len().min(len - bytes.len())]);
        }
        Ok(Self { dtype, n, k, bytes })
    }

    /// How many copies that take so many bytes each calls go through.
    pub(crate) fn copies(&self, bytes: usize) -> usize {
        CYCLE_BYTES.div_ceil(bytes.max(1)).clamp(1, MAX_COPIES)
    }

    /// As f32, decoded.
    #[cfg(any(feature = "candle", feature = "dense"))]
    pub(crate) fn decoded(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.n * self.k];
        self.dtype.decode(&self.bytes, &mut values)?;
        Ok(values)
    }

    /// `[m, k]`.
    pub(crate) fn activations(&self, m: usize) -> Result<Vec<f32>> {
        ensure!(m > 0 && fits(m, self.k) && fits(m, self.n), "size");
        let mut random = Random(m as u64);
        Ok((0..m * self.k).map(|_| random.within(0.25)).collect())
    }

    /// Error of some elements of a product against f64: root mean square, relative.
    pub(crate) fn error(&self, x: &[f32], out: &Out) -> Result<f64> {
        let (m, out) = (x.len() / self.k, out.values()?);
        ensure!(out.len() == m * self.n, "a result of {} elements", out.len());
        let mut random = Random(out.len() as u64);
        let (mut errors, mut squares) = (0.0, 0.0);
        let row_bytes = self.bytes.len() / self.n;
        let mut row = vec![0.0; self.k];
        for _ in 0..SAMPLES {
            let (i, j) = (random.below(m), random.below(self.n));
            self.dtype.decode(&self.bytes[j * row_bytes..][..row_bytes], &mut row)?;
            let x = &x[i * self.k..][..self.k];
            let want: f64 = x.iter().zip(&row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            let error = f64::from(out[i * self.n + j]) - want;
            errors += error * error;
            squares += want * want;
        }
        let error = (errors / squares.max(f64::MIN_POSITIVE)).sqrt();
        ensure!(!error.is_nan(), "the result is not a number");
        Ok(error)
    }
}

fn fits(a: usize, b: usize) -> bool {
    a.checked_mul(b).is_some_and(|all| all <= MAX_ELEMS)
}
