//! Runs one safe body on the instruction set of a token.
//!
//! Most kernels here are plain loops that the compiler vectorizes well once it may use the wide
//! registers. For them the body is written once, in `<op>/scalar.rs`, marked `#[inline(always)]`,
//! and compiled once for each instruction set by [`recompile!`]. No body uses `mul_add`, and Rust
//! never fuses a multiplication with an addition by itself, so every version of such a kernel
//! returns the same bits.

/// Calls `$body` compiled for the instruction set `$isa`.
///
/// `$body` must be a safe `#[inline(always)]` function.
macro_rules! recompile {
    ($isa:expr => $body:path, ($($arg:ident: $ty:ty),+ $(,)?) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,f16c,fma")]
        fn avx2($($arg: $ty),+) $(-> $ret)? {
            $body($($arg),+)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl")]
        fn avx512($($arg: $ty),+) $(-> $ret)? {
            $body($($arg),+)
        }
        match $isa {
            $crate::isa::Isa::Scalar => $body($($arg),+),
            // Every build for aarch64 may use NEON anywhere.
            #[cfg(target_arch = "aarch64")]
            $crate::isa::Isa::Neon(_) => $body($($arg),+),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
            $crate::isa::Isa::Avx2(_) => unsafe { avx2($($arg),+) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves that this CPU has AVX-512 F, BW and VL.
            $crate::isa::Isa::Avx512Vnni(_) => unsafe { avx512($($arg),+) },
        }
    }};
}
pub(crate) use recompile;
