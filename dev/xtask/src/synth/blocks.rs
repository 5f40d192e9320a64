//! Random weights, written directly in their stored form: no encoder, and any size in one pass.
//!
//! Every format gets uniform quants under scales that make the weights' standard deviation
//! [`STD`] and their mean zero, so that activations stay in the range of a trained model.

use fucina_dtype::DType;
use fucina_testkit::Rng;
use half::{bf16, f16};

/// Standard deviation of the weights.
pub(crate) const STD: f32 = 0.02;

/// Appends `units` storage units of random weights in `dtype` to `out`.
///
/// # Panics
///
/// Panics for a type that no format of `synth-model` uses.
pub(crate) fn append(dtype: DType, units: usize, rng: &mut Rng, out: &mut Vec<u8>) {
    for _ in 0..units {
        match dtype {
            DType::F32 => out.extend((rng.normal() * STD).to_le_bytes()),
            DType::F16 => out.extend(f16::from_f32(rng.normal() * STD).to_le_bytes()),
            DType::BF16 => out.extend(bf16::from_f32(rng.normal() * STD).to_le_bytes()),
            DType::Q8_0 => q8_0(rng, out),
            DType::Q4_K => q4_k(rng, out),
            DType::Q6_K => q6_k(rng, out),
            other => panic!("no random weights for {other}"),
        }
    }
}

/// `ones` as f32: the weights of a norm.
pub(crate) fn ones(len: usize) -> Vec<u8> {
    std::iter::repeat_n(1.0_f32.to_le_bytes(), len).flatten().collect()
}

fn random_bytes(len: usize, rng: &mut Rng, out: &mut Vec<u8>) {
    for _ in 0..len / 8 {
        out.extend(rng.next_u64().to_le_bytes());
    }
    out.extend(&rng.next_u64().to_le_bytes()[..len % 8]);
}

/// Standard deviation of a uniform draw from `levels` neighbouring integers.
fn uniform_std(levels: f32) -> f32 {
    ((levels * levels - 1.0) / 12.0).sqrt()
}

/// A byte of `lo..lo + count`.
fn byte(rng: &mut Rng, lo: u8, count: usize) -> u8 {
    lo + u8::try_from(rng.below(count)).expect("callers draw less than 256 values")
}

/// `d * q`, with q in -128..=127 and d around its mean. The mean of q is -1/2: the sign of d varies.
fn q8_0(rng: &mut Rng, out: &mut Vec<u8>) {
    let sign = if rng.below(2) == 0 { 1.0 } else { -1.0 };
    let d = sign * STD / uniform_std(256.0) * rng.uniform(0.9, 1.1);
    out.extend(f16::from_f32(d).to_le_bytes());
    random_bytes(32, rng, out);
}

/// `d * scale * q - dmin * min`: with `min = scale` and `dmin = 7.5 * d` the middle of the 16
/// levels is zero.
fn q4_k(rng: &mut Rng, out: &mut Vec<u8>) {
    const MIDDLE: u8 = 32;
    let d = STD / uniform_std(16.0) / f32::from(MIDDLE);
    let scales: [u8; 8] = std::array::from_fn(|_| byte(rng, MIDDLE - 4, 9));
    out.extend(f16::from_f32(d).to_le_bytes());
    out.extend(f16::from_f32(7.5 * d).to_le_bytes());
    out.extend(pack_scales(scales, scales));
    random_bytes(128, rng, out);
}

/// The 6-bit scales and minimums of `Q4_K`: the first four of each whole, in the low bits; of the
/// others the low nibbles together, the high bits on top of the first four.
fn pack_scales(scales: [u8; 8], mins: [u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | (scales[j + 4] >> 4) << 6;
        packed[j + 4] = mins[j] | (mins[j + 4] >> 4) << 6;
        packed[j + 8] = scales[j + 4] & 15 | (mins[j + 4] & 15) << 4;
    }
    packed
}

/// `d * scale * (q - 32)`; scales of both signs, because the mean of q - 32 is -1/2.
fn q6_k(rng: &mut Rng, out: &mut Vec<u8>) {
    const MIDDLE: u8 = 16;
    let d = STD / uniform_std(64.0) / f32::from(MIDDLE);
    random_bytes(128 + 64, rng, out);
    for _ in 0..16 {
        let scale = byte(rng, MIDDLE - 4, 9);
        out.push(if rng.below(2) == 0 { scale } else { scale.wrapping_neg() });
    }
    out.extend(f16::from_f32(d).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_every_type_have_the_stated_mean_and_deviation() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_K, DType::Q6_K] {
            let (unit_elems, unit_bytes) = dtype.unit();
            let units = (1 << 18) / unit_elems;
            let mut bytes = Vec::new();
            append(dtype, units, &mut Rng::new(1), &mut bytes);
            assert_eq!(bytes.len(), units * unit_bytes, "{dtype}");
            let mut weights = vec![0.0; units * unit_elems];
            dtype.decode(&bytes, &mut weights).unwrap();
            let n = f64::from(1 << 18);
            let mean = weights.iter().map(|&w| f64::from(w)).sum::<f64>() / n;
            let square = weights.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>() / n;
            let std = (square - mean * mean).sqrt();
            // Five standard errors of a mean of n, far above the rounding of dmin to f16. The
            // deviation gains what the scales spread around their middle, at most 16 % and so
            // sqrt(1 + 0.16^2) = 1.013, and moves by 0.14 % for each standard error.
            assert!(mean.abs() < 5.0 * f64::from(STD) / n.sqrt(), "{dtype}: mean {mean}");
            assert!((std / f64::from(STD) - 1.0).abs() < 0.02, "{dtype}: std {std}");
        }
    }

    #[test]
    fn packed_scales_keep_all_six_bits() {
        // Checked against the reference decoder: quant 1 everywhere, minimum 0, then scale = value.
        let scales = [1, 2, 4, 8, 16, 32, 63, 21];
        let mut block = f16::from_f32(1.0).to_le_bytes().to_vec();
        block.extend(f16::from_f32(1.0).to_le_bytes());
        block.extend(pack_scales(scales, [0, 1, 0, 3, 0, 33, 0, 62]));
        block.extend([0x11; 128]);
        let mut out = [0.0; 256];
        DType::Q4_K.decode(&block, &mut out).unwrap();
        let groups: Vec<f32> = out.chunks(32).map(|group| group[0]).collect();
        assert_eq!(groups, [1.0, 1.0, 4.0, 5.0, 16.0, -1.0, 63.0, -41.0]);
    }
}
