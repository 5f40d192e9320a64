//! Conversations: chat templates, several turns over one cache, and the reasoning part of an answer.
//!
//! [`ChatTemplate`] renders messages as the model was trained to see them. [`Chat`] holds the
//! messages of one conversation and the keys and values of what was rendered so far; each turn
//! renders everything, and runs only what differs from what the session holds.
//!
//! Text from people cannot steer the model: what looks like a control token inside a message is
//! encoded as plain text (`marks`).
//!
//! Not here: reading lines, commands, colours; and what tools do.

mod conversation;
mod fallback;
mod marks;
mod message;
mod reasoning;
mod template;

pub(crate) use fallback::template as fallback_template;
pub(crate) use template::KEY as TEMPLATE_KEY;

pub use conversation::{Chat, ChatEvent, Reply};
pub use message::{Message, Role, ToolCall};
pub use template::{ChatTemplate, RenderOptions, SpecialTexts, TemplateError};
