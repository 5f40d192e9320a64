//! Messages of a conversation, and how a template sees them.

use serde_json::{Map, Value};

/// Who says something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The instructions that the conversation stands under.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The answer of a tool.
    Tool,
    /// A role that only some templates know, such as `developer`.
    Other(String),
}

impl Role {
    /// The name that templates use.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for Role {
    fn from(name: &str) -> Self {
        match name {
            "system" => Self::System,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// A call of a tool that the model asked for.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolCall {
    /// Names the call, where the model's template uses that.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// Its arguments, an object in most cases.
    pub arguments: Value,
}

impl ToolCall {
    /// A call without an id.
    #[must_use]
    pub fn new(name: impl Into<String>, arguments: Value) -> Self {
        Self { id: None, name: name.into(), arguments }
    }

    fn to_json(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), self.name.clone().into());
        function.insert("arguments".to_owned(), self.arguments.clone());
        let mut call = Map::new();
        if let Some(id) = &self.id {
            call.insert("id".to_owned(), id.clone().into());
        }
        call.insert("type".to_owned(), "function".into());
        call.insert("function".to_owned(), function.into());
        call.into()
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// What the model thought before it answered. Templates know it as `reasoning_content`; most
    /// leave that of earlier turns out.
    pub reasoning: Option<String>,
    /// Tools that the model asked for.
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool's message answers.
    pub tool_call_id: Option<String>,
    /// The name of who says it, or of the tool.
    pub name: Option<String>,
}

impl Message {
    /// A message of text alone.
    #[must_use]
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// Instructions.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }

    /// What a person says.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// What the model said.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// What a tool answered.
    #[must_use]
    pub fn tool(content: impl Into<String>) -> Self {
        Self::new(Role::Tool, content)
    }

    /// The object that a template sees.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                object.insert(key.to_owned(), value);
            }
        };
        set("role", Some(self.role.as_str().into()));
        set("content", Some(self.content.as_str().into()));
        set("reasoning_content", self.reasoning.as_deref().map(Value::from));
        set("name", self.name.as_deref().map(Value::from));
        set("tool_call_id", self.tool_call_id.as_deref().map(Value::from));
        if !self.tool_calls.is_empty() {
            set("tool_calls", Some(self.tool_calls.iter().map(ToolCall::to_json).collect()));
        }
        object.into()
    }
}
