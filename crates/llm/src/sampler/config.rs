//! The settings of a sampler and what they may be.

/// How tokens are chosen. The order of the stages is given in the [module](super).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerConfig {
    /// Divides the logits: below 1 sharper, above 1 flatter, 0 always takes the best token. Any
    /// finite number from 0 on.
    pub temperature: f32,
    /// Keeps so many of the best tokens. 0 keeps all.
    pub top_k: usize,
    /// Keeps the best tokens that make up this probability together, at least one. 0 to 1; 1
    /// keeps all.
    pub top_p: f32,
    /// Keeps the tokens at least this many times as probable as the best. 0 to 1; 0 keeps all,
    /// 1 only those that equal the best.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred. Finite and above
    /// 0; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Is subtracted once for each time a token occurred. Any finite number.
    pub frequency_penalty: f32,
    /// Is subtracted once from each token that occurred. Any finite number.
    pub presence_penalty: f32,
    /// How many of the last tokens the penalties look at. 0 turns them off, `usize::MAX` looks at
    /// all.
    pub penalty_last_n: usize,
    /// Selects the random sequence.
    pub seed: u64,
}

impl SamplerConfig {
    /// Always the best token, without penalties.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        penalty_last_n: 0,
        seed: 0,
    };

    /// Whether every token may be drawn, by its probability.
    pub(super) fn draws_from_all(&self) -> bool {
        self.temperature > 0.0 && self.top_k == 0 && self.top_p == 1.0 && self.min_p == 0.0
    }

    /// Checks every setting.
    ///
    /// # Errors
    ///
    /// Returns the first one that is not allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let up_to_1 = |value: f32| (0.0..=1.0).contains(&value);
        let any = f32::is_finite;
        let from_0 = |value: f32| any(value) && value >= 0.0;
        let above_0 = |value: f32| any(value) && value > 0.0;
        let checks: [(&'static str, f32, bool, &'static str); 6] = [
            ("temperature", self.temperature, from_0(self.temperature), "a number from 0 on"),
            ("top_p", self.top_p, up_to_1(self.top_p), "a number from 0 to 1"),
            ("min_p", self.min_p, up_to_1(self.min_p), "a number from 0 to 1"),
            (
                "repeat_penalty",
                self.repeat_penalty,
                above_0(self.repeat_penalty),
                "a number above 0",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                any(self.frequency_penalty),
                "a finite number",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                any(self.presence_penalty),
                "a finite number",
            ),
        ];
        match checks.into_iter().find(|&(_, _, ok, _)| !ok) {
            None => Ok(()),
            Some((field, value, _, allowed)) => {
                Err(ConfigError::NotAllowed { field, value: value.to_string(), allowed })
            }
        }
    }

    /// Whether some penalty can change a logit.
    pub(super) fn has_penalties(&self) -> bool {
        let neutral = self.repeat_penalty == 1.0
            && self.frequency_penalty == 0.0
            && self.presence_penalty == 0.0;
        self.penalty_last_n > 0 && !neutral
    }
}

/// Lively but coherent text: temperature 0.8, the 40 best, 95 % of the probability, at least 5 % of
/// the best; no penalties; seed 0.
impl Default for SamplerConfig {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            penalty_last_n: 64,
            ..Self::GREEDY
        }
    }
}

/// A setting that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number outside its range.
    #[error("`{field}` is {value}, but must be {allowed}")]
    NotAllowed {
        /// The field of [`SamplerConfig`].
        field: &'static str,
        /// Its value, as text because a NaN does not equal itself.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
}
