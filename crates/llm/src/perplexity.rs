//! How well a model predicts a text, and how far two models differ in it.
//!
//! The text is cut into chunks of the context's size. Each is run from its start, with the begin
//! token in the first place if the vocabulary asks for one, and the second half of its tokens is
//! scored: so every scored token has at least half a context before it. This is how llama.cpp's
//! tool does it, and figures can be compared.

use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::model::{Model, Session, SessionOptions};
use crate::tokenizer::DecodeError;

/// What to score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PerplexityOptions {
    /// Tokens of a chunk; at least [`MIN_CHUNK`](Self::MIN_CHUNK).
    pub context: usize,
    /// Most chunks; `None` is the whole text.
    pub chunks: Option<usize>,
}

impl PerplexityOptions {
    /// The smallest chunk: a token before, one to score, and the half of them.
    pub const MIN_CHUNK: usize = 4;

    /// Chunks of `context` tokens, the whole text.
    #[must_use]
    pub const fn new(context: usize) -> Self {
        Self { context, chunks: None }
    }

    /// Sets the largest number of chunks.
    #[must_use]
    pub const fn chunks(mut self, chunks: Option<usize>) -> Self {
        self.chunks = chunks;
        self
    }
}

/// A mean and how sure it is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    count: usize,
    mean: f64,
    /// Sum of squared distances from the mean.
    spread: f64,
}

impl Mean {
    /// Takes one more value in.
    #[expect(clippy::cast_precision_loss, reason = "a count of tokens is far below 2^52")]
    pub fn add(&mut self, value: f64) {
        // Welford's update, which does not cancel.
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.spread += before * (value - self.mean);
    }

    /// Number of values.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The mean; 0 without values.
    #[must_use]
    pub const fn mean(&self) -> f64 {
        self.mean
    }

    /// Standard error of the mean, as if the values were independent; 0 for fewer than two.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a count of tokens is far below 2^52")]
    pub fn std_error(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        (self.spread / (self.count - 1) as f64 / self.count as f64).sqrt()
    }
}

/// What was scored so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Perplexity {
    /// Chunks done.
    pub chunks: usize,
    /// Chunks of the text.
    pub of_chunks: usize,
    /// Negative log likelihood of the scored tokens, in nats.
    pub nll: Mean,
    /// Comparison with a second model.
    pub against: Option<Against>,
}

impl Perplexity {
    /// The perplexity: `exp` of the mean negative log likelihood.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.nll.mean().exp()
    }

    /// Standard error of the perplexity.
    #[must_use]
    pub fn std_error(&self) -> f64 {
        self.value() * self.nll.std_error()
    }
}

/// How a model differs from the one that it is compared with.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Against {
    /// Negative log likelihood of the other model, in nats.
    pub nll: Mean,
    /// Kullback-Leibler divergence of the model from the other one, in nats: what is lost, for each
    /// token, by predicting with the model where the other one is right.
    pub divergence: Mean,
    /// Scored tokens whose most likely token is the same.
    pub same_best: usize,
}

/// Scores the text `ids`. With `other`, scores that model too and compares. `on_chunk` gets what is
/// done after each chunk and may stop.
///
/// # Errors
///
/// Fails for a context that the model cannot have, a text shorter than a chunk, another model with
/// another number of tokens, and as [`Session::feed`].
pub fn perplexity(
    model: &Model,
    other: Option<&Model>,
    ids: &[u32],
    options: &PerplexityOptions,
    on_chunk: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity> {
    let &PerplexityOptions { context, chunks } = options;
    if context < PerplexityOptions::MIN_CHUNK || context > model.info().context {
        return Err(Error::Context { wanted: context, limit: model.info().context });
    }
    if ids.len() < context {
        return Err(Error::TextTooShort { tokens: ids.len(), needed: context });
    }
    let tokens = model.tokenizer().vocab_size();
    if let Some(found) = other.map(|other| other.tokenizer().vocab_size())
        && found != tokens
    {
        return Err(Error::OtherVocabulary { expected: tokens, found });
    }
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= tokens) {
        return Err(DecodeError::IdOutOfRange { id, vocab_size: tokens }.into());
    }
    let room = SessionOptions::default().context(Some(context));
    let mut session = model.session(&room)?;
    let mut session_of_other = other.map(|other| other.session(&room)).transpose()?;
    let mut done = Perplexity {
        of_chunks: (ids.len() / context).min(chunks.unwrap_or(usize::MAX)),
        against: other.map(|_| Against::default()),
        ..Perplexity::default()
    };
    for chunk in ids.chunks_exact(context).take(done.of_chunks) {
        score_chunk(&mut session, session_of_other.as_mut(), chunk, &mut done)?;
        done.chunks += 1;
        if on_chunk(&done).is_break() {
            break;
        }
    }
    Ok(done)
}

/// Floats of the logits that are held at a time, for each model: 64 MiB.
const LOGITS: usize = 16 << 20;

fn score_chunk<'m>(
    session: &mut Session<'m>,
    mut other: Option<&mut Session<'m>>,
    chunk: &[u32],
    done: &mut Perplexity,
) -> Result<()> {
    let mut chunk = chunk.to_vec();
    let ids = session.model().tokenizer().designated_ids();
    if let Some(bos) = ids.bos.filter(|_| ids.add_bos) {
        chunk[0] = bos;
    }
    let vocab = session.model().info().vocab;
    let first = chunk.len() / 2;
    for session in std::iter::once(&mut *session).chain(other.as_deref_mut()) {
        session.truncate(0);
        session.feed(&chunk[..first])?;
    }
    // The last token is only predicted.
    let last = chunk.len() - 1;
    let rows = (LOGITS / vocab).max(1);
    for start in (first..last).step_by(rows) {
        let end = last.min(start + rows);
        let logits = Rows::new(session, &chunk[start..end])?;
        let others = match &mut other {
            Some(other) => Some(Rows::new(other, &chunk[start..end])?),
            None => None,
        };
        for (row, &next) in chunk[start + 1..=end].iter().enumerate() {
            score(logits.get(row), others.as_ref().map(|rows| rows.get(row)), next, done);
        }
    }
    Ok(())
}

/// Logits of some tokens, without the padding of the embedding.
struct Rows {
    logits: Vec<f32>,
    width: usize,
    vocab: usize,
}

impl Rows {
    fn new(session: &mut Session<'_>, tokens: &[u32]) -> Result<Self> {
        let (width, vocab) =
            (session.model().info().vocab, session.model().tokenizer().vocab_size());
        Ok(Self { logits: session.feed_all(tokens)?, width, vocab })
    }

    fn get(&self, row: usize) -> &[f32] {
        &self.logits[row * self.width..][..self.vocab]
    }
}

fn score(logits: &[f32], other: Option<&[f32]>, next: u32, done: &mut Perplexity) {
    let normalizer = log_sum_exp(logits);
    done.nll.add(normalizer - f64::from(logits[next as usize]));
    if let (Some(other), Some(against)) = (other, &mut done.against) {
        let of_other = log_sum_exp(other);
        against.nll.add(of_other - f64::from(other[next as usize]));
        against.divergence.add(divergence((other, of_other), (logits, normalizer)));
        against.same_best += usize::from(best(logits) == best(other));
    }
}

/// `ln` of the sum of exponentials.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()
}

/// Kullback-Leibler divergence of the second distribution from the first, each given as logits and
/// their [`log_sum_exp`].
fn divergence((right, r): (&[f32], f64), (found, f): (&[f32], f64)) -> f64 {
    let term = |(&right, &found): (&f32, &f32)| {
        let (right, found) = (f64::from(right) - r, f64::from(found) - f);
        right.exp() * (right - found)
    };
    // Rounding may make a sum that is zero negative.
    right.iter().zip(found).map(term).sum::<f64>().max(0.0)
}

fn best(logits: &[f32]) -> usize {
    let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(probabilities: [f64; 3], shift: f64) -> [f32; 3] {
        #[expect(clippy::cast_possible_truncation, reason = "rounding is part of the bound")]
        probabilities.map(|p| (p.ln() + shift) as f32)
    }

    #[test]
    fn likelihood_and_divergence_are_those_of_the_definition() {
        let right = logits([0.5, 0.25, 0.25], 3.0);
        let found = logits([0.25, 0.25, 0.5], -40.0);
        let mut done = Perplexity { against: Some(Against::default()), ..Perplexity::default() };
        score(&found, Some(&right), 2, &mut done);
        // Logits of 40 are rounded to 2^-19.
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-5, "{got} {want}");
        near(done.nll.mean(), 2f64.ln());
        near(done.value(), 2.0);
        let against = done.against.unwrap();
        near(against.nll.mean(), 4f64.ln());
        // 0.5 ln(0.5 / 0.25) + 0.25 ln(0.25 / 0.5)
        near(against.divergence.mean(), 0.25 * 2f64.ln());
        assert_eq!(against.same_best, 0);
        score(&right, Some(&right), 0, &mut done);
        let against = done.against.unwrap();
        assert_eq!((against.same_best, against.nll.count()), (1, 2));
        near(against.divergence.mean(), 0.125 * 2f64.ln());
    }

    #[test]
    fn the_error_of_a_mean_is_the_deviation_over_the_root_of_the_count() {
        let mut mean = Mean::default();
        assert_eq!((mean.mean(), mean.std_error()), (0.0, 0.0));
        for value in [1e9 + 1.0, 1e9 + 2.0, 1e9 + 3.0, 1e9 + 4.0] {
            mean.add(value);
        }
        assert_eq!((mean.count(), mean.mean()), (4, 1e9 + 2.5));
        // Variance 5/3, of which each of four values has its share.
        assert!((mean.std_error() - (5.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-9);
    }
}
