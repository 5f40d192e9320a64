#![deny(unsafe_code)]

use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

use super::scalar;
use crate::isa::x86::{load_f32x8, store_f32x8};
use crate::isa::x86_ops::{load_u16x8, store_u16x8};

#[target_feature(enable = "avx2,f16c")]
pub(super) fn f32_to_f16(x: &[f32], out: &mut [u16]) {
    let (x, x_tail) = x.as_chunks::<8>();
    let (out, out_tail) = out.as_chunks_mut::<8>();
    for (out, x) in out.iter_mut().zip(x) {
        store_u16x8(out, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load_f32x8(x)));
    }
    scalar::f32_to_f16(x_tail, out_tail);
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn f16_to_f32(x: &[u16], out: &mut [f32]) {
    let (x, x_tail) = x.as_chunks::<8>();
    let (out, out_tail) = out.as_chunks_mut::<8>();
    for (out, x) in out.iter_mut().zip(x) {
        store_f32x8(out, _mm256_cvtph_ps(load_u16x8(x)));
    }
    scalar::f16_to_f32(x_tail, out_tail);
}
