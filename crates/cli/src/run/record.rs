//! What a generation did: one line for people, one object for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use fucina::accel::Outcome;
use fucina::llm::Generated;
use fucina::llm::sampler::SamplerConfig;
use serde::Serialize;

use super::Job;
use crate::answer::Answer;
use crate::chat::stop_name;
use crate::output;
use crate::placement::{self, Weight};
use crate::source::Source;

/// The object of `--json`. `docs/cli.md` describes the fields.
#[derive(Serialize)]
pub(super) struct Record<'a> {
    model: ModelRecord,
    prompt: &'a str,
    prompt_ids: &'a [u32],
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<&'a str>,
    ids: &'a [u32],
    stop: &'static str,
    seed: Option<u64>,
    backend: Backend,
    cache: Cache,
    timings: Timings,
    /// Where the weights are; with `--placement`.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<Vec<Weight>>,
}

/// Keys and values.
#[derive(Serialize)]
struct Cache {
    #[serde(rename = "type")]
    kind: &'static str,
    bytes: usize,
    /// Tokens of the prompt that came from the file of `--prompt-cache`.
    restored_tokens: usize,
}

#[derive(Serialize)]
struct ModelRecord {
    name: String,
    path: Option<String>,
    architecture: String,
    parameters: u64,
    main_type: &'static str,
    context: usize,
}

#[derive(Serialize)]
struct Backend {
    isa: &'static str,
    threads: usize,
    /// Calls that each provider took.
    offloaded: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct Timings {
    prompt_tokens: usize,
    prompt_ms: f64,
    prompt_tokens_per_second: f64,
    generated_tokens: usize,
    generated_ms: f64,
    generated_tokens_per_second: f64,
    first_token_ms: Option<f64>,
}

impl<'a> Record<'a> {
    pub(super) fn new(
        job: &Job<'a>,
        source: &Source,
        config: &SamplerConfig,
        answer: &'a Answer,
        done: &Generated,
    ) -> Self {
        let (info, rt) = (job.model.info(), job.model.runtime());
        let mut offloaded = BTreeMap::new();
        for ((_, outcome), count) in rt.trace().counters().decisions {
            if let Outcome::Offloaded { provider } = outcome {
                *offloaded.entry(provider).or_default() += count;
            }
        }
        Self {
            model: ModelRecord {
                name: source.short_name(),
                path: source.path().map(|path| path.to_string_lossy().into_owned()),
                architecture: info.architecture.clone(),
                parameters: info.parameters,
                main_type: info.main_type,
                context: job.context(),
            },
            prompt: job.prompt,
            prompt_ids: job.ids,
            text: &answer.text,
            thinking: answer.thought.as_deref(),
            ids: &answer.ids,
            stop: stop_name(done.stop),
            seed: (config.temperature > 0.0).then_some(config.seed),
            backend: Backend { isa: rt.isa().name(), threads: rt.threads(), offloaded },
            cache: Cache {
                kind: job.args.cache.cache_type.name(),
                bytes: answer.cache_bytes,
                restored_tokens: answer.restored,
            },
            timings: Timings {
                prompt_tokens: done.prompt_tokens,
                prompt_ms: ms(done.prompt_time),
                prompt_tokens_per_second: done.prompt_rate(),
                generated_tokens: done.tokens,
                generated_ms: ms(done.time),
                generated_tokens_per_second: done.rate(),
                first_token_ms: answer.first_token.map(ms),
            },
            placement: job.args.placement.placement.then(|| placement::weights(job.model)),
        }
    }

    /// What ran where and how fast, on one line.
    pub(super) fn summary(&self) -> String {
        let (model, backend, timings) = (&self.model, &self.backend, &self.timings);
        let threads = output::plural(backend.threads, "thread");
        let mut parts = vec![
            output::plain(&model.name).into_owned(),
            format!("{} params {}", output::count(model.parameters), model.main_type),
            format!("cpu {}, {threads}", backend.isa),
            format!("cache {} {}", output::bytes(self.cache.bytes as u64), self.cache.kind),
            format!("prompt {} tok", timings.prompt_tokens),
            format!("generated {} tok", timings.generated_tokens),
        ];
        for (part, tokens_per_second) in
            [(4, timings.prompt_tokens_per_second), (5, timings.generated_tokens_per_second)]
        {
            if tokens_per_second > 0.0 {
                parts[part].push(' ');
                parts[part].push_str(&output::rate(tokens_per_second));
            }
        }
        if self.cache.restored_tokens > 0 {
            parts[4].push_str(&format!(", {} restored", self.cache.restored_tokens));
        }
        if let Some(ms) = timings.first_token_ms {
            let time = output::duration(Duration::from_secs_f64(ms / 1e3));
            parts.push(format!("first token {time}"));
        }
        for (provider, calls) in &backend.offloaded {
            parts.push(format!("{calls} calls on {provider}"));
        }
        match self.stop {
            "context_full" => parts.push("stopped: the context is full".to_owned()),
            "interrupted" => parts.push("interrupted".to_owned()),
            _ => {}
        }
        if let Some(seed) = self.seed {
            parts.push(format!("seed {seed}"));
        }
        parts.join(" · ")
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(stop: &'static str, seed: Option<u64>, calls: u64) -> Record<'static> {
        Record {
            model: ModelRecord {
                name: "austen".to_owned(),
                path: None,
                architecture: "qwen3".to_owned(),
                parameters: 3_672_832,
                main_type: "Q8_0",
                context: 512,
            },
            prompt: "It",
            prompt_ids: &[1],
            text: " is",
            thinking: None,
            ids: &[2],
            stop,
            seed,
            backend: Backend {
                isa: "avx2",
                threads: 2,
                offloaded: (calls > 0).then_some(("reference", calls)).into_iter().collect(),
            },
            cache: Cache { kind: "f16", bytes: 3 << 20, restored_tokens: 0 },
            placement: None,
            timings: Timings {
                prompt_tokens: 9,
                prompt_ms: 11.0,
                prompt_tokens_per_second: 812.0,
                generated_tokens: 1,
                generated_ms: 0.0,
                generated_tokens_per_second: 0.0,
                first_token_ms: Some(21.0),
            },
        }
    }

    #[test]
    fn the_summary_says_what_ran_where_and_how_fast() {
        assert_eq!(
            record("max_tokens", None, 0).summary(),
            "austen · 3.7 M params Q8_0 · cpu avx2, 2 threads · cache 3.00 MiB f16 · prompt 9 tok 812 t/s · \
             generated 1 tok · first token 21 ms"
        );
        let offloaded = record("context_full", Some(7), 12).summary();
        let tail = "12 calls on reference · stopped: the context is full · seed 7";
        assert!(offloaded.ends_with(tail), "{offloaded}");
    }
}
