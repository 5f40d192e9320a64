//! Matrix kernels over weights that are not packed: `out[m, n] = x[m, k] * w[n, k]ᵀ`.
//!
//! Weights are rows as the file has them, at any alignment; activations and sums are f32. A few
//! activation rows are multiplied while the weights stream by, and nothing is copied. For many
//! rows, weights are decoded into scratch memory and multiplied by a blocked GEMM. Threads are the
//! caller's business.

use fucina_dtype::DType;

use crate::isa::Isa;

mod dot;
mod gemm;

pub use gemm::{Matrix, sgemm};

/// Activation rows from which decoding and a blocked GEMM win over streaming the weights.
const GEMM_ROWS: usize = 24;

/// Elements of scratch memory that [`matmul_rows`] needs for weights `[nr, k]` and `m` rows.
///
/// # Panics
///
/// Panics if `nr * k` does not fit `usize`.
pub fn scratch_len(dtype: DType, m: usize, nr: usize, k: usize) -> usize {
    if streams(dtype) && m < GEMM_ROWS {
        return 0;
    }
    nr.checked_mul(k).expect("a weight fits the address space")
}

/// Consecutive rows of a weight.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Format of the rows.
    pub dtype: DType,
    /// Elements of a row.
    pub k: usize,
    /// The rows, one after the other, at any alignment.
    pub bytes: &'a [u8],
}

fn streams(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Rows of a weight, `[nr, k]`, times activations, `x: [m, k]`. `out`, `[m, nr]`, is overwritten.
/// `scratch` has at least [`scratch_len`] elements of any value.
///
/// The additions of a dot product may be reordered. NaN and infinities behave as in f32.
///
/// # Panics
///
/// Panics if the weight is not whole rows of `k` elements, or if another slice does not have its size.
pub fn matmul_rows(isa: Isa, w: Rows<'_>, x: &[f32], out: &mut [f32], scratch: &mut [f32]) {
    let Rows { dtype, k, bytes } = w;
    let row_bytes = dtype.row_bytes(k).expect("a row is whole blocks");
    if row_bytes == 0 {
        out.fill(0.0);
        return;
    }
    let (nr, m) = (bytes.len() / row_bytes, x.len() / k);
    assert_eq!(bytes.len(), nr * row_bytes, "bytes of the weight rows");
    assert_eq!(x.len(), m * k, "elements of x");
    assert_eq!(Some(out.len()), m.checked_mul(nr), "elements of out");
    if out.is_empty() {
        return;
    }
    if scratch_len(dtype, m, nr, k) == 0 {
        dot::matmul(isa, w, x, out);
        return;
    }
    let decoded = &mut scratch[..nr * k];
    for (raw, row) in bytes.chunks_exact(row_bytes).zip(decoded.chunks_exact_mut(k)) {
        decode_row(isa, dtype, raw, row);
    }
    sgemm((m, k, nr), Matrix::new(x, k, 1), Matrix::new(decoded, 1, k), out);
}

/// Decodes a row, or any whole blocks of one, as [`DType::decode`] does.
///
/// # Panics
///
/// Panics if `raw` and `out` do not have the same number of elements.
pub fn decode_row(isa: Isa, dtype: DType, raw: &[u8], out: &mut [f32]) {
    if streams(dtype) {
        assert_eq!(Some(raw.len()), dtype.row_bytes(out.len()), "bytes of the row");
        dot::decode(isa, dtype, raw, out);
    } else {
        dtype.decode(raw, out).expect("the row has the size of its elements");
    }
}

#[cfg(test)]
mod tests;
