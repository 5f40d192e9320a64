//! The conversation itself: line in, answer out.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use fucina::llm::chat::{Chat, ChatEvent, Message, Reply, Role};
use fucina::llm::sampler::{Sampler, SamplerConfig};
use fucina::llm::{Error, GenerateOptions, Stop, StopStrings};

use super::args::ChatArgs;
use super::command::{Command, HELP, Line, Settings, parse};
use super::input::{Entry, Input};
use super::record::{Totals, TurnRecord, speeds};
use super::saved;
use crate::answer::{Answer, Thoughts};
use crate::exit::{Exit, Failure};
use crate::progress::Progress;
use crate::{output, signals, terminal};

/// What is shown, and to whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    /// A person types: failures are told and the chat goes on.
    interactive: bool,
    json: bool,
    quiet: bool,
    thoughts: Thoughts,
}

impl View {
    pub(super) fn new(args: &ChatArgs, interactive: bool) -> Self {
        let thoughts = Thoughts::on_stdout(args.turn.hide_thinking);
        Self { interactive, json: args.json, quiet: args.quiet, thoughts }
    }
}

/// A conversation and what belongs to it.
pub(super) struct Talk<'m> {
    chat: Chat<'m>,
    settings: Settings,
    stop: StopStrings,
    view: View,
    /// The model's, for people.
    name: String,
    totals: Totals,
    /// Answers since the seed was set: each has a sequence of random numbers of its own.
    drawn: u64,
    last: Option<Reply>,
}

impl<'m> Talk<'m> {
    pub(super) fn new(
        chat: Chat<'m>,
        settings: Settings,
        stop: StopStrings,
        view: View,
        name: String,
    ) -> Self {
        Self { chat, settings, stop, view, name, totals: Totals::default(), drawn: 0, last: None }
    }

    /// Says how to begin.
    pub(super) fn greet(&self) {
        if !self.view.quiet {
            let (name, context) = (output::plain(&self.name), self.chat.session().context());
            let line = format!("{name} · context {context} · /help lists commands, Ctrl-D ends");
            output::line(&line);
        }
    }

    /// Says what all turns did.
    pub(super) fn summarize(&self) {
        let seed =
            (self.settings.sampling.temperature > 0.0).then_some(self.settings.sampling.seed);
        if let Some(line) = self.totals.summary(&self.name, seed).filter(|_| !self.view.quiet) {
            output::line(&line);
        }
    }

    /// Reads and answers until the end.
    ///
    /// # Errors
    ///
    /// Fails if nothing can be read or written. Other failures end the chat if nobody is there to
    /// be told.
    pub(super) fn run(&mut self, input: &mut dyn Input) -> anyhow::Result<Exit> {
        loop {
            // While it waits for a line, a signal ends the process.
            signals::idle();
            let entry = input.next()?;
            signals::begin();
            let done = match entry {
                Entry::Text(text) => self.line(&text),
                // Not even blanks: there is nothing to send.
                Entry::Quoted(text) if text.is_empty() => continue,
                Entry::Quoted(text) => self.answer(vec![Message::user(text)]),
                Entry::Interrupted => continue,
                Entry::End => return Ok(Exit::Ok),
            };
            match done {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(exit)) => return Ok(exit),
                Err(error) if self.view.interactive => output::error(&format!("{error:#}")),
                Err(error) => return Err(error),
            }
        }
    }

    fn line(&mut self, text: &str) -> anyhow::Result<ControlFlow<Exit>> {
        match parse(text).map_err(Failure::usage)? {
            Line::Empty => Ok(ControlFlow::Continue(())),
            Line::Message(text) => self.answer(vec![Message::user(text)]),
            Line::Command(command) => self.command(command),
        }
    }

    fn command(&mut self, command: Command) -> anyhow::Result<ControlFlow<Exit>> {
        match command {
            Command::Help => show(HELP),
            Command::Clear => self.chat.clear(),
            Command::System(None) => {
                let system = self.chat.messages().iter().find(|m| m.role == Role::System);
                show(system.map_or("there is no system prompt", |system| &system.content));
            }
            Command::System(Some(text)) => {
                self.chat.set_system(Some(&*text).filter(|text| !text.is_empty()));
            }
            Command::Undo => {
                let taken = self.chat.undo();
                taken.ok_or_else(|| Failure::usage("there is nothing to take back"))?;
            }
            Command::Retry => return self.retry(),
            Command::Save(path) => {
                saved::save(Path::new(&path), &self.name, self.chat.messages())?;
            }
            Command::Load(path) => {
                let messages = saved::load(Path::new(&path))?;
                self.note(&format!("loaded {}", output::plural(messages.len(), "message")));
                self.chat.set_messages(messages);
            }
            Command::Stats => show(&self.stats()),
            Command::Set(None) => show(&self.settings.list()),
            Command::Set(Some((name, value))) => {
                let changed = self.settings.with(&name, &value).map_err(Failure::usage)?;
                if name == "seed" {
                    self.drawn = 0;
                }
                self.settings = changed;
            }
            Command::Exit => return Ok(ControlFlow::Break(Exit::Ok)),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Answers the last message again. The answer that it had stays if there is no new one.
    fn retry(&mut self) -> anyhow::Result<ControlFlow<Exit>> {
        let before = self.chat.messages().to_vec();
        let last = before.iter().rposition(|message| message.role == Role::User);
        let last = last.ok_or_else(|| Failure::usage("there is no message to answer again"))?;
        self.chat.set_messages(before[..=last].to_vec());
        let done = self.answer(Vec::new());
        if self.chat.messages().len() <= last + 1 {
            self.chat.set_messages(before);
        }
        done
    }

    /// Adds messages and shows the answer.
    fn answer(&mut self, new: Vec<Message>) -> anyhow::Result<ControlFlow<Exit>> {
        let config = self.sampling();
        let mut sampler = Sampler::new(config)?;
        let options =
            GenerateOptions::default().max_tokens(self.settings.max_tokens).stop(self.stop.clone());
        let mut answer = Answer::new(!self.view.json, self.view.thoughts, Instant::now());
        let progress = Progress::new("prompt", false, self.view.quiet);
        let reply = self.chat.respond(new, &mut sampler, &options, &mut |event| {
            watch(event, &mut answer, &progress)
        });
        progress.finish();
        answer.finish();
        if reply.as_ref().is_ok_and(|reply| reply.generated.stop != Stop::Cancelled) {
            answer.end_empty();
        }
        answer.check()?;
        let reply = reply.map_err(|error| self.advise(error))?;
        if answer.is_closed() {
            return Ok(ControlFlow::Break(Exit::Ok));
        }
        self.report(&reply, &config)?;
        let stopped = reply.generated.stop == Stop::Cancelled;
        self.last = Some(reply);
        if stopped && !self.view.interactive {
            return Ok(ControlFlow::Break(Exit::Interrupted));
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The settings of the next answer. The first one has the seed itself, so that it is what
    /// `run --chat` gives.
    fn sampling(&mut self) -> SamplerConfig {
        let mut config = self.settings.sampling;
        config.seed = config.seed.wrapping_add(self.drawn);
        self.drawn += 1;
        config
    }

    /// Counts an answer, writes its JSON, and says what is special about it.
    fn report(&mut self, reply: &Reply, config: &SamplerConfig) -> anyhow::Result<()> {
        self.totals.add(&reply.generated);
        let session = self.chat.session();
        let (held, context) = (session.len(), session.context());
        if self.view.json {
            let mut messages = self.chat.messages().iter().rev();
            let message = messages.find(|message| message.role == Role::User);
            let message = message.map_or("", |message| &message.content);
            let seed = (config.temperature > 0.0).then_some(config.seed);
            let turn = (self.totals.turns, message);
            output::print_json(&TurnRecord::new(turn, reply, seed, (held, context)))?;
        } else if self.view.interactive {
            output::print("\n")?;
        }
        let silent = reply.message.content.is_empty() && reply.message.reasoning.is_some();
        match reply.generated.stop {
            Stop::Cancelled if !reply.kept => self.note("stopped; the message was taken back"),
            Stop::Cancelled => self.note("stopped; what came stays in the conversation"),
            Stop::ContextFull => {
                let advice = self.room();
                self.note(&format!("the context of {context} tokens is full; {advice}"));
            }
            Stop::MaxTokens if silent => self.note("the limit came while the model was thinking"),
            _ => {}
        }
        Ok(())
    }

    /// What to do about a full context.
    fn room(&self) -> String {
        let session = self.chat.session();
        let limit = session.model().info().context;
        let start = "/clear forgets the conversation, /undo takes back the last turn";
        if session.context() < limit {
            format!("{start}, and --ctx makes room for up to {limit} tokens")
        } else {
            format!("{start}; the model was not made for more")
        }
    }

    fn advise(&self, error: Error) -> anyhow::Error {
        match error {
            Error::PromptTooLong { prompt, context, .. } => {
                let advice = self.room();
                let message = format!(
                    "the conversation has {prompt} tokens with this message, and the context \
                     holds {context}; {advice}"
                );
                Failure::input(message).into()
            }
            other => other.into(),
        }
    }

    fn stats(&self) -> String {
        let session = self.chat.session();
        let turns = self.chat.messages().iter().filter(|m| m.role == Role::User).count();
        let mut lines = vec![
            format!("turns    {turns}"),
            format!("context  {} of {} tokens held", session.len(), session.context()),
            format!("cache    {}", output::bytes(session.cache_bytes() as u64)),
        ];
        if let Some(last) = &self.last {
            lines.push(format!("last     {} · {} reused", speeds(&last.generated), last.reused));
        }
        lines.join("\n")
    }

    /// Says something that is no failure.
    fn note(&self, sentence: &str) {
        if !self.view.quiet {
            output::line(&format!("({sentence})"));
        }
    }
}

/// Shows what a command was asked for.
fn show(text: &str) {
    output::line(&terminal::neutral(text));
}

/// Shows what happens, and says whether to go on.
pub(crate) fn watch(
    event: ChatEvent<'_>,
    answer: &mut Answer,
    progress: &Progress,
) -> ControlFlow<()> {
    match event {
        ChatEvent::Prompt { done, total } => progress.set(done as u64, total as u64),
        ChatEvent::Reasoning(text) => {
            progress.finish();
            answer.think(text);
        }
        ChatEvent::Content(text) => {
            progress.finish();
            answer.say(text);
        }
    }
    if answer.failed() || signals::stop_asked() {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}
