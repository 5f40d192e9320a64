#![deny(unsafe_code)]

pub(super) fn round(x: &[[f32; 32]], out: &mut [[u32; 16]]) {
    for (x, out) in x.iter().zip(out) {
        for (pair, out) in x.as_chunks::<2>().0.iter().zip(out) {
            *out = u32::from(to_bf16(pair[0])) | u32::from(to_bf16(pair[1])) << 16;
        }
    }
}

/// Rounds to nearest, ties to even.
fn to_bf16(x: f32) -> u16 {
    let x = if x.is_subnormal() { 0.0_f32.copysign(x) } else { x };
    half::bf16::from_f32(x).to_bits()
}
