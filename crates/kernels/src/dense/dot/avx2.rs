#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, _mm_setzero_si128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_setzero_ps, _mm256_slli_epi32,
};

use fucina_dtype::DType;

use super::{Elem, Product};
use crate::isa::x86::{load_f32x8, load_u8x16, load_u8x32, store_f32x8, sum_f32x8};

/// Elements of a register.
const LANES: usize = 8;

/// Three weight rows are loaded for up to four activation rows.
#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn matmul<E: Elem>(product: Product<'_>, out: &mut [f32]) {
    let rows = product.weight_rows::<E>();
    let mut first = 0;
    while rows - first >= 3 {
        weights::<E, 3>(product, first, out);
        first += 3;
    }
    while rows - first >= 1 {
        weights::<E, 1>(product, first, out);
        first += 1;
    }
}

/// `NR` weight rows times all activation rows.
#[target_feature(enable = "avx2,f16c,fma")]
fn weights<E: Elem, const NR: usize>(product: Product<'_>, w: usize, out: &mut [f32]) {
    let rows = product.activation_rows();
    let mut first = 0;
    while rows - first >= 4 {
        tile::<E, NR, 4>(product, (first, w), out);
        first += 4;
    }
    if rows - first >= 2 {
        tile::<E, NR, 2>(product, (first, w), out);
        first += 2;
    }
    if rows - first >= 1 {
        tile::<E, NR, 1>(product, (first, w), out);
    }
}

#[target_feature(enable = "avx2,f16c,fma")]
fn tile<E: Elem, const NR: usize, const MR: usize>(
    p: Product<'_>,
    (row, col): (usize, usize),
    out: &mut [f32],
) {
    let (w, x) = (p.weights::<E, NR>(col), p.activations::<MR>(row));
    let x = x.map(|x| x.as_chunks::<LANES>());
    let chunk = LANES * E::BYTES;
    let mut sums = [[_mm256_setzero_ps(); MR]; NR];
    for i in 0..p.k / LANES {
        let mut weights = [_mm256_setzero_ps(); NR];
        for (to, w) in weights.iter_mut().zip(w) {
            *to = load::<E>(&w[i * chunk..][..chunk]);
        }
        for r in 0..MR {
            let x = load_f32x8(&x[r].0[i]);
            for j in 0..NR {
                sums[j][r] = _mm256_fmadd_ps(weights[j], x, sums[j][r]);
            }
        }
    }
    let columns = p.weight_rows::<E>();
    for r in 0..MR {
        let x = padded(x[r].1);
        for j in 0..NR {
            let w = load_padded::<E>(&w[j][p.k / LANES * chunk..]);
            let sum = sum_f32x8(_mm256_fmadd_ps(w, load_f32x8(&x), sums[j][r]));
            out[(row + r) * columns + col + j] = sum;
        }
    }
}

/// The rest of a row, with zeros behind it.
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

/// As [`load`], for the rest of a row.
#[target_feature(enable = "avx2,f16c,fma")]
fn load_padded<E: Elem>(rest: &[u8]) -> __m256 {
    let mut padded = [0; 32];
    padded[..rest.len()].copy_from_slice(rest);
    load::<E>(&padded[..LANES * E::BYTES])
}

/// Loads a register of elements as f32.
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
pub(in super::super) fn load<E: Elem>(bytes: &[u8]) -> __m256 {
    match E::DTYPE {
        DType::F16 => {
            let bits = bytes.first_chunk().map_or_else(|| _mm_setzero_si128(), |b| load_u8x16(b));
            _mm256_cvtph_ps(bits)
        }
        DType::BF16 => {
            let bits = bytes.first_chunk().map_or_else(|| _mm_setzero_si128(), |b| load_u8x16(b));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
        }
        _ => match bytes.first_chunk() {
            Some(bytes) => _mm256_castsi256_ps(load_u8x32(bytes)),
            None => _mm256_setzero_ps(),
        },
    }
}

#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn decode<E: Elem>(raw: &[u8], out: &mut [f32]) {
    let raw = raw.chunks_exact(LANES * E::BYTES);
    let (out, rest) = out.as_chunks_mut::<LANES>();
    let raw_rest = raw.remainder();
    for (raw, out) in raw.zip(out) {
        store_f32x8(out, load::<E>(raw));
    }
    for (raw, out) in raw_rest.chunks_exact(E::BYTES).zip(rest) {
        *out = E::decode(raw);
    }
}
