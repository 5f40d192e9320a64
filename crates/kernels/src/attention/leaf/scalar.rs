#![deny(unsafe_code)]

use super::Rows;

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
    let (q, q_tail) = q.as_chunks::<WIDTH>();
    for (i, out) in out.iter_mut().enumerate() {
        let (row, row_tail) = rows.row(i).as_chunks::<WIDTH>();
        let mut sums = [0.0_f32; WIDTH];
        for (q, row) in q.iter().zip(row) {
            for (sum, (&q, &k)) in sums.iter_mut().zip(q.iter().zip(row)) {
                *sum += q * k;
            }
        }
        *out = sums.iter().sum::<f32>() + tail_dot(q_tail, row_tail);
    }
}

#[inline(always)]
pub(super) fn tail_dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

/// Mixes the elements from `first` on of each row into those of `out`.
pub(super) fn mix(weights: &[f32], rows: Rows<'_>, first: usize, out: &mut [f32]) {
    let mut column = first;
    for out in out[first..].chunks_mut(WIDTH) {
        let mut sums = [0.0_f32; WIDTH];
        for (i, &weight) in weights.iter().enumerate() {
            for (sum, &v) in sums.iter_mut().zip(&rows.row(i)[column..]) {
                *sum += weight * v;
            }
        }
        for (out, &sum) in out.iter_mut().zip(&sums) {
            *out += sum;
        }
        column += WIDTH;
    }
}
