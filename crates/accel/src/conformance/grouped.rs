//! Grouped products and weighted sums of rows against the oracle: experts without rows, one with
//! all, ragged groups, gathered rows, every format.

use std::sync::Arc;

use fucina_dtype::DType;

use super::data::{Data, Random};
use super::ops::{compare, operands};
use super::oracle::{self, U, Want, real};
use super::{Check, Config, Report, Stop, offload, pool};
use crate::call::{Call, Combine, GroupedMatMul};
use crate::provider::Provider;

pub(super) fn check(make: &dyn Fn() -> Arc<dyn Provider>, config: Config, report: &mut Report) {
    let provider = make();
    for case in products(config) {
        report.record(case.name(), case.run(&*provider));
    }
    report.record("grouped_matmul of NaN", nan_stays_in_its_row(&*provider));
    report.record("grouped_matmul beyond f16", large_activations(&*provider, config));
    report
        .record("grouped_matmul after the tables are gone", tables_are_copied(&*provider, config));
    for (t, used, d) in [(1, 1, 1), (3, 2, 33), (7, 8, 65), (2, 0, 5), (0, 2, 5), (33, 4, 1)] {
        report.record(format!("combine {t}x{used} of {d}"), combine(&*provider, t, used, d));
    }
}

/// A product. Every row of the output is described by its expert and its source.
struct Case {
    dtype: DType,
    n: usize,
    k: usize,
    /// Rows of the output for each expert.
    groups: Vec<usize>,
    /// Rows of the activations that the rows of the output choose from. `None` is no choice.
    gather: Option<usize>,
    config: Config,
}

fn products(config: Config) -> Vec<Case> {
    let of = |dtype, [n, k]: [usize; 2], groups: &[usize], gather| Case {
        dtype,
        n,
        k,
        groups: groups.to_vec(),
        gather,
        config,
    };
    let mut cases = Vec::new();
    // Sizes around tiles of 32 rows, and every edge of n and k.
    for gather in [None, Some(9)] {
        cases.push(of(DType::F32, [5, 33], &[0, 1, 7, 33, 40], gather));
        cases.push(of(DType::F32, [65, 17], &[31, 32, 0, 0, 64, 65, 1], gather));
        cases.push(of(DType::F32, [1, 1], &[1, 0, 2], gather));
        cases.push(of(DType::F32, [127, 129], &[0, 3, 0], gather));
        cases.push(of(DType::F32, [4, 0], &[2, 1], gather));
        // All rows to the first, the last, a middle one of eight; and no row at all.
        for at in [0, 3, 7] {
            let groups: Vec<_> = (0..8).map(|e| if e == at { 34 } else { 0 }).collect();
            cases.push(of(DType::F32, [9, 40], &groups, gather));
        }
        cases.push(of(DType::F32, [9, 40], &[0, 0, 0], gather));
        cases.push(of(DType::F32, [9, 40], &[], gather));
        cases.push(of(DType::F32, [0, 8], &[3, 2], gather));
        // One row for each of 128 experts.
        cases.push(of(DType::F32, [3, 32], &[1; 128], gather));
    }
    let is_weight = |dtype: &&DType| dtype.is_block() || matches!(dtype, DType::F16 | DType::BF16);
    for &dtype in DType::ALL.iter().filter(is_weight) {
        let k = 2 * dtype.unit().0.max(32);
        cases.push(of(dtype, [7, k], &[0, 1, 7, 33, 40], Some(11)));
        cases.push(of(dtype, [68, k], &[2, 0, 1], None));
    }
    cases
}

impl Case {
    fn name(&self) -> String {
        let Self { dtype, n, k, groups, gather, .. } = self;
        let rows: usize = groups.iter().sum();
        let groups =
            if groups.len() > 8 { "of one row each".into() } else { format!("{groups:?}") };
        let from = gather.map_or(String::new(), |m| format!(" from {m}"));
        format!("grouped_matmul {dtype} {rows}{from}x{k} {n}x{k} {groups}")
    }

    /// The row of the activations that a row of the output reads: all, in no order, some often.
    fn source(&self, row: usize) -> usize {
        self.gather.map_or(row, |m| (row * 7 + row / 3) % m)
    }

    fn run(&self, provider: &dyn Provider) -> Check {
        let Self { dtype, n, k, ref groups, gather, config } = *self;
        let rows: usize = groups.iter().sum();
        let mut random = Random::new((rows * 31 + n) as u64 * 31 + k as u64);
        let x = Data::random(DType::F32, &[gather.unwrap_or(rows), k], &mut random);
        let weights = Data::random(dtype, &[groups.len(), n, k], &mut random);
        let (a, w) = (x.values(), weights.values());
        let experts = groups.iter().enumerate().flat_map(|(e, &rows)| std::iter::repeat_n(e, rows));
        let want: Vec<Want> = experts
            .enumerate()
            .flat_map(|(row, expert)| {
                let x = &a[self.source(row) * k..][..k];
                let matrix = &w[expert * n * k..][..n * k];
                (0..n).map(move |j| {
                    let weights = &matrix[j * k..][..k];
                    oracle::dot(x, weights, config.operand_rounding, dtype.is_block())
                })
            })
            .collect();
        let mut offsets = vec![0];
        for &rows in groups {
            offsets.push(offsets[offsets.len() - 1] + id(rows)?);
        }
        let ids = (0..rows).map(|row| id(self.source(row))).collect::<Result<Vec<_>, _>>()?;
        let row_ids = gather.is_some().then_some(&*ids);
        let inputs = [x, weights];
        let storages = inputs.each_ref().map(Data::storage);
        let operands = operands(&inputs, &storages)?;
        let (x, weights) = (operands[0], operands[1]);
        let call = Call::GroupedMatMul(GroupedMatMul { x, weights, offsets: &offsets, row_ids });
        compare(&offload(provider, &pool(), &call)?, &want)
    }
}

fn id(row: usize) -> Result<i32, Stop> {
    i32::try_from(row).map_err(|error| Stop::Fail(error.to_string()))
}

/// Four rows of two experts, and the second row of the activations is NaN.
fn nan_stays_in_its_row(provider: &dyn Provider) -> Check {
    let (n, k) = (3, 40);
    let mut x = vec![1f32; 4 * k];
    x[k + 7] = f32::NAN;
    let inputs = [Data::f32s(&[4, k], &x), Data::f32s(&[2, n, k], &vec![0.5; 2 * n * k])];
    let storages = inputs.each_ref().map(Data::storage);
    let operands = operands(&inputs, &storages)?;
    let (x, weights) = (operands[0], operands[1]);
    let (offsets, ids) = ([0, 2, 4], [3, 1, 1, 0]);
    let row_ids = Some(&ids[..]);
    let call = Call::GroupedMatMul(GroupedMatMul { x, weights, offsets: &offsets, row_ids });
    let out = offload(provider, &pool(), &call)?;
    let value = |row: usize| if ids[row] == 1 { f64::NAN } else { 20.0 };
    let want: Vec<_> = (0..4 * n).map(|at| Want::new(value(at / n), 0.0)).collect();
    compare(&out, &want)
}

/// What a gated unit gives is often beyond the range of f16. One row of three is; the others have
/// to stay as exact as they are alone.
fn large_activations(provider: &dyn Provider, config: Config) -> Check {
    let (n, k) = (3, 64);
    let mut random = Random::new(23);
    let scales = [1.0, 3e5, 1e-3];
    let x: Vec<f32> =
        scales.iter().flat_map(|scale| [*scale; 64]).map(|scale| scale * random.unit()).collect();
    let x = Data::f32s(&[3, k], &x);
    let weights = Data::random(DType::F32, &[1, n, k], &mut random);
    let (a, w) = (x.values(), weights.values());
    let dot = |at: usize| {
        oracle::dot(&a[at / n * k..][..k], &w[at % n * k..][..k], config.operand_rounding, false)
    };
    let want: Vec<Want> = (0..3 * n).map(dot).collect();
    let inputs = [x, weights];
    let storages = inputs.each_ref().map(Data::storage);
    let operands = operands(&inputs, &storages)?;
    let (x, weights) = (operands[0], operands[1]);
    let call = GroupedMatMul { x, weights, offsets: &[0, 3], row_ids: None };
    compare(&offload(provider, &pool(), &Call::GroupedMatMul(call))?, &want)
}

/// The caller may change its tables as soon as the call has returned.
fn tables_are_copied(provider: &dyn Provider, config: Config) -> Check {
    let (experts, n, k) = (4, 5, 32);
    let rows = 64;
    let mut random = Random::new(17);
    let x = Data::random(DType::F32, &[rows, k], &mut random);
    let weights = Data::random(DType::F32, &[experts, n, k], &mut random);
    let (a, w) = (x.values(), weights.values());
    let inputs = [x, weights];
    let storages = inputs.each_ref().map(Data::storage);
    let operands = operands(&inputs, &storages)?;
    let (x, weights) = (operands[0], operands[1]);
    let pool = pool();
    let mut outputs = Vec::new();
    let (mut offsets, mut ids) = (vec![0; experts + 1], vec![0; rows]);
    for shift in 0..6 {
        for (e, offset) in offsets.iter_mut().enumerate() {
            *offset = id(rows * e / experts)?;
        }
        for (row, at) in ids.iter_mut().enumerate() {
            *at = id((row * 5 + shift) % rows)?;
        }
        let row_ids = Some(&*ids);
        let call = Call::GroupedMatMul(GroupedMatMul { x, weights, offsets: &offsets, row_ids });
        outputs.push(offload(provider, &pool, &call)?);
        offsets.fill(0);
        ids.fill(0);
    }
    for (shift, out) in outputs.iter().enumerate() {
        let element = |at: usize| {
            let (row, j) = (at / n, at % n);
            let (source, expert) = ((row * 5 + shift) % rows, row / (rows / experts));
            (&a[source * k..][..k], &w[(expert * n + j) * k..][..k])
        };
        let elements = (0..rows * n).map(element);
        let want = elements.map(|(a, w)| oracle::dot(a, w, config.operand_rounding, false));
        compare(out, &want.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// `used` products and sums, in order; the rows are chosen with repetition.
fn combine(provider: &dyn Provider, t: usize, used: usize, d: usize) -> Check {
    let rows = t * used + 3;
    let mut random = Random::new((t * 100 + d) as u64);
    let x = Data::random(DType::F32, &[rows, d], &mut random);
    let weights = Data::random(DType::F32, &[t, used], &mut random);
    let (values, factors) = (x.values(), weights.values());
    let sources: Vec<usize> = (0..t * used).map(|at| (at * 11 + 2) % rows).collect();
    let want: Vec<Want> = (0..t * d)
        .map(|at| {
            let (token, i) = (at / d, at % d);
            let terms = (token * used..(token + 1) * used)
                .map(|pair| factors[pair] * values[sources[pair] * d + i]);
            let magnitude: f64 = terms.clone().map(f64::abs).sum();
            Want::new(terms.sum(), real(used + 1) * U * magnitude)
        })
        .collect();
    let ids = sources.iter().map(|&row| id(row)).collect::<Result<Vec<_>, _>>()?;
    let inputs = [x, weights];
    let storages = inputs.each_ref().map(Data::storage);
    let operands = operands(&inputs, &storages)?;
    let call = Call::Combine(Combine { x: operands[0], weights: operands[1], ids: &ids });
    compare(&offload(provider, &pool(), &call)?, &want)
}
