#![deny(unsafe_code)]

#[inline(always)]
pub(super) fn f32_to_f16(x: &[f32], out: &mut [u16]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f16_bits(x);
    }
}

#[inline(always)]
pub(super) fn f16_to_f32(x: &[u16], out: &mut [f32]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f16_value(x);
    }
}

#[inline(always)]
pub(super) fn f32_to_bf16(x: &[f32], out: &mut [u16]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = bf16_bits(x);
    }
}

#[inline(always)]
pub(super) fn bf16_to_f32(x: &[u16], out: &mut [f32]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f32::from_bits(u32::from(x) << 16);
    }
}

/// Nearest f16, by cases that vectorize as selections.
#[inline(always)]
pub(super) fn f16_bits(x: f32) -> u16 {
    /// Bits of 2^-14, the smallest normal f16.
    const NORMAL: u32 = 113 << 23;
    /// Bits of 65520, which lies halfway between the largest f16 and what would follow.
    const OVERFLOW: u32 = 0x477f_f000;
    const INFINITY: u32 = 255 << 23;
    let sign = (x.to_bits() >> 16) & 0x8000;
    let bits = x.to_bits() & 0x7fff_ffff;
    // Adding just under half of the dropped bits, plus the bit that decides ties.
    let odd = (bits >> 13) & 1;
    let normal = bits.wrapping_add(0xfff + odd).wrapping_sub(112 << 23) >> 13;
    // A float next to 0.5 has steps of 2^-24, the f16 subnormal step: the addition rounds.
    let subnormal = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let nan = 0x7e00 | ((bits >> 13) & 0x3ff);
    let magnitude = if bits < NORMAL { subnormal } else { normal };
    let magnitude = if bits >= OVERFLOW { 0x7c00 } else { magnitude };
    let magnitude = if bits > INFINITY { nan } else { magnitude };
    low_half(sign | magnitude)
}

/// The value of f16 bits. The product renormalizes subnormals.
#[inline(always)]
pub(crate) fn f16_value(x: u16) -> f32 {
    /// 2^112: the difference of the exponent biases.
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let sign = (u32::from(x) & 0x8000) << 16;
    let magnitude = u32::from(x) & 0x7fff;
    let finite = (f32::from_bits(magnitude << 13) * REBIAS).to_bits();
    let special = (magnitude << 13) | 0x7f80_0000;
    let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
    let bits = if magnitude >= 0x7c00 { special | quiet } else { finite };
    f32::from_bits(sign | bits)
}

#[inline(always)]
fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
    let nan = (bits >> 16) | 0x0040;
    low_half(if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded })
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the high half is zero")]
fn low_half(bits: u32) -> u16 {
    bits as u16
}
