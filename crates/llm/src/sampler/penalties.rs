//! Penalties for tokens that occurred lately.
//!
//! Invariant: `counts` counts exactly the tokens in `history`, and holds no zero.

use std::collections::{HashMap, VecDeque};

use super::config::SamplerConfig;

/// The last tokens and what they cost.
#[derive(Debug, Clone)]
pub(super) struct Penalties {
    repeat: f32,
    frequency: f32,
    presence: f32,
    /// 0 if no penalty can change a logit: then no history is kept.
    last_n: usize,
    history: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl Penalties {
    pub(super) fn new(config: &SamplerConfig) -> Self {
        Self {
            repeat: config.repeat_penalty,
            frequency: config.frequency_penalty,
            presence: config.presence_penalty,
            last_n: if config.has_penalties() { config.penalty_last_n } else { 0 },
            history: VecDeque::new(),
            counts: HashMap::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.history.clear();
        self.counts.clear();
    }

    pub(super) fn accept(&mut self, token: u32) {
        if self.last_n == 0 {
            return;
        }
        if self.history.len() == self.last_n
            && let Some(oldest) = self.history.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.history.push_back(token);
        *self.counts.entry(token).or_default() += 1;
    }

    /// The logits with penalties: `logits` itself if there are none, else a copy in `scratch`.
    /// Finite logits stay finite.
    pub(super) fn apply<'a>(&self, logits: &'a [f32], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        if self.counts.is_empty() {
            return logits;
        }
        scratch.clear();
        scratch.extend_from_slice(logits);
        for (&token, &count) in &self.counts {
            // A token of the history need not be one of this vocabulary.
            let Some(logit) = scratch.get_mut(token as usize) else { continue };
            let scaled = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
            let penalized = scaled - (count as f32 * self.frequency + self.presence);
            // NaN comes from opposite infinities; such settings are beyond any use, and no
            // penalty is as good as any.
            *logit = if penalized.is_nan() { *logit } else { penalized.clamp(f32::MIN, f32::MAX) };
        }
        scratch
    }
}
