//! What a turn did, for programs, and what all turns did, for people.

use std::time::Duration;

use fucina::llm::chat::Reply;
use fucina::llm::{Generated, Stop};
use serde::Serialize;

use crate::output;

/// The object of `--json`. `docs/cli.md` describes the fields.
#[derive(Serialize)]
pub(super) struct TurnRecord<'a> {
    turn: u64,
    message: &'a str,
    text: &'a str,
    thinking: Option<&'a str>,
    ids: &'a [u32],
    stop: &'static str,
    seed: Option<u64>,
    held_tokens: usize,
    context: usize,
    timings: Timings,
}

#[derive(Serialize)]
struct Timings {
    prompt_tokens: usize,
    reused_tokens: usize,
    prompt_ms: f64,
    prompt_tokens_per_second: f64,
    generated_tokens: usize,
    generated_ms: f64,
    generated_tokens_per_second: f64,
}

impl<'a> TurnRecord<'a> {
    /// `held`: tokens that the session holds, and how many it could.
    pub(super) fn new(
        (turn, message): (u64, &'a str),
        reply: &'a Reply,
        seed: Option<u64>,
        (held_tokens, context): (usize, usize),
    ) -> Self {
        let done = &reply.generated;
        Self {
            turn,
            message,
            text: &reply.message.content,
            thinking: reply.message.reasoning.as_deref(),
            ids: &reply.ids,
            stop: stop_name(done.stop),
            seed,
            held_tokens,
            context,
            timings: Timings {
                prompt_tokens: done.prompt_tokens,
                reused_tokens: reply.reused,
                prompt_ms: done.prompt_time.as_secs_f64() * 1e3,
                prompt_tokens_per_second: done.prompt_rate(),
                generated_tokens: done.tokens,
                generated_ms: done.time.as_secs_f64() * 1e3,
                generated_tokens_per_second: done.rate(),
            },
        }
    }
}

/// Why a generation ended, for programs.
pub(crate) const fn stop_name(stop: Stop) -> &'static str {
    match stop {
        Stop::EndOfText => "end_of_text",
        Stop::StopString => "stop_string",
        Stop::MaxTokens => "max_tokens",
        Stop::ContextFull => "context_full",
        Stop::Cancelled => "interrupted",
    }
}

/// `prompt 9 tok 812 t/s · generated 5 tok 30 t/s`.
pub(super) fn speeds(done: &Generated) -> String {
    let part = |what: &str, tokens: usize, per_second: f64| {
        let speed =
            if per_second > 0.0 { format!(" {}", output::rate(per_second)) } else { String::new() };
        format!("{what} {tokens} tok{speed}")
    };
    let prompt = part("prompt", done.prompt_tokens, done.prompt_rate());
    format!("{prompt} · {}", part("generated", done.tokens, done.rate()))
}

/// What all turns did together.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) turns: u64,
    sum: Option<Generated>,
}

impl Totals {
    pub(super) fn add(&mut self, done: &Generated) {
        self.turns += 1;
        let mut sum = self.sum.unwrap_or(Generated {
            prompt_tokens: 0,
            prompt_time: Duration::ZERO,
            tokens: 0,
            time: Duration::ZERO,
            stop: Stop::EndOfText,
        });
        sum.prompt_tokens += done.prompt_tokens;
        sum.prompt_time += done.prompt_time;
        sum.tokens += done.tokens;
        sum.time += done.time;
        self.sum = Some(sum);
    }

    /// The last line of a chat. `None` if nothing was said.
    pub(super) fn summary(&self, name: &str, seed: Option<u64>) -> Option<String> {
        let turns = output::plural(usize::try_from(self.turns).unwrap_or(usize::MAX), "turn");
        let seed = seed.map_or_else(String::new, |seed| format!(" · seed {seed}"));
        let speeds = speeds(self.sum.as_ref()?);
        Some(format!("{} · {turns} · {speeds}{seed}", output::plain(name)))
    }
}
