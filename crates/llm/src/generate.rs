//! Generation: prompt in, text out, token by token.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::model::Session;
use crate::sampler::Sampler;
use crate::stop::{StopMatcher, StopStrings};
use crate::tokenizer::{ControlTokens, Stream, Tokenizer};

/// Limits of one generation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Largest number of tokens. `None`: until the model ends the text or the context is full.
    pub max_tokens: Option<usize>,
    /// Go on when the model ends the text.
    pub ignore_end: bool,
    /// Texts that end the generation.
    pub stop: StopStrings,
}

impl GenerateOptions {
    /// Sets the largest number of tokens.
    #[must_use]
    pub const fn max_tokens(mut self, max_tokens: Option<usize>) -> Self {
        self.max_tokens = max_tokens;
        self
    }

    /// Goes on when the model ends the text.
    #[must_use]
    pub const fn ignore_end(mut self, ignore_end: bool) -> Self {
        self.ignore_end = ignore_end;
        self
    }

    /// Ends the generation at any of these texts, which are not part of it.
    #[must_use]
    pub fn stop(mut self, stop: StopStrings) -> Self {
        self.stop = stop;
        self
    }
}

/// What happens during a generation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event<'a> {
    /// So many tokens of the prompt are done.
    Prompt {
        /// Done.
        done: usize,
        /// All.
        total: usize,
    },
    /// A token was chosen. `text` is what became complete with it; it may be empty. What could
    /// still become a stop string comes later.
    Token {
        /// Its id.
        id: u32,
        /// Whole characters only, and nothing of a stop string.
        text: &'a str,
    },
    /// The generation ended with text held back.
    Tail {
        /// What might have become a stop string; then U+FFFD if the text broke off inside a
        /// character.
        text: &'a str,
    },
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The model ended the text.
    EndOfText,
    /// A stop string came.
    StopString,
    /// The limit of tokens is reached.
    MaxTokens,
    /// The context has no room for another token.
    ContextFull,
    /// The caller asked for it.
    Cancelled,
}

/// What a generation did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Generated {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time of the prompt.
    pub prompt_time: Duration,
    /// Tokens chosen, the end token not counted.
    pub tokens: usize,
    /// Time from the end of the prompt to the last token.
    pub time: Duration,
    /// Why it ended.
    pub stop: Stop,
}

impl Generated {
    /// Prompt tokens per second.
    pub fn prompt_rate(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt_time)
    }

    /// Generated tokens per second. The first one comes with the prompt and does not count.
    pub fn rate(&self) -> f64 {
        rate(self.tokens.saturating_sub(1), self.time)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of tokens is far below 2^52")]
fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// Runs the prompt and generates, until an end. `on_event` may stop it at any event; what was
/// reported stays valid.
///
/// # Errors
///
/// As [`Session::feed`], and if the logits cannot be sampled from.
pub fn generate(
    session: &mut Session<'_>,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Generated> {
    let mut done = Generated {
        prompt_tokens: prompt.len(),
        prompt_time: Duration::ZERO,
        tokens: 0,
        time: Duration::ZERO,
        stop: Stop::Cancelled,
    };
    let start = Instant::now();
    for &token in prompt {
        sampler.accept(token);
    }
    let total = prompt.len();
    let mut go_on = |done| on_event(Event::Prompt { done, total }).is_continue();
    let Some(logits) = session.feed_with(prompt, &mut go_on)? else {
        done.prompt_time = start.elapsed();
        return Ok(done);
    };
    done.prompt_time = start.elapsed();
    let mut text = Text::new(session.model().tokenizer(), options);
    done.stop = text.run(session, sampler, logits, &mut done, on_event)?;
    let tail = text.finish(done.stop);
    if !tail.is_empty() {
        // The generation is over; an answer would change nothing.
        let _ = on_event(Event::Tail { text: &tail });
    }
    Ok(done)
}

/// The text in the making.
struct Text<'a> {
    tokenizer: &'a Tokenizer,
    options: &'a GenerateOptions,
    stream: Stream<'a>,
    matcher: StopMatcher,
}

impl<'a> Text<'a> {
    fn new(tokenizer: &'a Tokenizer, options: &'a GenerateOptions) -> Self {
        let stream = tokenizer.stream(ControlTokens::Skip);
        Self { tokenizer, options, stream, matcher: options.stop.matcher() }
    }

    /// Chooses tokens until an end.
    fn run(
        &mut self,
        session: &mut Session<'_>,
        sampler: &mut Sampler,
        mut logits: Vec<f32>,
        done: &mut Generated,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Stop> {
        let start = Instant::now();
        loop {
            if self.options.max_tokens.is_some_and(|max| done.tokens >= max) {
                return Ok(Stop::MaxTokens);
            }
            // Rows of the embedding beyond the vocabulary are padding.
            logits.truncate(self.tokenizer.vocab_size());
            let id = sampler.sample(&logits)?;
            sampler.accept(id);
            if self.tokenizer.is_end_of_generation(id) && !self.options.ignore_end {
                return Ok(Stop::EndOfText);
            }
            done.tokens += 1;
            let (text, stopped) = self.matcher.push(self.stream.push(id)?);
            done.time = start.elapsed();
            let go_on = on_event(Event::Token { id, text });
            if stopped.is_some() {
                return Ok(Stop::StopString);
            }
            if go_on.is_break() {
                return Ok(Stop::Cancelled);
            }
            if self.options.max_tokens.is_some_and(|max| done.tokens >= max) {
                return Ok(Stop::MaxTokens);
            }
            if session.len() >= session.context() {
                return Ok(Stop::ContextFull);
            }
            logits = session.feed(&[id])?;
        }
    }

    /// What was held back. Nothing after a stop string: the rest is not part of the text.
    fn finish(self, stop: Stop) -> String {
        if stop == Stop::StopString {
            return String::new();
        }
        let broken = self.stream.finish();
        let mut matcher = self.matcher;
        let mut tail = matcher.push(broken).0.to_owned();
        tail.push_str(&matcher.finish());
        tail
    }
}
