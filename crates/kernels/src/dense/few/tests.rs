//! Products of few rows against f64, for every plan and instruction set that has one.

use fucina_testkit::{DotOracle, Rng};

use super::*;

const SCALARS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Random weights after a byte of padding, so that no row is aligned.
fn weights(dtype: DType, len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0xff];
    for x in rng.normals(len, 1.0) {
        match dtype {
            DType::F16 => bytes.extend(half::f16::from_f32(x).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f32(x).to_le_bytes()),
            _ => bytes.extend(x.to_le_bytes()),
        }
    }
    bytes
}

/// The product, on poisoned memory that ends where it should.
fn product(few: Few, w: Rows<'_>, x: &[f32], m: usize) -> Vec<f32> {
    let nr = w.bytes.len() / w.dtype.row_bytes(w.k).unwrap();
    let mut packed = vec![f32::NAN; few.packed_len(w.k).unwrap()];
    for (block, out) in packed.chunks_mut(few.block_len()).enumerate() {
        few.pack(x, w.k, block, out);
    }
    assert!(packed.iter().all(|x| !x.is_nan()) || x.iter().any(|x| x.is_nan()), "all is written");
    let (mut out, mut scratch) = (vec![f32::NAN; m * nr], vec![f32::NAN; few.scratch_len()]);
    few.multiply(w, &packed, &mut out, &mut scratch);
    out
}

/// The plans for a number of rows.
fn plans(dtype: DType, m: usize) -> impl Iterator<Item = (&'static str, Few)> {
    Isa::available().into_iter().filter_map(move |isa| Some((isa.name(), Few::new(isa, dtype, m)?)))
}

#[track_caller]
fn check(dtype: DType, (m, nr, k): (usize, usize, usize), rng: &mut Rng) {
    let bytes = weights(dtype, nr * k, rng);
    let w = Rows { dtype, k, bytes: &bytes[1..] };
    let x = rng.normals(m * k, 1.0);
    let mut decoded = vec![f32::NAN; nr * k];
    dtype.decode(w.bytes, &mut decoded).unwrap();
    for (isa, few) in plans(dtype, m) {
        let out = product(few, w, &x, m);
        for (r, out) in out.chunks_exact(nr).enumerate() {
            for (c, &got) in out.iter().enumerate() {
                let oracle = DotOracle::new(&decoded[c * k..][..k], &x[r * k..][..k]);
                oracle.assert_close(got, &format!("{isa} {dtype} [{m}, {nr}, {k}] at [{r}, {c}]"));
            }
        }
    }
}

#[test]
fn every_number_of_rows_is_right() {
    let mut rng = Rng::new(1);
    for dtype in SCALARS {
        for m in 1..=70 {
            check(dtype, (m, 13, 37), &mut rng);
        }
        check(dtype, (128, 25, 300), &mut rng);
    }
}

#[test]
fn every_shape_around_a_tile_is_right() {
    let mut rng = Rng::new(2);
    for dtype in SCALARS {
        for m in [2, 9, 17, 33] {
            for nr in (1..=27).chain([35, 36, 37]) {
                check(dtype, (m, nr, 16), &mut rng);
            }
            for k in (1..=34).chain([255, 256, 257, 271, 272, 511, 512, 513, 1040]) {
                check(dtype, (m, 14, k), &mut rng);
            }
        }
    }
}

/// Small integers: sums are exact in any order, so any element in a wrong place shows.
#[test]
fn sums_of_integers_are_exact() {
    let (nr, k) = (29, 531);
    let value = |i: usize| f32::from(u8::try_from(i % 13).unwrap()) - 6.0;
    let w: Vec<f32> = (0..nr * k).map(|i| value(i * 7 + i / k)).collect();
    for m in [1, 5, 8, 12, 16, 23, 32, 41, 64] {
        let x: Vec<f32> = (0..m * k).map(|i| value(i * 5 + i / k * 3)).collect();
        let rows = Rows { dtype: DType::F32, k, bytes: w.as_bytes() };
        for (isa, few) in plans(DType::F32, m) {
            for (at, got) in product(few, rows, &x, m).into_iter().enumerate() {
                let (r, c) = (at / nr, at % nr);
                let want: f32 = (0..k).map(|i| w[c * k + i] * x[r * k + i]).sum();
                assert_eq!(got.to_bits(), want.to_bits(), "{isa} m={m} at [{r}, {c}]");
            }
        }
    }
}

/// In the body, at the end of a block and in the tail, of every kind of panel.
#[test]
fn not_a_number_reaches_its_outputs_only() {
    let (nr, k) = (13, 277);
    for (dtype, nan, inf) in [
        (DType::F32, &[0, 0, 0xc0, 0x7f][..], &[0, 0, 0x80, 0x7f][..]),
        (DType::F16, &[1, 0x7c], &[0, 0x7c]),
        (DType::BF16, &[0x81, 0x7f], &[0x80, 0x7f]),
    ] {
        let size = nan.len();
        for (m, at) in [3, 9, 17, 33].into_iter().flat_map(|m| [0, 255, 256, 276].map(|at| (m, at)))
        {
            let mut bytes = weights(dtype, nr * k, &mut Rng::new(3))[1..].to_vec();
            bytes[at * size..][..size].copy_from_slice(nan);
            bytes[((nr - 1) * k + at) * size..][..size].copy_from_slice(inf);
            let mut x = vec![1.0; m * k];
            x[k + at] = f32::NAN;
            x[2 * k + at] = f32::NEG_INFINITY;
            for (isa, few) in plans(dtype, m) {
                let out = product(few, Rows { dtype, k, bytes: &bytes }, &x, m);
                for (r, out) in out.chunks_exact(nr).enumerate() {
                    let label = format!("{isa} {dtype} m={m} at {at}, row {r}: {out:?}");
                    assert!(out[0].is_nan(), "{label}");
                    for got in &out[1..nr - 1] {
                        assert_eq!(got.is_nan(), r == 1, "{label}");
                        assert_eq!(got.is_infinite(), r == 2, "{label}");
                    }
                    let last = out[nr - 1];
                    let want = if r == 2 { f32::NEG_INFINITY } else { f32::INFINITY };
                    assert!(if r == 1 { last.is_nan() } else { last == want }, "{label}");
                }
            }
        }
    }
}

/// As many sums as registers hold, and no panel without a row.
#[test]
fn plans_fit_registers_and_waste_less_than_a_panel() {
    for dtype in SCALARS {
        for m in 1..=200 {
            for (isa, few) in plans(dtype, m) {
                let sums = few.tile_rows() * few.regs;
                assert!((12..=24).contains(&sums), "{isa} {m}: {sums} sums");
                assert!(few.padded_rows() < m + few.width, "{isa} {m}");
                assert!(
                    few.regs == 1 || few.padded_rows() - m < 2 * few.width / few.regs,
                    "{isa} {m}"
                );
            }
        }
    }
}

#[test]
fn there_is_no_plan_for_blocks_or_no_rows() {
    for isa in Isa::available() {
        assert!(Few::new(isa, DType::Q8_0, 9).is_none());
        assert!(Few::new(isa, DType::I32, 9).is_none());
        assert!(Few::new(isa, DType::F32, 0).is_none());
        let few = Few::new(isa, DType::F32, 9);
        assert!(few.is_none_or(|few| few.packed_len(usize::MAX).is_none()));
    }
}
