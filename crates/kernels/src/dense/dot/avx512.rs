#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m512, _mm256_setzero_si256, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_fmadd_ps, _mm512_setzero_ps, _mm512_slli_epi32,
};

use fucina_dtype::DType;

use super::{Elem, Product};
use crate::isa::x86::{
    load_f32x16, load_u8x32, load_u8x64, prefetch_line, store_f32x16, sum_f32x16,
};

/// Elements of a register.
const LANES: usize = 16;

/// Most activation rows that are multiplied while the weights stream by once.
const MOST_ROWS: usize = 8;

/// Each weight is loaded once for up to eight activation rows, for up to 24 sums.
#[target_feature(enable = "avx2,f16c,fma,avx512f")]
pub(super) fn matmul<E: Elem>(product: Product<'_>, out: &mut [f32]) {
    let rows = product.activation_rows();
    for first in (0..rows).step_by(MOST_ROWS) {
        macro_rules! by_rows {
            ($(($weights:literal $rows:literal))*) => {
                match rows - first {
                    $($rows => strip::<E, $weights, $rows>(product, first, out),)*
                    _ => strip::<E, 3, MOST_ROWS>(product, first, out),
                }
            };
        }
        by_rows!((8 1) (8 2) (6 3) (6 4) (4 5) (4 6) (3 7) (3 8));
    }
}

/// `MR` activation rows times all weight rows, `NR` at a time.
#[target_feature(enable = "avx2,f16c,fma,avx512f")]
fn strip<E: Elem, const NR: usize, const MR: usize>(p: Product<'_>, row: usize, out: &mut [f32]) {
    let rows = p.weight_rows::<E>();
    let whole = rows / NR * NR;
    for col in (0..whole).step_by(NR) {
        tile::<E, NR, MR>(p, (row, col), out);
    }
    for col in whole..rows {
        tile::<E, 1, MR>(p, (row, col), out);
    }
}

#[target_feature(enable = "avx2,f16c,fma,avx512f")]
fn tile<E: Elem, const NR: usize, const MR: usize>(
    p: Product<'_>,
    (row, col): (usize, usize),
    out: &mut [f32],
) {
    let (w, x) = (p.weights::<E, NR>(col), p.activations::<MR>(row));
    let x = x.map(|x| x.as_chunks::<LANES>());
    let (chunk, ahead) = (LANES * E::BYTES, p.ahead::<E>(col, NR));
    let mut sums = [[_mm512_setzero_ps(); MR]; NR];
    for i in 0..p.k / LANES {
        let mut weights = [_mm512_setzero_ps(); NR];
        for (to, w) in weights.iter_mut().zip(w) {
            prefetch_line(w, i * chunk + ahead);
            *to = load::<E>(&w[i * chunk..][..chunk]);
        }
        for r in 0..MR {
            let x = load_f32x16(&x[r].0[i]);
            for j in 0..NR {
                sums[j][r] = _mm512_fmadd_ps(weights[j], x, sums[j][r]);
            }
        }
    }
    let columns = p.weight_rows::<E>();
    for r in 0..MR {
        let x = padded(x[r].1);
        for j in 0..NR {
            let w = load_padded::<E>(&w[j][p.k / LANES * chunk..]);
            let sum = sum_f32x16(_mm512_fmadd_ps(w, load_f32x16(&x), sums[j][r]));
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
#[target_feature(enable = "avx2,f16c,fma,avx512f")]
fn load_padded<E: Elem>(rest: &[u8]) -> __m512 {
    let mut padded = [0; 64];
    padded[..rest.len()].copy_from_slice(rest);
    load::<E>(&padded[..LANES * E::BYTES])
}

/// Loads a register of elements as f32.
#[target_feature(enable = "avx2,f16c,fma,avx512f")]
#[inline]
fn load<E: Elem>(bytes: &[u8]) -> __m512 {
    match E::DTYPE {
        DType::F16 => {
            let bits =
                bytes.first_chunk().map_or_else(|| _mm256_setzero_si256(), |b| load_u8x32(b));
            _mm512_cvtph_ps(bits)
        }
        DType::BF16 => {
            let bits =
                bytes.first_chunk().map_or_else(|| _mm256_setzero_si256(), |b| load_u8x32(b));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
        }
        _ => match bytes.first_chunk() {
            Some(bytes) => _mm512_castsi512_ps(load_u8x64(bytes)),
            None => _mm512_setzero_ps(),
        },
    }
}

#[target_feature(enable = "avx2,f16c,fma,avx512f")]
pub(super) fn decode<E: Elem>(raw: &[u8], out: &mut [f32]) {
    let raw = raw.chunks_exact(LANES * E::BYTES);
    let (out, rest) = out.as_chunks_mut::<LANES>();
    let raw_rest = raw.remainder();
    for (raw, out) in raw.zip(out) {
        store_f32x16(out, load::<E>(raw));
    }
    for (raw, out) in raw_rest.chunks_exact(E::BYTES).zip(rest) {
        *out = E::decode(raw);
    }
}
