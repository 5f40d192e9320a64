//! The stages that reduce the candidates. None sorts a whole vocabulary.
//!
//! Candidates are ordered by logit, the highest first, then by id, the lowest first. All logits
//! here are finite.

use std::cmp::Ordering;

use super::SampleError;
use super::SamplerConfig;
use super::mass::{self, ERROR, Scale};

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) id: u32,
}

impl Candidate {
    /// Better candidates come first.
    fn order(&self, other: &Self) -> Ordering {
        // Finite numbers always compare; the two zeros are equal, as they should be.
        let by_logit = other.logit.partial_cmp(&self.logit).unwrap_or(Ordering::Equal);
        by_logit.then(self.id.cmp(&other.id))
    }
}

/// Checks that there are logits and all are finite.
pub(super) fn check(logits: &[f32]) -> Result<(), SampleError> {
    if logits.is_empty() {
        return Err(SampleError::Empty);
    }
    // Without an early exit, so that it runs in vectors.
    let all_finite = logits.iter().fold(true, |ok, logit| ok & logit.is_finite());
    if all_finite {
        return Ok(());
    }
    let bad = all(logits).find(|candidate| !candidate.logit.is_finite());
    Err(SampleError::NotFinite { id: bad.map_or(0, |candidate| candidate.id) })
}

/// All tokens in order of id.
pub(super) fn all(logits: &[f32]) -> impl Iterator<Item = Candidate> + '_ {
    logits.iter().zip(0..).map(|(&logit, id)| Candidate { logit, id })
}

/// The best token.
///
/// # Panics
///
/// Panics if there are no logits.
pub(super) fn best(logits: &[f32]) -> Candidate {
    // Lane by lane, so that it runs in vectors; then the first that has the highest logit.
    let mut lanes = [f32::MIN; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let top = lanes.iter().chain(rest).fold(f32::MIN, |top, &logit| top.max(logit));
    all(logits).find(|candidate| candidate.logit == top).expect("there are logits")
}

/// The highest logit of `candidates`, or minus infinity.
pub(super) fn best_of(candidates: &[Candidate]) -> f32 {
    candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max)
}

/// Appends the `k` best in order. `k` is above 0 and below the number of logits.
///
/// One pass keeps whatever beats the `k`-th best so far; when twice as many have come together
/// they are cut back to `k`. That is linear in the number of logits, and mostly one comparison
/// for each.
pub(super) fn top_k(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    let limit = 2 * k + 64;
    let mut bar = f32::NEG_INFINITY;
    for candidate in all(logits) {
        // An equal one has a higher id than those that set the bar, so it ranks after them.
        if candidate.logit > bar {
            out.push(candidate);
            if out.len() == limit {
                let (_, kth, _) = out.select_nth_unstable_by(k - 1, Candidate::order);
                bar = kth.logit;
                out.truncate(k);
            }
        }
    }
    out.sort_unstable_by(Candidate::order);
    out.truncate(k);
}

/// Keeps the fewest of the best, at least one, whose probabilities reach `p` together, in order.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, best: f32, p: f32, sorted: bool) {
    let weight = |c: &Candidate| (f64::from(c.logit) - f64::from(best)).exp();
    let goal = f64::from(p) * candidates.iter().map(weight).sum::<f64>();
    let mut reached = 0.0;
    let mut kept = 0;
    let mut chunk = if sorted { candidates.len() } else { 256 };
    // Sorts from the front, in growing chunks, and only as far as needed.
    while kept < candidates.len() {
        let rest = &mut candidates[kept..];
        if !sorted {
            if chunk < rest.len() {
                rest.select_nth_unstable_by(chunk - 1, Candidate::order);
            }
            let len = chunk.min(rest.len());
            rest[..len].sort_unstable_by(Candidate::order);
        }
        for candidate in rest.iter().take(chunk) {
            reached += weight(candidate);
            kept += 1;
            if reached >= goal {
                candidates.truncate(kept);
                return;
            }
        }
        chunk = chunk.saturating_mul(8);
    }
}

/// Appends the tokens of a whole vocabulary that top-p and min-p keep. `work` is working memory.
pub(super) fn from_all(
    config: &SamplerConfig,
    logits: &[f32],
    best: f32,
    out: &mut Vec<Candidate>,
    work: &mut Vec<f64>,
) {
    if config.top_p == 1.0 && config.min_p > 0.0 {
        let bar = bar(best, config.min_p);
        out.extend(all(logits).filter(|candidate| f64::from(candidate.logit) >= bar));
        return;
    }
    if config.top_p == 1.0 {
        out.extend(all(logits));
    } else if !nucleus(logits, best, config.top_p, out, work) {
        out.clear();
        out.extend(all(logits));
        top_p(out, best, config.top_p, false);
    }
    if config.min_p > 0.0 {
        min_p(out, best, config.min_p);
    }
}

/// Fills `out` with what [`top_p`] keeps of all tokens. Returns whether it could: not if it takes many
/// tokens, or if the sum of all weights would have to be known better than it is.
fn nucleus(
    logits: &[f32],
    best: f32,
    p: f32,
    out: &mut Vec<Candidate>,
    work: &mut Vec<f64>,
) -> bool {
    let Some(total) = mass::total(Scale::new(best, 1.0), logits, work) else { return false };
    let goal = f64::from(p) * total;
    let (least, most) = (goal * (1.0 - ERROR), goal * (1.0 + ERROR));
    for k in [256, 4096].into_iter().filter(|&k| k < logits.len()) {
        out.clear();
        top_k(logits, k, out);
        let mut reached = 0.0;
        for (at, candidate) in out.iter().enumerate() {
            reached += (f64::from(candidate.logit) - f64::from(best)).exp();
            if reached >= least {
                out.truncate(at + 1);
                return reached >= most;
            }
        }
    }
    false
}

/// The least logit of a token `p` times as probable as the best.
fn bar(best: f32, p: f32) -> f64 {
    f64::from(best) + f64::from(p).ln()
}

/// Keeps those at least `p` times as probable as the best.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, best: f32, p: f32) {
    let bar = bar(best, p);
    candidates.retain(|candidate| f64::from(candidate.logit) >= bar);
}
