//! Choosing the next token from logits.
//!
//! The stages run in this order, each on what the one before left; a neutral setting skips its
//! stage:
//!
//! 1. penalties change the logits of tokens that occurred lately;
//! 2. temperature 0 takes the best token and ends here, without a random number;
//! 3. top-k keeps the `k` best;
//! 4. top-p keeps the fewest of the best whose probabilities reach `p` together;
//! 5. min-p keeps those at least `p` times as probable as the best;
//! 6. temperature divides the logits, and one of the rest is drawn.
//!
//! Probabilities in 4 and 5 are at temperature 1, among what 3 left. The best token survives
//! every stage. Equal logits rank by id, the lowest first. The same logits, seed and history give
//! the same token.
//!
//! # Examples
//!
//! ```
//! use fucina_llm::sampler::{Sampler, SamplerConfig};
//!
//! let mut sampler = Sampler::new(SamplerConfig { top_k: 2, ..SamplerConfig::default() })?;
//! let token = sampler.sample(&[0.0, 9.0, 1.0])?;
//! sampler.accept(token);
//! assert_ne!(token, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod mass;
mod penalties;
mod rng;
mod select;

pub use config::{ConfigError, SamplerConfig};

use mass::Scale;
use penalties::Penalties;
use rng::SplitMix64;
use select::Candidate;

/// Logits that nothing can be chosen from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// There are none.
    #[error("there are no logits to sample from")]
    Empty,
    /// One of them is infinite or not a number: the model's arithmetic went wrong.
    #[error("the logit of token {id} is not a finite number")]
    NotFinite {
        /// The first such token.
        id: u32,
    },
}

/// Chooses tokens by a [`SamplerConfig`], with a random sequence and a history of its own.
#[derive(Debug, Clone)]
pub struct Sampler {
    config: SamplerConfig,
    rng: SplitMix64,
    penalties: Penalties,
    /// Working memory.
    logits: Vec<f32>,
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
}

impl Sampler {
    /// Starts the random sequence of the seed, with an empty history.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the setting that is not allowed.
    pub fn new(config: SamplerConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            rng: SplitMix64::new(config.seed),
            penalties: Penalties::new(&config),
            config,
            logits: Vec::new(),
            candidates: Vec::new(),
            weights: Vec::new(),
        })
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Starts over: the random sequence of the seed, and an empty history.
    pub fn reset(&mut self) {
        self.rng = SplitMix64::new(self.config.seed);
        self.penalties.clear();
    }

    /// Adds a token to the history that penalties look at: one that was chosen, or one of the
    /// prompt.
    pub fn accept(&mut self, token: u32) {
        self.penalties.accept(token);
    }

    /// Chooses a token. `logits` has one number for each id of the vocabulary.
    ///
    /// # Errors
    ///
    /// Returns a [`SampleError`] if `logits` is empty or holds a NaN or an infinity.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        let mut drawn = None;
        if self.config.draws_from_all() {
            select::check(logits)?;
            let part = self.rng.next_f64();
            let penalized = self.penalties.apply(logits, &mut self.logits);
            let scale = Scale::new(select::best(penalized).logit, self.config.temperature);
            if let Some(id) = mass::find(scale, penalized, part, &mut self.weights) {
                return Ok(id);
            }
            drawn = Some(part);
        }
        self.choose_candidates(logits)?;
        // A token that is certain needs no random number, but takes one unless greedy, so that the
        // sequence does not depend on how many candidates there were.
        let part = match drawn {
            Some(part) => part,
            None if self.config.temperature > 0.0 => self.rng.next_f64(),
            None => 0.0,
        };
        Ok(self.draw(part))
    }

    /// The candidate at which the weights exceed a part of their sum.
    fn draw(&mut self, part: f64) -> u32 {
        if let [only] = self.candidates[..] {
            return only.id;
        }
        let mut left = self.weigh_candidates() * part;
        let drawn = self.weights.iter().position(|&weight| {
            left -= weight;
            left < 0.0
        });
        // Rounding can leave a rest beyond the last weight that is not zero.
        let last = || self.weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0);
        self.candidates[drawn.unwrap_or_else(last)].id
    }

    /// The tokens that [`Self::sample`] would choose from, with their probabilities. Takes no
    /// random number.
    ///
    /// # Errors
    ///
    /// As [`Self::sample`].
    pub fn distribution(&mut self, logits: &[f32]) -> Result<Vec<(u32, f64)>, SampleError> {
        self.choose_candidates(logits)?;
        if let [only] = self.candidates[..] {
            return Ok(vec![(only.id, 1.0)]);
        }
        let total = self.weigh_candidates();
        let ids = self.candidates.iter().map(|candidate| candidate.id);
        Ok(ids.zip(self.weights.iter().map(|&weight| weight / total)).collect())
    }

    /// Stages 1 to 5. Leaves at least one candidate.
    fn choose_candidates(&mut self, logits: &[f32]) -> Result<(), SampleError> {
        select::check(logits)?;
        let Self { config, penalties, logits: penalized, candidates, weights, .. } = self;
        let logits = penalties.apply(logits, penalized);
        candidates.clear();
        if config.temperature == 0.0 {
            candidates.push(select::best(logits));
            return Ok(());
        }
        let all = config.top_k == 0 || config.top_k >= logits.len();
        if all {
            let best = select::best(logits).logit;
            select::from_all(config, logits, best, candidates, weights);
            return Ok(());
        }
        select::top_k(logits, config.top_k, candidates);
        let best = select::best_of(candidates);
        if config.top_p < 1.0 {
            select::top_p(candidates, best, config.top_p, true);
        }
        if config.min_p > 0.0 {
            select::min_p(candidates, best, config.min_p);
        }
        Ok(())
    }

    /// Stage 6: weights in proportion to the probabilities, the best one 1. Returns their sum.
    fn weigh_candidates(&mut self) -> f64 {
        let best = f64::from(select::best_of(&self.candidates));
        let temperature = f64::from(self.config.temperature);
        self.weights.clear();
        self.weights.extend(
            self.candidates.iter().map(|c| ((f64::from(c.logit) - best) / temperature).exp()),
        );
        self.weights.iter().sum()
    }
}

#[cfg(test)]
mod tests;
