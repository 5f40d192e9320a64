#![deny(unsafe_code)]

use std::arch::aarch64::{
    float32x4_t, int32x4_t, vaddlvq_s8, vandq_u32, vcombine_s8, vcombine_s16, vcvtnq_s32_f32,
    vdupq_n_f32, vdupq_n_u32, vmaxq_u32, vmaxvq_u32, vmulq_n_f32, vqmovn_s16, vqmovn_s32,
    vreinterpretq_u32_f32,
};

use super::{BLOCK, XBlock, finish, scale_and_factor};
use crate::isa::aarch64::{load_f32x4, store_quads};

/// The same bits as the scalar version: the conversion rounds to nearest, ties to even.
#[target_feature(enable = "neon")]
pub(super) fn quantize<'a>(x: &[[f32; BLOCK]], out: impl Iterator<Item = &'a mut XBlock>) {
    for (x, out) in x.iter().zip(out) {
        let mut vectors = [vdupq_n_f32(0.0); BLOCK / 4];
        for (v, x) in vectors.iter_mut().zip(x.as_chunks().0) {
            *v = load_f32x4(x);
        }
        let (scale, factor) = scale_and_factor(max_bits(&vectors));
        if factor == 0.0 {
            out.fill(0);
            finish(out, scale, [0; 2]);
            continue;
        }
        let mut sums = [0; 2];
        let halves = vectors.as_chunks().0.iter().zip(out.as_chunks_mut().0);
        for ((vectors, out), sum) in halves.zip(&mut sums) {
            let [a, b, c, d] = round(vectors, factor);
            let (ab, cd) = (
                vcombine_s16(vqmovn_s32(a), vqmovn_s32(b)),
                vcombine_s16(vqmovn_s32(c), vqmovn_s32(d)),
            );
            let quants = vcombine_s8(vqmovn_s16(ab), vqmovn_s16(cd));
            store_quads(out, quants);
            *sum = i32::from(vaddlvq_s8(quants));
        }
        finish(out, scale, sums);
    }
}

/// Bits of the largest magnitude, compared as integers so that NaN wins.
#[target_feature(enable = "neon")]
#[inline]
fn max_bits(vectors: &[float32x4_t; BLOCK / 4]) -> u32 {
    let mut max = vdupq_n_u32(0);
    for &v in vectors {
        let magnitude = vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(0x7fff_ffff));
        max = vmaxq_u32(max, magnitude);
    }
    vmaxvq_u32(max)
}

#[target_feature(enable = "neon")]
#[inline]
fn round(vectors: &[float32x4_t; 4], factor: f32) -> [int32x4_t; 4] {
    let mut rounded = [vcvtnq_s32_f32(vectors[0]); 4];
    for (to, &v) in rounded.iter_mut().zip(vectors) {
        *to = vcvtnq_s32_f32(vmulq_n_f32(v, factor));
    }
    rounded
}
