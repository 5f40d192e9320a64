#![deny(unsafe_code)]

use crate::isa::x86::{load_f32x16, store_u32x16};
use crate::isa::x86_bf16::to_bf16;

#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn round(x: &[[f32; 32]], out: &mut [[u32; 16]]) {
    for (x, out) in x.iter().zip(out) {
        let (halves, _) = x.as_chunks::<16>();
        store_u32x16(out, to_bf16(load_f32x16(&halves[1]), load_f32x16(&halves[0])));
    }
}
