//! Shapes at the edges of tiles, and values at the limits of their types.

#[cfg(target_arch = "aarch64")]
use fucina_testkit::assert_bits_equal;

use super::*;

#[test]
fn every_row_count_around_a_tile_is_right() {
    for dtype in block_formats() {
        let mut rng = Rng::new(1);
        let k = 2 * dtype.unit().0;
        let w = Weight::random(dtype, 17, k, &mut rng);
        for m in (0..=27).chain([63, 64, 65]) {
            check(&w, m, &rng.normals(m * k, 1.0), "rows");
        }
    }
}

/// All NEON versions scale the same exact sums in the same order, so a model answers the same on
/// every Arm CPU.
#[cfg(target_arch = "aarch64")]
#[test]
fn neon_versions_give_the_same_bits() {
    let isas: Vec<Isa> =
        Isa::available().into_iter().filter(|isa| matches!(isa, Isa::Neon(_))).collect();
    for dtype in block_formats() {
        let mut rng = Rng::new(9);
        let k = 3 * dtype.unit().0;
        let w = Weight::random(dtype, 33, k, &mut rng);
        for m in [1, 2, 3, 5, 8, 13] {
            let x = quantize(Isa::Scalar, &rng.normals(m * k, 1.0), k);
            let want = matmul(isas[0], &w, &x, m);
            for &isa in &isas[1..] {
                assert_bits_equal(&matmul(isa, &w, &x, m), &want, isa.name());
            }
        }
    }
}

#[test]
fn every_column_count_around_a_panel_is_right() {
    for dtype in block_formats() {
        let mut rng = Rng::new(2);
        let k = dtype.unit().0;
        for n in [1, 15, 16, 17, 33] {
            let w = Weight::random(dtype, n, k, &mut rng);
            check(&w, 3, &rng.normals(3 * k, 1.0), "columns");
        }
    }
}

#[test]
fn every_depth_is_right() {
    for dtype in block_formats() {
        let mut rng = Rng::new(3);
        for blocks in [1, 2, 3, 5, 8, 9] {
            let k = blocks * dtype.unit().0;
            let w = Weight::random(dtype, 16, k, &mut rng);
            check(&w, 5, &rng.normals(5 * k, 1.0), "depth");
        }
    }
}

#[test]
fn an_empty_depth_gives_zeros() {
    for dtype in block_formats() {
        let layout = PackLayout::new(dtype, 5, 0).unwrap();
        assert_eq!((layout.panels(), layout.total_bytes()), (1, 0));
        for isa in Isa::available() {
            let out = run(isa, &layout, &[], &[], 2);
            assert!(out.iter().all(|&x| x.to_bits() == 0));
        }
    }
}

/// Activations far beyond the range of f16, all of one sign: sums and scales stay in f32.
#[test]
fn large_activations_do_not_overflow() {
    for dtype in block_formats() {
        let mut rng = Rng::new(4);
        let k = 2 * dtype.unit().0;
        let w = Weight::random(dtype, 16, k, &mut rng);
        for (label, value) in [("3000", 3e3), ("1e5", 1e5), ("1e30", 1e30)] {
            check(&w, 2, &vec![value; 2 * k], label);
        }
        let mut outlier = rng.normals(9 * k, 1.0);
        for row in outlier.chunks_exact_mut(k) {
            row[k / 3] = 3e5;
        }
        check(&w, 9, &outlier, "outlier");
    }
}

#[test]
fn tiny_activations_become_zero_or_stay_right() {
    for dtype in block_formats() {
        let mut rng = Rng::new(5);
        let k = dtype.unit().0;
        let w = Weight::random(dtype, 16, k, &mut rng);
        for scale in [0.0, 1e-45, 1e-38, 1e-36, 1e-30] {
            check(&w, 2, &rng.normals(2 * k, scale), "tiny");
        }
    }
}

/// Every quant at both ends of its range, times activations at both ends: the largest integer
/// sums. A version that saturates in 16 bits fails here.
#[test]
fn extreme_quants_are_exact() {
    for dtype in block_formats() {
        let k = dtype.unit().0;
        for fill in [0x00, 0xff, 0x80, 0x7f] {
            let mut rng = Rng::new(6);
            let mut raw = Weight::random(dtype, 16, k, &mut rng).raw;
            for block in raw.chunks_exact_mut(dtype.unit().1) {
                block[fields(dtype).0].fill(fill);
            }
            let w = Weight::new(dtype, 16, k, raw);
            let mut x = vec![127.0; 3 * k];
            x[k..2 * k].fill(-127.0);
            for (i, x) in x[2 * k..].iter_mut().enumerate() {
                *x = if i % 2 == 0 { 127.0 } else { -127.0 };
            }
            check(&w, 3, &x, &format!("quants {fill:#x}"));
        }
    }
}

/// All f16 bits as the scale of a block: what comes out is `scale * quant`, or not a number.
#[test]
fn every_f16_scale_is_exact_in_every_kernel() {
    let layout = PackLayout::new(DType::Q8_0, 16, 32).unwrap();
    let mut x = [0.0; 32];
    x[0] = 127.0; // scale 1
    let mut panel = vec![0; layout.panel_bytes()];
    for isa in Isa::available() {
        let mut record = vec![0; activation_len(32)];
        quantize_row(isa, &x, &mut record);
        for first in (0..=u16::MAX).step_by(PANEL_COLS) {
            let mut raw = [0u8; 16 * 34];
            for (row, bits) in raw.chunks_exact_mut(34).zip(first..=first | 15) {
                row[..2].copy_from_slice(&bits.to_le_bytes());
                row[2] = 1;
            }
            pack_panel(&layout, &raw, &mut panel);
            let out = run(isa, &layout, &panel, &record, 1);
            for (got, bits) in out.into_iter().zip(first..=first | 15) {
                let scale = f16_to_f32(bits);
                let same = if scale.is_finite() { got == 127.0 * scale } else { !got.is_finite() };
                assert!(same, "{} scale {bits:#06x}: {got}", isa.name());
            }
        }
    }
}

/// A NaN or an infinity in one row reaches every output of that row, and of no other.
#[test]
fn not_a_number_is_not_dropped() {
    for dtype in block_formats() {
        let mut rng = Rng::new(7);
        let k = 2 * dtype.unit().0;
        let w = Weight::random(dtype, 16, k, &mut rng);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 7, k / 2, k - 1] {
                let mut x = rng.normals(9 * k, 1.0);
                x[4 * k + at] = bad;
                for isa in Isa::available() {
                    let out = matmul(isa, &w, &quantize(isa, &x, k), 9);
                    for (r, row) in out.chunks_exact(16).enumerate() {
                        let label = format!("{} {dtype} {bad} at {at}, row {r}", isa.name());
                        assert!(row.iter().all(|x| x.is_nan() == (r == 4)), "{label}: {row:?}");
                    }
                }
            }
        }
    }
}

/// A panel may begin at any byte.
#[test]
fn a_panel_needs_no_alignment() {
    for dtype in block_formats() {
        let mut rng = Rng::new(8);
        let k = dtype.unit().0;
        let w = Weight::random(dtype, 16, k, &mut rng);
        let x = quantize(Isa::Scalar, &rng.normals(2 * k, 1.0), k);
        for isa in Isa::available() {
            let want = matmul(isa, &w, &x, 2);
            let mut shifted = vec![0; w.packed.len() + 3];
            shifted[3..].copy_from_slice(&w.packed);
            let out = run(isa, &w.layout, &shifted[3..], &x, 2);
            assert_eq!(out, want, "{} {dtype}", isa.name());
        }
    }
}

#[test]
#[should_panic(expected = "words of x")]
fn a_short_activation_is_refused() {
    let layout = PackLayout::new(DType::Q8_0, 16, 32).unwrap();
    let panel = vec![0; layout.panel_bytes()];
    run(Isa::Scalar, &layout, &panel, &[0; 15], 1);
}

#[test]
#[should_panic(expected = "words of scratch")]
fn a_short_scratch_is_refused() {
    let layout = PackLayout::new(DType::Q8_0, 16, 32).unwrap();
    let (panel, mut out) = (vec![0; layout.panel_bytes()], [0.0; PANEL_COLS]);
    let mut scratch = vec![0; scratch_words(32) - 1];
    let mut out = MatrixMut::new(&mut out, 1, PANEL_COLS);
    matmul_panels(Isa::Scalar, &layout, &panel, &[0; 16], &mut out, &mut scratch);
}

/// A row gives the same bits whatever rows are beside it, and a panel whatever panels are.
#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    for dtype in block_formats() {
        let mut rng = Rng::new(9);
        let k = 2 * dtype.unit().0;
        let w = Weight::random(dtype, 40, k, &mut rng);
        let x = quantize(Isa::Scalar, &rng.normals(26 * k, 1.0), k);
        for isa in Isa::available() {
            let all = matmul(isa, &w, &x, 26);
            for (first, rows) in [(0, 1), (3, 2), (5, 4), (1, 6), (8, 7), (13, 13), (2, 24)] {
                let x = &x[first * activation_len(k)..][..rows * activation_len(k)];
                let some = matmul(isa, &w, x, rows);
                let want = &all[first * 40..][..rows * 40];
                assert!(some == want, "{} {dtype} rows {first}+{rows}", isa.name());
            }
            let (one, panel) = (PackLayout::new(dtype, 16, k).unwrap(), w.layout.panel_bytes());
            let some = run(isa, &one, &w.packed[panel..][..panel], &x, 26);
            for (some, all) in some.chunks_exact(16).zip(all.chunks_exact(40)) {
                assert!(some == &all[16..32], "{} {dtype} one panel", isa.name());
            }
        }
    }
}
