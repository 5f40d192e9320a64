//! Few rows times wide operands against f64.

use fucina_testkit::{DotOracle, Rng};

use super::super::Route;
use super::*;

/// The operand with `gap` elements that are not a number between its rows, on poisoned memory.
#[track_caller]
fn check((m, k, n): (usize, usize, usize), gap: usize, rng: &mut Rng) {
    let (x, b) = (rng.normals(m * k, 1.0), rng.normals(k * n, 1.0));
    let mut data = Vec::new();
    for (i, row) in b.chunks_exact(n).enumerate() {
        data.extend_from_slice(row);
        data.extend(std::iter::repeat_n(f32::NAN, if i + 1 < k { gap } else { 0 }));
    }
    let b = Wide { data: &data, row_stride: n + gap };
    for isa in Isa::available().into_iter().filter(|isa| Route::wide(*isa, 1)) {
        let (mut out, mut scratch) =
            (vec![f32::NAN; m * n], vec![f32::NAN; wide_scratch_len(m, n)]);
        multiply_wide(isa, (&x, m), b, &mut out, &mut scratch);
        for (at, &got) in out.iter().enumerate() {
            let (r, c) = (at / n, at % n);
            let column: Vec<f32> = (0..k).map(|i| data[i * (n + gap) + c]).collect();
            let oracle = DotOracle::new(&column, &x[r * k..][..k]);
            oracle.assert_close(got, &format!("{} [{m}, {k}, {n}] at [{r}, {c}]", isa.name()));
        }
    }
}

#[test]
fn every_number_of_rows_and_columns_is_right() {
    let mut rng = Rng::new(1);
    for m in (1..=25).chain([32, 33, 40]) {
        check((m, 19, 53), 0, &mut rng);
        check((m, 5, 200), 3, &mut rng);
    }
    for n in (1..=33).chain([47, 48, 49, 95, 96, 97, 191, 192, 193, 210]) {
        for m in [1, 4, 8, 11] {
            check((m, 17, n), 1, &mut rng);
        }
    }
}

#[test]
fn every_depth_around_a_block_is_right() {
    let mut rng = Rng::new(2);
    for k in (1..=9).chain([255, 256, 257, 511, 512, 513, 700]) {
        for m in [1, 3, 8, 10] {
            check((m, k, 29), 2, &mut rng);
        }
    }
}

#[test]
fn not_a_number_and_infinity_reach_their_outputs_only() {
    let (m, k, n) = (9, 300, 37);
    for at in [0, 255, 256, 299] {
        for col in [0, 15, 36] {
            let (mut x, mut b) = (vec![1.0; m * k], vec![1.0; k * n]);
            b[at * n + col] = f32::INFINITY;
            x[k + at] = f32::NAN;
            for isa in Isa::available().into_iter().filter(|isa| Route::wide(*isa, 1)) {
                let (mut out, mut scratch) =
                    (vec![f32::NAN; m * n], vec![f32::NAN; wide_scratch_len(m, n)]);
                let wide = Wide { data: &b, row_stride: n };
                multiply_wide(isa, (&x, m), wide, &mut out, &mut scratch);
                for (i, got) in out.into_iter().enumerate() {
                    let label = format!("{} at {at}, {col}: [{}, {}]", isa.name(), i / n, i % n);
                    match (i / n == 1, i % n == col) {
                        (true, _) => assert!(got.is_nan(), "{label}: {got}"),
                        (false, true) => assert_eq!(got, f32::INFINITY, "{label}"),
                        (false, false) => assert_eq!(got, 300.0, "{label}"),
                    }
                }
            }
        }
    }
}

#[test]
fn empty_products_are_zero_or_empty() {
    for isa in Isa::available() {
        let mut out = [f32::NAN; 4];
        multiply_wide(isa, (&[], 2), Wide { data: &[], row_stride: 2 }, &mut out, &mut []);
        assert!(out.iter().all(|x| x.to_bits() == 0));
        multiply_wide(isa, (&[1.0; 4], 2), Wide { data: &[], row_stride: 0 }, &mut [], &mut []);
    }
}

#[test]
#[should_panic(expected = "not inside its data")]
fn an_operand_outside_its_data_is_refused() {
    let wide = Wide { data: &[1.0; 5], row_stride: 4 };
    multiply_wide(
        Isa::best(),
        (&[1.0; 2], 1),
        wide,
        &mut [0.0; 2],
        &mut vec![0.0; wide_scratch_len(1, 2)],
    );
}

#[test]
#[should_panic(expected = "not inside its data")]
fn a_stride_that_wraps_is_refused() {
    let wide = Wide { data: &[1.0; 5], row_stride: usize::MAX };
    multiply_wide(
        Isa::best(),
        (&[1.0; 3], 1),
        wide,
        &mut [0.0; 2],
        &mut vec![0.0; wide_scratch_len(1, 2)],
    );
}
