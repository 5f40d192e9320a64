//! Just enough of Rust's lexical grammar to tell code from comments and literals.
//!
//! Tokens are identifiers (keywords included), single punctuation characters, and string literals.
//! Numbers and characters are dropped: no check asks for them.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or a keyword; a raw one keeps its `r#`.
    Ident,
    /// One punctuation character.
    Punct,
    /// The inside of a string literal of any kind, escapes untouched.
    Str,
}

/// A token with the line it starts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    pub(crate) line: usize,
}

/// Splits `source` into tokens. Unfinished literals and comments run to the end of the file.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { source, at: 0, line: 1, tokens: Vec::new() };
    while lexer.step() {}
    lexer.tokens
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    tokens: Vec<Token<'a>>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Moves on by `len` bytes, counting lines.
    fn advance(&mut self, len: usize) {
        self.line += self.rest()[..len].matches('\n').count();
        self.at += len;
    }

    fn push(&mut self, kind: Kind, text: &'a str) {
        self.tokens.push(Token { kind, text, line: self.line });
    }

    /// Takes one token or one piece of blank space; false at the end.
    fn step(&mut self) -> bool {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            return false;
        };
        if rest.starts_with("//") {
            self.advance(rest.find('\n').unwrap_or(rest.len()));
        } else if rest.starts_with("/*") {
            self.advance(block_comment_len(rest));
        } else if let Some((open, close, raw)) = string_prefix(rest) {
            self.string(open, &close, raw);
        } else if first == '\'' {
            self.advance(quote_len(rest));
        } else if first.is_ascii_digit() {
            self.advance(rest.find(|c: char| !is_ident(c)).unwrap_or(rest.len()));
        } else if is_ident(first) {
            let raw = if rest.starts_with("r#") { 2 } else { 0 };
            let len = rest[raw..].find(|c| !is_ident(c)).map_or(rest.len(), |len| raw + len);
            self.push(Kind::Ident, &rest[..len]);
            self.advance(len);
        } else {
            if !first.is_whitespace() {
                self.push(Kind::Punct, &rest[..first.len_utf8()]);
            }
            self.advance(first.len_utf8());
        }
        true
    }

    /// Takes a string literal whose opening is `open` bytes long.
    fn string(&mut self, open: usize, close: &str, raw: bool) {
        let body = &self.rest()[open..];
        let len = if raw { body.find(close).unwrap_or(body.len()) } else { escaped_len(body) };
        self.push(Kind::Str, &body[..len]);
        self.advance((open + len + close.len()).min(self.rest().len()));
    }
}

fn is_ident(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// The opening length, the closing text and rawness, if `rest` starts with a string literal.
fn string_prefix(rest: &str) -> Option<(usize, String, bool)> {
    let letters = rest.find(|c: char| !matches!(c, 'b' | 'c' | 'r')).filter(|&len| len <= 2)?;
    let raw = rest[..letters].ends_with('r');
    let hashes = rest[letters..].find(|c| c != '#').filter(|&len| len == 0 || raw)?;
    let open = letters + hashes;
    rest[open..].starts_with('"').then(|| (open + 1, format!("\"{}", "#".repeat(hashes)), raw))
}

/// Length of the body of a plain string: up to the first quote that no backslash escapes.
fn escaped_len(body: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in body.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at,
            _ => {}
        }
    }
    body.len()
}

/// Length of a block comment; they nest.
fn block_comment_len(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        if tail.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if tail.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Length of a character literal, or 1 for the quote of a lifetime or label.
fn quote_len(rest: &str) -> usize {
    let body = &rest[1..];
    let first = body.chars().next();
    if first == Some('\\') {
        // The character after the backslash may be a quote itself.
        return body.get(2..).and_then(|tail| tail.find('\'')).map_or(rest.len(), |len| len + 4);
    }
    match first {
        Some(c) if body[c.len_utf8()..].starts_with('\'') => c.len_utf8() + 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idents(source: &str) -> Vec<&str> {
        tokens(source).iter().filter(|t| t.kind == Kind::Ident).map(|t| t.text).collect()
    }

    fn strings(source: &str) -> Vec<&str> {
        tokens(source).iter().filter(|t| t.kind == Kind::Str).map(|t| t.text).collect()
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(idents("a // unsafe\n/* unsafe /* unsafe */ unsafe */ b"), ["a", "b"]);
    }

    #[test]
    fn strings_of_every_kind_are_not_code() {
        let source = r####"a("x \" unsafe", b"unsafe", r"un\", br##"y"#unsafe"##, c"z") b"####;
        assert_eq!(idents(source), ["a", "b"]);
        assert_eq!(strings(source), [r#"x \" unsafe"#, "unsafe", "un\\", "y\"#unsafe", "z"]);
    }

    #[test]
    fn quotes_in_characters_open_no_string() {
        assert_eq!(idents(r#"a '"' b '\'' c '\\' d 'é' e "s" f"#), ["a", "b", "c", "d", "e", "f"]);
        assert_eq!(idents(r"a '\u{1F600}' b b'\x00' c"), ["a", "b", "b", "c"]);
    }

    #[test]
    fn lifetimes_are_not_characters() {
        assert_eq!(idents("fn f<'a>(x: &'a str, y: &'static u8) {}").len(), 9);
    }

    #[test]
    fn names_that_contain_a_keyword_are_other_names() {
        assert_eq!(
            idents("unsafe_code r#unsafe bar crab"),
            ["unsafe_code", "r#unsafe", "bar", "crab"]
        );
    }

    #[test]
    fn lines_are_counted_through_literals() {
        let source = "a\n\"x\ny\"\n/*\n*/ b";
        let lines: Vec<usize> = tokens(source).iter().map(|t| t.line).collect();
        assert_eq!(lines, [1, 2, 5]);
    }

    #[test]
    fn unfinished_input_ends() {
        for source in ["\"abc", "r#\"abc\"", "/* abc", "'\\", "'", "b", "r#"] {
            tokens(source);
        }
    }
}
