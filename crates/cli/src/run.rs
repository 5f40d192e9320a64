//! `fucina run`: a prompt in, its continuation out.

mod record;

use std::ffi::OsString;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fucina::llm::sampler::Sampler;
use fucina::llm::tokenizer::{Bos, Special};
use fucina::llm::{self, DEFAULT_CONTEXT, Event, GenerateOptions, Model, generate};

use crate::args::RunArgs;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::progress::Progress;
use crate::signals;
use crate::source::{self, Source};
use crate::trace;
use record::Record;

/// Tokens that the embedded model generates unless told otherwise: it hardly ever ends a text.
const EMBEDDED_TOKENS: usize = 128;

/// Largest prompt that is read from standard input. The longest contexts hold a few megabytes.
const STDIN_LIMIT_BYTES: u64 = 256 << 20;

/// Runs the command. `start` is when the program started.
pub(crate) fn run(args: &RunArgs, start: Instant) -> anyhow::Result<Exit> {
    signals::install()?;
    let config = args.sampling.config(random_seed)?;
    let (source, prompt) = words(&args.words)?;
    let prompt = read_prompt(prompt)?;
    let rt = source::runtime(args.threads)?;
    let model = load(&rt, &source, args.quiet)?;
    let special = if args.special { Special::Parse } else { Special::Plain };
    let ids = model.tokenizer().encode(&prompt, special, Bos::Auto)?;
    let max_tokens = args.max_tokens.or(source.is_embedded().then_some(EMBEDDED_TOKENS));
    let job = Job { args, model: &model, prompt: &prompt, ids: &ids, max_tokens, start };
    job.check_size()?;
    let (printer, generated) = job.generate(Sampler::new(config)?)?;
    if printer.closed {
        return Ok(Exit::Ok);
    }
    let record = Record::new(&job, &source, &config, &printer, &generated);
    if args.json {
        output::print_json(&record)?;
    }
    if !args.quiet {
        output::line(&record.summary());
    }
    trace::report(&rt);
    Ok(if generated.stop == llm::Stop::Cancelled { Exit::Interrupted } else { Exit::Ok })
}

/// Loads a model, with a progress bar, and says what is odd about it.
pub(crate) fn load(rt: &fucina::Runtime, source: &Source, quiet: bool) -> anyhow::Result<Model> {
    let file = source.open()?;
    let progress = Progress::new("loading", true, quiet);
    let model = Model::load(rt, &file, &|done, total| progress.set(done, total))?;
    progress.finish();
    if !quiet {
        for warning in &model.info().tokenizer_warnings {
            output::warning(&warning.to_string());
        }
        if let [first, ..] = &*model.info().unused_tensors {
            let count = model.info().unused_tensors.len();
            let count = output::plural(count, "tensor");
            output::warning(&format!(
                "the model does not use {count} of its file, first `{first}`"
            ));
        }
    }
    Ok(model)
}

/// The model and the prompt of the arguments.
fn words(words: &[OsString]) -> anyhow::Result<(Source, &OsString)> {
    match words {
        [prompt] => {
            let path = PathBuf::from(prompt);
            let named = prompt.to_str().is_some_and(source::is_model_name);
            if named || path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) {
                let path = path.display();
                let message = format!(
                    "`{path}` is a model and the prompt is missing; give a text \
                    after it, or `-` to read one from standard input"
                );
                return Err(Failure::usage(message).into());
            }
            Ok((Source::Embedded, prompt))
        }
        [model, prompt] => Ok((Source::named(Path::new(model))?, prompt)),
        _ => {
            let message =
                "a prompt of several words goes into quotes: fucina run \"Once upon a time\"";
            Err(Failure::usage(message).into())
        }
    }
}

pub(crate) fn read_prompt(word: &OsString) -> anyhow::Result<String> {
    let text = if word == "-" {
        let mut bytes = Vec::new();
        let stdin = io::stdin().lock();
        stdin
            .take(STDIN_LIMIT_BYTES + 1)
            .read_to_end(&mut bytes)
            .context("could not read standard input")?;
        if bytes.len() as u64 > STDIN_LIMIT_BYTES {
            let message = "standard input has more than 256 MiB, which no context holds";
            return Err(Failure::input(message).into());
        }
        let mut text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Failure::input(format!(
                "standard input is not UTF-8 from byte {at} on; convert it first"
            ))
        })?;
        // Files and `echo` end with a line break that is not meant.
        if text.ends_with('\n') {
            text.truncate(text.len() - if text.ends_with("\r\n") { 2 } else { 1 });
        }
        text
    } else {
        let text = word.to_str().ok_or_else(|| {
            Failure::input("the prompt is not UTF-8; convert it, or pass it through a file and `-`")
        })?;
        text.to_owned()
    };
    if text.is_empty() {
        return Err(Failure::input("the prompt is empty; give some text to continue").into());
    }
    Ok(text)
}

/// A number that differs from run to run: the standard library seeds its hash maps with such.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 32
}

/// One generation and what it needs.
struct Job<'a> {
    args: &'a RunArgs,
    model: &'a Model,
    prompt: &'a str,
    ids: &'a [u32],
    max_tokens: Option<usize>,
    start: Instant,
}

impl Job<'_> {
    /// Refuses a prompt that does not fit, before anything is written.
    fn check_size(&self) -> anyhow::Result<()> {
        let (tokens, context, limit) = (self.ids.len(), self.context(), self.model.info().context);
        // A context that the model cannot have is another error.
        if tokens <= context || context == 0 || context > limit {
            return Ok(());
        }
        let advice = if context < limit {
            format!("shorten it or raise --ctx, up to {limit}")
        } else {
            "shorten it; the model was not made for more".to_owned()
        };
        let message =
            format!("the prompt has {tokens} tokens, the context holds {context}; {advice}");
        Err(Failure::input(message).into())
    }

    fn generate(&self, mut sampler: Sampler) -> anyhow::Result<(Printer, llm::Generated)> {
        let args = self.args;
        let mut session = self.model.session(&args.cache.options(Some(self.context())))?;
        // Before anything is written: a file that cannot be used is an error without a text.
        args.prompt_cache.restore(&mut session, self.ids)?;
        let mut printer =
            Printer { live: !args.json, cache_bytes: session.cache_bytes(), ..Printer::default() };
        let options =
            GenerateOptions::default().max_tokens(self.max_tokens).ignore_end(args.ignore_eos);
        let progress = Progress::new("prompt", false, args.quiet);
        signals::begin();
        if !args.no_echo {
            printer.write(self.prompt);
        }
        let on_event = &mut |event: Event<'_>| {
            match event {
                Event::Prompt { done, total } => progress.set(done as u64, total as u64),
                Event::Token { id, text } => {
                    progress.finish();
                    printer.token(id, text, self.start);
                }
                Event::Tail { text } => printer.tail(text),
            }
            if printer.failed() || signals::stop_asked() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let total = self.ids.len();
        let mut go_on = |done| on_event(Event::Prompt { done, total }).is_continue();
        let warm = args.prompt_cache.warm(&mut session, self.ids, &mut go_on)?;
        for &id in session.tokens() {
            sampler.accept(id);
        }
        let rest = &self.ids[session.len()..];
        let generated = generate(&mut session, rest, &mut sampler, &options, on_event);
        printer.restored = warm.restored;
        if printer.started && !printer.text.ends_with('\n') {
            printer.end_line();
        }
        if let Some(error) = printer.error.take() {
            return Err(anyhow::Error::new(error).context("could not write to standard output"));
        }
        let mut generated = generated?;
        generated.prompt_tokens += warm.run;
        generated.prompt_time += warm.time;
        Ok((printer, generated))
    }

    /// Size of the context: what was asked for, or what is needed.
    fn context(&self) -> usize {
        let needed = self.ids.len().saturating_add(self.max_tokens.unwrap_or(0));
        let limit = self.model.info().context;
        self.args.ctx.unwrap_or_else(|| needed.max(DEFAULT_CONTEXT).min(limit))
    }
}

/// Writes text as it comes and remembers it.
#[derive(Default)]
struct Printer {
    /// Whether to write at all before the end.
    live: bool,
    /// Something was written.
    started: bool,
    /// Standard output was closed by its reader.
    closed: bool,
    error: Option<io::Error>,
    /// The continuation.
    text: String,
    ids: Vec<u32>,
    /// Memory of keys and values.
    cache_bytes: usize,
    /// Tokens of the prompt that came from a file.
    restored: usize,
    /// From the start of the program to the first token.
    first_token: Option<Duration>,
}

impl Printer {
    fn token(&mut self, id: u32, text: &str, start: Instant) {
        self.ids.push(id);
        self.text.push_str(text);
        self.write(text);
        self.first_token.get_or_insert_with(|| start.elapsed());
    }

    fn tail(&mut self, text: &str) {
        self.text.push_str(text);
        self.write(text);
    }

    fn end_line(&mut self) {
        self.write("\n");
    }

    fn write(&mut self, text: &str) {
        if !self.live || text.is_empty() || self.failed() {
            return;
        }
        self.started = true;
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.closed = true,
            Err(error) => self.error = Some(error),
        }
    }

    const fn failed(&self) -> bool {
        self.closed || self.error.is_some()
    }
}
