//! Floating-point formats and roundings that Rust has no type or operator for.
//!
//! Everything here is exact integer work or a proved shortcut; the tests compare it with another
//! implementation over whole input ranges.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    reason = "bit fields are cut out of words on purpose"
)]

/// Rounding of a result that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To nearest, ties to even.
    Near,
    /// To nearest, ties away from zero.
    Away,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

impl Mode {
    /// The mode that a modifier like `rn` or `rzi` names.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "rn" | "rni" => Self::Near,
            "rna" => Self::Away,
            "rz" | "rzi" => Self::Zero,
            "rm" | "rmi" => Self::Down,
            "rp" | "rpi" => Self::Up,
            _ => return None,
        })
    }
}

/// A binary format: bits of the fraction and of the exponent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    fraction: u32,
    exponent: u32,
}

pub(crate) const F16: Format = Format { fraction: 10, exponent: 5 };
pub(crate) const BF16: Format = Format { fraction: 7, exponent: 8 };
pub(crate) const F32: Format = Format { fraction: 23, exponent: 8 };
/// 19 significant bits; shifted up by 13 they are an `f32`.
pub(crate) const TF32: Format = Format { fraction: 10, exponent: 8 };

/// Rounds `value` to `format`. A `value` that stands for a longer one must be rounded to odd.
pub(crate) fn round(value: f64, format: Format, mode: Mode) -> u32 {
    let Format { fraction, exponent } = format;
    let sign = (value.to_bits() >> 63) as u32;
    let top = sign << (fraction + exponent);
    let infinity = ((1_u32 << exponent) - 1) << fraction;
    if value.is_nan() {
        return (1 << (fraction + exponent)) - 1;
    }
    if value.is_infinite() {
        return top | infinity;
    }
    if value == 0.0 {
        return top;
    }
    let bits = value.to_bits() & !(1 << 63);
    let field = (bits >> 52) as i32;
    let (mut mantissa, mut power) = (bits & ((1 << 52) - 1), field - 1023);
    if field == 0 {
        let lead = mantissa.leading_zeros() as i32 - 11;
        mantissa <<= lead;
        power = -1022 - lead;
    } else {
        mantissa |= 1 << 52;
    }
    let bias = (1 << (exponent - 1)) - 1;
    let least = 1 - bias;
    let shift = (52 - fraction as i32 + (least - power).max(0)).min(60) as u32;
    let kept = mantissa >> shift;
    let rest = mantissa & ((1 << shift) - 1);
    let half = 1_u64 << (shift - 1);
    let up = match mode {
        Mode::Near => rest > half || (rest == half && kept & 1 == 1),
        Mode::Away => rest >= half,
        Mode::Zero => false,
        Mode::Down => sign == 1 && rest > 0,
        Mode::Up => sign == 0 && rest > 0,
    };
    let kept = kept + u64::from(up);
    let field = (power.max(least) + bias - 1) as u64;
    let magnitude = (field << fraction) + kept;
    if magnitude < u64::from(infinity) {
        return top | magnitude as u32;
    }
    let away = match mode {
        Mode::Near | Mode::Away => true,
        Mode::Zero => false,
        Mode::Down => sign == 1,
        Mode::Up => sign == 0,
    };
    top | if away { infinity } else { infinity - 1 }
}

/// The value of an `f16`, given its bits.
#[inline]
pub(crate) fn f16(bits: u32) -> f32 {
    // The exponent is rebased by a multiplication, which also makes subnormals right.
    let scaled = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | (bits & 0x8000) << 16)
}

/// The value of a `bf16`, given its bits.
#[inline]
pub(crate) fn bf16(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

/// The nearest `f16`, ties to even; a NaN becomes the device's one NaN.
#[inline]
pub(crate) fn to_f16(value: f32) -> u32 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = (bits >> 16) & 0x8000;
    let large = if magnitude > 0x7f80_0000 { 0x7fff } else { 0x7c00 | sign };
    // Adding 0.5 moves the bits that a subnormal keeps to the end of the word.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(0x3800_0000).wrapping_add(0xfff + odd) >> 13;
    if magnitude >= 0x4780_0000 {
        large
    } else if magnitude < 0x3880_0000 {
        small | sign
    } else {
        normal | sign
    }
}

/// The nearest `bf16`, ties to even; a NaN becomes the device's one NaN.
#[inline]
pub(crate) fn to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if value.is_nan() { 0x7fff } else { rounded }
}

/// `a * b + c`, rounded to odd: any narrower rounding of it is the rounding of the exact value.
#[inline]
pub(crate) fn fma_odd(a: f32, b: f32, c: f32) -> f64 {
    // The product of two 24-bit significands is exact; the sum's error is found by two-sum.
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    let back = sum - product;
    let error = (product - (sum - back)) + (c - back);
    to_odd(sum, error)
}

/// `sum` moved to the odd neighbour on the side of `error`, if it is even and `error` is not zero.
#[inline]
pub(crate) fn to_odd(sum: f64, error: f64) -> f64 {
    let bits = sum.to_bits();
    // Same sign: the exact value is farther from zero.
    let outward = (error.to_bits() ^ bits) >> 63 == 0;
    let moved = if outward { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let inexact = error.abs() > 0.0 && bits & 1 == 0;
    f64::from_bits(if inexact { moved } else { bits })
}

/// Fused multiply-add of `f32`, to nearest.
#[inline]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    fma_odd(a, b, c) as f32
}

/// The sum of two `f64`, rounded to odd.
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let back = sum - a;
    to_odd(sum, (a - (sum - back)) + (b - back))
}

/// The integral value next to `value` in the direction of `mode`.
pub(crate) fn integral(value: f64, mode: Mode) -> f64 {
    match mode {
        Mode::Near => value.round_ties_even(),
        Mode::Away => value.round(),
        Mode::Zero => value.trunc(),
        Mode::Down => value.floor(),
        Mode::Up => value.ceil(),
    }
}

/// Flushes a subnormal to a zero of its sign.
#[inline]
pub(crate) fn flush(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fucina_testkit::Rng;

    #[test]
    fn every_f16_and_bf16_is_read_like_the_peer_reads_it() {
        for bits in 0..=u16::MAX {
            let (ours, peer) = (f16(u32::from(bits)), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == peer.to_bits() || (ours.is_nan() && peer.is_nan()));
            let (ours, peer) = (bf16(u32::from(bits)), half::bf16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == peer.to_bits() || (ours.is_nan() && peer.is_nan()));
        }
    }

    #[test]
    fn f32_is_rounded_to_half_formats_like_the_peer_does_it() {
        let mut rng = Rng::new(7);
        for step in 0..2_000_000_u32 {
            // A sweep of all exponents, and the neighbourhood of every f16 and its midpoints.
            let bits = match step % 3 {
                0 => step.wrapping_mul(2147),
                1 => (rng.next_u64() >> 32) as u32,
                _ => f16(step & 0xffff).to_bits().wrapping_add(step % 7 * 0x800).wrapping_sub(1),
            };
            let value = f32::from_bits(bits);
            if value.is_nan() {
                assert_eq!((to_f16(value), to_bf16(value)), (0x7fff, 0x7fff));
                continue;
            }
            let peer = u32::from(half::f16::from_f32(value).to_bits());
            assert_eq!(to_f16(value), peer, "{bits:#x}");
            assert_eq!(round(f64::from(value), F16, Mode::Near), peer, "{bits:#x}");
            let peer = u32::from(half::bf16::from_f32(value).to_bits());
            assert_eq!(to_bf16(value), peer, "{bits:#x}");
            assert_eq!(round(f64::from(value), BF16, Mode::Near), peer, "{bits:#x}");
        }
    }

    #[test]
    fn fma_rounds_once() {
        let mut rng = Rng::new(3);
        let mut value = || {
            let bits = rng.next_u64();
            match bits & 3 {
                // Near each other, so that sums cancel; and anything at all.
                0 => f32::from_bits(0x3f80_0000 | (bits >> 41) as u32 | (bits as u32) << 31),
                1 => f32::from_bits(0x3400_0000 | (bits >> 41) as u32),
                _ => f32::from_bits((bits >> 32) as u32),
            }
        };
        for _ in 0..1_000_000 {
            let (a, b, c) = (value(), value(), value());
            let (ours, peer) = (fma(a, b, c), a.mul_add(b, c));
            let same = ours.to_bits() == peer.to_bits() || (ours.is_nan() && peer.is_nan());
            assert!(same, "{a:e} * {b:e} + {c:e}: {ours:e}, not {peer:e}");
        }
    }

    #[test]
    fn directed_roundings_enclose_the_value() {
        let mut rng = Rng::new(11);
        for _ in 0..500_000 {
            let value = f64::from_bits(rng.next_u64());
            if !value.is_finite() {
                continue;
            }
            let to = |mode| f64::from(f32::from_bits(round(value, F32, mode)));
            let (down, up, near) = (to(Mode::Down), to(Mode::Up), to(Mode::Near));
            assert!(down <= value && value <= up);
            assert_eq!(to(Mode::Zero), if value < 0.0 { up } else { down });
            assert_eq!(near.to_bits(), f64::from(value as f32).to_bits());
            let next = f32::from_bits(round(value, F32, Mode::Down)).next_up();
            assert!(down == value || f64::from(next) == up);
        }
    }
}
