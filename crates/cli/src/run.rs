//! `fucina run`: a prompt in, its continuation out.

mod record;

use std::ffi::OsString;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, Read as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use fucina::llm::chat::{ChatEvent, Message};
use fucina::llm::sampler::Sampler;
use fucina::llm::tokenizer::{Bos, Special};
use fucina::llm::{self, DEFAULT_CONTEXT, Event, GenerateOptions, Model, Session, generate};

use crate::answer::{Answer, Thoughts};
use crate::args::RunArgs;
use crate::chat;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::placement;
use crate::progress::Progress;
use crate::signals;
use crate::source::{self, Source};
use crate::trace::{self, Tracing};
use record::Record;

/// Tokens that the embedded model generates unless told otherwise: it hardly ever ends a text.
const EMBEDDED_TOKENS: usize = 128;

/// Largest prompt that is read from standard input. The longest contexts hold a few megabytes.
const STDIN_LIMIT_BYTES: u64 = 256 << 20;

/// Runs the command. `start` is when the program started.
pub(crate) fn run(args: &RunArgs, start: Instant) -> anyhow::Result<Exit> {
    args.trace.around(|tracing| go(args, start, tracing))
}

fn go(args: &RunArgs, start: Instant, tracing: &Tracing) -> anyhow::Result<Exit> {
    signals::install()?;
    let config = args.sampling.config(random_seed)?;
    let stop = chat::stop_strings(&args.stop)?;
    let (source, prompt) = words(&args.words)?;
    if args.chat {
        chat::check_source(&source, &args.turn)?;
    } else if let Some(flag) = args.turn.given() {
        return Err(Failure::usage(format!("{flag} needs --chat")).into());
    }
    let prompt = read_text(prompt, "prompt")?;
    let rt = source::traced(args.threads, tracing)?;
    let model = args.load.model(&rt, &source, args.quiet)?;
    let ids = encode(args, &model, &prompt)?;
    let max_tokens = args.max_tokens.or(source.is_embedded().then_some(EMBEDDED_TOKENS));
    let options =
        GenerateOptions::default().max_tokens(max_tokens).ignore_end(args.ignore_eos).stop(stop);
    let job = Job { args, model: &model, prompt: &prompt, ids: &ids, options, start };
    job.check_size()?;
    let (answer, generated) = job.run(Sampler::new(config)?)?;
    if answer.is_closed() {
        return Ok(Exit::Ok);
    }
    let record = Record::new(&job, &source, &config, &answer, &generated);
    if args.json {
        output::print_json(&record)?;
    }
    if !args.quiet {
        output::line(&record.summary());
    }
    trace::report(&rt);
    placement::report(&model, Some(&args.placement));
    Ok(if generated.stop == llm::Stop::Cancelled { Exit::Interrupted } else { Exit::Ok })
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

/// The text of an argument, or standard input. `what` it is stands in messages.
pub(crate) fn read_text(word: &OsString, what: &str) -> anyhow::Result<String> {
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
            Failure::input(format!(
                "the {what} is not UTF-8; convert it, or pass it through a file and `-`"
            ))
        })?;
        text.to_owned()
    };
    if text.is_empty() {
        let message = format!("the {what} is empty; give at least one character");
        return Err(Failure::input(message).into());
    }
    Ok(text)
}

/// A number that differs from run to run: the standard library seeds its hash maps with such.
pub(crate) fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 32
}

/// The tokens of a prompt, or of a conversation that begins with it.
fn encode(args: &RunArgs, model: &Model, prompt: &str) -> anyhow::Result<Vec<u32>> {
    if args.chat {
        // What holds no token yet needs no room.
        let mut chat = chat::start(model.session(&args.cache.options(Some(1)))?, &args.turn)?;
        let mut messages = chat.messages().to_vec();
        messages.push(Message::user(prompt));
        chat.set_messages(messages);
        return Ok(chat.tokens()?);
    }
    let special = if args.special { Special::Parse } else { Special::Plain };
    Ok(model.tokenizer().encode(prompt, special, Bos::Auto)?)
}

/// One generation and what it needs.
struct Job<'a> {
    args: &'a RunArgs,
    model: &'a Model,
    prompt: &'a str,
    ids: &'a [u32],
    options: GenerateOptions,
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

    /// Generates, and shows the text as it comes.
    fn run(&self, mut sampler: Sampler) -> anyhow::Result<(Answer, llm::Generated)> {
        let args = self.args;
        let mut session = self.model.session(&args.cache.options(Some(self.context())))?;
        // Before anything is written: a file that cannot be used is an error without a text.
        args.prompt_cache.restore(&mut session, self.ids)?;
        let thoughts = Thoughts::on_stdout(args.turn.hide_thinking);
        let mut answer = Answer::new(!args.json, thoughts, self.start);
        answer.cache_bytes = session.cache_bytes();
        let progress = Progress::new("prompt", false, args.quiet);
        signals::begin();
        let generated = if args.chat {
            self.chat(session, &mut sampler, &mut answer, &progress)
        } else {
            self.continue_text(session, &mut sampler, &mut answer, &progress)
        };
        progress.finish();
        answer.finish();
        if args.chat && generated.as_ref().is_ok_and(|done| done.stop != llm::Stop::Cancelled) {
            answer.end_empty();
        }
        answer.check()?;
        if let Some(why) = answer.unsaved.take().filter(|_| !args.quiet) {
            output::warning(&why);
        }
        Ok((answer, generated?))
    }

    fn continue_text(
        &self,
        mut session: Session<'_>,
        sampler: &mut Sampler,
        answer: &mut Answer,
        progress: &Progress,
    ) -> anyhow::Result<llm::Generated> {
        if !self.args.no_echo {
            answer.echo(self.prompt);
        }
        let on_event = &mut |event: Event<'_>| {
            match event {
                Event::Prompt { done, total } => progress.set(done as u64, total as u64),
                Event::Token { id, text } => {
                    progress.finish();
                    answer.token(id, text);
                }
                Event::Tail { text } => answer.say(text),
            }
            if answer.failed() || signals::stop_asked() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let total = self.ids.len();
        let mut go_on = |done| on_event(Event::Prompt { done, total }).is_continue();
        let warm = self.args.prompt_cache.warm(&mut session, self.ids, &mut go_on)?;
        for &id in session.tokens() {
            sampler.accept(id);
        }
        let rest = &self.ids[session.len()..];
        let mut generated = generate(&mut session, rest, sampler, &self.options, on_event)?;
        (answer.restored, answer.unsaved) = (warm.restored, warm.unsaved);
        generated.prompt_tokens += warm.run;
        generated.prompt_time += warm.time;
        Ok(generated)
    }

    /// Takes the prompt for a message.
    fn chat(
        &self,
        session: Session<'_>,
        sampler: &mut Sampler,
        answer: &mut Answer,
        progress: &Progress,
    ) -> anyhow::Result<llm::Generated> {
        let mut chat = chat::start(session, &self.args.turn)?;
        let on_event = &mut |event: ChatEvent<'_>| chat::watch(event, answer, progress);
        let reply = chat.send(self.prompt, sampler, &self.options, on_event)?;
        answer.ids = reply.ids;
        answer.thought = reply.message.reasoning;
        Ok(reply.generated)
    }

    /// Size of the context: what was asked for, or what is needed.
    fn context(&self) -> usize {
        let needed = self.ids.len().saturating_add(self.options.max_tokens.unwrap_or(0));
        let limit = self.model.info().context;
        self.args.ctx.unwrap_or_else(|| needed.max(DEFAULT_CONTEXT).min(limit))
    }
}
