//! A conversation of several turns over one session.
//!
//! Invariant: `held` are the tokens that the session holds, or the first of them.

use std::ops::ControlFlow;

use serde_json::Value;

use super::marks::Guard;
use super::message::{Message, Role};
use super::reasoning::{Part, Splitter};
use super::template::{ChatTemplate, RenderOptions};
use crate::error::{Error, Result};
use crate::generate::{Event, GenerateOptions, Generated, Stop, generate};
use crate::model::Session;
use crate::sampler::Sampler;
use crate::tokenizer::Bos;

/// What happens during a turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ChatEvent<'a> {
    /// So many of the tokens that the turn has to run are done.
    Prompt {
        /// Done.
        done: usize,
        /// All; those that the session holds already are not among them.
        total: usize,
    },
    /// The model thinks.
    Reasoning(&'a str),
    /// The model answers.
    Content(&'a str),
}

/// What a turn gave.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Reply {
    /// What the model said.
    pub message: Message,
    /// The tokens that were chosen, the end token not among them.
    pub ids: Vec<u32>,
    /// Whether it is part of the conversation now, with what it answers. Not if the turn was
    /// cancelled before the model said anything.
    pub kept: bool,
    /// Tokens of the prompt that were held from before, and not run again.
    pub reused: usize,
    /// Counts and times. `prompt_tokens` are those that were run.
    pub generated: Generated,
}

/// A conversation.
#[derive(Debug)]
pub struct Chat<'m> {
    session: Session<'m>,
    template: ChatTemplate,
    guard: Guard,
    options: RenderOptions,
    messages: Vec<Message>,
    held: Vec<u32>,
}

impl<'m> Chat<'m> {
    /// A conversation without messages. What the session holds is forgotten.
    pub fn new(mut session: Session<'m>, template: ChatTemplate) -> Self {
        session.truncate(0);
        let guard = Guard::new(session.model().tokenizer());
        // One time for all turns: a clock in the instructions would make every turn run it all.
        let now = Some(std::time::SystemTime::now());
        let options = RenderOptions { now, ..RenderOptions::default() };
        Self { session, template, guard, options, messages: Vec::new(), held: Vec::new() }
    }

    /// The session.
    pub fn session(&self) -> &Session<'m> {
        &self.session
    }

    /// The template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// What messages are rendered with.
    pub fn options(&self) -> &RenderOptions {
        &self.options
    }

    /// Changes what messages are rendered with, from the next turn on.
    pub fn options_mut(&mut self) -> &mut RenderOptions {
        &mut self.options
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Replaces the messages, for a conversation that was kept elsewhere. What the session holds
    /// of them stays in use.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// Sets the instructions, or takes them away. The conversation stays.
    pub fn set_system(&mut self, text: Option<&str>) {
        self.messages.retain(|message| message.role != Role::System);
        if let Some(text) = text {
            self.messages.insert(0, Message::system(text));
        }
    }

    /// Forgets the conversation, but not the instructions.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
    }

    /// Takes back the last message of the user and all after it. Returns its text.
    pub fn undo(&mut self) -> Option<String> {
        let at = self.messages.iter().rposition(|message| message.role == Role::User)?;
        self.messages.drain(at..).next().map(|message| message.content)
    }

    /// Takes away the oldest message of the user and all up to the next one. For a conversation that
    /// is too long for the context. Returns how many messages that were: none if there is only
    /// one turn.
    pub fn drop_oldest_turn(&mut self) -> usize {
        let users = |(at, message): (usize, &Message)| (message.role == Role::User).then_some(at);
        let mut turns = self.messages.iter().enumerate().filter_map(users);
        let (Some(first), Some(second)) = (turns.next(), turns.next()) else { return 0 };
        self.messages.drain(first..second).len()
    }

    /// The tokens of the conversation as it is, with what makes the model answer.
    ///
    /// # Errors
    ///
    /// Fails if the template refuses the conversation or is damaged.
    pub fn tokens(&self) -> Result<Vec<u32>> {
        self.encode(&self.messages).map(|(ids, _)| ids)
    }

    /// The user says `text`, and the model answers.
    ///
    /// # Errors
    ///
    /// As [`respond`](Self::respond).
    pub fn send(
        &mut self,
        text: &str,
        sampler: &mut Sampler,
        options: &GenerateOptions,
        on_event: &mut dyn FnMut(ChatEvent<'_>) -> ControlFlow<()>,
    ) -> Result<Reply> {
        self.respond(vec![Message::user(text)], sampler, options, on_event)
    }

    /// Adds messages and lets the model answer. Without new ones it answers what is there.
    ///
    /// `on_event` may stop it at any event. What the model said until then stays in the
    /// conversation.
    ///
    /// # Errors
    ///
    /// Fails if the template refuses the conversation, if it does not fit the context, and as
    /// [`generate()`]. The conversation is then as it was before.
    pub fn respond(
        &mut self,
        new: Vec<Message>,
        sampler: &mut Sampler,
        options: &GenerateOptions,
        on_event: &mut dyn FnMut(ChatEvent<'_>) -> ControlFlow<()>,
    ) -> Result<Reply> {
        let before = self.messages.len();
        self.messages.extend(new);
        let reply = self.answer(sampler, options, on_event);
        match &reply {
            Ok(reply) if reply.kept => self.messages.push(reply.message.clone()),
            _ => self.messages.truncate(before),
        }
        reply
    }

    fn answer(
        &mut self,
        sampler: &mut Sampler,
        options: &GenerateOptions,
        on_event: &mut dyn FnMut(ChatEvent<'_>) -> ControlFlow<()>,
    ) -> Result<Reply> {
        let (mut ids, text) = self.encode(&self.messages)?;
        let context = self.session.context();
        if ids.len() > context {
            return Err(Error::PromptTooLong { prompt: ids.len(), held: 0, context });
        }
        let reused = self.reuse(&ids);
        let mut answer = Answer::new(&text);
        let prompt = ids.split_off(reused);
        // Penalties look at the conversation, not at what happens to be held of it.
        ids.iter().for_each(|&id| sampler.accept(id));
        let mut fed = prompt.clone();
        let generated =
            generate(&mut self.session, &prompt, sampler, options, &mut |event| match event {
                Event::Prompt { done, total } => on_event(ChatEvent::Prompt { done, total }),
                Event::Token { id, text } => {
                    fed.push(id);
                    answer.push(text, on_event)
                }
                Event::Tail { text } => answer.push(text, on_event),
            });
        let ids = fed[prompt.len()..].to_vec();
        self.held.append(&mut fed);
        self.held.truncate(self.session.len());
        let generated = generated?;
        let message = answer.finish(on_event);
        let kept = generated.stop != Stop::Cancelled || generated.tokens > 0;
        Ok(Reply { message, ids, kept, reused, generated })
    }

    /// Forgets what the session holds from the first token on that differs from `ids`. Returns how
    /// many stay; never all, because the last one gives the logits.
    fn reuse(&mut self, ids: &[u32]) -> usize {
        let same = self.held.iter().zip(ids).take_while(|(held, id)| held == id).count();
        let same = same.min(ids.len().saturating_sub(1)).min(self.session.len());
        self.session.truncate(same);
        self.held.truncate(same);
        same
    }

    /// The ids and the text of `messages`.
    fn encode(&self, messages: &[Message]) -> Result<(Vec<u32>, String)> {
        let mut json: Vec<Value> = messages.iter().map(Message::to_json).collect();
        let mut options = self.options.clone();
        let mut parts: Vec<&mut Value> = Vec::new();
        for message in &mut json {
            // The role is the program's word, and templates make control tokens of it.
            let object = message.as_object_mut().into_iter().flat_map(|object| object.iter_mut());
            parts.extend(object.filter(|(key, _)| *key != "role").map(|(_, value)| value));
        }
        parts.extend(options.tools.iter_mut());
        parts.extend(options.extra.iter_mut().map(|(_, value)| value));
        let mark = self.guard.protect(&mut parts, &[self.template.source()])?;
        let text = self.template.render_json(&json, &options)?;
        let tokenizer = self.session.model().tokenizer();
        // A template that writes the begin token means it once.
        let bos = tokenizer.designated_ids().bos.and_then(|id| tokenizer.token_bytes(id).ok());
        let written = bos.is_some_and(|bos| !bos.is_empty() && text.as_bytes().starts_with(bos));
        let bos = if written { Bos::Never } else { Bos::Auto };
        Ok((tokenizer.encode_marked(&text, mark, bos)?, text))
    }
}

/// An answer in the making.
struct Answer {
    splitter: Splitter,
    reasoning: String,
    content: String,
}

impl Answer {
    fn new(prompt: &str) -> Self {
        let (reasoning, content) = (String::new(), String::new());
        Self { splitter: Splitter::new(prompt), reasoning, content }
    }

    fn push(
        &mut self,
        text: &str,
        on_event: &mut dyn FnMut(ChatEvent<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        let Self { splitter, reasoning, content } = self;
        splitter.push(text, &mut |part, text| {
            let answer = pass(part, text, reasoning, content, on_event);
            if answer.is_break() {
                flow = answer;
            }
        });
        flow
    }

    fn finish(self, on_event: &mut dyn FnMut(ChatEvent<'_>) -> ControlFlow<()>) -> Message {
        let Self { splitter, mut reasoning, mut content } = self;
        splitter.finish(&mut |part, text| {
            // It is over; an answer would change nothing.
            let _ = pass(part, text, &mut reasoning, &mut content, on_event);
        });
        let mut message = Message::assistant(content);
        message.reasoning = Some(reasoning).filter(|reasoning| !reasoning.is_empty());
        message
    }
}

fn pass(
    part: Part,
    text: &str,
    reasoning: &mut String,
    content: &mut String,
    on_event: &mut dyn FnMut(ChatEvent<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    match part {
        Part::Reasoning => {
            reasoning.push_str(text);
            on_event(ChatEvent::Reasoning(text))
        }
        Part::Content => {
            content.push_str(text);
            on_event(ChatEvent::Content(text))
        }
    }
}
