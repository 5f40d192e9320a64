//! Where the lines of a chat come from.

use std::io::BufRead;

use crate::exit::Failure;

/// One text from the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// A message or a command, of one line or several.
    Text(String),
    /// What stood between quotes: a message, whatever it looks like.
    Quoted(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    End,
}

/// Something that gives one text after the other.
pub(super) trait Input {
    /// The next text.
    ///
    /// # Errors
    ///
    /// Fails if nothing can be read.
    fn next(&mut self) -> anyhow::Result<Entry>;
}

/// Longest text. The longest contexts hold a few megabytes.
const LIMIT_BYTES: u64 = 256 << 20;

const QUOTES: &str = "\"\"\"";

/// Whether more lines belong to `text`.
pub(super) fn goes_on(text: &str) -> bool {
    match text.trim_start().strip_prefix(QUOTES) {
        Some(quoted) => !quoted.trim_end().ends_with(QUOTES),
        None => text.ends_with('\\'),
    }
}

/// What is meant by lines that belong together: without quotes, and without the backslash at the
/// end of a line that goes on.
pub(super) fn meant(text: &str) -> Entry {
    let Some(quoted) = text.trim_start().strip_prefix(QUOTES) else {
        let text = text.strip_suffix('\\').unwrap_or(text);
        return Entry::Text(text.replace("\\\n", "\n"));
    };
    let quoted = quoted.trim_end().strip_suffix(QUOTES).unwrap_or(quoted);
    let quoted = quoted.strip_prefix('\n').unwrap_or(quoted);
    Entry::Quoted(quoted.strip_suffix('\n').unwrap_or(quoted).to_owned())
}

/// Lines of a file or a pipe.
#[derive(Debug)]
pub(super) struct Piped<R> {
    reader: R,
    /// Lines read so far, for messages.
    lines: usize,
}

impl<R: BufRead> Piped<R> {
    pub(super) const fn new(reader: R) -> Self {
        Self { reader, lines: 0 }
    }

    /// Appends a line without its end. Returns whether there was one.
    fn line(&mut self, text: &mut String) -> anyhow::Result<bool> {
        let mut bytes = Vec::new();
        let room = LIMIT_BYTES.saturating_sub(text.len() as u64);
        let mut limited = std::io::Read::take(&mut self.reader, room + 1);
        limited.read_until(b'\n', &mut bytes)?;
        if bytes.len() as u64 > room {
            let message = "a message of more than 256 MiB fits no context";
            return Err(Failure::input(message).into());
        }
        if bytes.is_empty() {
            return Ok(false);
        }
        self.lines += 1;
        let line = str::from_utf8(&bytes).map_err(|_| {
            let line = self.lines;
            Failure::input(format!("line {line} of standard input is not UTF-8; convert it first"))
        })?;
        let line = line.strip_suffix('\n').unwrap_or(line);
        text.push_str(line.strip_suffix('\r').unwrap_or(line));
        Ok(true)
    }
}

impl<R: BufRead> Input for Piped<R> {
    fn next(&mut self) -> anyhow::Result<Entry> {
        let mut text = String::new();
        if !self.line(&mut text)? {
            return Ok(Entry::End);
        }
        while goes_on(&text) {
            text.push('\n');
            if !self.line(&mut text)? {
                text.pop();
                break;
            }
        }
        Ok(meant(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<String> {
        let mut piped = Piped::new(bytes);
        std::iter::from_fn(|| match piped.next().unwrap() {
            Entry::Text(text) | Entry::Quoted(text) => Some(text),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn what_stands_between_quotes_is_told_from_commands() {
        let quoted = |text: &str| Entry::Quoted(text.to_owned());
        assert_eq!(meant("\"\"\"\n// a\nint x;\n\"\"\""), quoted("// a\nint x;"));
        assert_eq!(meant("\"\"\"/clear\"\"\""), quoted("/clear"));
        assert_eq!(meant("\"\"\"\n  \n\"\"\" "), quoted("  "));
        assert_eq!(meant("\"\"\"\na \\\nb\\\n\"\"\""), quoted("a \\\nb\\"));
        assert_eq!(meant("\"\"\"a\nb  "), quoted("a\nb  "), "its end never came");
        assert_eq!(meant("/clear"), Entry::Text("/clear".to_owned()));
    }

    #[test]
    fn each_line_is_a_text_unless_it_goes_on() {
        assert_eq!(all(b"a\n\nb\r\nc"), ["a", "", "b", "c"]);
        assert_eq!(all(b"a\\\nb\\\n\nc\n"), ["a\nb\n", "c"]);
        assert_eq!(all(b"\"\"\"\n one\n\n\\two\n\"\"\"\nnext\n"), [" one\n\n\\two", "next"]);
        assert_eq!(all(b"\"\"\"in one line\"\"\"\nnext"), ["in one line", "next"]);
        assert_eq!(all(b"  \"\"\"a\nb\"\"\"  \n"), ["a\nb"]);
        assert_eq!(all("é \"\"\"\nx".as_bytes()), ["é \"\"\"", "x"], "not at the beginning");
        assert_eq!(all(b""), [""; 0]);
    }

    #[test]
    fn an_end_ends_what_goes_on() {
        assert_eq!(all(b"a\\"), ["a"]);
        assert_eq!(all(b"\"\"\"a\nb"), ["a\nb"]);
        assert_eq!(all(b"\"\"\""), [""]);
        assert_eq!(all(b"\"\"\"\"\n"), ["\""], "four quotes and the end");
    }

    #[test]
    fn a_line_that_is_not_utf8_is_named() {
        let mut piped = Piped::new(&b"a\n\xff\n"[..]);
        piped.next().unwrap();
        assert!(piped.next().unwrap_err().to_string().contains("line 2"));
    }
}
