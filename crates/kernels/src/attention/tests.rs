//! Against a two-pass softmax in f64, written apart from the kernel.

use std::ops::Range;

use fucina_dtype::BlockQ8_0;
use fucina_testkit::Rng;
use half::f16;

use super::*;
use crate::convert::{self, Q8_0_ELEMS};

mod q8_0;

/// 2^-24, the relative error of one f32 rounding.
const U: f64 = 1.0 / 16_777_216.0;
/// Fills what must never be read.
const POISON_F16: u16 = 0x7e01;

/// One layout to test: queries, keys and values with gaps between the rows.
struct Case {
    params: Params,
    rows: Range<usize>,
    keys: usize,
    start: usize,
    k_dim: usize,
    v_dim: usize,
    kv: Type,
}

/// Type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Type {
    F32,
    F16,
    Q8_0,
}

impl Case {
    fn plain(rows: usize, keys: usize, dim: usize) -> Self {
        Self {
            params: Params {
                scale: 1.0 / (dim as f32).sqrt(),
                causal: false,
                q_offset: 0,
                window: None,
                soft_cap: None,
            },
            rows: 0..rows,
            keys,
            start: 0,
            k_dim: dim,
            v_dim: dim,
            kv: Type::F16,
        }
    }

    fn causal(rows: usize, keys: usize, dim: usize) -> Self {
        let mut case = Self::plain(rows, keys, dim);
        case.params.causal = true;
        case.params.q_offset = keys.saturating_sub(rows);
        case
    }
}

/// Inputs of a case. Gaps and what lies beyond are NaN.
struct Data {
    q: Vec<f32>,
    q_stride: usize,
    k: Cache,
    v: Cache,
}

/// A cache in one type, and the same values as f32.
struct Cache {
    kv: Type,
    f16: Vec<u16>,
    q8_0: Vec<BlockQ8_0>,
    f32: Vec<f32>,
    stride: usize,
    dim: usize,
}

impl Cache {
    fn new(rng: &mut Rng, kv: Type, len: usize, dim: usize) -> Self {
        let gap = if kv == Type::Q8_0 { Q8_0_ELEMS } else { 3 };
        let stride = dim + gap;
        let mut cache = Self {
            kv,
            f16: vec![POISON_F16; (len + 5) * stride],
            q8_0: Vec::new(),
            f32: vec![f32::NAN; (len + 5) * stride],
            stride,
            dim,
        };
        if kv == Type::Q8_0 {
            let poison = BlockQ8_0 { d: POISON_F16.into(), qs: [1; Q8_0_ELEMS] };
            cache.q8_0 = vec![poison; cache.f32.len() / Q8_0_ELEMS];
        }
        for row in 0..len {
            cache.store(row, &rng.normals(dim, 1.0));
        }
        cache
    }

    /// Writes a row, rounded to the type.
    fn store(&mut self, row: usize, values: &[f32]) {
        let at = row * self.stride..row * self.stride + self.dim;
        if self.kv == Type::Q8_0 {
            let blocks = &mut self.q8_0[at.start / Q8_0_ELEMS..at.end / Q8_0_ELEMS];
            convert::f32_to_q8_0(Isa::Scalar, values, blocks);
            convert::q8_0_to_f32(Isa::Scalar, blocks, &mut self.f32[at]);
            return;
        }
        for (i, &value) in at.zip(values) {
            let half = f16::from_f32(value);
            (self.f16[i], self.f32[i]) = (half.to_bits(), half.to_f32());
        }
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.f32[i * self.stride..][..self.dim]
    }

    fn set(&mut self, row: usize, value: f32) {
        self.store(row, &vec![value; self.dim]);
    }

    fn view(&self, first: usize, len: usize) -> KvView<'_> {
        let from = first * self.stride;
        let data = match self.kv {
            Type::F32 => KvData::F32(&self.f32[from..]),
            Type::F16 => KvData::F16(&self.f16[from..]),
            Type::Q8_0 => KvData::Q8_0(&self.q8_0[from / Q8_0_ELEMS..]),
        };
        KvView { data, row_stride: self.stride, len, dim: self.dim }
    }
}

impl Data {
    fn new(case: &Case, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let q_stride = case.k_dim + 5;
        let mut q = vec![f32::NAN; (case.rows.end + 2) * q_stride];
        for row in q.chunks_exact_mut(q_stride).take(case.rows.end) {
            row[..case.k_dim].fill_with(|| rng.normal());
        }
        Self {
            q,
            q_stride,
            k: Cache::new(&mut rng, case.kv, case.keys, case.k_dim),
            v: Cache::new(&mut rng, case.kv, case.keys, case.v_dim),
        }
    }

    fn queries(&self, case: &Case) -> Queries<'_> {
        Queries { data: &self.q, row_stride: self.q_stride, rows: case.rows.clone() }
    }

    fn run(&self, isa: Isa, case: &Case) -> Vec<f32> {
        let mut out = vec![f32::NAN; case.rows.len() * case.v_dim];
        let mut scratch = vec![f32::NAN; scratch_len(case.k_dim, case.v_dim)];
        let kv =
            Kv { k: self.k.view(0, case.keys), v: self.v.view(0, case.keys), start: case.start };
        attend(isa, &case.params, &self.queries(case), &kv, &mut out, &mut scratch);
        out
    }

    /// The rule of visibility, written position by position.
    fn sees(case: &Case, row: usize, key: usize) -> bool {
        let (query, key) = (case.params.q_offset + row, case.start + key);
        (!case.params.causal || key <= query)
            && case.params.window.is_none_or(|window| key + window > query)
    }

    /// Exact result of one row, and a bound for the error of each element.
    ///
    /// A score is a dot product of `d` terms (error `d u` times its magnitude), scaled, capped
    /// (slope at most 1, value within 8 u) and exponentiated (2 u); an absolute error `e` of a score
    /// is a relative error `e` of its weight. Blocks rescale at most once each. A sum of `n` terms
    /// in any order adds `n u`. Numerator and denominator both have these errors.
    fn reference(&self, case: &Case, row: usize) -> (Vec<f64>, f64) {
        let q = &self.q[row * self.q_stride..][..case.k_dim];
        let mut scores = Vec::new();
        let mut score_error = 0.0_f64;
        let keys: Vec<usize> = (0..case.keys).filter(|&key| Self::sees(case, row, key)).collect();
        for &key in &keys {
            let products =
                q.iter().zip(self.k.row(key)).map(|(&q, &k)| f64::from(q) * f64::from(k));
            let scale = f64::from(case.params.scale);
            let dot: f64 = products.clone().sum::<f64>() * scale;
            let magnitude: f64 = products.map(f64::abs).sum::<f64>() * scale.abs();
            let terms = case.k_dim as f64 + 2.0;
            let (score, cap_error) = case.params.soft_cap.map_or((dot, 0.0), |cap| {
                let cap = f64::from(cap);
                (cap * (dot / cap).tanh(), 10.0 * U * cap)
            });
            // The subtraction of the maximum rounds too.
            score_error =
                score_error.max(terms * U * magnitude + cap_error + U * 2.0 * score.abs());
            scores.push(score);
        }
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; case.v_dim];
        let mut largest = 0.0_f64;
        for (&key, weight) in keys.iter().zip(&weights) {
            for (out, &v) in out.iter_mut().zip(self.v.row(key)) {
                *out += weight / total * f64::from(v);
                largest = largest.max(f64::from(v).abs());
            }
        }
        let blocks = (keys.len() as f64 / 64.0).ceil() + 1.0;
        // The sum in a block has at most 64 terms; then the blocks are summed.
        let sums = 64.0 + 2.0 * blocks;
        let relative = 2.0 * (score_error * 2.0 + (sums + 4.0 * blocks + 4.0) * U);
        (out, relative * largest)
    }

    #[track_caller]
    fn check(&self, case: &Case, label: &str) {
        for isa in Isa::available() {
            let got = self.run(isa, case);
            for (row, got) in case.rows.clone().zip(got.chunks_exact(case.v_dim)) {
                let (want, bound) = self.reference(case, row);
                for (i, (&got, &want)) in got.iter().zip(&want).enumerate() {
                    let error = (f64::from(got) - want).abs();
                    assert!(
                        error <= bound,
                        "{label} {}: row {row}[{i}]: got {got}, want {want}, {error:e} > {bound:e}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[track_caller]
fn check(case: &Case, label: &str) {
    for kv in [Type::F16, Type::F32] {
        let case = Case { params: case.params, rows: case.rows.clone(), kv, ..*case };
        Data::new(&case, 1).check(&case, &format!("{label} {kv:?}"));
    }
}

#[test]
fn every_short_length_is_right() {
    for len in 1..=40 {
        check(&Case::causal(len, len, 16), &format!("prefill of {len}"));
        check(&Case::plain(1, len, 16), &format!("decode at {len}"));
    }
}

#[test]
fn every_head_size_is_right() {
    for dim in (1..=40).chain([63, 64, 65, 80, 96, 100, 127, 128, 129, 192, 256]) {
        check(&Case::causal(5, 21, dim), &format!("five rows, d={dim}"));
        check(&Case::causal(2, 21, dim), &format!("two rows, d={dim}"));
    }
}

#[test]
fn values_may_be_wider_or_narrower_than_keys() {
    for (k_dim, v_dim) in [(192, 128), (8, 40), (40, 8)] {
        for rows in [1, 7] {
            let mut case = Case::causal(rows, 70, k_dim);
            case.v_dim = v_dim;
            check(&case, &format!("{rows} rows, keys of {k_dim}, values of {v_dim}"));
        }
    }
}

#[test]
fn tiles_and_blocks_join_at_every_edge() {
    for rows in [1, 3, 4, 5, 31, 32, 33, 64, 65] {
        for keys in [63, 64, 65, 127, 128, 129, 200] {
            check(&Case::causal(rows, keys, 8), &format!("{rows} rows, {keys} keys"));
        }
    }
    // Tiles grow where rows see many keys: from the first row on, and within one call.
    for rows in [32, 33, 63, 64, 65, 129] {
        for keys in [rows + 254, rows + 255, rows + 256, 400] {
            check(&Case::causal(rows, keys, 8), &format!("{rows} rows, {keys} keys"));
        }
    }
    check(&Case::causal(400, 400, 8), "a whole prompt");
    // Widths whose strips of columns are shorter than a block.
    for dim in [136, 512] {
        check(&Case::causal(70, 330, dim), &format!("heads of {dim}"));
    }
}

#[test]
fn offsets_shift_the_mask() {
    for offset in [0, 1, 5, 62, 63, 64, 65, 90, 1000] {
        for rows in [2, 37] {
            let mut case = Case::causal(rows, 90, 8);
            case.params.q_offset = offset;
            check(&case, &format!("{rows} rows at {offset}"));
        }
    }
}

#[test]
fn windows_of_every_size_are_right() {
    for window in (0..=9).chain([31, 32, 33, 63, 64, 65, 99, 100, 101, 500]) {
        for rows in [1, 2, 40] {
            let mut case = Case::causal(rows, 100, 8);
            case.params.window = Some(window);
            check(&case, &format!("{rows} rows, window {window}"));
            case.params.causal = false;
            check(&case, &format!("{rows} rows, window {window}, not causal"));
        }
    }
}

#[test]
fn a_narrowed_view_keeps_its_positions() {
    for start in [1, 30, 64, 70] {
        for rows in [2, 40] {
            let mut case = Case::causal(rows, 60, 8);
            case.start = start;
            case.params.q_offset = 50;
            check(&case, &format!("{rows} rows, keys from {start}"));
        }
    }
}

#[test]
fn the_range_of_rows_selects_rows() {
    for range in [0..5, 5..9, 33..70, 7..7] {
        let mut case = Case::causal(70, 70, 8);
        case.rows = range.clone();
        check(&case, &format!("rows {range:?}"));
    }
}

#[test]
fn soft_cap_bends_the_scores() {
    for cap in [0.5, 20.0, 50.0] {
        for rows in [1, 9] {
            let mut case = Case::causal(rows, 77, 32);
            case.params.soft_cap = Some(cap);
            case.params.scale = 1.0;
            check(&case, &format!("{rows} rows, cap {cap}"));
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    for rows in [2, 40] {
        // Keys begin at position 20: the rows before it see none.
        let mut case = Case::causal(rows, 30, 8);
        (case.start, case.params.q_offset) = (20, 0);
        let data = Data::new(&case, 3);
        for isa in Isa::available() {
            let out = data.run(isa, &case);
            let blind = rows.min(20) * case.v_dim;
            assert!(out[..blind].iter().all(|&x| x == 0.0), "{}", isa.name());
            assert!(out[blind..].iter().all(|&x| x != 0.0), "{}", isa.name());
        }
        let case = Case::plain(rows, 0, 8);
        for isa in Isa::available() {
            assert!(Data::new(&case, 3).run(isa, &case).iter().all(|&x| x == 0.0));
        }
    }
}

/// A key or value that is masked for a row must not reach it, whatever it holds.
#[test]
fn a_row_is_blind_to_what_it_does_not_see() {
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for rows in [2, 3, 6, 40] {
            let case = Case::causal(rows, 100, 24);
            let mut data = Data::new(&case, 4);
            let clean: Vec<_> = Isa::available().into_iter().map(|i| data.run(i, &case)).collect();
            data.k.set(99, poison);
            data.v.set(99, poison);
            for (isa, clean) in Isa::available().into_iter().zip(&clean) {
                let out = data.run(isa, &case);
                let before = (rows - 1) * case.v_dim;
                data_agrees(&out[..before], &clean[..before], isa);
                let last = &out[before..];
                // A key of infinities gives a score of either infinity or NaN by the signs of q.
                assert!(last.iter().any(|x| x.is_nan()), "{}: {last:?}", isa.name());
            }
        }
    }
}

/// The poisoned run may sum in another order: both are within the bound of the same exact value.
#[track_caller]
fn data_agrees(got: &[f32], want: &[f32], isa: Isa) {
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        // 64 terms in a block and two blocks, in two different orders; values stay below 5.
        let bound = 2.0 * (64.0 + 8.0) * U * 5.0;
        let error = (f64::from(got) - f64::from(want)).abs();
        assert!(error <= bound, "{}[{i}]: {got} became {want}", isa.name());
    }
}

/// Minus infinity in a score, as a mask made of values would put it there, weighs nothing.
#[test]
fn scores_of_minus_infinity_weigh_nothing() {
    for rows in [1, 8] {
        let case = Case::plain(rows, 80, 8);
        let mut data = Data::new(&case, 10);
        data.q.fill(1.0);
        // The whole first block, and a part of the second.
        for key in 0..70 {
            data.k.set(key, f32::NEG_INFINITY);
        }
        for isa in Isa::available() {
            let queries = data.queries(&case);
            let seen = |start: usize| {
                let (k, v) = (data.k.view(start, 80 - start), data.v.view(start, 80 - start));
                let mut out = vec![f32::NAN; rows * 8];
                let mut scratch = vec![f32::NAN; scratch_len(8, 8)];
                attend(isa, &case.params, &queries, &Kv { k, v, start }, &mut out, &mut scratch);
                out
            };
            data_agrees(&seen(0), &seen(70), isa);
        }
        for key in 70..80 {
            data.k.set(key, f32::NEG_INFINITY);
        }
        for isa in Isa::available() {
            assert!(data.run(isa, &case).iter().all(|&x| x == 0.0), "{}", isa.name());
        }
        data.k.set(33, f32::NAN);
        for isa in Isa::available() {
            assert!(data.run(isa, &case).iter().all(|x| x.is_nan()), "{}", isa.name());
        }
    }
}

/// Weights of 1/4096 each on values of 200: an f16 accumulator would overflow or stall.
#[test]
fn large_values_over_many_keys_keep_their_size() {
    for rows in [1, 8] {
        let case = Case::plain(rows, 4096, 64);
        let mut data = Data::new(&case, 5);
        data.q.fill(0.0);
        for key in 0..case.keys {
            data.v.set(key, 200.0);
        }
        data.check(&case, "uniform weights on 200");
        for isa in Isa::available() {
            // Sums of 64 products, then of 64 blocks, over a sum of the same kind.
            let bound = 200.0 * 2.0 * 130.0 * U;
            for &x in &data.run(isa, &case) {
                assert!((f64::from(x) - 200.0).abs() <= bound, "{}: {x}", isa.name());
            }
        }
    }
}

#[test]
fn scores_far_beyond_the_range_of_exp_are_right() {
    for (rows, scale) in [(1, 300.0), (9, 300.0), (9, -300.0)] {
        let mut case = Case::causal(rows, 90, 16);
        case.params.scale = scale;
        let data = Data::new(&case, 6);
        for isa in Isa::available() {
            assert!(data.run(isa, &case).iter().all(|x| x.is_finite()), "{}", isa.name());
        }
    }
}

/// Four query heads over one KV head, heads interleaved in the rows as a projection leaves them.
#[test]
fn grouped_heads_read_their_own_queries() {
    let (heads, tokens, dim) = (4, 6, 16);
    let mut rng = Rng::new(7);
    let q = rng.normals(tokens * heads * dim, 1.0);
    let mut case = Case::causal(tokens, tokens, dim);
    case.kv = Type::F32;
    let mut data = Data::new(&case, 8);
    for head in 0..heads {
        data.q = q[head * dim..].to_vec();
        data.q_stride = heads * dim;
        data.check(&case, &format!("head {head}"));
    }
}

/// Decode of one token: the heads of a group are the rows of one call.
#[test]
fn a_group_of_heads_is_one_call_without_a_mask() {
    for heads in 2..=9 {
        for keys in [1, 64, 100] {
            check(&Case::plain(heads, keys, 24), &format!("{heads} heads on {keys}"));
        }
    }
}

#[test]
fn parts_merge_to_the_whole() {
    for rows in [1, 2, 6] {
        let mut case = Case::causal(rows, 300, 24);
        case.params.window = Some(280);
        let data = Data::new(&case, 9);
        for isa in Isa::available() {
            let size = rows * case.v_dim;
            let mut total = (vec![0.0; size], vec![RowStats::EMPTY; rows]);
            // Out of order, one part empty, and one that no row sees.
            for part in [130..299, 0..15, 299..300, 15..15, 15..130] {
                let mut own = (vec![f32::NAN; size], vec![RowStats::EMPTY; rows]);
                let mut scratch = vec![f32::NAN; scratch_len(case.k_dim, case.v_dim)];
                let kv = Kv {
                    k: data.k.view(part.start, part.len()),
                    v: data.v.view(part.start, part.len()),
                    start: part.start,
                };
                let partial = Partial { weighted: &mut own.0, stats: &mut own.1 };
                let queries = data.queries(&case);
                attend_partial(isa, &case.params, &queries, &kv, partial, &mut scratch);
                let into = Partial { weighted: &mut total.0, stats: &mut total.1 };
                merge(into, &own.0, &own.1);
            }
            let mut out = vec![f32::NAN; size];
            normalize(&total.0, &total.1, &mut out);
            for (row, got) in out.chunks_exact(case.v_dim).enumerate() {
                let (want, bound) = data.reference(&case, row);
                for (&got, &want) in got.iter().zip(&want) {
                    assert!((f64::from(got) - want).abs() <= bound, "row {row}: {got}, {want}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "reach beyond")]
fn a_view_beyond_its_data_is_refused() {
    let case = Case::plain(1, 9, 8);
    let data = Data::new(&case, 1);
    let k = data.k.view(0, 100);
    let kv = Kv { k, v: k, start: 0 };
    let mut scratch = vec![0.0; scratch_len(8, 8)];
    attend(Isa::Scalar, &case.params, &data.queries(&case), &kv, &mut [0.0; 8], &mut scratch);
}

#[test]
#[should_panic(expected = "query rows 0..9")]
fn queries_beyond_their_data_are_refused() {
    let mut case = Case::plain(4, 9, 8);
    let data = Data::new(&case, 1);
    case.rows = 0..9;
    data.run(Isa::Scalar, &case);
}
