//! `fucina bench`: rows in the convention of the field, `ppN` and `tgN`.
//!
//! Logits are computed and not sampled from. Tokens are pseudo-random and the same in every run:
//! what they are does not change the work. [`gpu`] and [`ops`] measure single calls instead, on a
//! device and on the CPU.

pub(crate) mod account;
pub(crate) mod gpu;
mod operands;
pub(crate) mod ops;
mod record;
mod report;
mod table;

use std::time::Instant;

use clap::Subcommand;
use fucina::llm::{Model, Session};

use crate::args::BenchArgs;
use crate::exit::{Exit, Failure};
use crate::placement;
use crate::progress::Progress;
use crate::source::{self, Source};
use crate::trace::{self, Tracing};
use account::AccountArgs;
use gpu::args::GpuBench;
use ops::args::OpsArgs;
use record::Row;
use report::Report;

/// Sizes of the tests where none are asked for.
const PROMPT: usize = 512;
const GENERATE: usize = 128;

/// Benchmarks of single calls, apart or within a model.
#[derive(Subcommand)]
pub(crate) enum Calls {
    #[command(flatten)]
    Gpu(GpuBench),
    Ops(OpsArgs),
    Account(AccountArgs),
}

/// One test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    /// So many tokens in one go.
    Prompt(usize),
    /// So many tokens one by one.
    Generate(usize),
}

impl Test {
    const fn tokens(self) -> usize {
        match self {
            Self::Prompt(tokens) | Self::Generate(tokens) => tokens,
        }
    }

    fn name(self, depth: usize) -> String {
        let name = match self {
            Self::Prompt(tokens) => format!("pp{tokens}"),
            Self::Generate(tokens) => format!("tg{tokens}"),
        };
        if depth == 0 { name } else { format!("{name} @ d{depth}") }
    }
}

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<Exit> {
    match &args.calls {
        Some(Calls::Gpu(bench)) => return gpu::run(bench),
        Some(Calls::Ops(bench)) => return ops::run(bench),
        Some(Calls::Account(bench)) => return account::run(bench),
        None => {}
    }
    args.trace.around(|tracing| go(args, tracing))
}

fn go(args: &BenchArgs, tracing: &Tracing) -> anyhow::Result<Exit> {
    let source = Source::of(args.model.as_deref())?;
    let threads: Vec<Option<usize>> = if args.threads.is_empty() {
        vec![None]
    } else {
        args.threads.iter().copied().map(Some).collect()
    };
    let mut report = Report::new(args);
    for threads in threads {
        let rt = source::traced(threads, tracing)?;
        let model = args.load.model(&rt, &source, args.quiet || report.has_rows())?;
        let plan = plan(args, model.info().context)?;
        for (depth, tests) in plan {
            for test in tests {
                let samples = measure(&model, test, depth, args)?;
                report.add(Row::new(&model, &source, (test, depth), args.cache, samples))?;
            }
        }
        trace::report(&rt);
        placement::report(&model, None);
    }
    report.finish()?;
    Ok(Exit::Ok)
}

/// The tests of each depth. One that was asked for and does not fit is an error.
fn plan(args: &BenchArgs, context: usize) -> anyhow::Result<Vec<(usize, Vec<Test>)>> {
    let mut plan = Vec::new();
    for &depth in &args.depth {
        let room = context.saturating_sub(depth);
        let sizes = |asked: &Option<Vec<usize>>, default: usize| {
            asked.clone().unwrap_or_else(|| vec![default.min(room)])
        };
        let prompts = sizes(&args.n_prompt, PROMPT).into_iter().map(Test::Prompt);
        let generations = sizes(&args.n_gen, GENERATE).into_iter().map(Test::Generate);
        let mut tests: Vec<Test> = prompts.chain(generations).collect();
        tests.retain(|test| test.tokens() > 0);
        if let Some(test) = tests.iter().find(|test| test.tokens() > room) {
            let message = format!(
                "the test {} does not fit the model's context of {context} tokens; choose at most \
                 {room}",
                test.name(depth)
            );
            return Err(Failure::usage(message).into());
        }
        plan.push((depth, tests));
    }
    if plan.iter().all(|(_, tests)| tests.is_empty()) {
        return Err(Failure::usage("there is no test to run; give -p or -n a number").into());
    }
    Ok(plan)
}

/// Nanoseconds of each round.
fn measure(model: &Model, test: Test, depth: usize, args: &BenchArgs) -> anyhow::Result<Vec<u64>> {
    let mut session = model.session(&args.cache.options(Some(depth + test.tokens())))?;
    let vocab = model.tokenizer().vocab_size();
    let before = tokens(depth, vocab, 1);
    let tokens = tokens(test.tokens(), vocab, 2);
    if depth > 0 {
        session.feed(&before)?;
    }
    let rounds = args.repetitions;
    let progress = Progress::new(&test.name(depth), false, args.quiet);
    let mut samples = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        session.truncate(depth);
        let start = Instant::now();
        feed(&mut session, test, &tokens)?;
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // The first round warms up caches, page tables and threads.
        if round > 0 {
            samples.push(ns.max(1));
        }
        progress.set(round as u64, rounds as u64);
    }
    Ok(samples)
}

fn feed(session: &mut Session<'_>, test: Test, tokens: &[u32]) -> anyhow::Result<()> {
    match test {
        Test::Prompt(_) => {
            session.feed(tokens)?;
        }
        Test::Generate(_) => {
            for token in tokens {
                session.feed(std::slice::from_ref(token))?;
            }
        }
    }
    Ok(())
}

/// The top bits of a linear congruential sequence, as ids of the vocabulary.
fn tokens(count: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let id = (state >> 33) % (vocab.max(1) as u64);
        u32::try_from(id).unwrap_or(0)
    };
    (0..count).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheArgs;

    fn args() -> BenchArgs {
        BenchArgs {
            calls: None,
            model: None,
            n_prompt: None,
            n_gen: None,
            repetitions: 1,
            threads: Vec::new(),
            depth: vec![0],
            cache: CacheArgs::default(),
            load: Default::default(),
            json: false,
            csv: false,
            quiet: true,
            trace: Default::default(),
        }
    }

    #[test]
    fn default_tests_shrink_to_the_context() {
        let (p, g) = (Test::Prompt, Test::Generate);
        assert_eq!(plan(&args(), 4096).unwrap(), [(0, vec![p(512), g(128)])]);
        assert_eq!(plan(&args(), 100).unwrap(), [(0, vec![p(100), g(100)])]);
        let deep = BenchArgs { depth: vec![0, 400], ..args() };
        let plan = plan(&deep, 512).unwrap();
        assert_eq!(plan, [(0, vec![p(512), g(128)]), (400, vec![p(112), g(112)])]);
    }

    #[test]
    fn a_test_that_was_asked_for_and_does_not_fit_is_an_error() {
        let asked = BenchArgs { n_prompt: Some(vec![32, 513]), n_gen: Some(vec![0]), ..args() };
        let error = plan(&asked, 512).unwrap_err().to_string();
        assert!(error.contains("pp513") && error.contains("512"), "{error}");
        let none = BenchArgs { n_prompt: Some(vec![0]), n_gen: Some(vec![0]), ..args() };
        assert!(plan(&none, 512).is_err());
        let deep = BenchArgs { depth: vec![512], ..args() };
        assert!(plan(&deep, 512).is_err());
    }

    #[test]
    fn tokens_are_inside_the_vocabulary_and_repeat() {
        let ids = tokens(1000, 7, 1);
        assert!(ids.iter().all(|&id| id < 7));
        assert!((0..7).all(|id| ids.contains(&id)));
        assert_eq!(ids, tokens(1000, 7, 1));
    }
}
