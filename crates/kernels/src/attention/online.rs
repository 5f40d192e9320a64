//! One step of the online softmax.

use super::blocks::TILE_ROWS;
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

/// Turns the dot products of some rows with one block of keys, `[rows, keys]`, into weights
/// `e^(score - max)`, in place, and updates `stats`. Writes the factors for what was summed before.
///
/// Of each row only the keys from the first to the second number of `seen` are looked at; the rest
/// of `scores`, whatever it holds, becomes zero. There are at most [`TILE_ROWS`] rows.
pub(super) fn steps(
    isa: Isa,
    scores: &mut [f32],
    seen: &[(usize, usize)],
    logits: Logits,
    stats: &mut [RowStats],
    factors: &mut [f32],
) {
    recompile!(isa => body, (scores: &mut [f32], seen: &[(usize, usize)], logits: Logits,
        stats: &mut [RowStats], factors: &mut [f32]));
}

/// Each loop is over all rows, so that none waits for the last step of the row before.
#[inline(always)]
fn body(
    scores: &mut [f32],
    seen: &[(usize, usize)],
    logits: Logits,
    stats: &mut [RowStats],
    factors: &mut [f32],
) {
    let keys = scores.len() / stats.len();
    debug_assert!(keys.is_multiple_of(GROUP), "scores come in whole groups");
    if keys == 0 {
        return factors.fill(1.0);
    }
    for score in scores.iter_mut() {
        *score *= logits.scale;
    }
    if let Some(cap) = logits.soft_cap {
        for score in scores.iter_mut() {
            *score = cap * math::tanh(*score / cap);
        }
    }
    let mut maxima = [f32::NEG_INFINITY; TILE_ROWS];
    for (r, scores) in scores.chunks_exact_mut(keys).enumerate() {
        let (start, end) = seen[r];
        scores[..start].fill(f32::NEG_INFINITY);
        scores[end..].fill(f32::NEG_INFINITY);
        maxima[r] = block_max(scores, stats[r].max);
    }
    for ((factor, stats), &max) in factors.iter_mut().zip(&*stats).zip(&maxima) {
        *factor = rescale(stats.max, max);
    }
    for (r, scores) in scores.chunks_exact_mut(keys).enumerate() {
        if seen[r].0 == seen[r].1 {
            scores.fill(0.0);
            factors[r] = 1.0;
            continue;
        }
        // Without a finite score there is nothing to weigh; subtracting minus infinity would be
        // NaN, and only a NaN may become one.
        let max = maxima[r];
        let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let mut sums = [0.0_f32; GROUP];
        for group in scores.as_chunks_mut::<GROUP>().0 {
            for (score, sum) in group.iter_mut().zip(&mut sums) {
                *score = math::exp_or_zero(*score - reference);
                *sum += *score;
            }
        }
        stats[r] = RowStats { max, sum: stats[r].sum * factors[r] + fold(sums, |a, b| a + b) };
    }
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
