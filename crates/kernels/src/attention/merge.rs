//! Putting parts of a row together.

#![deny(unsafe_code)]

use crate::math;

/// The softmax of one row so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowStats {
    /// Largest score, minus infinity if none.
    pub max: f32,
    /// Sum of `e^(score - max)`.
    pub sum: f32,
}

impl RowStats {
    /// A row that has seen nothing.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// Rows that are not divided by their sum yet.
#[derive(Debug, PartialEq)]
pub struct Partial<'a> {
    /// Sums of `e^(score - max) * v`, `[rows, v.dim]`.
    pub weighted: &'a mut [f32],
    /// `[rows]`
    pub stats: &'a mut [RowStats],
}

/// Adds the part `weighted, stats` (of other keys, for the same rows) to `into`.
///
/// # Panics
///
/// Panics if the two differ in shape.
pub fn merge(into: Partial<'_>, weighted: &[f32], stats: &[RowStats]) {
    assert_eq!(into.weighted.len(), weighted.len(), "weighted sums differ in size");
    assert_eq!(into.stats.len(), stats.len(), "parts differ in rows");
    let dim = weighted.len() / stats.len().max(1);
    for (row, (total, part)) in into.stats.iter_mut().zip(stats).enumerate() {
        let max = if part.max > total.max { part.max } else { total.max };
        let (old, new) = (rescale(total.max, max), rescale(part.max, max));
        let range = row * dim..(row + 1) * dim;
        for (total, part) in into.weighted[range.clone()].iter_mut().zip(&weighted[range]) {
            *total = *total * old + part * new;
        }
        *total = RowStats { max, sum: total.sum * old + part.sum * new };
    }
}

/// Divides merged rows by their sums: what [`super::attend`] returns.
///
/// # Panics
///
/// Panics if `out` and `partial` differ in size.
pub fn normalize(weighted: &[f32], stats: &[RowStats], out: &mut [f32]) {
    assert_eq!(weighted.len(), out.len(), "weighted sums and out differ in size");
    let dim = weighted.len() / stats.len().max(1);
    for (row, &stats) in stats.iter().enumerate() {
        let range = row * dim..(row + 1) * dim;
        normalize_row(&weighted[range.clone()], stats, &mut out[range]);
    }
}

pub(super) fn normalize_row(weighted: &[f32], stats: RowStats, out: &mut [f32]) {
    if stats.sum == 0.0 {
        return out.fill(0.0);
    }
    for (out, &weighted) in out.iter_mut().zip(weighted) {
        *out = weighted / stats.sum;
    }
}

/// The factor that takes a sum from the reference `old` to the reference `new >= old`.
#[inline(always)]
pub(super) fn rescale(old: f32, new: f32) -> f32 {
    // Of two infinities it is NaN, and is not used.
    let factor = math::exp_or_zero(old - new);
    if old == new { 1.0 } else { factor }
}
