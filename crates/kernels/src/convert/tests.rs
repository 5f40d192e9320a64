//! Against the definition of the formats, in f64 and integers.

use fucina_testkit::{Rng, assert_bits_equal};

use super::*;

/// A floating-point format of 16 bits: a sign, an exponent, `mantissa` bits.
#[derive(Clone, Copy)]
struct Format {
    mantissa: u32,
    bias: i32,
}

const F16: Format = Format { mantissa: 10, bias: 15 };
const BF16: Format = Format { mantissa: 7, bias: 127 };

impl Format {
    const fn infinity(self) -> u16 {
        0x7fff >> self.mantissa << self.mantissa
    }

    /// The value of bits that are not infinite or NaN. With infinity's bits, the value at which
    /// rounding overflows counts from: what the next exponent would mean.
    fn value(self, bits: u16) -> f64 {
        let magnitude = i32::from(bits & 0x7fff);
        let (exponent, fraction) = (magnitude >> self.mantissa, magnitude % (1 << self.mantissa));
        let (significand, exponent) = match exponent {
            0 => (fraction, 1),
            _ => (fraction + (1 << self.mantissa), exponent),
        };
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let power = exponent - self.bias - i32::try_from(self.mantissa).unwrap();
        sign * f64::from(significand) * 2.0_f64.powi(power)
    }

    fn value_f32(self, bits: u16) -> f32 {
        exact_f32(self.value(bits))
    }
}

/// To f32, which must lose nothing.
#[expect(clippy::cast_possible_truncation, reason = "checked below")]
fn exact_f32(x: f64) -> f32 {
    let narrow = x as f32;
    assert_eq!(f64::from(narrow), x, "{x:e} is not an f32");
    narrow
}

fn to_f16(isa: Isa, x: &[f32]) -> Vec<u16> {
    let mut out = vec![0xaaaa; x.len()];
    f32_to_f16(isa, x, &mut out);
    out
}

fn to_bf16(isa: Isa, x: &[f32]) -> Vec<u16> {
    let mut out = vec![0xaaaa; x.len()];
    f32_to_bf16(isa, x, &mut out);
    out
}

#[test]
fn all_f16_widen_exactly() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    for isa in Isa::available() {
        let mut wide = vec![7.0; bits.len()];
        f16_to_f32(isa, &bits, &mut wide);
        for (&bits, &wide) in bits.iter().zip(&wide) {
            let sign = u32::from(bits >> 15) << 31;
            let payload = u32::from(bits & 0x3ff);
            let want = match bits & 0x7fff {
                0x7c00 => sign | 0x7f80_0000,
                0x7c01.. => sign | 0x7fc0_0000 | payload << 13,
                _ => F16.value_f32(bits).to_bits(),
            };
            assert_eq!(wide.to_bits(), want, "{} {bits:#06x}", isa.name());
        }
    }
}

#[test]
fn all_f16_survive_the_round_trip() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    for isa in Isa::available() {
        let mut wide = vec![0.0; bits.len()];
        f16_to_f32(isa, &bits, &mut wide);
        for (&bits, &back) in bits.iter().zip(&to_f16(isa, &wide)) {
            let quiet = if bits & 0x7fff > 0x7c00 { 0x0200 } else { 0 };
            assert_eq!(back, bits | quiet, "{} {bits:#06x}", isa.name());
        }
    }
}

#[test]
fn all_bf16_survive_the_round_trip() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    for isa in Isa::available() {
        let mut wide = vec![0.0; bits.len()];
        bf16_to_f32(isa, &bits, &mut wide);
        for (&bits, &wide) in bits.iter().zip(&wide) {
            assert_eq!(wide.to_bits(), u32::from(bits) << 16, "{}", isa.name());
        }
        for (&bits, &back) in bits.iter().zip(&to_bf16(isa, &wide)) {
            let quiet = if bits & 0x7fff > 0x7f80 { 0x0040 } else { 0 };
            assert_eq!(back, bits | quiet, "{} {bits:#06x}", isa.name());
        }
    }
}

/// Between each pair of neighbours: the middle goes to the even one, and the floats around the
/// middle to the nearer one. The last neighbour of the largest finite value is infinity.
#[track_caller]
fn check_rounding(format: Format, convert: fn(Isa, &[f32]) -> Vec<u16>) {
    let mut x = Vec::new();
    let mut want = Vec::new();
    for low in 0..format.infinity() {
        let middle = exact_f32((format.value(low) + format.value(low + 1)) / 2.0);
        let even = low + (low & 1);
        let (below, above) = (middle.next_down(), middle.next_up());
        for (value, bits) in [(below, low), (middle, even), (above, low + 1)] {
            x.extend([value, -value]);
            want.extend([bits, bits | 0x8000]);
        }
    }
    for isa in Isa::available() {
        for (i, got) in convert(isa, &x).into_iter().enumerate() {
            assert_eq!(got, want[i], "{} {:e}", isa.name(), x[i]);
        }
    }
}

#[test]
fn f16_rounds_to_nearest_even_everywhere() {
    check_rounding(F16, to_f16);
}

#[test]
fn bf16_rounds_to_nearest_even_everywhere() {
    // The middle below the smallest subnormal bf16 is an f32 subnormal, so it is exact as well.
    check_rounding(BF16, to_bf16);
}

#[test]
fn what_is_too_large_or_not_a_number_stays_so() {
    let cases = [(65504.0, 0x7bff), (65519.996, 0x7bff), (65520.0, 0x7c00), (1e38, 0x7c00)];
    for isa in Isa::available() {
        for (x, want) in cases {
            assert_eq!(to_f16(isa, &[x, -x]), [want, want | 0x8000], "{} {x}", isa.name());
        }
        assert_eq!(to_f16(isa, &[f32::INFINITY, 0.0, -0.0, 1e-30]), [0x7c00, 0, 0x8000, 0]);
        assert_eq!(to_bf16(isa, &[f32::MAX, f32::INFINITY, -0.0]), [0x7f80, 0x7f80, 0x8000]);
        // A payload only in the low bits must not turn into an infinity.
        let nan = f32::from_bits(0x7f80_0001);
        assert_eq!((to_f16(isa, &[nan]), to_bf16(isa, &[nan])), (vec![0x7e00], vec![0x7fc0]));
    }
}

#[test]
fn every_length_converts_whole() {
    let mut rng = Rng::new(1);
    for len in 0..=70 {
        let x = rng.normals(len, 1.0);
        for isa in Isa::available() {
            let want: Vec<u16> = x.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
            assert_eq!(to_f16(isa, &x), want, "{} {len}", isa.name());
            let mut wide = vec![7.0; len];
            f16_to_f32(isa, &want, &mut wide);
            let exact: Vec<f32> = want.iter().map(|&bits| F16.value_f32(bits)).collect();
            assert_bits_equal(&wide, &exact, isa.name());
            let want: Vec<u16> = x.iter().map(|&x| half::bf16::from_f32(x).to_bits()).collect();
            assert_eq!(to_bf16(isa, &x), want, "{} {len}", isa.name());
            bf16_to_f32(isa, &want, &mut wide);
            let exact: Vec<f32> = want.iter().map(|&bits| BF16.value_f32(bits)).collect();
            assert_bits_equal(&wide, &exact, isa.name());
        }
    }
}
