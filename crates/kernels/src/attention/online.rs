//! One step of the online softmax.

use std::ops::Range;

use super::merge::{RowStats, rescale};
use crate::dispatch::recompile;
use crate::isa::Isa;
use crate::math;

/// Scores come in whole groups of this many.
pub(super) const GROUP: usize = 16;

/// What happens to a dot product before the softmax.
#[derive(Debug, Clone, Copy)]
pub(super) struct Logits {
    pub(super) scale: f32,
    pub(super) soft_cap: Option<f32>,
}

/// Turns the dot products of one row with one block of keys into weights `e^(score - max)`, in
/// place, and updates `stats`. Returns the factor for what was summed before.
///
/// Only `seen` is looked at; the rest of `scores`, whatever it holds, becomes zero.
pub(super) fn step(
    isa: Isa,
    scores: &mut [f32],
    seen: Range<usize>,
    logits: Logits,
    stats: &mut RowStats,
) -> f32 {
    if seen.is_empty() {
        scores.fill(0.0);
        return 1.0;
    }
    recompile!(isa => body, (scores: &mut [f32], seen: Range<usize>, logits: Logits,
        stats: &mut RowStats) -> f32)
}

#[inline(always)]
fn body(scores: &mut [f32], seen: Range<usize>, logits: Logits, stats: &mut RowStats) -> f32 {
    let (before, after) = (seen.start, seen.end);
    {
        let (groups, rest) = scores.as_chunks_mut::<GROUP>();
        debug_assert!(rest.is_empty(), "scores come in whole groups");
        for group in groups {
            for score in group {
                *score *= logits.scale;
            }
        }
    }
    if let Some(cap) = logits.soft_cap {
        for group in scores.as_chunks_mut::<GROUP>().0 {
            for score in group {
                *score = cap * math::tanh(*score / cap);
            }
        }
    }
    scores[..before].fill(f32::NEG_INFINITY);
    scores[after..].fill(f32::NEG_INFINITY);
    let max = block_max(scores, stats.max);
    let factor = rescale(stats.max, max);
    // Without a finite score there is nothing to weigh; subtracting minus infinity would be NaN,
    // and only a NaN may become one.
    let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
    let mut sums = [0.0_f32; GROUP];
    for group in scores.as_chunks_mut::<GROUP>().0 {
        for (score, sum) in group.iter_mut().zip(&mut sums) {
            *score = math::exp(*score - reference);
            *sum += *score;
        }
    }
    *stats = RowStats { max, sum: stats.sum * factor + fold(sums, |a, b| a + b) };
    factor
}

#[inline(always)]
fn block_max(scores: &[f32], start: f32) -> f32 {
    let mut lanes = [start; GROUP];
    for group in scores.as_chunks::<GROUP>().0 {
        for (lane, &score) in lanes.iter_mut().zip(group) {
            *lane = if score > *lane { score } else { *lane };
        }
    }
    // `start` is in every lane, so a NaN loses everywhere.
    fold(lanes, |max, lane| if lane > max { lane } else { max })
}

/// Combines the lanes in halves: four steps instead of sixteen, one after the other.
#[inline(always)]
fn fold(mut lanes: [f32; GROUP], combine: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        let (low, high) = lanes.split_at_mut(half);
        for (low, &mut high) in low.iter_mut().zip(high) {
            *low = combine(*low, high);
        }
    }
    lanes[0]
}
