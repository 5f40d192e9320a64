//! Tokens of PTX text.

use super::error::ParseError;

/// One token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Tok<'a> {
    /// A name, a register, an opcode with its dotted parts, or a directive.
    Word(&'a str),
    /// An integer, as its bits.
    Int(u64),
    /// A floating-point literal of 32 bits.
    F32(u32),
    /// A floating-point literal of 64 bits.
    F64(u64),
    /// A quoted string, without quotes.
    Str(&'a str),
    /// Anything else: one character.
    Punct(u8),
}

/// A token and the line where it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token<'a> {
    pub(crate) tok: Tok<'a>,
    pub(crate) line: u32,
}

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

/// Splits `text` into tokens; comments and white space are dropped.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let mut lexer = Lexer { text, at: 0, line: 1 };
    let mut out = Vec::with_capacity(text.len() / 5);
    while let Some(token) = lexer.next()? {
        out.push(token);
    }
    Ok(out)
}

impl<'a> Lexer<'a> {
    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn skip_blank(&mut self) {
        loop {
            match self.byte(0) {
                b'\n' => {
                    self.line += 1;
                    self.at += 1;
                }
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'/' if self.byte(1) == b'/' => {
                    while !matches!(self.byte(0), b'\n' | 0) {
                        self.at += 1;
                    }
                }
                b'/' if self.byte(1) == b'*' => {
                    let end = self.text[self.at..].find("*/");
                    let end = end.map_or(self.text.len(), |length| self.at + length + 2);
                    let lines = self.text[self.at..end].matches('\n').count();
                    self.line += u32::try_from(lines).unwrap_or(u32::MAX);
                    self.at = end;
                }
                _ => return,
            }
        }
    }

    fn next(&mut self) -> Result<Option<Token<'a>>, ParseError> {
        self.skip_blank();
        let line = self.line;
        let first = self.byte(0);
        if self.at >= self.text.len() {
            return Ok(None);
        }
        let tok = if first == b'"' {
            self.string()?
        } else if first.is_ascii_digit() {
            self.number()?
        } else if is_word_start(first) {
            self.word()
        } else if first.is_ascii_graphic() {
            self.at += 1;
            Tok::Punct(first)
        } else {
            return Err(ParseError::new(line, format!("a byte {first:#04x} outside a comment")));
        };
        Ok(Some(Token { tok, line }))
    }

    fn string(&mut self) -> Result<Tok<'a>, ParseError> {
        let rest = &self.text[self.at + 1..];
        let Some(length) = rest.find('"') else {
            return Err(ParseError::new(self.line, "a string without an end"));
        };
        self.at += length + 2;
        Ok(Tok::Str(&rest[..length]))
    }

    fn word(&mut self) -> Tok<'a> {
        let start = self.at;
        // Directives may stand without space between: `.reg.b32` is two.
        let directive = self.byte(0) == b'.';
        loop {
            if directive && self.at > start && self.byte(0) == b'.' {
                return Tok::Word(&self.text[start..self.at]);
            }
            if is_word(self.byte(0)) {
                self.at += 1;
            } else if self.byte(0) == b':' && self.byte(1) == b':' {
                self.at += 2;
            } else {
                return Tok::Word(&self.text[start..self.at]);
            }
        }
    }

    fn number(&mut self) -> Result<Tok<'a>, ParseError> {
        let start = self.at;
        let exponent = |lexer: &Self| {
            matches!(lexer.byte(0), b'+' | b'-')
                && matches!(lexer.text.as_bytes()[lexer.at - 1], b'e' | b'E')
                && lexer.text[start..lexer.at]
                    .bytes()
                    .all(|b| !b.is_ascii_alphabetic() || b | 32 == b'e')
        };
        while self.byte(0).is_ascii_alphanumeric() || self.byte(0) == b'.' || exponent(self) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        parse_number(text).ok_or_else(|| ParseError::new(self.line, format!("{text} is no number")))
    }
}

fn parse_number<'a>(text: &str) -> Option<Tok<'a>> {
    let digits = text.trim_end_matches(['U', 'u']);
    let hex = |rest: &str| u64::from_str_radix(rest, 16).ok();
    if let Some(rest) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return u32::from_str_radix(rest, 16).ok().map(Tok::F32);
    }
    if let Some(rest) = text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        return hex(rest).map(Tok::F64);
    }
    if let Some(rest) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        return hex(rest).map(Tok::Int);
    }
    if let Some(rest) = digits.strip_prefix("0b").or_else(|| digits.strip_prefix("0B")) {
        return u64::from_str_radix(rest, 2).ok().map(Tok::Int);
    }
    if digits.contains(['.', 'e', 'E']) {
        return digits.parse().ok().map(|value: f64| Tok::F64(value.to_bits()));
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return u64::from_str_radix(digits, 8).ok().map(Tok::Int);
    }
    digits.parse().ok().map(Tok::Int)
}
