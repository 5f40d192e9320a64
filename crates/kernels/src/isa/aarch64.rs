//! The NEON loads and stores that need a raw pointer, and the instructions whose intrinsics are not
//! stable, so that kernels need no unsafe code. References carry the length; no alignment is
//! assumed.

use std::arch::aarch64::{
    float32x4_t, int8x8_t, int8x16_t, int32x4_t, uint8x16_t, uint16x4_t, uint16x8_t,
    vfmaq_laneq_f32, vld1_s8, vld1_u16, vld1q_f32, vld1q_u8, vld1q_u16, vld1q_u32,
    vreinterpretq_f32_f64, vreinterpretq_f64_f32, vreinterpretq_s8_u32, vreinterpretq_u32_s8,
    vst1_u16, vst1q_f32, vst1q_u32, vtrn1q_f32, vtrn1q_f64, vtrn2q_f32, vtrn2q_f64,
};
use std::arch::asm;

/// Loads 16 bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn load_u8x16(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the reference is valid for reads of 16 bytes; `ld1` of bytes needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Loads 8 signed bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn load_i8x8(bytes: &[i8; 8]) -> int8x8_t {
    // SAFETY: the reference is valid for reads of 8 bytes; `ld1` of bytes needs no alignment.
    unsafe { vld1_s8(bytes.as_ptr()) }
}

/// Loads 4 words as 16 signed bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn load_quads(words: &[u32; 4]) -> int8x16_t {
    // SAFETY: the reference is valid for reads of 4 words, and aligned for them.
    vreinterpretq_s8_u32(unsafe { vld1q_u32(words.as_ptr()) })
}

/// Stores 16 signed bytes as 4 words.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn store_quads(words: &mut [u32; 4], v: int8x16_t) {
    let v = vreinterpretq_u32_s8(v);
    // SAFETY: the reference is valid for writes of 4 words, and aligned for them.
    unsafe { vst1q_u32(words.as_mut_ptr(), v) }
}

/// Loads 4 16-bit elements.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn load_u16x4(x: &[u16; 4]) -> uint16x4_t {
    // SAFETY: the reference is valid for reads of 4 elements, and aligned for them.
    unsafe { vld1_u16(x.as_ptr()) }
}

/// Loads 8 16-bit elements.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn load_u16x8(x: &[u16; 8]) -> uint16x8_t {
    // SAFETY: the reference is valid for reads of 8 elements, and aligned for them.
    unsafe { vld1q_u16(x.as_ptr()) }
}

/// Stores 4 16-bit elements.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn store_u16x4(x: &mut [u16; 4], v: uint16x4_t) {
    // SAFETY: the reference is valid for writes of 4 elements, and aligned for them.
    unsafe { vst1_u16(x.as_mut_ptr(), v) }
}

/// Loads 4 floats.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn load_f32x4(x: &[f32; 4]) -> float32x4_t {
    // SAFETY: the reference is valid for reads of 4 floats, and aligned for them.
    unsafe { vld1q_f32(x.as_ptr()) }
}

/// Stores 4 floats.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn store_f32x4(x: &mut [f32; 4], v: float32x4_t) {
    // SAFETY: the reference is valid for writes of 4 floats, and aligned for them.
    unsafe { vst1q_f32(x.as_mut_ptr(), v) }
}

/// Asks for the line that lies `offset` bytes after the start of `bytes`, inside of them or not.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn prefetch_line(bytes: &[u8], offset: usize) {
    let line = bytes.as_ptr().wrapping_add(offset);
    // SAFETY: a hint: it reads nothing, changes nothing and faults on no address.
    unsafe {
        asm!(
            "prfm pldl2keep, [{line}]",
            line = in(reg) line,
            options(nostack, preserves_flags, readonly)
        );
    }
}

/// `sum + a * b[lane]`. The instruction names its lane, so that must be known when this is compiled,
/// as it is in a loop that unrolls.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn mul_add_lane(
    sum: float32x4_t,
    a: float32x4_t,
    b: float32x4_t,
    lane: usize,
) -> float32x4_t {
    match lane {
        0 => vfmaq_laneq_f32::<0>(sum, a, b),
        1 => vfmaq_laneq_f32::<1>(sum, a, b),
        2 => vfmaq_laneq_f32::<2>(sum, a, b),
        _ => vfmaq_laneq_f32::<3>(sum, a, b),
    }
}

/// Rows become columns: pairs of rows first, then pairs of pairs.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn transpose_4x4([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    let even = (vtrn1q_f32(a, b), vtrn1q_f32(c, d));
    let odd = (vtrn2q_f32(a, b), vtrn2q_f32(c, d));
    let [even, odd] =
        [even, odd].map(|(low, high)| (vreinterpretq_f64_f32(low), vreinterpretq_f64_f32(high)));
    [
        vreinterpretq_f32_f64(vtrn1q_f64(even.0, even.1)),
        vreinterpretq_f32_f64(vtrn1q_f64(odd.0, odd.1)),
        vreinterpretq_f32_f64(vtrn2q_f64(even.0, even.1)),
        vreinterpretq_f32_f64(vtrn2q_f64(odd.0, odd.1)),
    ]
}

/// `acc[c] += w[4c] * x[4 LANE] + .. + w[4c + 3] * x[4 LANE + 3]` for each of the four `c`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
pub(crate) fn dot_lane<const LANE: u32>(
    mut acc: int32x4_t,
    w: int8x16_t,
    x: int8x16_t,
) -> int32x4_t {
    const { assert!(LANE < 4, "a register has four lanes") };
    // SAFETY: the instruction is part of `dotprod`, which this function enables; it changes
    // nothing but `acc`.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]",
            acc = inlateout(vreg) acc,
            w = in(vreg) w,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// `acc[2i + j] += a[8i] * b[8j] + .. + a[8i + 7] * b[8j + 7]` for `i` and `j` 0 and 1: two rows of
/// eight bytes times two.
#[target_feature(enable = "neon,i8mm")]
#[inline]
pub(crate) fn matmul_2x2(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction is part of `i8mm`, which this function enables; it changes nothing
    // but `acc`.
    unsafe {
        asm!(
            "smmla {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inlateout(vreg) acc,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}
