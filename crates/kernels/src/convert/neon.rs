#![deny(unsafe_code)]

use std::arch::aarch64::{vcvt_f16_f32, vcvt_f32_f16, vreinterpret_f16_u16, vreinterpret_u16_f16};

use super::scalar;
use crate::isa::aarch64::{load_f32x4, load_u16x4, store_f32x4, store_u16x4};

#[target_feature(enable = "neon")]
pub(super) fn f32_to_f16(x: &[f32], out: &mut [u16]) {
    let (x, x_tail) = x.as_chunks::<4>();
    let (out, out_tail) = out.as_chunks_mut::<4>();
    for (out, x) in out.iter_mut().zip(x) {
        store_u16x4(out, vreinterpret_u16_f16(vcvt_f16_f32(load_f32x4(x))));
    }
    scalar::f32_to_f16(x_tail, out_tail);
}

#[target_feature(enable = "neon")]
pub(super) fn f16_to_f32(x: &[u16], out: &mut [f32]) {
    let (x, x_tail) = x.as_chunks::<4>();
    let (out, out_tail) = out.as_chunks_mut::<4>();
    for (out, x) in out.iter_mut().zip(x) {
        store_f32x4(out, vcvt_f32_f16(vreinterpret_f16_u16(load_u16x4(x))));
    }
    scalar::f16_to_f32(x_tail, out_tail);
}
