//! Bits of the 16-bit floats to f32. Every value is exact: subnormals stay, NaN stays NaN.

/// Converts IEEE 754 binary16 bits.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

/// Converts bfloat16 bits: the high half of a binary32.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Decodes units of `N` bytes. Returns `false` on a length mismatch.
pub(crate) fn decode_units<const N: usize>(
    src: &[u8],
    out: &mut [f32],
    decode: impl Fn([u8; N]) -> f32,
) -> bool {
    let (units, rest) = src.as_chunks::<N>();
    if !rest.is_empty() || units.len() != out.len() {
        return false;
    }
    for (out, &unit) in out.iter_mut().zip(units) {
        *out = decode(unit);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    /// The definition of binary16, in f64 arithmetic: no bit tricks shared with the codec.
    fn binary16(bits: u16) -> f64 {
        let sign = if bits >= 0x8000 { -1.0 } else { 1.0 };
        let exponent = i32::from(bits / 1024 % 32);
        let fraction = f64::from(bits % 1024) / 1024.0;
        match exponent {
            0 => sign * fraction * 2f64.powi(-14),
            31 if fraction == 0.0 => sign * f64::INFINITY,
            31 => f64::NAN,
            _ => sign * (1.0 + fraction) * 2f64.powi(exponent - 15),
        }
    }

    #[test]
    fn every_f16_converts_to_its_defined_value() {
        for bits in 0..=u16::MAX {
            let (got, want) = (f64::from(f16_to_f32(bits)), binary16(bits));
            assert!(got.is_nan() == want.is_nan(), "{bits:#06x}");
            if !want.is_nan() {
                assert_eq!(got.to_bits(), want.to_bits(), "{bits:#06x}");
            }
        }
    }

    /// Each f16 value as the scale of a block: `d * 1` is exact in f32, subnormals included.
    #[test]
    fn every_f16_is_exact_as_a_block_scale() {
        for bits in 0..=u16::MAX {
            let want = binary16(bits);
            let mut q8_0 = [0u8; 34];
            q8_0[..2].copy_from_slice(&bits.to_le_bytes());
            q8_0[2] = 1;
            let mut tq2_0 = [0u8; 66];
            tq2_0[0] = 2;
            tq2_0[64..].copy_from_slice(&bits.to_le_bytes());
            let mut q4_k = [0u8; 144];
            q4_k[..2].copy_from_slice(&bits.to_le_bytes());
            (q4_k[4], q4_k[16]) = (1, 1);
            let mut out = [0f32; 256];
            for (dtype, src) in
                [(DType::Q8_0, &q8_0[..]), (DType::TQ2_0, &tq2_0), (DType::Q4_K, &q4_k)]
            {
                let elems = dtype.unit().0;
                dtype.decode(src, &mut out[..elems]).unwrap();
                let got = f64::from(out[0]);
                assert!(got == want || (got.is_nan() && want.is_nan()), "{dtype} {bits:#06x}");
            }
        }
    }

    #[test]
    fn bf16_keeps_the_high_half() {
        assert_eq!(bf16_to_f32(0x3f80), 1.0);
        assert_eq!(bf16_to_f32(0xc049), -3.140_625);
        assert_eq!(bf16_to_f32(0x0001), f32::from_bits(0x0001_0000));
        assert!(bf16_to_f32(0x7fc0).is_nan());
    }
}
