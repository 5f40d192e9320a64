#![deny(unsafe_code)]

use std::arch::x86_64::{
    _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm512_cvtph_ps, _mm512_cvtps_ph,
};

use super::scalar;
use crate::isa::x86::{load_f32x16, store_f32x16};
use crate::isa::x86_ops::{load_u16x16, store_u16x16};

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

#[target_feature(enable = "avx2,f16c,avx512f")]
pub(super) fn f32_to_f16(x: &[f32], out: &mut [u16]) {
    let (x, x_tail) = x.as_chunks::<16>();
    let (out, out_tail) = out.as_chunks_mut::<16>();
    for (out, x) in out.iter_mut().zip(x) {
        store_u16x16(out, _mm512_cvtps_ph::<NEAREST>(load_f32x16(x)));
    }
    scalar::f32_to_f16(x_tail, out_tail);
}

#[target_feature(enable = "avx2,f16c,avx512f")]
pub(super) fn f16_to_f32(x: &[u16], out: &mut [f32]) {
    let (x, x_tail) = x.as_chunks::<16>();
    let (out, out_tail) = out.as_chunks_mut::<16>();
    for (out, x) in out.iter_mut().zip(x) {
        store_f32x16(out, _mm512_cvtph_ps(load_u16x16(x)));
    }
    scalar::f16_to_f32(x_tail, out_tail);
}
