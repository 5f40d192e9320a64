//! Every element is in its place: packing against the reference codec and the goldens.

use super::*;

#[test]
fn a_packed_row_decodes_to_the_bits_of_the_reference() {
    for dtype in block_formats() {
        let mut rng = Rng::new(10);
        for (n, k) in [(1, dtype.unit().0), (16, 3 * dtype.unit().0), (37, 2 * dtype.unit().0)] {
            let w = Weight::random(dtype, n, k, &mut rng);
            assert_rows(&w, &format!("{dtype} [{n}, {k}]"));
        }
    }
}

#[track_caller]
fn assert_rows(w: &Weight, label: &str) {
    let k = w.layout.k();
    for (row, want) in w.decoded.chunks_exact(k).enumerate() {
        let panel =
            &w.packed[row / PANEL_COLS * w.layout.panel_bytes()..][..w.layout.panel_bytes()];
        let mut got = vec![f32::NAN; k];
        unpack_row(&w.layout, panel, row % PANEL_COLS, &mut got);
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert_eq!(got.to_bits(), want.to_bits(), "{label} row {row} element {i}");
        }
    }
}

/// Blocks encoded by ggml, and blocks with scales from subnormal to the largest.
#[test]
fn the_golden_blocks_survive_packing() {
    for dtype in block_formats() {
        let name = match dtype.name().strip_suffix("_K") {
            Some(stem) => format!("{}_K", stem.to_lowercase()),
            None => dtype.name().to_lowercase(),
        };
        let raw = std::fs::read(golden_path(&format!("blocks/{name}.blocks"))).unwrap();
        assert_rows(&Weight::new(dtype, 96, dtype.unit().0, raw), &name);
    }
}

#[test]
fn packing_twice_gives_the_same_bytes() {
    for dtype in block_formats() {
        let w = Weight::random(dtype, 17, 2 * dtype.unit().0, &mut Rng::new(11));
        let mut again = w.packed.clone();
        let panels = again.chunks_exact_mut(w.layout.panel_bytes());
        for (rows, panel) in w.raw.chunks(PANEL_COLS * w.layout.row_bytes()).zip(panels) {
            pack_panel(&w.layout, rows, panel);
        }
        assert_eq!(again, w.packed, "{dtype}");
    }
}

/// One activation at a time: a kernel that takes an element from the wrong place shows here, in
/// whichever format it happens. The activation is 127 steps of 1, so a format without minimums
/// gives the weight times 127, rounded once.
#[test]
fn a_one_hot_activation_returns_the_exact_weight() {
    for dtype in block_formats() {
        let k = 2 * dtype.unit().0;
        let w = Weight::random(dtype, 16, k, &mut Rng::new(12));
        for index in 0..k {
            let mut x = vec![0.0; k];
            x[index] = 127.0;
            let x = quantize(Isa::Scalar, &x, k);
            for isa in Isa::available() {
                for (c, got) in matmul(isa, &w, &x, 1).into_iter().enumerate() {
                    let at = c * k + index;
                    let label = format!("{} {dtype} element {index} column {c}", isa.name());
                    assert_one_hot(got, w.decoded[at], w.constant[at], has_minimums(dtype), &label);
                }
            }
        }
    }
}

#[track_caller]
fn assert_one_hot(got: f32, weight: f32, constant: f32, has_minimums: bool, label: &str) {
    if !has_minimums {
        assert_eq!(got, 127.0 * weight, "{label}");
        return;
    }
    // The term of the quant, the term of the minimum, their difference and the reference decoding
    // are each rounded once; the terms together and the last two are below the sum of magnitudes.
    let (weight, constant) = (f64::from(weight), f64::from(constant));
    let bound = 127.0 * 3.0 * 2f64.powi(-24) * ((weight - constant).abs() + constant.abs());
    let error = (f64::from(got) - 127.0 * weight).abs();
    assert!(error <= bound, "{label}: {got}, want {}", 127.0 * weight);
}

/// Padding columns have zero scales: their output is zero whatever the activations.
#[test]
fn missing_columns_are_zero() {
    for dtype in block_formats() {
        let k = dtype.unit().0;
        let mut rng = Rng::new(13);
        let w = Weight::random(dtype, 3, k, &mut rng);
        let x = quantize(Isa::Scalar, &rng.normals(k, 1.0), k);
        for isa in Isa::available() {
            let out = run(isa, &w.layout, &w.packed, &x, 1);
            assert!(out[3..].iter().all(|&x| x == 0.0), "{} {dtype}: {out:?}", isa.name());
        }
    }
}

#[test]
fn a_layout_states_its_sizes() {
    let layout = PackLayout::new(DType::Q4_K, 33, 512).unwrap();
    assert_eq!((layout.panels(), layout.row_bytes()), (3, 288));
    // Two super-blocks of 16 columns: d and dmin, 8 groups of scale and minimum, 256 nibbles.
    assert_eq!(layout.panel_bytes(), 2 * 16 * (4 + 8 * 2 + 128));
    assert_eq!(layout.total_bytes(), 3 * layout.panel_bytes());
    assert_eq!(layout.bits_per_weight(), 4.625);
}

#[test]
fn what_cannot_be_packed_has_no_layout() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8] {
        assert_eq!(PackLayout::new(dtype, 16, 256), None);
    }
    assert_eq!(PackLayout::new(DType::Q4_K, 16, 255), None);
    assert_eq!(PackLayout::new(DType::Q4_K, 16, 128), None);
    assert_eq!(PackLayout::new(DType::Q8_0, usize::MAX, 1 << 20), None);
    assert_eq!(PackLayout::new(DType::Q8_0, 1, usize::MAX & !31), None);
}
