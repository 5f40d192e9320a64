use super::*;
use crate::{bf16_to_f32, f16_to_f32};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/blocks/");

/// f16 rounds a scale by at most this part of it, unless it is subnormal.
const F16_ROUNDING: f32 = 1.0 / 2048.0;
/// Room for a few f32 roundings.
const F32_ROUNDINGS: f32 = 8.0 * f32::EPSILON;

fn golden_name(dtype: DType) -> String {
    match dtype.name().strip_suffix("_K") {
        Some(stem) => format!("{}_K", stem.to_lowercase()),
        None => dtype.name().to_lowercase(),
    }
}

fn golden_source(dtype: DType) -> Vec<f32> {
    let bytes = std::fs::read(format!("{GOLDEN}{}.src.f32", golden_name(dtype))).unwrap();
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn encoded(dtype: DType, src: &[f32]) -> Result<Vec<u8>, EncodeError> {
    let mut out = vec![0xa5; dtype.row_bytes(src.len()).unwrap()];
    dtype.encode(src, &mut out).map(|()| out)
}

fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let (elems, unit) = dtype.unit();
    let mut out = vec![f32::NAN; bytes.len() / unit * elems];
    dtype.decode(bytes, &mut out).unwrap();
    out
}

fn round_trip(dtype: DType, src: &[f32]) -> Vec<f32> {
    decoded(dtype, &encoded(dtype, src).unwrap())
}

/// Uneven values from -1 to 1.
fn wave(elems: usize) -> impl Iterator<Item = f32> {
    (0..u16::try_from(elems).unwrap()).map(|i| (f32::from(i) * 1.7).sin())
}

fn block_formats() -> impl Iterator<Item = (DType, usize)> {
    DType::BLOCK_FORMATS.iter().map(|info| (info.dtype, info.elems))
}

/// Bytes that ggml wrote for the same values: see `golden/README.md`.
#[test]
fn every_format_encodes_the_golden_values_byte_for_byte() {
    for info in DType::BLOCK_FORMATS {
        let src = golden_source(info.dtype);
        assert_eq!(src.len(), 64 * info.elems);
        let name = golden_name(info.dtype);
        let want = std::fs::read(format!("{GOLDEN}{name}.blocks")).unwrap();
        let got = encoded(info.dtype, &src).unwrap();
        for (at, got) in got.chunks(info.bytes).enumerate() {
            assert_eq!(got, &want[at * info.bytes..][..info.bytes], "{name} block {at}");
        }
    }
}

/// Half a step, a whole one where the positive end is cut off, and the rounding of the scales.
#[test]
fn simple_formats_stay_within_a_step() {
    for (dtype, steps, cut) in [
        (DType::Q4_0, 8.0, 1.0),
        (DType::Q5_0, 16.0, 1.0),
        (DType::Q8_0, 127.0, 0.5),
        (DType::TQ2_0, 1.0, 0.5),
    ] {
        let src = golden_source(dtype);
        let elems = dtype.unit().0;
        // The last quarter is so small that scales are subnormal.
        let src = &src[..48 * elems];
        let got = round_trip(dtype, src);
        for (src, got) in src.chunks(elems).zip(got.chunks(elems)) {
            let largest = largest_magnitude(src);
            let bound = largest * (cut / steps + F16_ROUNDING + F32_ROUNDINGS) + 2f32.powi(-24);
            for (x, y) in src.iter().zip(got) {
                assert!((x - y).abs() <= bound, "{dtype}: {x} became {y}, bound {bound}");
            }
        }
    }
    for (dtype, steps) in [(DType::Q4_1, 15.0), (DType::Q5_1, 31.0)] {
        let src = golden_source(dtype);
        let src = &src[..48 * 32];
        let got = round_trip(dtype, src);
        for (src, got) in src.chunks(32).zip(got.chunks(32)) {
            let (min, max) = range(src);
            let rounding = F16_ROUNDING * (max - min + min.abs());
            let bound = (max - min) * 0.5 / steps + rounding * (1.0 + F32_ROUNDINGS) + 1e-6;
            for (x, y) in src.iter().zip(got) {
                assert!((x - y).abs() <= bound, "{dtype}: {x} became {y}, bound {bound}");
            }
        }
    }
}

/// The block with every quant set to `q`, and its scales kept.
fn with_quants(dtype: DType, block: &[u8], q: u8) -> Vec<u8> {
    let (nibbles, pairs) = ((q & 15) * 0x11, (q & 3) * 0x55);
    let fields: &[(usize, usize, u8)] = match dtype {
        DType::Q2_K => &[(16, 64, pairs)],
        DType::Q3_K => &[(0, 32, (q >> 2) * 0xff), (32, 64, pairs)],
        DType::Q4_K => &[(16, 128, nibbles)],
        DType::Q5_K => &[(16, 32, (q >> 4) * 0xff), (48, 128, nibbles)],
        DType::Q6_K => &[(0, 128, nibbles), (128, 64, (q >> 4) * 0x55)],
        _ => panic!("{dtype} has no groups"),
    };
    let mut block = block.to_vec();
    for &(start, len, byte) in fields {
        block[start..start + len].fill(byte);
    }
    block
}

/// With the scales that were chosen, no other quant is nearer. Equality up to the rounding of
/// `(x + offset) / scale`.
#[test]
fn k_formats_store_the_nearest_quants() {
    for (dtype, quants) in [
        (DType::Q2_K, 4),
        (DType::Q3_K, 8),
        (DType::Q4_K, 16),
        (DType::Q5_K, 32),
        (DType::Q6_K, 64),
    ] {
        let src = golden_source(dtype);
        let bytes = encoded(dtype, &src).unwrap();
        for (src, block) in src.chunks(256).zip(bytes.chunks(dtype.unit().1)) {
            let got = decoded(dtype, block);
            let all: Vec<_> =
                (0..quants).map(|q| decoded(dtype, &with_quants(dtype, block, q))).collect();
            for (n, x) in src.iter().enumerate() {
                let nearest = all.iter().map(|other| (x - other[n]).abs()).fold(f32::MAX, f32::min);
                let size = x.abs() + all[0][n].abs() + all.last().unwrap()[n].abs();
                let error = (x - got[n]).abs();
                assert!(error <= nearest + size * F32_ROUNDINGS, "{dtype}: {x} became {}", got[n]);
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_constants_cost_one_rounding_of_a_scale() {
    for (dtype, elems) in block_formats() {
        assert!(round_trip(dtype, &vec![0.0; elems]).iter().all(|&x| x == 0.0), "{dtype}");
        assert!(round_trip(dtype, &vec![-0.0; elems]).iter().all(|&x| x == 0.0), "{dtype}");
        // At least 0.5, so that no scale of a scale is a subnormal f16.
        for constant in [3.3_f32, -3.3, 0.5001, -700.1] {
            let bound = constant.abs() * (F16_ROUNDING + F32_ROUNDINGS);
            for x in round_trip(dtype, &vec![constant; elems]) {
                assert!((x - constant).abs() <= bound, "{dtype}: {constant} became {x}");
            }
        }
    }
}

/// An outlier takes the end of the range that has one quant more, whatever its sign.
#[test]
fn an_extreme_keeps_its_value_on_either_side() {
    for (dtype, elems) in block_formats() {
        for extreme in [-1000.0, 1000.0] {
            let mut src: Vec<f32> = wave(elems).collect();
            src[7] = extreme;
            let got = round_trip(dtype, &src)[7];
            // A searched scale is at most one candidate, a tenth of a quant in 1.5, away.
            let searched = if matches!(dtype, DType::Q2_K | DType::Q3_K) { 0.5 } else { 0.04 };
            assert!((got - extreme).abs() <= 1000.0 * searched, "{dtype}: {extreme} became {got}");
        }
    }
}

#[test]
fn subnormal_and_tiny_values_become_small_finite_ones() {
    for (dtype, elems) in block_formats() {
        for exponent in [-149, -140, -126, -100, -60, -40] {
            let src: Vec<f32> = wave(elems).map(|x| x * 2f32.powi(exponent)).collect();
            for x in round_trip(dtype, &src) {
                // At most the smallest f16, 2^-24, times scale and quant of 2^7 and 2^5.
                assert!(x.abs() <= 2f32.powi(-24 + 12), "{dtype} 2^{exponent}: {x}");
            }
        }
    }
}

/// Too large is an error; nothing turns into infinity, NaN or zeros on the way.
#[test]
fn huge_values_keep_their_size_or_are_refused() {
    for (dtype, elems) in block_formats() {
        let mut refused = 0;
        for exponent in 0..128 {
            let mut src: Vec<f32> = wave(2 * elems).collect();
            src[elems..].iter_mut().for_each(|x| *x *= 2f32.powi(exponent));
            match encoded(dtype, &src) {
                Err(error) => {
                    assert_eq!(error, EncodeError::TooLarge { dtype, element: elems });
                    refused += 1;
                }
                Ok(bytes) => {
                    assert_eq!(refused, 0, "{dtype}: 2^{exponent} passes, a smaller one did not");
                    let got = decoded(dtype, &bytes);
                    assert!(got.iter().all(|x| x.is_finite()), "{dtype} 2^{exponent}");
                    let (want, got) =
                        (largest_magnitude(&src[elems..]), largest_magnitude(&got[elems..]));
                    assert!((0.5..1.5).contains(&(got / want)), "{dtype}: {want} became {got}");
                }
            }
        }
        assert!(refused > 96, "{dtype}: f16 scales end far below 2^32");
        for src in [vec![f32::MAX; elems], vec![f32::MIN; elems]] {
            assert_eq!(encoded(dtype, &src), Err(EncodeError::TooLarge { dtype, element: 0 }));
        }
    }
}

#[test]
fn a_value_that_is_not_finite_is_named() {
    for &dtype in DType::ALL {
        let elems = dtype.unit().0;
        for (value, what) in
            [(f32::NAN, "NaN"), (f32::INFINITY, "infinite"), (f32::NEG_INFINITY, "infinite")]
        {
            let mut src = vec![1.0; 3 * elems];
            let element = 2 * elems - 1;
            src[element] = value;
            let error = encoded(dtype, &src).unwrap_err();
            assert_eq!(error, EncodeError::NotFinite { dtype, element, what });
        }
    }
}

#[test]
fn wrong_lengths_and_types_are_refused() {
    for &dtype in DType::ALL {
        let (elems, bytes) = dtype.unit();
        for (src, out) in [(elems, bytes - 1), (elems, 2 * bytes), (elems + 1, bytes)] {
            let error = dtype.encode(&vec![0.0; src], &mut vec![0; out]).unwrap_err();
            assert_eq!(error, EncodeError::Length { dtype, elems: src, bytes: out });
        }
    }
    for dtype in [DType::I32, DType::U8] {
        let error = encoded(dtype, &[1.0]).unwrap_err();
        assert_eq!(error, EncodeError::NotAWeightType { dtype });
    }
}

#[test]
fn scalars_are_rounded_to_the_nearest_even() {
    for bits in (0..=u16::MAX).filter(|&bits| f16_to_f32(bits).is_finite()) {
        let bytes = encoded(DType::F16, &[f16_to_f32(bits)]).unwrap();
        assert_eq!(bytes, bits.to_le_bytes(), "{bits:#06x}");
    }
    for bits in (0..=u16::MAX).filter(|&bits| bf16_to_f32(bits).is_finite()) {
        let bytes = encoded(DType::BF16, &[bf16_to_f32(bits)]).unwrap();
        assert_eq!(bytes, bits.to_le_bytes(), "{bits:#06x}");
    }
    // Halfway between two neighbours, and just beyond.
    let half = |ulps: f32| 1.0 + ulps * 2f32.powi(-11);
    for (value, want) in
        [(half(1.0), 0x3c00_u16), (half(3.0), 0x3c02), (half(1.001), 0x3c01), (65_519.0, 0x7bff)]
    {
        assert_eq!(encoded(DType::F16, &[value]).unwrap(), want.to_le_bytes(), "{value}");
    }
    let half = |ulps: f32| 1.0 + ulps * 2f32.powi(-8);
    for (value, want) in [(half(1.0), 0x3f80_u16), (half(3.0), 0x3f82), (half(1.001), 0x3f81)] {
        assert_eq!(encoded(DType::BF16, &[value]).unwrap(), want.to_le_bytes(), "{value}");
    }
    let too_large = |dtype| Err(EncodeError::TooLarge { dtype, element: 1 });
    assert_eq!(encoded(DType::F16, &[1.0, 65_520.0]), too_large(DType::F16));
    assert_eq!(encoded(DType::BF16, &[1.0, f32::MAX]), too_large(DType::BF16));
    assert_eq!(encoded(DType::F32, &[-0.0, f32::MAX]).unwrap()[3..], [0x80, 255, 255, 127, 127]);
}
