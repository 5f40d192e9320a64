#![deny(unsafe_code)]

use std::arch::aarch64::{
    float32x4_t, vaddvq_f32, vcreate_u16, vcvt_f32_f16, vdupq_n_f32, vfmaq_f32,
    vreinterpret_f16_u16, vreinterpretq_f32_u8, vreinterpretq_f32_u32, vshll_n_u16,
};

use fucina_dtype::DType;

use super::{Elem, Product};
use crate::isa::aarch64::{load_f32x4, load_u8x16, store_f32x4};

/// Elements of a register.
const LANES: usize = 4;

/// Four weight rows are loaded for up to four activation rows. A single activation row takes eight
/// at once: that many sums hide how long an addition takes.
#[target_feature(enable = "neon")]
pub(super) fn matmul<E: Elem>(product: Product<'_>, out: &mut [f32]) {
    let rows = product.weight_rows::<E>();
    let mut first = 0;
    while product.activation_rows() == 1 && rows - first >= 8 {
        tile::<E, 8, 1>(product, (0, first), out);
        first += 8;
    }
    while rows - first >= 4 {
        weights::<E, 4>(product, first, out);
        first += 4;
    }
    while rows - first >= 1 {
        weights::<E, 1>(product, first, out);
        first += 1;
    }
}

/// `NR` weight rows times all activation rows.
#[target_feature(enable = "neon")]
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

#[target_feature(enable = "neon")]
fn tile<E: Elem, const NR: usize, const MR: usize>(
    p: Product<'_>,
    (row, col): (usize, usize),
    out: &mut [f32],
) {
    let (w, x) = (p.weights::<E, NR>(col), p.activations::<MR>(row));
    let x = x.map(|x| x.as_chunks::<LANES>());
    let chunk = LANES * E::BYTES;
    let mut sums = [[vdupq_n_f32(0.0); MR]; NR];
    for i in 0..p.k / LANES {
        let mut weights = [vdupq_n_f32(0.0); NR];
        for (to, w) in weights.iter_mut().zip(w) {
            *to = load::<E>(&w[i * chunk..][..chunk]);
        }
        for r in 0..MR {
            let x = load_f32x4(&x[r].0[i]);
            for j in 0..NR {
                sums[j][r] = vfmaq_f32(sums[j][r], weights[j], x);
            }
        }
    }
    let columns = p.weight_rows::<E>();
    for r in 0..MR {
        let x = padded(x[r].1);
        for j in 0..NR {
            let w = load_padded::<E>(&w[j][p.k / LANES * chunk..]);
            let sum = vaddvq_f32(vfmaq_f32(sums[j][r], w, load_f32x4(&x)));
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
#[target_feature(enable = "neon")]
fn load_padded<E: Elem>(rest: &[u8]) -> float32x4_t {
    let mut padded = [0; 4 * LANES];
    padded[..rest.len()].copy_from_slice(rest);
    load::<E>(&padded[..LANES * E::BYTES])
}

/// Loads a register of elements as f32.
#[target_feature(enable = "neon")]
#[inline]
pub(in super::super) fn load<E: Elem>(bytes: &[u8]) -> float32x4_t {
    let half = || vcreate_u16(bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
    match E::DTYPE {
        DType::F16 => vcvt_f32_f16(vreinterpret_f16_u16(half())),
        DType::BF16 => vreinterpretq_f32_u32(vshll_n_u16::<16>(half())),
        _ => match bytes.first_chunk() {
            Some(bytes) => vreinterpretq_f32_u8(load_u8x16(bytes)),
            None => vdupq_n_f32(0.0),
        },
    }
}

#[target_feature(enable = "neon")]
pub(super) fn decode<E: Elem>(raw: &[u8], out: &mut [f32]) {
    let raw = raw.chunks_exact(LANES * E::BYTES);
    let (out, rest) = out.as_chunks_mut::<LANES>();
    let raw_rest = raw.remainder();
    for (raw, out) in raw.zip(out) {
        store_f32x4(out, load::<E>(raw));
    }
    for (raw, out) in raw_rest.chunks_exact(E::BYTES).zip(rest) {
        *out = E::decode(raw);
    }
}
