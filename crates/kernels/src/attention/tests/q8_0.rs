//! Keys and values in blocks of 8 bits. The oracle sees what the blocks decode to, so the bounds are
//! those of every other type; one test looks at what the blocks lose.

use super::*;

fn q8_0(mut case: Case) -> Case {
    case.kv = Type::Q8_0;
    case
}

#[track_caller]
fn check(case: Case, label: &str) {
    let case = q8_0(case);
    Data::new(&case, 1).check(&case, label);
}

#[test]
fn every_short_length_is_right() {
    for len in (1..=40).chain([63, 64, 65, 300]) {
        check(Case::causal(len, len, 32), &format!("prefill of {len}"));
        check(Case::plain(1, len, 64), &format!("decode at {len}"));
        check(Case::causal(len.min(5), len, 96), &format!("last rows of {len}"));
    }
}

#[test]
fn every_head_size_of_whole_blocks_is_right() {
    for dim in (32..=320).step_by(32) {
        for rows in [1, 5, 9] {
            check(Case::causal(rows, 70, dim), &format!("{rows} rows, d={dim}"));
        }
    }
}

#[test]
fn values_may_be_wider_or_narrower_than_keys() {
    for (k_dim, v_dim) in [(192, 128), (32, 96), (96, 32)] {
        for rows in [1, 7] {
            let mut case = Case::causal(rows, 70, k_dim);
            case.v_dim = v_dim;
            check(case, &format!("{rows} rows, keys of {k_dim}, values of {v_dim}"));
        }
    }
}

#[test]
fn windows_offsets_and_caps_are_right() {
    for window in [1, 2, 31, 64, 65, 100, 500] {
        for rows in [1, 2, 40] {
            let mut case = Case::causal(rows, 100, 32);
            case.params.window = Some(window);
            check(case, &format!("{rows} rows, window {window}"));
        }
    }
    for offset in [0, 1, 63, 64, 65, 1000] {
        for rows in [2, 37] {
            let mut case = Case::causal(rows, 90, 32);
            case.params.q_offset = offset;
            check(case, &format!("{rows} rows at {offset}"));
        }
    }
    for (rows, cap) in [(1, 0.5), (9, 0.5), (1, 50.0), (9, 50.0)] {
        let mut case = Case::causal(rows, 77, 32);
        (case.params.soft_cap, case.params.scale) = (Some(cap), 1.0);
        check(case, &format!("{rows} rows, cap {cap}"));
    }
}

#[test]
fn grouped_heads_read_their_own_queries() {
    let (heads, tokens, dim) = (4, 9, 32);
    let q = Rng::new(7).normals(tokens * heads * dim, 1.0);
    let case = q8_0(Case::causal(tokens, tokens, dim));
    let mut data = Data::new(&case, 8);
    for head in 0..heads {
        data.q = q[head * dim..].to_vec();
        data.q_stride = heads * dim;
        data.check(&case, &format!("head {head}"));
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    for rows in [2, 40] {
        let mut case = q8_0(Case::causal(rows, 30, 32));
        (case.start, case.params.q_offset) = (20, 0);
        let data = Data::new(&case, 3);
        for isa in Isa::available() {
            let out = data.run(isa, &case);
            let blind = rows.min(20) * case.v_dim;
            assert!(out[..blind].iter().all(|&x| x == 0.0), "{}", isa.name());
            assert!(out[blind..].iter().all(|&x| x != 0.0), "{}", isa.name());
        }
    }
}

/// One element of a row is a thousand times the others: their quants are 0, and the sums still
/// agree with what the blocks hold.
#[test]
fn outliers_take_their_block_and_nothing_else() {
    for rows in [1, 9] {
        let case = q8_0(Case::causal(rows, 80, 64));
        let mut data = Data::new(&case, 4);
        for row in (0..80).step_by(7) {
            for cache in [&mut data.k, &mut data.v] {
                let mut values = cache.row(row).to_vec();
                values[row % 64] = 4000.0;
                cache.store(row, &values);
                let other = if row % 64 < 32 { 32..64 } else { 0..32 };
                assert!(cache.row(row)[other].iter().all(|&x| x.abs() < 10.0));
            }
        }
        data.check(&case, &format!("{rows} rows with outliers"));
    }
}

#[test]
fn a_row_is_blind_to_what_it_does_not_see() {
    for rows in [2, 6, 40] {
        let case = q8_0(Case::causal(rows, 100, 32));
        let mut data = Data::new(&case, 4);
        let clean: Vec<_> = Isa::available().into_iter().map(|i| data.run(i, &case)).collect();
        data.k.set(99, f32::NAN);
        data.v.set(99, f32::INFINITY);
        for (isa, clean) in Isa::available().into_iter().zip(&clean) {
            let out = data.run(isa, &case);
            let before = (rows - 1) * case.v_dim;
            data_agrees(&out[..before], &clean[..before], isa);
            assert!(out[before..].iter().all(|x| x.is_nan()), "{}", isa.name());
        }
    }
}

/// How far a value of a block may lie from the original: half a step, and 127 times what rounding
/// to f16 does to the step (relative 2^-11, absolute 2^-25 for a subnormal).
fn loss(block: &[f32]) -> f64 {
    let max = block.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    let step = f64::from(max) / 127.0;
    0.5 * step * (1.0 + 1e-5) + 127.0 * (step / 2048.0 + f64::from(2.0_f32.powi(-25)))
}

/// Against the originals: a score moves by at most `sum |q| * loss`, a weight relatively by twice
/// the largest move (in the exponent), and a value by its own loss.
#[test]
fn what_the_blocks_lose_is_bounded() {
    for (rows, keys) in [(1, 200), (8, 64), (40, 300)] {
        let mut case = Case::causal(rows, keys, 64);
        case.kv = Type::F32;
        let exact = Data::new(&case, 11);
        case.kv = Type::Q8_0;
        let mut data = Data::new(&case, 11);
        for key in 0..keys {
            data.k.store(key, exact.k.row(key));
            data.v.store(key, exact.v.row(key));
        }
        let losses = |cache: &Cache, key: usize| -> Vec<f64> {
            cache.row(key).chunks(32).flat_map(|block| [loss(block); 32]).collect()
        };
        let moves = |row: usize| {
            let q = &exact.q[row * exact.q_stride..][..64];
            let of_key = |key| {
                let losses = losses(&exact.k, key);
                q.iter().zip(losses).map(|(&q, e)| f64::from(q.abs()) * e).sum::<f64>()
            };
            (0..keys).map(of_key).fold(0.0, f64::max) * f64::from(case.params.scale)
        };
        let values = (0..keys).flat_map(|key| exact.v.row(key).to_vec());
        let largest = values.fold(0.0, |max: f64, v| max.max(f64::from(v.abs())));
        let value = (0..keys).flat_map(|key| losses(&exact.v, key)).fold(0.0, f64::max);
        for isa in Isa::available() {
            for (row, got) in data.run(isa, &case).chunks_exact(64).enumerate() {
                let (want, rounding) = exact.reference(&case, row);
                let bound = rounding + ((2.0 * moves(row)).exp() - 1.0) * largest + value;
                for (&got, &want) in got.iter().zip(&want) {
                    let error = (f64::from(got) - want).abs();
                    assert!(error <= bound, "{} row {row}: {error} > {bound}", isa.name());
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "whole blocks")]
fn a_head_of_parts_of_blocks_is_refused() {
    let case = q8_0(Case::plain(1, 9, 32));
    let data = Data::new(&case, 1);
    let k = KvView { dim: 16, ..data.k.view(0, 9) };
    let queries = Queries { data: &data.q, row_stride: 16, rows: 0..1 };
    let mut scratch = vec![0.0; scratch_len(32, 32)];
    let kv = Kv { k, v: k, start: 0 };
    attend(Isa::Scalar, &case.params, &queries, &kv, &mut [0.0; 16], &mut scratch);
}
