//! Lists, dictionaries and numbers as Python prints them.
//!
//! Takes fuel while it writes: a list that holds another one twice, and so on, is small in memory
//! and without end as text.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::json;

/// Deepest nesting that is written.
const MAX_DEPTH: usize = 128;

/// The text of a list, a dictionary or a number with a fraction; `None` for other values, which
/// the engine prints as Python does.
pub(super) fn text(state: &State<'_, '_>, value: &Value) -> Result<Option<String>, Error> {
    let nested = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map);
    if !nested {
        return Ok(json::float(value));
    }
    let mut out = String::new();
    write(state, value, 0, &mut out)?;
    Ok(Some(out))
}

fn write(
    state: &State<'_, '_>,
    value: &Value,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deeply"));
    }
    state.consume_fuel(1)?;
    match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            state.consume_fuel(text.len() as u64 / 16)?;
            quote(text, out);
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()?.checked() {
                if count > 0 {
                    out.push_str(", ");
                }
                count += 1;
                write(state, &item?, depth + 1, out)?;
            }
            if count == 1 && value.is_tuple() {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                if index > 0 {
                    out.push_str(", ");
                }
                write(state, &key, depth + 1, out)?;
                out.push_str(": ");
                write(state, &value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => match json::float(value) {
            Some(text) => out.push_str(&text),
            None => out.push_str(&value.to_string()),
        },
    }
    Ok(())
}

/// A text as Python's `repr` writes it.
fn quote(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => out.extend(['\\', c]),
            '\0'..' ' | '\x7f'..='\u{a0}' | '\u{ad}' => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out.push(quote);
}

/// The filter `join(d='', attribute=none)`.
pub(super) fn join(
    state: &State<'_, '_>,
    items: &Value,
    separator: Option<&str>,
    attribute: Option<&str>,
    options: Kwargs,
) -> Result<String, Error> {
    let named: Option<&str> = options.get("d")?;
    let named_attribute: Option<&str> = options.get("attribute")?;
    options.assert_all_used()?;
    let separator = separator.or(named).unwrap_or_default();
    let attribute = attribute.or(named_attribute);
    let mut out = String::new();
    for (index, item) in items.try_iter()?.checked().enumerate() {
        let mut item = item?;
        if let Some(attribute) = attribute {
            item = item.get_attr(attribute)?;
        }
        let made = text(state, &item)?;
        let piece = match (&made, item.as_str()) {
            (Some(text), _) => text.clone(),
            (None, Some(text)) => text.to_owned(),
            (None, None) => item.to_string(),
        };
        let separator = if index > 0 { separator } else { "" };
        state.consume_fuel(1 + ((separator.len() + piece.len()) / 64) as u64)?;
        out.push_str(separator);
        out.push_str(&piece);
    }
    Ok(out)
}
