#![deny(unsafe_code)]

use super::Rows;
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
