//! Matrix kernels over weights that are not packed: `out[m, n] = x[m, k] * w[n, k]ᵀ`.
//!
//! Weights are rows as the file has them, at any alignment; activations and sums are f32. Very few
//! activation rows are multiplied while the weights stream by, and nothing is copied. For some more,
//! activations are packed, and for many both operands: [`Route`] has the numbers. Threads are the
//! caller's business.

use fucina_dtype::DType;
use zerocopy::{FromBytes, IntoBytes};

use crate::isa::Isa;

mod dot;
mod few;
mod gemm;
mod route;
mod split;
mod wide;

pub use few::Few;
pub use gemm::{
    Lhs, Matrix, MatrixMut, Rhs, column_step, multiply, multiply_scratch_len, pack_lhs,
    packed_lhs_len, row_step,
};
pub use route::Route;
pub use split::{SPLIT_BLOCK, SPLIT_ROWS, Split};
pub use wide::{Wide, multiply_wide, wide_scratch_len};

/// Rows from which [`matmul_rows`] packs both operands: it does so for each call again.
const fn many_rows(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 16,
        _ => 32,
    }
}

/// Rows from which [`matmul_rows`] packs activations, for each call again.
const PACKED_ROWS: usize = 9;

/// The kernel that [`matmul_rows`] takes for `m` rows of activations. It does not depend on the
/// number of weights: results must not show how they were cut into tasks.
fn route(isa: Isa, dtype: DType, m: usize) -> Route {
    match Route::new(isa, dtype, m) {
        Route::Blocked if m < many_rows(dtype) => Route::Stream,
        Route::Few(_) if m < PACKED_ROWS => Route::Stream,
        route => route,
    }
}

/// Elements of scratch memory that [`matmul_rows`] needs for weights `[nr, k]` and `m` rows.
///
/// # Panics
///
/// Panics if the size does not fit `usize`.
pub fn scratch_len(isa: Isa, dtype: DType, (m, nr): (usize, usize), k: usize) -> usize {
    let fits = "a product fits the address space";
    if dtype.is_block() {
        let decoded = nr.checked_mul(k).expect(fits);
        return decoded.checked_add(scratch_len(isa, DType::F32, (m, nr), k)).expect(fits);
    }
    match route(isa, dtype, m) {
        Route::Blocked => {
            let packed = packed_lhs_len(isa, m, k).expect(fits);
            packed.checked_add(multiply_scratch_len(nr, k)).expect(fits)
        }
        Route::Few(few) => {
            let packed = few.packed_len(k).expect(fits);
            packed.checked_add(few.scratch_len()).expect(fits)
        }
        Route::Split(plan) => {
            let packed = split_len(m, k);
            packed.checked_add(plan.scratch_len(m, nr)).expect(fits)
        }
        Route::Stream => 0,
    }
}

/// Words of `m` packed rows of `k` elements.
fn split_len(m: usize, k: usize) -> usize {
    let words = m.div_ceil(SPLIT_BLOCK).checked_mul(Split::block_words(k));
    words.expect("a product fits the address space")
}

/// Consecutive rows of a weight.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Format of the rows: a scalar float or a block format.
    pub dtype: DType,
    /// Elements of a row.
    pub k: usize,
    /// The rows, one after the other, at any alignment.
    pub bytes: &'a [u8],
}

/// Rows of a weight, `[nr, k]`, times activations, `x: [m, k]`. `out`, `[m, nr]`, is overwritten.
/// `scratch` has at least [`scratch_len`] elements of any value.
///
/// The additions of a dot product may be reordered. NaN and infinities behave as in f32, except for
/// rows that go through [`Split`].
///
/// # Panics
///
/// Panics if the weight is not whole rows of `k` floats or blocks, or if another slice does not
/// have its size.
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
    if dtype.is_block() {
        let (decoded, scratch) = scratch.split_at_mut(nr * k);
        decode_row(isa, dtype, bytes, decoded);
        let w = Rows { dtype: DType::F32, k, bytes: decoded.as_bytes() };
        multiply_floats(isa, w, x, out, scratch);
    } else {
        multiply_floats(isa, w, x, out, scratch);
    }
}

/// [`matmul_rows`] by dot products, the kernel of [`Route::Stream`], for any number of rows.
///
/// # Panics
///
/// As [`matmul_rows`], and if the weight is not scalar floats or `k` is zero.
pub fn stream_rows(isa: Isa, w: Rows<'_>, x: &[f32], out: &mut [f32]) {
    let row_bytes = w.dtype.row_bytes(w.k).expect("a row is whole blocks");
    assert!(w.k > 0 && !w.dtype.is_block(), "a weight of scalar floats");
    let (nr, m) = (w.bytes.len() / row_bytes, x.len() / w.k);
    assert_eq!(w.bytes.len(), nr * row_bytes, "bytes of the weight rows");
    assert_eq!(x.len(), m * w.k, "elements of x");
    assert_eq!(Some(out.len()), m.checked_mul(nr), "elements of out");
    if !out.is_empty() {
        dot::matmul(isa, w, x, out);
    }
}

/// [`matmul_rows`] of floats, once all sizes are checked and none is zero.
fn multiply_floats(isa: Isa, w: Rows<'_>, x: &[f32], out: &mut [f32], scratch: &mut [f32]) {
    let (k, m) = (w.k, x.len() / w.k);
    let nr = out.len() / m;
    let few = match route(isa, w.dtype, m) {
        Route::Stream => return dot::matmul(isa, w, x, out),
        Route::Split(plan) => {
            let (packed, scratch) = scratch.split_at_mut(split_len(m, k));
            let words = <[u32]>::mut_from_bytes(packed.as_mut_bytes()).unwrap_or_default();
            let blocks = words.chunks_exact_mut(Split::block_words(k));
            x.chunks(SPLIT_BLOCK * k).zip(blocks).for_each(|(x, out)| plan.pack(x, k, out));
            return plan.multiply(w, (words, m), out, scratch);
        }
        Route::Few(few) => Some(few),
        Route::Blocked => None,
    };
    let packed = few.map_or_else(|| packed_lhs_len(isa, m, k), |few| few.packed_len(k));
    let packed = packed.expect("the scratch memory has them");
    let (packed, scratch) = scratch.split_at_mut(packed);
    if let Some(few) = few {
        for (block, out) in packed.chunks_mut(few.block_len()).enumerate() {
            few.pack(x, k, block, out);
        }
        return few.multiply(w, packed, out, scratch);
    }
    let x = Matrix::new(x, k, 1);
    pack_lhs(isa, (x, m, k), 0..m, packed);
    let (lhs, mut out) = (Lhs::new(isa, packed, m, k), MatrixMut::new(out, m, nr));
    multiply(isa, (lhs, 0..m), Rhs::Rows(w), &mut out, scratch);
}

/// Decodes any number of whole blocks, such as a row, as [`DType::decode`] does.
///
/// # Panics
///
/// Panics if `raw` and `out` do not have the same number of elements.
pub fn decode_row(isa: Isa, dtype: DType, raw: &[u8], out: &mut [f32]) {
    if matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        assert_eq!(Some(raw.len()), dtype.row_bytes(out.len()), "bytes of the row");
        dot::decode(isa, dtype, raw, out);
    } else {
        dtype.decode(raw, out).expect("the row has the size of its elements");
    }
}

#[cfg(test)]
mod tests;
