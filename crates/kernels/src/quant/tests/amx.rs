//! The tile kernels, on the CPU or in software: see the crate `fucina-amx-emulator`.

use fucina_amx_emulator::{Guarded, counts, is_configured};

use super::*;
use crate::isa::amx::for_tests;
use crate::quant::{Kernel, Plan, matmul_planned, planned_scratch_len};

fn plan(w: &Weight, kernel: Kernel) -> Option<Plan> {
    let isa = for_tests()?;
    Some(Plan::new(isa, &w.layout, 1).with_kernel(kernel).expect("the CPU has tiles"))
}

/// Rows in the form of the plan, and poison behind them. No word lies behind that.
fn write_rows(plan: Plan, x: &[f32], k: usize) -> Guarded<u32> {
    let (len, m) = (activation_len(k), x.len() / k.max(1));
    let mut words = Guarded::new(&vec![u32::MAX; (m + plan.rows_behind()) * len]);
    for (x, out) in x.chunks_exact(k.max(1)).zip(words.chunks_exact_mut(len.max(1))) {
        plan.write((x, k), 0, out);
    }
    words
}

/// All panels in one call, in poisoned memory without anything behind it. Returns `[m, n]`.
fn product(plan: Plan, w: &Weight, words: &[u32], m: usize) -> Vec<f32> {
    let (n, k, panels) = (w.layout.n(), w.layout.k(), w.layout.panels());
    let mut out = Guarded::new(&vec![f32::NAN; m * n]);
    let mut scratch = Guarded::new(&vec![f32::NAN; planned_scratch_len(plan, k, (panels, m))]);
    let packed = Guarded::new(&w.packed);
    let mut matrix = MatrixMut::new(&mut out, m, n);
    matmul_planned(plan, (&w.layout, &packed), (words, m), &mut matrix, &mut scratch);
    assert!(!is_configured(), "the tiles are released");
    out.to_vec()
}

/// The integer tiles return the bits of the vector kernel, which other tests hold to f64.
#[track_caller]
fn check_int8(w: &Weight, m: usize, x: &[f32], label: &str) {
    let Some(plan) = plan(w, Kernel::Int8Tiles) else { return };
    let words = write_rows(plan, x, w.layout.k());
    let got = product(plan, w, &words, m);
    let want = matmul(plan.isa(), w, &words[..m * activation_len(w.layout.k())], m);
    for (at, (got, want)) in got.iter().zip(&want).enumerate() {
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(same, "{label} {} rows {m} at {at}: {got}, want {want}", w.layout.dtype());
    }
}

/// A value rounded to bf16 by other code than the kernel's; subnormal values are zero for tiles.
fn rounded(x: f32) -> f64 {
    let x = half::bf16::from_f32(x).to_f32();
    if x.is_subnormal() { 0.0 } else { f64::from(x) }
}

/// The bf16 tiles against f64, twice.
///
/// On factors rounded to bf16, whose products are exact in f32, only the additions differ: the
/// bound of any order of `k` additions, `k * 2^-24 * sum |w * x|`, to first order; the second is
/// below 1 % of it here. A sum below the least normal float becomes zero: `k` times that.
///
/// On the factors themselves, each is off by at most `2^-8` of itself, and a subnormal one by all.
#[track_caller]
fn check_bf16(w: &Weight, m: usize, x: &[f32], label: &str) {
    let Some(plan) = plan(w, Kernel::Bf16Tiles) else { return };
    let (n, k) = (w.layout.n(), w.layout.k());
    let words = write_rows(plan, x, k);
    let got = product(plan, w, &words, m);
    let least = f64::from(f32::MIN_POSITIVE);
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let terms = k as f64;
    for (row, (got, x)) in got.chunks_exact(n).zip(x.chunks_exact(k)).enumerate() {
        let x_rounded: Vec<f64> = x.iter().map(|&x| rounded(x)).collect();
        for (col, (&got, w)) in got.iter().zip(w.decoded.chunks_exact(k)).enumerate() {
            let (mut want, mut magnitude, mut exact, mut slack) = (0.0, 0.0, 0.0, 0.0);
            for ((&w, &x), &x_rounded) in w.iter().zip(x).zip(&x_rounded) {
                let product = rounded(w) * x_rounded;
                want += product;
                magnitude += product.abs();
                let (w, x) = (f64::from(w), f64::from(x));
                exact += w * x;
                slack += (w * x).abs() * (2.0 * 2f64.powi(-8) + 2f64.powi(-16)) + w.abs() * least;
            }
            let bound = 1.01 * (terms * 2f64.powi(-24) * magnitude + terms * least);
            let error = (f64::from(got) - want).abs();
            let at = format!("{label} {} rows {m} at [{row}, {col}]", plan.name());
            assert!(error <= bound, "{at}: {got}, want {want}, bound {bound:e}");
            let error = (f64::from(got) - exact).abs();
            assert!(error <= slack + bound, "{at}: {got}, exact {exact}");
        }
    }
}

fn check_both(w: &Weight, m: usize, x: &[f32], label: &str) {
    let before = counts();
    check_int8(w, m, x, label);
    check_bf16(w, m, x, label);
    // On a CPU with AMX nothing is counted.
    let after = counts();
    if for_tests().is_some_and(|isa| isa != Isa::best()) && m > 8 {
        assert!(after.int8 > before.int8 && after.bf16 > before.bf16, "{label}: tiles were used");
    }
}

const ROW_COUNTS: [usize; 21] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129];

/// Three panels, the last of one column: a pair and a single one.
#[test]
fn every_row_count_around_a_tile_is_right() {
    for dtype in block_formats() {
        let mut rng = Rng::new(1);
        let k = dtype.unit().0;
        let w = Weight::random(dtype, 33, k, &mut rng);
        for m in ROW_COUNTS {
            check_both(&w, m, &rng.normals(m * k, 1.0), "rows");
        }
    }
}

#[test]
fn every_column_count_around_a_panel_is_right() {
    for dtype in block_formats() {
        let mut rng = Rng::new(2);
        let k = dtype.unit().0;
        for n in [1, 15, 16, 17, 31, 32, 33, 49, 130] {
            let w = Weight::random(dtype, n, k, &mut rng);
            check_both(&w, 17, &rng.normals(17 * k, 1.0), "columns");
        }
    }
}

/// Chunks of 256: whole ones, parts, and one more block than a chunk.
#[test]
fn every_depth_is_right() {
    for dtype in block_formats() {
        let mut rng = Rng::new(3);
        for blocks in [1, 2, 3, 5, 7, 8, 9, 15, 16, 17] {
            let k = blocks * dtype.unit().0;
            if k > 1280 {
                break;
            }
            let w = Weight::random(dtype, 17, k, &mut rng);
            check_both(&w, 18, &rng.normals(18 * k, 1.0), "depth");
        }
    }
}

/// Many rows and panels in one call: the blocks of results are told apart.
#[test]
fn a_large_call_is_right() {
    let mut rng = Rng::new(4);
    let w = Weight::random(DType::Q4_K, 128, 512, &mut rng);
    check_both(&w, 200, &rng.normals(200 * 512, 1.0), "large");
}

#[test]
fn large_and_tiny_activations_are_right() {
    for dtype in block_formats() {
        let mut rng = Rng::new(5);
        let k = dtype.unit().0;
        let w = Weight::random(dtype, 16, k, &mut rng);
        for value in [3e3, 1e5, 1e30, 1e-30, 1e-36, 1e-38, 1e-45, 0.0] {
            check_both(&w, 17, &vec![value; 17 * k], &format!("{value:e}"));
            check_both(&w, 9, &rng.normals(9 * k, value), &format!("{value:e}, random"));
        }
        let mut outlier = rng.normals(17 * k, 1.0);
        for row in outlier.chunks_exact_mut(k) {
            row[k / 3] = 3e5;
        }
        check_both(&w, 17, &outlier, "outlier");
    }
}

/// Every quant at both ends of its range times activations at both ends: no sum saturates.
#[test]
fn extreme_quants_are_exact() {
    for dtype in block_formats() {
        let k = dtype.unit().0;
        for fill in [0x00, 0xff, 0x80, 0x7f] {
            let mut raw = Weight::random(dtype, 16, k, &mut Rng::new(6)).raw;
            for block in raw.chunks_exact_mut(dtype.unit().1) {
                block[fields(dtype).0].fill(fill);
            }
            let w = Weight::new(dtype, 16, k, raw);
            for (label, even, odd) in
                [("+", 127.0, 127.0), ("-", -127.0, -127.0), ("+-", 127.0, -127.0)]
            {
                let x: Vec<f32> =
                    (0..16 * k).map(|i| if i % 2 == 0 { even } else { odd }).collect();
                check_both(&w, 16, &x, &format!("quants {fill:#x} {label}"));
            }
        }
    }
}

/// All f16 bits as the scale of a block, the weight `scale * 1` and an activation of 1.
#[test]
fn every_f16_scale_is_rounded_to_bf16() {
    let Some(isa) = for_tests() else { return };
    let layout = PackLayout::new(DType::Q8_0, 32, 32).unwrap();
    let plan = Plan::new(isa, &layout, 1).with_kernel(Kernel::Bf16Tiles).unwrap();
    let mut x = [0.0; 32];
    x[0] = 1.0;
    let words = write_rows(plan, &x, 32);
    for first in (0..=u16::MAX).step_by(32) {
        let mut raw = [0u8; 32 * 34];
        for (row, bits) in raw.chunks_exact_mut(34).zip(first..=first | 31) {
            row[..2].copy_from_slice(&bits.to_le_bytes());
            row[2] = 1;
        }
        let w = Weight::new(DType::Q8_0, 32, 32, raw.to_vec());
        for (got, bits) in product(plan, &w, &words, 1).into_iter().zip(first..=first | 31) {
            let scale = f16_to_f32(bits);
            let want = half::bf16::from_f32(scale).to_f32();
            let same = if scale.is_finite() { got == want } else { !got.is_finite() };
            assert!(same, "scale {bits:#06x}: {got}, want {want}");
        }
    }
}

/// What is not finite reaches every output of its row, and of no other. Quantized rows end as NaN,
/// as in all kernels that read them; rows in bf16 as NaN or infinite, as f32 arithmetic would.
#[test]
fn what_is_not_finite_stays_in_its_row() {
    for dtype in block_formats() {
        let mut rng = Rng::new(7);
        let k = dtype.unit().0;
        let w = Weight::random(dtype, 33, k, &mut rng);
        let bad = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        for (bad, at) in bad.into_iter().zip([0, 7, k / 2, k - 1]) {
            let mut x = rng.normals(20 * k, 1.0);
            x[4 * k + at] = bad;
            for kernel in [Kernel::Int8Tiles, Kernel::Bf16Tiles] {
                let Some(plan) = plan(&w, kernel) else { return };
                let out = product(plan, &w, &write_rows(plan, &x, k), 20);
                for (r, row) in out.chunks_exact(33).enumerate() {
                    let label = format!("{dtype} {kernel:?} {bad} at {at}, row {r}: {row:?}");
                    assert!(row.iter().all(|x| x.is_finite() == (r != 4)), "{label}");
                }
            }
        }
    }
}

#[test]
fn empty_products_are_zero_or_empty() {
    let Some(isa) = for_tests() else { return };
    let none = |rows| MatrixMut::new(&mut [], rows, 0);
    for kernel in [Kernel::Vector, Kernel::Int8Tiles, Kernel::Bf16Tiles] {
        let layout = |n, k| PackLayout::new(DType::Q4_K, n, k).unwrap();
        let plan = Plan::new(isa, &layout(5, 0), 1).with_kernel(kernel).unwrap();
        let mut out = [f32::NAN; 2 * PANEL_COLS];
        let mut matrix = MatrixMut::new(&mut out, 2, PANEL_COLS);
        matmul_planned(plan, (&layout(5, 0), &[]), (&[], 2), &mut matrix, &mut []);
        assert!(out.iter().all(|&x| x.to_bits() == 0), "no k");
        let w = Weight::random(DType::Q4_K, 16, 256, &mut Rng::new(8));
        let mut scratch = vec![0.0; planned_scratch_len(plan, 256, (1, 0))];
        matmul_planned(plan, (&w.layout, &w.packed), (&[], 0), &mut none(0), &mut scratch);
        let words = vec![0; 40 * activation_len(256)];
        let mut scratch = vec![0.0; planned_scratch_len(plan, 256, (0, 9))];
        matmul_planned(plan, (&w.layout, &[]), (&words, 9), &mut none(9), &mut scratch);
    }
}

#[test]
#[should_panic(expected = "words of x")]
fn rows_without_others_behind_them_are_refused() {
    let w = Weight::random(DType::Q8_0, 16, 32, &mut Rng::new(9));
    let Some(plan) = plan(&w, Kernel::Bf16Tiles) else { panic!("words of x") };
    let words = vec![0; (9 + plan.rows_behind() - 1) * activation_len(32)];
    let mut scratch = vec![0.0; planned_scratch_len(plan, 32, (1, 9))];
    let mut out = [0.0; 144];
    let mut out = MatrixMut::new(&mut out, 9, 16);
    matmul_planned(plan, (&w.layout, &w.packed), (&words, 9), &mut out, &mut scratch);
}

/// The error that a caller sees, on ordinary values: what docs/perf/0005 says.
#[test]
fn the_error_of_bf16_is_below_that_of_quantized_activations() {
    let mut rng = Rng::new(10);
    let w = Weight::random(DType::Q4_K, 32, 1024, &mut rng);
    let x = rng.normals(32 * 1024, 1.0);
    let relative = |kernel| {
        let plan = plan(&w, kernel)?;
        let out = product(plan, &w, &write_rows(plan, &x, 1024), 32);
        let (mut error, mut size) = (0.0, 0.0);
        for (out, x) in out.chunks_exact(32).zip(x.chunks_exact(1024)) {
            for (&got, w) in out.iter().zip(w.decoded.chunks_exact(1024)) {
                let exact: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                error += (f64::from(got) - exact).powi(2);
                size += exact * exact;
            }
        }
        Some((error / size).sqrt())
    };
    let (Some(bf16), Some(int8)) = (relative(Kernel::Bf16Tiles), relative(Kernel::Int8Tiles))
    else {
        return;
    };
    println!("Q4_K relative error: bf16 {bf16:.2e}, 8 bits {int8:.2e}");
    // A rounding to bf16 is off by at most 2^-8, evenly distributed: 2^-8 / sqrt(3) in the mean
    // square at most, and sqrt(2) times that for two factors.
    assert!(bf16 < 3.2e-3 && bf16 < int8, "{bf16:e} against {int8:e}");
}
