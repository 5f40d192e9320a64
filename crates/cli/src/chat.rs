//! `fucina chat`: a conversation with a model.
//!
//! [`args`] has the flags, [`input`] and [`editor`] give lines, [`command`] understands them, and
//! [`talk`] does what they ask for.

pub(crate) mod args;
mod command;
mod editor;
mod history;
mod input;
mod record;
mod saved;
mod talk;

use std::path::{Path, PathBuf};
use std::{fs, io};

use fucina::llm::chat::{Chat, ChatTemplate, SpecialTexts, TemplateError};
use fucina::llm::{self, Model, Session, StopStrings};

use crate::exit::{Exit, Failure};
use crate::source::{self, Source};
use crate::trace::Tracing;
use crate::{placement, run, signals, terminal, trace};
use args::{ChatArgs, TurnArgs};
use command::Settings;
use editor::Prompt;
use input::Piped;
use talk::{Talk, View};

pub(crate) use record::stop_name;
pub(crate) use talk::watch;

/// Longest file with a template that is read; the library's own limit is below it.
const TEMPLATE_LIMIT_BYTES: u64 = 16 << 20;

/// Runs the command.
pub(crate) fn run(args: &ChatArgs) -> anyhow::Result<Exit> {
    args.trace.around(|tracing| go(args, tracing))
}

fn go(args: &ChatArgs, tracing: &Tracing) -> anyhow::Result<Exit> {
    signals::install()?;
    let sampling = args.sampling.config(run::random_seed)?;
    let stop = stop_strings(&args.stop)?;
    let source = Source::of(args.model.as_deref())?;
    check_source(&source, &args.turn)?;
    let rt = source::traced(args.threads, tracing)?;
    let model = args.load.model(&rt, &source, args.quiet)?;
    let chat = start(model.session(&args.cache.options(args.ctx))?, &args.turn)?;
    let interactive = terminal::is_interactive();
    let view = View::new(args, interactive);
    let settings = Settings { sampling, max_tokens: args.max_tokens };
    let mut talk = Talk::new(chat, settings, stop, view, source.short_name());
    let exit = if interactive {
        terminal::remember();
        let history = (!args.no_history).then(history_path).flatten();
        let mut prompt = Prompt::new(history)?;
        talk.greet();
        talk.run(&mut prompt)
    } else {
        talk.run(&mut Piped::new(io::stdin().lock()))
    };
    talk.summarize();
    trace::report(&rt);
    placement::report(&model, None);
    exit
}

/// Refuses the embedded model, which was never taught to answer.
pub(crate) fn check_source(source: &Source, turn: &TurnArgs) -> Result<(), Failure> {
    if source.is_embedded() && turn.chat_template.is_none() {
        let message = "the embedded model only continues texts; get one that answers, as with `fucina \
                       pull qwen2.5-coder-0.5b` and then `fucina chat qwen2.5-coder-0.5b`";
        return Err(Failure::new(Exit::Model, message));
    }
    Ok(())
}

/// A conversation as the flags want it.
pub(crate) fn start<'m>(session: Session<'m>, turn: &TurnArgs) -> anyhow::Result<Chat<'m>> {
    let template = template(session.model(), turn.chat_template.as_deref())?;
    let mut chat = Chat::new(session, template);
    chat.set_system(turn.system.as_deref().filter(|text| !text.is_empty()));
    if turn.no_think {
        chat.options_mut().enable_thinking = Some(false);
    }
    Ok(chat)
}

/// The template of a file, or the model's own.
fn template(model: &Model, path: Option<&Path>) -> anyhow::Result<ChatTemplate> {
    let Some(path) = path else { return Ok(model.chat_template()?) };
    let wrong = |why: String| Failure::usage(format!("--chat-template {}: {why}", path.display()));
    let found = fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !found.is_file() || found.len() > TEMPLATE_LIMIT_BYTES {
        return Err(wrong("it is no file of a few kilobytes".to_owned()).into());
    }
    let source = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let specials = SpecialTexts::of(model.tokenizer());
    ChatTemplate::new(&source, specials).map_err(|error| match error {
        // It says nothing about the file.
        TemplateError::Resources { .. } => llm::Error::Template(error).into(),
        error => wrong(error.to_string()).into(),
    })
}

/// What `--stop` gave.
pub(crate) fn stop_strings(texts: &[String]) -> Result<StopStrings, Failure> {
    StopStrings::new(texts).map_err(|error| Failure::usage(format!("--stop: {error}")))
}

fn history_path() -> Option<PathBuf> {
    history::path(&|name| std::env::var_os(name))
}
