//! Conversion between f32 and the two 16-bit formats, which are passed as bits, and the 8-bit blocks
//! of a key/value cache.
//!
//! To 16 bits: round to nearest, ties to even; what rounds beyond the largest finite value becomes
//! infinity; subnormals are kept. NaN becomes a quiet NaN with the high bits of its payload. Every
//! instruction set returns the same bits.

use crate::dispatch::recompile;
use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod q8_0;
pub(crate) mod scalar;

pub use q8_0::{Q8_0_ELEMS, f32_to_q8_0, q8_0_to_f32};

/// f32 to f16 bits.
///
/// # Panics
///
/// Panics if `x` and `out` differ in length.
pub fn f32_to_f16(isa: Isa, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    match isa {
        Isa::Scalar => scalar::f32_to_f16(x, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2 and F16C.
        Isa::Avx2(_) => unsafe { avx2::f32_to_f16(x, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F.
        Isa::Avx512Vnni(_) => unsafe { avx512::f32_to_f16(x, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::f32_to_f16(x, out) },
    }
}

/// f16 bits to f32, exactly.
///
/// # Panics
///
/// Panics if `x` and `out` differ in length.
pub fn f16_to_f32(isa: Isa, x: &[u16], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    match isa {
        Isa::Scalar => scalar::f16_to_f32(x, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2 and F16C.
        Isa::Avx2(_) => unsafe { avx2::f16_to_f32(x, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F.
        Isa::Avx512Vnni(_) => unsafe { avx512::f16_to_f32(x, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::f16_to_f32(x, out) },
    }
}

/// f32 to bf16 bits.
///
/// # Panics
///
/// Panics if `x` and `out` differ in length.
pub fn f32_to_bf16(isa: Isa, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    recompile!(isa => scalar::f32_to_bf16, (x: &[f32], out: &mut [u16]));
}

/// bf16 bits to f32, exactly; a signaling NaN stays one.
///
/// # Panics
///
/// Panics if `x` and `out` differ in length.
pub fn bf16_to_f32(isa: Isa, x: &[u16], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    recompile!(isa => scalar::bf16_to_f32, (x: &[u16], out: &mut [f32]));
}

#[cfg(test)]
mod tests;
