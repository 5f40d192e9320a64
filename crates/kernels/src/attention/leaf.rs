//! The inner loops of attention, all over f32.

use fucina_dtype::BlockQ8_0;

use crate::convert::Q8_0_ELEMS;
use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

/// A matrix of rows, `[count, width]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a, T = f32> {
    pub(super) data: &'a [T],
    /// Elements between consecutive rows.
    pub(super) stride: usize,
    pub(super) count: usize,
    pub(super) width: usize,
}

impl<'a, T> Rows<'a, T> {
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> &'a [T] {
        &self.data[i * self.stride..][..self.width]
    }
}

/// Elements of `rhs` whose columns, 64 at a time, stay in the first level of cache. Their rows are
/// `n` elements apart, so with more columns fewer sets of the cache hold them.
const STRIP: usize = 8192;

/// `out += lhs * rhs`, with `lhs` `[m, k]`, `rhs` `[k, n]` and `out` `[m, n]`, the latter two
/// without gaps and `n` a multiple of 16.
///
/// The products of some consecutive `k` are summed apart and then added to `out`: as many as keep a
/// strip of columns of `rhs` in the first level of cache, where all rows meet it.
pub(super) fn matmul_add(isa: Isa, lhs: Rows<'_>, rhs: &[f32], n: usize, out: &mut [f32]) {
    assert!(n.is_multiple_of(16), "{n} columns are not whole vectors");
    assert_eq!(rhs.len(), lhs.width * n, "size of rhs");
    assert_eq!(out.len(), lhs.count * n, "size of out");
    if out.is_empty() {
        return;
    }
    let step = (STRIP / n).max(16);
    for first in (0..lhs.width).step_by(step) {
        let width = step.min(lhs.width - first);
        let lhs = Rows { data: &lhs.data[first..], width, ..lhs };
        strip(isa, lhs, &rhs[first * n..][..width * n], n, out);
    }
}

/// [`matmul_add`] of few `k`.
fn strip(isa: Isa, lhs: Rows<'_>, rhs: &[f32], n: usize, out: &mut [f32]) {
    match isa {
        Isa::Scalar => scalar::matmul_add(lhs, rhs, n, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(_) => unsafe { avx2::matmul_add(lhs, rhs, n, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F, and what AVX2's token proves.
        Isa::Avx512Vnni(_) => unsafe { avx512::matmul_add(lhs, rhs, n, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::matmul_add(lhs, rhs, n, out) },
    }
}

/// Writes `rows` as columns: `out` is `[width, n]`, and columns from `rows.count` on are zero.
pub(super) fn transpose(isa: Isa, rows: Rows<'_>, n: usize, out: &mut [f32]) {
    assert!(n.is_multiple_of(16), "{n} columns are not whole vectors");
    assert!(rows.count <= n, "{} rows do not fit {n} columns", rows.count);
    assert_eq!(out.len(), rows.width * n, "size of out");
    match isa {
        Isa::Scalar => scalar::transpose(rows, 0, n, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(_) => unsafe { avx2::transpose(rows, n, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F, and what AVX2's token proves.
        Isa::Avx512Vnni(_) => unsafe { avx512::transpose(rows, n, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::transpose(rows, n, out) },
    }
}

/// `out[i] = q · rows[i]`.
pub(super) fn dots(isa: Isa, q: &[f32], rows: Rows<'_>, out: &mut [f32]) {
    assert_eq!(q.len(), rows.width, "query and keys differ in length");
    assert_eq!(out.len(), rows.count, "size of out");
    match isa {
        Isa::Scalar => scalar::dots(q, rows, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(_) => unsafe { avx2::dots(q, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F, and what AVX2's token proves.
        Isa::Avx512Vnni(_) => unsafe { avx512::dots(q, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::dots(q, rows, out) },
    }
}

/// [`dots`] with rows of f16 bits.
pub(super) fn dots_f16(isa: Isa, q: &[f32], rows: Rows<'_, u16>, out: &mut [f32]) {
    assert_eq!(q.len(), rows.width, "query and keys differ in length");
    assert_eq!(out.len(), rows.count, "size of out");
    match isa {
        Isa::Scalar => scalar::dots_f16(q, rows, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(_) => unsafe { avx2::dots_f16(q, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F, and what AVX2's token proves.
        Isa::Avx512Vnni(_) => unsafe { avx512::dots_f16(q, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::dots_f16(q, rows, out) },
    }
}

/// [`dots`] with rows of blocks.
pub(super) fn dots_q8_0(isa: Isa, q: &[f32], rows: Rows<'_, BlockQ8_0>, out: &mut [f32]) {
    assert_eq!(q.len(), rows.width * Q8_0_ELEMS, "query and keys differ in length");
    assert_eq!(out.len(), rows.count, "size of out");
    match isa {
        Isa::Scalar => scalar::dots_q8_0(q, rows, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(_) => unsafe { avx2::dots_q8_0(q, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F, and what AVX2's token proves.
        Isa::Avx512Vnni(_) => unsafe { avx512::dots_q8_0(q, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::dots_q8_0(q, rows, out) },
    }
}

/// `out += sum over i of weights[i] * rows[i]`. The sum is made apart and then added.
pub(super) fn mix(isa: Isa, weights: &[f32], rows: Rows<'_>, out: &mut [f32]) {
    assert_eq!(weights.len(), rows.count, "one weight for each row");
    assert_eq!(out.len(), rows.width, "size of out");
    match isa {
        Isa::Scalar => scalar::mix(weights, rows, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(_) => unsafe { avx2::mix(weights, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F, and what AVX2's token proves.
        Isa::Avx512Vnni(_) => unsafe { avx512::mix(weights, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::mix(weights, rows, out) },
    }
}

/// [`mix`] with rows of f16 bits.
pub(super) fn mix_f16(isa: Isa, weights: &[f32], rows: Rows<'_, u16>, out: &mut [f32]) {
    assert_eq!(weights.len(), rows.count, "one weight for each row");
    assert_eq!(out.len(), rows.width, "size of out");
    match isa {
        Isa::Scalar => scalar::mix_f16(weights, rows, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(_) => unsafe { avx2::mix_f16(weights, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F, and what AVX2's token proves.
        Isa::Avx512Vnni(_) => unsafe { avx512::mix_f16(weights, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::mix_f16(weights, rows, out) },
    }
}

/// [`mix`] with rows of blocks.
pub(super) fn mix_q8_0(isa: Isa, weights: &[f32], rows: Rows<'_, BlockQ8_0>, out: &mut [f32]) {
    assert_eq!(weights.len(), rows.count, "one weight for each row");
    assert_eq!(out.len(), rows.width * Q8_0_ELEMS, "size of out");
    match isa {
        Isa::Scalar => scalar::mix_q8_0(weights, rows, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(_) => unsafe { avx2::mix_q8_0(weights, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F, and what AVX2's token proves.
        Isa::Avx512Vnni(_) => unsafe { avx512::mix_q8_0(weights, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::mix_q8_0(weights, rows, out) },
    }
}

#[cfg(test)]
mod tests;
