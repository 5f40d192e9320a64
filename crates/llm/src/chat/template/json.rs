//! `tojson` as Python's `json.dumps` does it, with the defaults that `transformers` sets.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deepest nesting that is written.
const MAX_DEPTH: usize = 128;

/// The filter: `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn to_json(
    state: &State<'_, '_>,
    value: &Value,
    ensure_ascii: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let named: Option<bool> = options.get("ensure_ascii")?;
    let indent = indent(options.get("indent")?)?;
    let separators: Option<Value> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let mut writer = Writer {
        state,
        out: String::new(),
        paid: 0,
        ascii: ensure_ascii.or(named).unwrap_or(false),
        item: if indent.is_some() { "," } else { ", " }.to_owned(),
        key: ": ".to_owned(),
        indent,
        sort_keys: sort_keys.unwrap_or(false),
    };
    if let Some(separators) = separators.filter(|value| !value.is_none()) {
        let parts: Vec<Value> = separators.try_iter()?.take(3).collect();
        match &parts[..] {
            [item, key] => (writer.item, writer.key) = (text(item)?, text(key)?),
            _ => return Err(wrong("tojson: separators are two texts")),
        }
    }
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn wrong(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

fn text(value: &Value) -> Result<String, Error> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong("tojson: separators are two texts"))
}

/// What stands for one level.
fn indent(value: Option<Value>) -> Result<Option<String>, Error> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    // Python takes a truth value for the number.
    let truth = (value.kind() == ValueKind::Bool).then(|| i64::from(value.is_true()));
    match truth.or(value.as_i64()) {
        Some(spaces) if spaces <= 64 => Ok(Some(" ".repeat(usize::try_from(spaces).unwrap_or(0)))),
        _ => Err(wrong("tojson: indent is a text or a number up to 64")),
    }
}

struct Writer<'a> {
    state: &'a State<'a, 'a>,
    out: String,
    /// Bytes that fuel was taken for.
    paid: usize,
    ascii: bool,
    item: String,
    key: String,
    indent: Option<String>,
    sort_keys: bool,
}

impl Writer<'_> {
    /// Takes fuel for what was written, so that nothing grows without bound.
    fn pay(&mut self) -> Result<(), Error> {
        let written = self.out.len() - self.paid;
        if written >= 256 {
            self.paid = self.out.len();
            self.state.consume_fuel((written / 64) as u64)?;
        }
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(wrong("tojson: the value is nested too deeply"));
        }
        self.state.consume_fuel(1)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)?),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            _ => {
                let detail = format!("tojson: a value of the kind `{}` has no JSON", value.kind());
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        }
        self.pay()
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut first = true;
        self.out.push('[');
        for item in value.try_iter()?.checked() {
            self.begin_item(&mut first, depth);
            self.value(&item?, depth + 1)?;
        }
        self.end(first, depth);
        self.out.push(']');
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = value.try_iter()?.checked().collect::<Result<Vec<Value>, _>>()?;
        if self.sort_keys {
            keys.sort();
        }
        let mut first = true;
        self.out.push('{');
        for key in &keys {
            self.begin_item(&mut first, depth);
            match key.kind() {
                ValueKind::None => self.out.push_str("\"null\""),
                ValueKind::Bool => {
                    self.out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" });
                }
                ValueKind::Number => self.text(&number(key)?),
                ValueKind::String => self.text(key.as_str().unwrap_or_default()),
                _ => return Err(wrong("tojson: a key is neither text nor number")),
            }
            self.out.push_str(&self.key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.end(first, depth);
        self.out.push('}');
        Ok(())
    }

    fn begin_item(&mut self, first: &mut bool, depth: usize) {
        if !*first {
            self.out.push_str(&self.item);
        }
        *first = false;
        self.new_line(depth + 1);
    }

    fn end(&mut self, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..' ' => self.out.push_str(&format!("\\u{:04x}", u32::from(c))),
                '\u{7f}'.. if self.ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A number as JSON by Python.
fn number(value: &Value) -> Result<String, Error> {
    let Some(text) = float(value) else { return Ok(value.to_string()) };
    Ok(match &*text {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        _ => text,
    })
}

/// A number that is no integer, as Python writes it; `None` for other values.
pub(super) fn float(value: &Value) -> Option<String> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    let number = f64::try_from(value.clone()).ok()?;
    if number.is_nan() {
        return Some("nan".to_owned());
    }
    if number.is_infinite() {
        return Some(if number < 0.0 { "-inf" } else { "inf" }.to_owned());
    }
    // The shortest digits that give the number back, in both languages; only the form differs.
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let text = number.to_string();
        return Some(if text.contains('.') { text } else { text + ".0" });
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    Some(format!("{digits}e{sign}{:02}", exponent.abs()))
}
