//! Macros that lift an expression on lanes to a function on registers.

/// What a lane of a register can hold.
pub(super) trait Lane<Raw>: Copy {
    fn get(raw: Raw) -> Self;
    fn put(self) -> Raw;
}

macro_rules! lane_int {
    ($raw:ty; $($ty:ty => $up:ty),*) => {$(
        impl Lane<$raw> for $ty {
            #[inline]
            #[expect(clippy::allow_attributes, reason = "not every pair of types trips a lint")]
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_possible_wrap,
                clippy::cast_sign_loss,
                clippy::cast_lossless,
                trivial_numeric_casts,
                reason = "a narrow lane is the low part of its register"
            )]
            fn get(raw: $raw) -> Self {
                raw as Self
            }
            #[inline]
            #[expect(clippy::allow_attributes, reason = "not every pair of types trips a lint")]
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_lossless,
                trivial_numeric_casts,
                reason = "a narrow lane is zero-extended"
            )]
            fn put(self) -> $raw {
                self as $up as $raw
            }
        }
    )*};
}

lane_int!(u32; u8 => u8, i8 => u8, u16 => u16, i16 => u16, u32 => u32, i32 => u32);
lane_int!(u64; u32 => u32, u64 => u64, i64 => u64);

impl Lane<u32> for f32 {
    #[inline]
    fn get(raw: u32) -> Self {
        Self::from_bits(raw)
    }
    #[inline]
    fn put(self) -> u32 {
        self.to_bits()
    }
}

impl Lane<u64> for f64 {
    #[inline]
    fn get(raw: u64) -> Self {
        Self::from_bits(raw)
    }
    #[inline]
    fn put(self) -> u64 {
        self.to_bits()
    }
}

/// `lanes!(LL: (a: i32, b: i32) => a.wrapping_add(b))` is the `Fun::LL` of that expression.
macro_rules! lanes {
    ($variant:ident $(/ $out:ty)?: ($($arg:ident: $ty:ty),+) => $value:expr) => {
        crate::exec::lanes::lanes!(@ $variant [$($arg: $ty),+] $value)
    };
    (@ L [$a:ident: $ta:ty] $value:expr) => {
        lanes!(# L, L, [x $a: $ta: L], $value)
    };
    (@ LL [$a:ident: $ta:ty, $b:ident: $tb:ty] $value:expr) => {
        lanes!(# LL, L, [x $a: $ta: L, y $b: $tb: L], $value)
    };
    (@ LLL [$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty] $value:expr) => {
        lanes!(# LLL, L, [x $a: $ta: L, y $b: $tb: L, z $c: $tc: L], $value)
    };
    (@ LLLL [$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty, $e:ident: $te:ty] $v:expr) => {
        lanes!(# LLLL, L, [x $a: $ta: L, y $b: $tb: L, z $c: $tc: L, w $e: $te: L], $v)
    };
    (@ D [$a:ident: $ta:ty] $value:expr) => {
        lanes!(# D, D, [x $a: $ta: D], $value)
    };
    (@ DD [$a:ident: $ta:ty, $b:ident: $tb:ty] $value:expr) => {
        lanes!(# DD, D, [x $a: $ta: D, y $b: $tb: D], $value)
    };
    (@ DDD [$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty] $value:expr) => {
        lanes!(# DDD, D, [x $a: $ta: D, y $b: $tb: D, z $c: $tc: D], $value)
    };
    (@ DL [$a:ident: $ta:ty, $b:ident: $tb:ty] $value:expr) => {
        lanes!(# DL, D, [x $a: $ta: D, y $b: $tb: L], $value)
    };
    (@ DLL [$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty] $value:expr) => {
        lanes!(# DLL, D, [x $a: $ta: D, y $b: $tb: L, z $c: $tc: L], $value)
    };
    (@ DDLL [$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty, $e:ident: $te:ty] $v:expr) => {
        lanes!(# DDLL, D, [x $a: $ta: D, y $b: $tb: D, z $c: $tc: L, w $e: $te: L], $v)
    };
    (@ LtoD [$a:ident: $ta:ty] $value:expr) => {
        lanes!(# LtoD, D, [x $a: $ta: L], $value)
    };
    (@ LLtoD [$a:ident: $ta:ty, $b:ident: $tb:ty] $value:expr) => {
        lanes!(# LLtoD, D, [x $a: $ta: L, y $b: $tb: L], $value)
    };
    (@ LLDtoD [$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty] $value:expr) => {
        lanes!(# LLDtoD, D, [x $a: $ta: L, y $b: $tb: L, z $c: $tc: D], $value)
    };
    (@ DtoL [$a:ident: $ta:ty] $value:expr) => {
        lanes!(# DtoL, L, [x $a: $ta: D], $value)
    };
    (@ LtoP [$a:ident: $ta:ty] $value:expr) => {
        lanes!(? LtoP, [x $a: $ta: L], $value)
    };
    (@ LLtoP [$a:ident: $ta:ty, $b:ident: $tb:ty] $value:expr) => {
        lanes!(? LLtoP, [x $a: $ta: L, y $b: $tb: L], $value)
    };
    (@ DtoP [$a:ident: $ta:ty] $value:expr) => {
        lanes!(? DtoP, [x $a: $ta: D], $value)
    };
    (@ DDtoP [$a:ident: $ta:ty, $b:ident: $tb:ty] $value:expr) => {
        lanes!(? DDtoP, [x $a: $ta: D, y $b: $tb: D], $value)
    };
    (# $variant:ident, $out:ident, [$($src:ident $arg:ident: $ty:ty: $file:ident),+], $value:expr) => {{
        fn lifted($($src: &crate::exec::inst::$file,)+ out: &mut crate::exec::inst::$out) {
            for lane in 0..crate::exec::inst::LANES {
                $(let $arg = <$ty as crate::exec::lanes::Lane<_>>::get($src[lane]);)+
                out[lane] = crate::exec::lanes::Lane::put($value);
            }
        }
        crate::exec::inst::Fun::$variant(lifted)
    }};
    (? $variant:ident, [$($src:ident $arg:ident: $ty:ty: $file:ident),+], $value:expr) => {{
        fn lifted($($src: &crate::exec::inst::$file,)+) -> u32 {
            let mut flags = [0_u8; crate::exec::inst::LANES];
            for lane in 0..crate::exec::inst::LANES {
                $(let $arg = <$ty as crate::exec::lanes::Lane<_>>::get($src[lane]);)+
                flags[lane] = u8::from($value);
            }
            crate::exec::lanes::pack(&flags)
        }
        crate::exec::inst::Fun::$variant(lifted)
    }};
}

pub(super) use lanes;

/// One bit for each flag.
#[inline]
pub(super) fn pack(flags: &[u8; 32]) -> u32 {
    let mut bits = 0;
    for (index, eight) in flags.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(eight.try_into().expect("chunks of eight"));
        // The multiplication moves bit 8i of the word to bit 56 + i.
        let byte = word.wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= (byte as u32) << (8 * index);
    }
    bits
}
