#![deny(unsafe_code)]

use fucina_dtype::BlockQ8_0;

use super::Rows;
use crate::convert::Q8_0_ELEMS;
use crate::convert::scalar::f16_value;

/// Columns that are summed together.
const WIDTH: usize = 16;

pub(super) fn matmul_add(lhs: Rows<'_>, rhs: &[f32], n: usize, out: &mut [f32]) {
    for (i, out) in out.chunks_exact_mut(n).enumerate() {
        let lhs = lhs.row(i);
        for (group, out) in out.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
            let mut sums = [0.0_f32; WIDTH];
            for (&a, rhs) in lhs.iter().zip(rhs.chunks_exact(n)) {
                for (sum, &b) in sums.iter_mut().zip(&rhs[group * WIDTH..][..WIDTH]) {
                    *sum += a * b;
                }
            }
            for (out, &sum) in out.iter_mut().zip(&sums) {
                *out += sum;
            }
        }
    }
}

/// Transposes the elements from `first` on of each row.
pub(super) fn transpose(rows: Rows<'_>, first: usize, n: usize, out: &mut [f32]) {
    for (column, out) in out.chunks_exact_mut(n).enumerate().skip(first) {
        let (used, pad) = out.split_at_mut(rows.count);
        for (i, out) in used.iter_mut().enumerate() {
            *out = rows.row(i)[column];
        }
        pad.fill(0.0);
    }
}

pub(super) fn dots(q: &[f32], rows: Rows<'_>, out: &mut [f32]) {
    dots_of(q, rows, out, |x| x);
}

pub(super) fn dots_f16(q: &[f32], rows: Rows<'_, u16>, out: &mut [f32]) {
    dots_of(q, rows, out, f16_value);
}

pub(super) fn mix(weights: &[f32], rows: Rows<'_>, out: &mut [f32]) {
    mix_of(weights, rows, out, |x| x);
}

pub(super) fn mix_f16(weights: &[f32], rows: Rows<'_, u16>, out: &mut [f32]) {
    mix_of(weights, rows, out, f16_value);
}

pub(super) fn dots_q8_0(q: &[f32], rows: Rows<'_, BlockQ8_0>, out: &mut [f32]) {
    let q = q.as_chunks::<Q8_0_ELEMS>().0;
    for (i, out) in out.iter_mut().enumerate() {
        let mut sums = [0.0_f32; WIDTH];
        for (q, block) in q.iter().zip(rows.row(i)) {
            let mut products = [0.0_f32; WIDTH];
            let halves = q.as_chunks::<WIDTH>().0.iter().zip(block.qs.as_chunks::<WIDTH>().0);
            for (q, quants) in halves {
                for (sum, (&q, &k)) in products.iter_mut().zip(q.iter().zip(quants)) {
                    *sum += q * f32::from(k);
                }
            }
            let d = f16_value(block.d.get());
            for (sum, &product) in sums.iter_mut().zip(&products) {
                *sum += d * product;
            }
        }
        *out = sums.iter().sum();
    }
}

pub(super) fn mix_q8_0(weights: &[f32], rows: Rows<'_, BlockQ8_0>, out: &mut [f32]) {
    for (group, out) in out.as_chunks_mut::<Q8_0_ELEMS>().0.iter_mut().enumerate() {
        let mut sums = [0.0_f32; Q8_0_ELEMS];
        for (i, &weight) in weights.iter().enumerate() {
            let block = &rows.row(i)[group];
            let weight = weight * f16_value(block.d.get());
            for (sum, &v) in sums.iter_mut().zip(&block.qs) {
                *sum += weight * f32::from(v);
            }
        }
        for (out, &sum) in out.iter_mut().zip(&sums) {
            *out += sum;
        }
    }
}

#[inline(always)]
fn dots_of<T: Copy>(q: &[f32], rows: Rows<'_, T>, out: &mut [f32], value: impl Fn(T) -> f32) {
    let (q, q_tail) = q.as_chunks::<WIDTH>();
    for (i, out) in out.iter_mut().enumerate() {
        let (row, row_tail) = rows.row(i).as_chunks::<WIDTH>();
        let mut sums = [0.0_f32; WIDTH];
        for (q, row) in q.iter().zip(row) {
            for (sum, (&q, &k)) in sums.iter_mut().zip(q.iter().zip(row)) {
                *sum += q * value(k);
            }
        }
        for (sum, (&q, &k)) in sums.iter_mut().zip(q_tail.iter().zip(row_tail)) {
            *sum += q * value(k);
        }
        *out = sums.iter().sum();
    }
}

#[inline(always)]
fn mix_of<T: Copy>(weights: &[f32], rows: Rows<'_, T>, out: &mut [f32], value: impl Fn(T) -> f32) {
    for (group, out) in out.chunks_mut(WIDTH).enumerate() {
        let mut sums = [0.0_f32; WIDTH];
        for (i, &weight) in weights.iter().enumerate() {
            for (sum, &v) in sums.iter_mut().zip(&rows.row(i)[group * WIDTH..]) {
                *sum += weight * value(v);
            }
        }
        for (out, &sum) in out.iter_mut().zip(&sums) {
            *out += sum;
        }
    }
}
