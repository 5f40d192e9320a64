//! Conversations as files.
//!
//! A file is written whole or not at all, and a file that is not a conversation is never replaced.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use fucina::llm::chat::{Message, Role};
use serde::{Deserialize, Serialize};

use crate::replace::replace;

/// What the field `format` holds.
const FORMAT: &str = "fucina-chat";

const VERSION: u32 = 1;

/// A larger file holds more than any context.
const LIMIT_BYTES: u64 = 256 << 20;

/// A message as it is written.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    role: Speaker,
    content: String,
    /// What the model thought before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Speaker {
    System,
    User,
    Assistant,
}

impl Turn {
    fn new(message: &Message) -> Self {
        let role = match message.role {
            Role::System => Speaker::System,
            Role::Assistant => Speaker::Assistant,
            // A chat of this command has no others.
            _ => Speaker::User,
        };
        Self { role, content: message.content.clone(), reasoning: message.reasoning.clone() }
    }

    fn message(self) -> Message {
        let role = match self.role {
            Speaker::System => Role::System,
            Speaker::User => Role::User,
            Speaker::Assistant => Role::Assistant,
        };
        let mut message = Message::new(role, self.content);
        message.reasoning = self.reasoning;
        message
    }
}

/// A conversation. `docs/chat.md` describes the fields.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    format: String,
    version: u32,
    model: String,
    messages: Vec<Turn>,
}

/// Reads the messages of a file.
///
/// # Errors
///
/// Fails if it cannot be read or is no conversation.
pub(super) fn load(path: &Path) -> anyhow::Result<Vec<Message>> {
    let shown = path.display();
    let about = || format!("cannot load `{shown}`");
    // A pipe would block, perhaps for ever.
    ensure!(fs::metadata(path).with_context(about)?.is_file(), "{}: it is no file", about());
    let mut text = String::new();
    let file = fs::File::open(path).with_context(about)?;
    file.take(LIMIT_BYTES + 1).read_to_string(&mut text).with_context(about)?;
    ensure!(text.len() as u64 <= LIMIT_BYTES, "{}: it has more than 256 MiB", about());
    let turns = parse(&text).with_context(about)?;
    Ok(turns.into_iter().map(Turn::message).collect())
}

fn parse(text: &str) -> anyhow::Result<Vec<Turn>> {
    /// What tells a conversation from other JSON.
    #[derive(Deserialize)]
    struct Head {
        format: String,
        version: u32,
    }
    let head: Head = serde_json::from_str(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Eof => anyhow::anyhow!("it is cut short or empty"),
        _ => anyhow::anyhow!("it is no conversation that /save wrote ({error})"),
    })?;
    ensure!(head.format == FORMAT, "its format is `{}`, not `{FORMAT}`", head.format);
    let version = head.version;
    ensure!(version == VERSION, "it has version {version}; this program reads {VERSION}");
    let saved: Saved = serde_json::from_str(text).context("it is damaged")?;
    check(&saved.messages)?;
    Ok(saved.messages)
}

/// The user and the model take turns, after a system message if there is one.
fn check(turns: &[Turn]) -> anyhow::Result<()> {
    let system = usize::from(turns.first().is_some_and(|first| first.role == Speaker::System));
    for (at, turn) in turns.iter().enumerate().skip(system) {
        let of_user = (at - system).is_multiple_of(2);
        let expected = if of_user { Speaker::User } else { Speaker::Assistant };
        ensure!(turn.role == expected, "its message {} is out of turn", at + 1);
    }
    ensure!((turns.len() - system).is_multiple_of(2), "its last message has no answer");
    Ok(())
}

/// Writes the messages.
///
/// # Errors
///
/// Fails if the file cannot be written, or exists and is no conversation. What was there stays.
pub(super) fn save(path: &Path, model: &str, messages: &[Message]) -> anyhow::Result<()> {
    let shown = path.display();
    let about = || format!("cannot save to `{shown}`");
    if path.exists() && load(path).is_err() {
        bail!("{}: a file that is no conversation is there", about());
    }
    let (format, model) = (FORMAT.to_owned(), model.to_owned());
    let messages = messages.iter().map(Turn::new).collect();
    let saved = Saved { format, version: VERSION, model, messages };
    let mut text = serde_json::to_string_pretty(&saved)?;
    text.push('\n');
    replace(path, |file| Ok(file.write_all(text.as_bytes())?)).with_context(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns() -> Vec<Message> {
        let mut answer = Message::assistant("");
        answer.reasoning = Some("hm".to_owned());
        vec![Message::system("brief"), Message::user("hi \u{1b} \"é\"\n"), answer]
    }

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("fucina-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_was_saved_is_loaded_and_every_shorter_file_is_refused() {
        let folder = folder("saved");
        let path = folder.join("a.json");
        save(&path, "m", &turns()).unwrap();
        assert_eq!(load(&path).unwrap(), turns());
        save(&path, "m", &turns()[..1]).unwrap();
        assert_eq!(load(&path).unwrap(), turns()[..1], "replaced");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
        let text = fs::read_to_string(&path).unwrap();
        // The last character is a line break, which nothing depends on.
        for len in (0..text.len() - 1).filter(|&len| text.is_char_boundary(len)) {
            assert!(parse(&text[..len]).is_err(), "{}", &text[..len]);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn others_cannot_read_a_conversation() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = folder("mode");
        let path = folder.join("a.json");
        save(&path, "m", &turns()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_of_another_kind_is_neither_loaded_nor_replaced() {
        let folder = folder("foreign");
        let path = folder.join("notes.txt");
        for text in ["", "notes", "{}", "[]", "{\"format\":\"x\",\"version\":1,\"messages\":[]}"] {
            fs::write(&path, text).unwrap();
            assert!(load(&path).is_err(), "{text}");
            let error = save(&path, "m", &turns()).unwrap_err().to_string();
            assert!(error.contains("no conversation is there"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(load(&folder).unwrap_err().to_string().contains("no file"));
        assert!(save(&folder.join("no/such/folder"), "m", &turns()).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damage_is_named() {
        let saved = |messages: &str, version: u32| {
            let text = format!(
                "{{\"format\":\"fucina-chat\",\"version\":{version},\"model\":\"m\",\
                 \"messages\":{messages}}}"
            );
            format!("{:#}", parse(&text).unwrap_err())
        };
        assert!(saved("[]", 2).contains("version 2"));
        let user = "{\"role\":\"user\",\"content\":\"a\"}";
        assert!(saved(&format!("[{user},{user}]"), 1).contains("message 2 is out of turn"));
        assert!(saved(&format!("[{user}]"), 1).contains("no answer"));
        assert!(saved("[{\"role\":\"tool\",\"content\":\"a\"}]", 1).contains("damaged"));
        assert!(saved("[{\"role\":\"user\"}]", 1).contains("damaged"));
        assert!(parse("{\"format\":\"fucina-chat\",").unwrap_err().to_string().contains("cut"));
    }
}
