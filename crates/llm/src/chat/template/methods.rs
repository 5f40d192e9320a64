//! Methods of Python's texts, lists and dictionaries, which templates call.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, StringInput, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::ops;

type Outcome = Result<Value, Error>;

/// Calls `value.method(args)`.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Outcome {
    if let Some(outcome) = ops::of_loop(state, value, method, args) {
        return outcome;
    }
    match value.kind() {
        ValueKind::String => of_text(state, value.as_str().unwrap_or_default(), method, args),
        ValueKind::Map => of_map(state, value, method, args),
        ValueKind::Seq | ValueKind::Iterable => of_sequence(state, value, method, args),
        _ => unknown(),
    }
}

fn unknown() -> Outcome {
    Err(Error::from(ErrorKind::UnknownMethod))
}

fn invalid(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// Each character is looked for in `chars`.
fn pay_strip(state: &State<'_, '_>, text: &str, chars: Option<&str>) -> Result<(), Error> {
    let chars = chars.map_or(0, str::len) as u64;
    state.consume_fuel((text.len() as u64).saturating_mul(chars) / 64)
}

/// The filter `trim`: spaces by Python's rule.
pub(super) fn trim(
    state: &State<'_, '_>,
    text: StringInput<'_>,
    chars: Option<&str>,
    options: Kwargs,
) -> Result<String, Error> {
    let named: Option<&str> = options.get("chars")?;
    options.assert_all_used()?;
    let text: &str = text.as_str();
    pay_strip(state, text, chars.or(named))?;
    Ok(strip(text, chars.or(named), Side::Both).to_owned())
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
    Both,
}

/// Python counts four separators as spaces that Unicode does not.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

fn strip<'t>(text: &'t str, chars: Option<&str>, side: Side) -> &'t str {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    match side {
        Side::Left => text.trim_start_matches(drop),
        Side::Right => text.trim_end_matches(drop),
        Side::Both => text.trim_matches(drop),
    }
}

fn of_text(state: &State<'_, '_>, text: &str, method: &str, args: &[Value]) -> Outcome {
    // Nothing below reads the text more often than once, but for what says so.
    state.consume_fuel(text.len() as u64 / 64)?;
    match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            pay_strip(state, text, chars)?;
            let side = match method {
                "strip" => Side::Both,
                "lstrip" => Side::Left,
                _ => Side::Right,
            };
            Ok(strip(text, chars, side).into())
        }
        "startswith" | "endswith" => {
            let (affix,): (&Value,) = from_args(args)?;
            affixed(state, text, affix, method == "startswith")
        }
        "split" | "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            split(state, text, separator, most, method == "rsplit")
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            state.consume_fuel(text.len() as u64 / 8)?;
            Ok(lines(text, keep_ends.unwrap_or(false)).map(Value::from).collect())
        }
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            replace(state, text, (old, new), count)
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            join(state, text, items)
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "find" | "index" | "rfind" | "rindex" | "count" => {
            let (what,): (&str,) = from_args(args)?;
            search(text, what, method)
        }
        "ljust" | "rjust" | "center" | "zfill" => pad(state, text, method, args),
        "format" => format_text(state, text, args),
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            partition(text, separator, method == "rpartition")
        }
        _ => of_letters(text, method, args),
    }
}

fn of_letters(text: &str, method: &str, args: &[Value]) -> Outcome {
    let () = from_args(args)?;
    let all = |is: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(is));
    Ok(match method {
        "upper" => text.to_uppercase().into(),
        "lower" | "casefold" => text.to_lowercase().into(),
        "title" => title(text).into(),
        "capitalize" => {
            let mut chars = text.chars();
            let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
            (first + &chars.as_str().to_lowercase()).into()
        }
        "isspace" => all(is_space),
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isascii" => text.is_ascii().into(),
        "isupper" => {
            (text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase)).into()
        }
        "islower" => {
            (text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase)).into()
        }
        _ => return unknown(),
    })
}

fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        in_word = c.is_alphabetic();
    }
    out
}

fn affixed(state: &State<'_, '_>, text: &str, affix: &Value, at_start: bool) -> Outcome {
    let has = |affix: &str| if at_start { text.starts_with(affix) } else { text.ends_with(affix) };
    let texts_only = || invalid("startswith and endswith take a text or a tuple of texts");
    if let Some(affix) = affix.as_str() {
        return Ok(has(affix).into());
    }
    for affix in affix.try_iter()?.checked() {
        state.consume_fuel(1 + text.len() as u64 / 64)?;
        if has(affix?.as_str().ok_or_else(texts_only)?) {
            return Ok(true.into());
        }
    }
    Ok(false.into())
}

fn split(
    state: &State<'_, '_>,
    text: &str,
    separator: Option<&str>,
    most: Option<i64>,
    from_right: bool,
) -> Outcome {
    // A part can be as short as a byte, and takes a value.
    state.consume_fuel(text.len() as u64 / 8)?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let most = most.saturating_add(1);
    let parts: Vec<&str> = match separator {
        Some("") => return Err(invalid("split got an empty separator")),
        Some(separator) if from_right => {
            let mut parts: Vec<&str> = text.rsplitn(most, separator).collect();
            parts.reverse();
            parts
        }
        Some(separator) => text.splitn(most, separator).collect(),
        None => split_at_spaces(text, most, from_right),
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Runs of spaces are one separator, and those at the ends none. The last part of a limited split
/// keeps its spaces.
fn split_at_spaces(text: &str, most: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let skip = |rest| strip(rest, None, if from_right { Side::Right } else { Side::Left });
    let mut rest = skip(text);
    while !rest.is_empty() {
        let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| parts.len() + 1 < most) else {
            parts.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(0, char::len_utf8);
        let (left, right) = (&rest[..at], &rest[at + width..]);
        let (part, after) = if from_right { (right, left) } else { (left, right) };
        parts.push(part);
        rest = skip(after);
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// Lines by Python's rule, which knows more line ends than Rust's.
fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let is_end = |c: char| {
            matches!(
                c,
                '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'
                    ..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
            )
        };
        if rest.is_empty() {
            return None;
        }
        let Some(at) = rest.find(is_end) else { return Some(std::mem::take(&mut rest)) };
        let width = match &rest.as_bytes()[at..] {
            [b'\r', b'\n', ..] => 2,
            _ => rest[at..].chars().next().map_or(0, char::len_utf8),
        };
        let line = &rest[..if keep_ends { at + width } else { at }];
        rest = &rest[at + width..];
        Some(line)
    })
}

fn replace(
    state: &State<'_, '_>,
    text: &str,
    (old, new): (&str, &str),
    count: Option<i64>,
) -> Outcome {
    let most = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let matches = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let growth = matches.min(most).saturating_mul(new.len());
    state.consume_fuel((text.len().saturating_add(growth) / 64) as u64)?;
    Ok(text.replacen(old, new, most).into())
}

fn join(state: &State<'_, '_>, text: &str, items: &Value) -> Outcome {
    let mut out = String::new();
    for (index, item) in items.try_iter()?.checked().enumerate() {
        let item = item?;
        let item = item.as_str().ok_or_else(|| invalid("join takes texts"))?;
        let separator = if index > 0 { text } else { "" };
        state.consume_fuel(1 + ((separator.len() + item.len()) / 64) as u64)?;
        out.push_str(separator);
        out.push_str(item);
    }
    Ok(out.into())
}

fn search(text: &str, what: &str, method: &str) -> Outcome {
    let found = match method {
        "count" if what.is_empty() => return Ok((text.chars().count() + 1).into()),
        "count" => return Ok(text.matches(what).count().into()),
        "find" | "index" => text.find(what),
        _ => text.rfind(what),
    };
    match found {
        Some(at) => Ok(text[..at].chars().count().into()),
        None if method.ends_with("index") => Err(invalid("substring not found")),
        None => Ok((-1).into()),
    }
}

fn pad(state: &State<'_, '_>, text: &str, method: &str, args: &[Value]) -> Outcome {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let mut fill_chars = fill.unwrap_or(" ").chars();
    let (Some(mut fill), None) = (fill_chars.next(), fill_chars.next()) else {
        return Err(invalid("the fill is one character"));
    };
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    state.consume_fuel((missing / 16) as u64)?;
    let mut before = match method {
        "ljust" => 0,
        // As Python rounds it.
        "center" => missing / 2 + (missing & usize::try_from(width).unwrap_or(0) & 1),
        _ => missing,
    };
    let mut sign = "";
    let mut rest = text;
    if method == "zfill" {
        fill = '0';
        before = missing;
        if text.starts_with(['-', '+']) {
            (sign, rest) = text.split_at(1);
        }
    }
    let side = |count: usize| std::iter::repeat_n(fill, count);
    let mut out = sign.to_owned();
    out.extend(side(before));
    out.push_str(rest);
    out.extend(side(missing - before));
    Ok(out.into())
}

/// Longest number in a form: a width, in the main.
const MAX_FORM_DIGITS: usize = 3;

fn format_text(state: &State<'_, '_>, form: &str, args: &[Value]) -> Outcome {
    let mut digits = 0;
    for c in form.chars() {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > MAX_FORM_DIGITS {
            return Err(invalid("format: a number in the form has more than three digits"));
        }
    }
    // Each field may take the longest argument, and a width of three digits.
    let mut longest = 1000;
    for arg in args {
        longest = longest.max(match arg.kind() {
            ValueKind::String => arg.as_str().unwrap_or_default().len(),
            ValueKind::Number | ValueKind::Bool | ValueKind::None => 0,
            _ => return Err(invalid("format takes texts and numbers")),
        });
    }
    let fields = form.matches('{').count();
    state.consume_fuel((fields.saturating_mul(longest) / 64) as u64)?;
    format(FormatStyle::StrFormat, form, args).map(Value::from)
}

fn partition(text: &str, separator: &str, from_right: bool) -> Outcome {
    if separator.is_empty() {
        return Err(invalid("partition got an empty separator"));
    }
    let found = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((left, right)) => [left, separator, right],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Tuple::from(parts.map(Value::from)).into())
}

fn of_map(state: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Outcome {
    let Some(object) = value.as_object() else { return unknown() };
    let pairs = || object.try_iter_pairs().into_iter().flatten();
    match method {
        "keys" => {
            let () = from_args(args)?;
            Ok(pairs().map(|(key, _)| key).collect())
        }
        "values" => {
            let () = from_args(args)?;
            Ok(pairs().map(|(_, item)| item).collect())
        }
        "items" => {
            let () = from_args(args)?;
            Ok(pairs().map(|(key, item)| Value::from(Tuple::from([key, item]))).collect())
        }
        "get" => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            ops::weigh(state, key)?;
            Ok(object.get_value(key).or(default).unwrap_or(Value::from(())))
        }
        _ => unknown(),
    }
}

fn of_sequence(state: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Outcome {
    if !matches!(method, "count" | "index") {
        return unknown();
    }
    let (what,): (&Value,) = from_args(args)?;
    let len = match what.kind() {
        ValueKind::String => what.as_str().unwrap_or_default().len(),
        ValueKind::Number | ValueKind::Bool | ValueKind::None => 0,
        _ => return Err(invalid("count and index look for a text or a number")),
    };
    let mut count = 0_usize;
    for (index, item) in value.try_iter()?.checked().enumerate() {
        state.consume_fuel(1 + len as u64 / 64)?;
        if item? == *what {
            if method == "index" {
                return Ok(index.into());
            }
            count += 1;
        }
    }
    if method == "index" { Err(invalid("the item is not in the list")) } else { Ok(count.into()) }
}
