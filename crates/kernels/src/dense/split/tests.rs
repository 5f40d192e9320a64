//! Products of parts against f64, on the CPU or in software.

use fucina_amx_emulator::{Guarded, counts, is_configured};
use fucina_testkit::{Rng, assert_bits_equal};

use super::*;
use crate::isa::amx::for_tests;

const DTYPES: [DType; 2] = [DType::F16, DType::BF16];

fn plan(dtype: DType) -> Option<Split> {
    Some(Split::new(for_tests()?, dtype, SPLIT_ROWS).expect("tiles are used"))
}

fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 2 * values.len()];
    dtype.encode(values, &mut bytes).unwrap();
    bytes
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![f32::NAN; bytes.len() / 2];
    dtype.decode(bytes, &mut values).unwrap();
    values
}

fn pack(plan: Split, x: &[f32], k: usize) -> Guarded<u32> {
    let (m, len) = (x.len() / k, Split::block_words(k));
    let mut words = Guarded::new(&vec![u32::MAX; m.div_ceil(SPLIT_BLOCK) * len]);
    for (x, out) in x.chunks(SPLIT_BLOCK * k).zip(words.chunks_exact_mut(len)) {
        plan.pack(x, k, out);
    }
    words
}

/// The product in poisoned memory with nothing behind it, weights at an odd address.
fn product(plan: Split, bytes: &[u8], x: &[f32], k: usize) -> Vec<f32> {
    let (m, nr) = (x.len() / k, bytes.len() / (2 * k));
    let words = pack(plan, x, k);
    let mut out = Guarded::new(&vec![f32::NAN; m * nr]);
    let mut scratch = Guarded::new(&vec![f32::NAN; plan.scratch_len(m, nr)]);
    let mut shifted = vec![0xff];
    shifted.extend(bytes);
    let w = Rows { dtype: plan.dtype, k, bytes: &shifted[1..] };
    plan.multiply(w, (&words, m), &mut out, &mut scratch);
    assert!(!is_configured(), "the tiles are released");
    out.to_vec()
}

/// `w * x` in f64, and how far off products of parts may be.
///
/// A part misses at most `2^-8` of what it stands for, two parts `2^-16`. That of an activation is
/// left out, and with f16 the product of both second parts, `2^-8 * 2^-8`: `2^-15` in all, at most.
/// Parts and sums below the least normal float become zero. Up to `3 * k` products are added; parts
/// are at most `1 + 2^-8` of the values, so `1.01` covers that and the second order.
fn oracle(w: &[f32], x: &[f32]) -> (f64, f64) {
    let (mut value, mut magnitude, mut weights) = (0.0, 0.0, 0.0);
    for (&w, &x) in w.iter().zip(x) {
        let (w, x) = (f64::from(w), f64::from(x));
        value += w * x;
        magnitude += (w * x).abs();
        weights += w.abs();
    }
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let terms = 3.0 * w.len() as f64;
    let least = f64::from(f32::MIN_POSITIVE);
    let relative = 2f64.powi(-15) + 1.01 * terms * 2f64.powi(-24);
    (value, relative * magnitude + (weights + terms) * least)
}

#[track_caller]
fn check(dtype: DType, bytes: &[u8], x: &[f32], k: usize, label: &str) {
    let Some(plan) = plan(dtype) else { return };
    let before = counts();
    let w = decode(dtype, bytes);
    let (out, nr) = (product(plan, bytes, x, k), w.len() / k);
    for (r, (out, x)) in out.chunks_exact(nr).zip(x.chunks_exact(k)).enumerate() {
        for (c, (&got, w)) in out.iter().zip(w.chunks_exact(k)).enumerate() {
            let (want, bound) = oracle(w, x);
            let error = (f64::from(got) - want).abs();
            let at = format!("{label} {dtype} [{r}, {c}] of {} by {nr} by {k}", x.len() / k);
            assert!(error <= bound, "{at}: {got}, want {want}, bound {bound:e}");
        }
    }
    assert!(for_tests() == Some(Isa::best()) || counts().bf16 > before.bf16, "tiles were used");
}

#[test]
fn every_shape_around_a_tile_is_right() {
    for dtype in DTYPES {
        let mut rng = Rng::new(1);
        let mut shape = |m: usize, nr: usize, k: usize| {
            let bytes = encode(dtype, &rng.normals(nr * k, 1.0));
            check(dtype, &bytes, &rng.normals(m * k, 1.0), k, "shapes");
        };
        for m in (1..=9).chain([15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129]) {
            shape(m, 5, 37);
        }
        for nr in [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 65] {
            shape(18, nr, 64);
            shape(40, nr, 33);
        }
        for k in (1..=5).chain([31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 512, 513]) {
            shape(17, 18, k);
        }
    }
}

/// One call that packs and multiplies is the same product.
#[test]
fn rows_of_a_weight_are_multiplied_in_tiles() {
    let Some(isa) = for_tests() else { return };
    for dtype in DTYPES {
        let mut rng = Rng::new(6);
        for (m, nr, k) in [(SPLIT_ROWS, 1, 1), (16, 33, 40), (70, 50, 129)] {
            let (bytes, x) = (encode(dtype, &rng.normals(nr * k, 1.0)), rng.normals(m * k, 1.0));
            let want = product(plan(dtype).expect("as above"), &bytes, &x, k);
            let mut out = Guarded::new(&vec![f32::NAN; m * nr]);
            let len = super::super::scratch_len(isa, dtype, (m, nr), k);
            let mut scratch = Guarded::new(&vec![f32::NAN; len]);
            let w = Rows { dtype, k, bytes: &bytes };
            super::super::matmul_rows(isa, w, &x, &mut out, &mut scratch);
            assert_bits_equal(&out, &want, &format!("{dtype} {m}x{nr}x{k}"));
        }
    }
}

#[test]
fn large_and_tiny_values_are_right() {
    for dtype in DTYPES {
        let mut rng = Rng::new(2);
        let k = 70;
        let scales = [6e4, 1e-3, 6e-5, 1e-6, 0.0];
        for scale in scales {
            let values: Vec<f32> =
                rng.normals(17 * k, scale).iter().map(|w| w.clamp(-6.5e4, 6.5e4)).collect();
            let bytes = encode(dtype, &values);
            for x_scale in [1.0, 7e4, 1e30, 1e-30, 1e-37, 1e-40] {
                let mut x = rng.normals(18 * k, x_scale);
                x[k / 2] = 3e5;
                check(dtype, &bytes, &x, k, &format!("{scale:e} times {x_scale:e}"));
            }
        }
    }
}

/// Every finite f16 and every bf16 of ordinary size, times a power of two: both parts are there.
#[test]
fn every_weight_is_exact() {
    for dtype in DTYPES {
        let Some(plan) = plan(dtype) else { return };
        let values = (0..=u16::MAX).step_by(3).collect::<Vec<_>>();
        for bits in values.chunks(512) {
            let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
            let w = decode(dtype, &bytes);
            // A weight for each row: k = 1.
            let out = product(plan, &bytes, &[0.5], 1);
            for (&got, &w) in out.iter().zip(&w) {
                let flushed = if w.abs() < 2.0 * f32::MIN_POSITIVE { 0.0 } else { 0.5 * w };
                let same = if w.is_finite() { got == flushed } else { got.is_nan() };
                assert!(same, "{dtype} {w:e}: {got:e}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_with_its_row_and_its_weight() {
    for dtype in DTYPES {
        let Some(plan) = plan(dtype) else { return };
        let (m, nr, k) = (20, 19, 70);
        let mut rng = Rng::new(3);
        let mut bytes = encode(dtype, &rng.normals(nr * k, 1.0));
        let (infinity, nan) = if dtype == DType::F16 { (0x7c00, 0x7e01) } else { (0x7f80, 0x7fc1) };
        for (at, bits) in [(5 * k + 33, infinity), (7 * k, nan)] {
            bytes[2 * at..][..2].copy_from_slice(&u16::to_le_bytes(bits));
        }
        let mut x = rng.normals(m * k, 1.0);
        x[3 * k + 69] = f32::NEG_INFINITY;
        x[17 * k + 1] = f32::NAN;
        let out = product(plan, &bytes, &x, k);
        for (r, out) in out.chunks_exact(nr).enumerate() {
            for (c, got) in out.iter().enumerate() {
                let bad = matches!(r, 3 | 17) || matches!(c, 5 | 7);
                assert_eq!(got.is_finite(), !bad, "{dtype} [{r}, {c}]: {got}");
            }
        }
    }
}

/// Words of a packed block hold the parts of the rows, by other code.
#[test]
fn a_packed_block_is_what_its_layout_says() {
    let Some(plan) = plan(DType::BF16) else { return };
    let (rows, k) = (13, 45);
    let x = Rng::new(4).normals(rows * k, 1.0);
    let words = pack(plan, &x, k);
    let halves: Vec<f32> = words
        .iter()
        .flat_map(|word| [word << 16, word & 0xffff_0000])
        .map(f32::from_bits)
        .collect();
    let (mut got, mut want) = (Vec::new(), Vec::new());
    for row in 0..16 {
        for i in 0..64 {
            let at = |part: usize| 2 * (i / 32 * 512 + part * 256 + i % 32 / 2 * 16 + row) + i % 2;
            let value = if row < rows && i < k { x[row * k + i] } else { 0.0 };
            let high = half::bf16::from_f32(value).to_f32();
            got.extend([halves[at(0)], halves[at(1)]]);
            want.extend([high, half::bf16::from_f32(value - high).to_f32()]);
        }
    }
    assert_bits_equal(&got, &want, "parts");
}

#[test]
fn few_rows_and_other_types_are_not_split() {
    let Some(isa) = for_tests() else { return };
    assert!(Split::new(isa, DType::F16, SPLIT_ROWS - 1).is_none());
    assert!(Split::new(isa, DType::F32, 100).is_none());
    assert!(Split::new(isa, DType::Q8_0, 100).is_none());
    assert!(Split::new(Isa::Scalar, DType::F16, 100).is_none());
}

/// The error that a caller sees, on ordinary values: what docs/perf/0005 says.
#[test]
fn the_error_is_far_below_that_of_f16_activations() {
    for dtype in DTYPES {
        let Some(plan) = plan(dtype) else { return };
        let (n, k) = (32, 1024);
        let mut rng = Rng::new(5);
        let (bytes, x) = (encode(dtype, &rng.normals(n * k, 1.0)), rng.normals(n * k, 1.0));
        let out = product(plan, &bytes, &x, k);
        let w = decode(dtype, &bytes);
        let (mut error, mut size) = (0.0, 0.0);
        for (out, x) in out.chunks_exact(n).zip(x.chunks_exact(k)) {
            for (&got, w) in out.iter().zip(w.chunks_exact(k)) {
                let (want, _) = oracle(w, x);
                error += (f64::from(got) - want).powi(2);
                size += want * want;
            }
        }
        let relative = (error / size).sqrt();
        println!("{dtype} relative error {relative:.1e}");
        // Missing parts make 2^-17 to 2^-16, rounded sums less: 1e-5 at most. f16 makes 2e-4.
        assert!(relative < 1e-5, "{dtype}: {relative:e}");
    }
}
