//! The flags of a chat.

use std::path::PathBuf;

use clap::Args;

use crate::args::{SamplingArgs, threads};
use crate::cache::CacheArgs;
use crate::load::LoadArgs;
use crate::trace::TraceArgs;

/// Talk with a model
///
/// A message a line, an answer below it, until Ctrl-D or /exit; /help lists what else there is.
/// Ctrl-C stops an answer and keeps what came. A line that ends with a backslash goes on in the
/// next one, and a text between lines of """ may have many. If input or output is no terminal,
/// answers alone go to standard output, and the first failure ends the chat.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fucina chat qwen2.5-coder-0.5b
  fucina chat model.gguf --system \"Answer in one sentence.\" --temp 0.6
  printf 'My name is Ada.\\nWhat is my name?\\n' | fucina chat model.gguf --greedy")]
pub(crate) struct ChatArgs {
    /// A GGUF file with a chat template, or the name of a pulled model
    pub(crate) model: Option<PathBuf>,
    /// Most tokens of an answer [default: until it ends or the context is full]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    /// Tokens that the context holds, of all messages together [default: 4096, or what the model
    /// was made for if that is less]
    #[arg(long, value_name = "N")]
    pub(crate) ctx: Option<usize>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// Threads [default: `FUCINA_THREADS`, or all CPUs that the process may use]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// End an answer before this text; may be given more than once
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Neither read nor write the file with the lines of former chats
    #[arg(long)]
    pub(crate) no_history: bool,
    /// Write one JSON object for each answer instead of its text
    #[arg(long)]
    pub(crate) json: bool,
    /// Write nothing but errors, and what commands show, to standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    #[command(flatten)]
    pub(crate) turn: TurnArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// How messages are put to the model.
#[derive(Args)]
#[command(next_help_heading = "Chat")]
pub(crate) struct TurnArgs {
    /// What the model is told before the first message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Ask the model to answer at once, if its template knows how
    #[arg(long)]
    pub(crate) no_think: bool,
    /// Do not show what the model thinks before it answers
    #[arg(long)]
    pub(crate) hide_thinking: bool,
    /// A file with the template to use instead of the model's, in Jinja
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
}

impl TurnArgs {
    /// The first flag that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--system", self.system.is_some()),
            ("--no-think", self.no_think),
            ("--hide-thinking", self.hide_thinking),
            ("--chat-template", self.chat_template.is_some()),
        ];
        flags.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }
}
