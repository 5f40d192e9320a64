//! `fucina perplexity`: how well a model predicts a text, for judging formats.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use fucina::Runtime;
use fucina::llm::tokenizer::{Bos, Special};
use fucina::llm::{Against, Mean, Model, Perplexity, PerplexityOptions, perplexity};
use serde::Serialize;

use crate::args::threads;
use crate::exit::{Exit, Failure};
use crate::load::LoadArgs;
use crate::output;
use crate::progress::Progress;
use crate::signals;
use crate::source::{self, Source};
use crate::tokenize::model_and_text;

/// Largest text that is read.
const TEXT_LIMIT_BYTES: u64 = 256 << 20;

/// Tokens of a chunk unless told otherwise, as far as the model goes.
const CHUNK: usize = 512;

/// Measure how well a model predicts a text
///
/// The text is cut into chunks; in each, the tokens of the second half are predicted from all
/// before them. The perplexity is `exp` of their mean negative log likelihood: lower is better, and
/// the figures of two formats of one model tell what the smaller one costs. llama.cpp's tool
/// computes the same.
#[derive(Args)]
#[command(override_usage = "fucina perplexity [OPTIONS] [MODEL] TEXTFILE")]
#[command(after_help = "\
Examples:
  fucina perplexity model-q4_k_m.gguf book.txt
  fucina perplexity model-q4_k_m.gguf book.txt --against model-f16.gguf
  fucina perplexity model.gguf - --ctx 2048 --chunks 20 --json < book.txt")]
pub(crate) struct PerplexityArgs {
    /// A file with the text, `-` for standard input; before it the path or name of a model, if
    /// there are two
    #[arg(required = true, num_args = 1..=2, value_name = "TEXTFILE")]
    words: Vec<OsString>,
    /// A second model with the same vocabulary, such as the one that MODEL was quantized from: also
    /// show the divergence of MODEL from it, and how often both have the same most likely token
    #[arg(long, value_name = "MODEL")]
    against: Option<PathBuf>,
    /// Tokens of a chunk [default: 512, or what the model takes]
    #[arg(long, value_name = "N", value_parser = context)]
    ctx: Option<usize>,
    /// Most chunks to score [default: the whole text]
    #[arg(long, value_name = "N", value_parser = chunks)]
    chunks: Option<usize>,
    #[command(flatten)]
    load: LoadArgs,
    /// Threads [default: `FUCINA_THREADS`, or all CPUs that the process may use]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// Write nothing but errors to standard error
    #[arg(short, long)]
    quiet: bool,
}

fn context(text: &str) -> Result<usize, String> {
    let least = PerplexityOptions::MIN_CHUNK;
    let context = text.parse().ok().filter(|&context: &usize| context >= least);
    context.ok_or_else(|| format!("a number of tokens from {least} on is expected"))
}

fn chunks(text: &str) -> Result<usize, String> {
    let chunks = text.parse().ok().filter(|&chunks| chunks > 0);
    chunks.ok_or_else(|| "a number of chunks from 1 on is expected".to_owned())
}

/// The object of `--json`; `docs/cli.md` describes it.
#[derive(Serialize)]
struct Report {
    model: String,
    text_tokens: usize,
    context: usize,
    chunks: usize,
    scored_tokens: usize,
    mean_nll: f64,
    mean_nll_error: f64,
    perplexity: f64,
    perplexity_error: f64,
    against: Option<AgainstReport>,
    interrupted: bool,
    seconds: f64,
}

#[derive(Serialize)]
struct AgainstReport {
    model: String,
    mean_nll: f64,
    perplexity: f64,
    divergence: f64,
    divergence_error: f64,
    same_best: f64,
}

/// What was asked for.
struct Job {
    source: Source,
    model: Model,
    other: Option<(Source, Model)>,
    ids: Vec<u32>,
    context: usize,
}

pub(crate) fn run(args: &PerplexityArgs) -> anyhow::Result<Exit> {
    signals::install()?;
    let (source, text) = model_and_text(&args.words, "perplexity")?;
    let text = read_text(text)?;
    let rt = source::runtime(args.threads)?;
    let job = Job::new(args, &rt, source, &text)?;
    let start = Instant::now();
    let progress = Progress::new("scoring", false, args.quiet);
    signals::begin();
    let options = PerplexityOptions::new(job.context).chunks(args.chunks);
    let on_chunk = &mut |done: &Perplexity| {
        progress.set(done.chunks as u64, done.of_chunks as u64);
        if signals::stop_asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let other = job.other.as_ref().map(|(_, other)| other);
    let done = perplexity(&job.model, other, &job.ids, &options, on_chunk)?;
    progress.finish();
    let report = job.report(&done, start);
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.lines(&done))?;
    }
    Ok(if report.interrupted { Exit::Interrupted } else { Exit::Ok })
}

impl Job {
    fn new(
        args: &PerplexityArgs,
        rt: &Runtime,
        source: Source,
        text: &str,
    ) -> anyhow::Result<Self> {
        let model = args.load.model(rt, &source, args.quiet)?;
        let encode = |model: &Model| model.tokenizer().encode(text, Special::Plain, Bos::Auto);
        let ids = encode(&model)?;
        let limit = model.info().context;
        let mut context = args.ctx.unwrap_or_else(|| CHUNK.min(limit));
        let mut other = None;
        if let Some(path) = &args.against {
            let source = Source::named(path)?;
            let second = args.load.model(rt, &source, args.quiet)?;
            if encode(&second)? != ids {
                let message = "the two models make other tokens of the text, so their predictions \
                               cannot be compared";
                return Err(Failure::new(Exit::Model, message).into());
            }
            if args.ctx.is_none() {
                context = context.min(second.info().context);
            }
            other = Some((source, second));
        }
        Ok(Self { source, model, other, ids, context })
    }

    fn report(&self, done: &Perplexity, start: Instant) -> Report {
        let compared = self.other.as_ref().zip(done.against.as_ref());
        Report {
            model: self.source.short_name(),
            text_tokens: self.ids.len(),
            context: self.context,
            chunks: done.chunks,
            scored_tokens: done.nll.count(),
            mean_nll: done.nll.mean(),
            mean_nll_error: done.nll.std_error(),
            perplexity: done.value(),
            perplexity_error: done.std_error(),
            against: compared.map(|((source, _), against)| AgainstReport::new(source, against)),
            interrupted: done.chunks < done.of_chunks,
            seconds: start.elapsed().as_secs_f64(),
        }
    }
}

impl AgainstReport {
    fn new(source: &Source, against: &Against) -> Self {
        Self {
            model: source.short_name(),
            mean_nll: against.nll.mean(),
            perplexity: against.nll.mean().exp(),
            divergence: against.divergence.mean(),
            divergence_error: against.divergence.std_error(),
            same_best: share(against.same_best, against.nll),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of tokens is far below 2^52")]
fn share(count: usize, of: Mean) -> f64 {
    count as f64 / of.count().max(1) as f64
}

impl Report {
    fn lines(&self, done: &Perplexity) -> String {
        let mut lines = format!(
            "perplexity {:.4} ± {:.4}\nmean negative log likelihood {:.5} ± {:.5} nats; {} scored, \
             {} of {}\n",
            self.perplexity,
            self.perplexity_error,
            self.mean_nll,
            self.mean_nll_error,
            output::plural(self.scored_tokens, "token"),
            output::plural(self.chunks, "chunk"),
            output::plural(self.context, "token"),
        );
        if let Some(against) = &self.against {
            lines.push_str(&format!(
                "against {}, perplexity {:.4}: divergence {:.5} ± {:.5} nats, same best token {:.2} %\n",
                output::plain(&against.model),
                against.perplexity,
                against.divergence,
                against.divergence_error,
                100.0 * against.same_best,
            ));
        }
        if self.interrupted {
            lines.push_str(&format!(
                "interrupted after {} of {}\n",
                done.chunks,
                output::plural(done.of_chunks, "chunk")
            ));
        }
        lines
    }
}

/// The text of a file, or of standard input.
fn read_text(path: &OsStr) -> anyhow::Result<String> {
    let shown = path.to_string_lossy();
    let mut bytes = Vec::new();
    let read = if path == "-" {
        io::stdin().lock().take(TEXT_LIMIT_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path)
            .and_then(|file| file.take(TEXT_LIMIT_BYTES + 1).read_to_end(&mut bytes))
    };
    read.with_context(|| Failure::input(format!("could not read the text `{shown}`")))?;
    if bytes.len() as u64 > TEXT_LIMIT_BYTES {
        return Err(Failure::input("the text has more than 256 MiB; take a part of it").into());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message =
            format!("the text `{shown}` is not UTF-8 from byte {at} on; convert it first");
        Failure::input(message).into()
    })
}
