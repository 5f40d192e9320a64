//! The body of the fuzz target `template`, and of the test that replays its corpus.
//!
//! An input has fields, with a zero byte between them. If the first byte is 1, the last field is a
//! text and the others are stop strings. Else the first field is a template, in which bytes from
//! 128 stand for pieces of the language, and the second the messages as JSON, or the text of one.

use std::time::{Duration, UNIX_EPOCH};

use fucina_llm::StopStrings;
use fucina_llm::chat::{ChatTemplate, Message, RenderOptions, SpecialTexts};
use serde_json::Value;

/// The engine's budget for an input of 4 KB: 64 bytes for each of 50,000 steps, 300 for each
/// value and one for each byte, where a value takes at least two bytes of the input.
const MOST_BYTES: usize = 64 * (50_000 + 151 * MAX_INPUT);

/// Longer inputs find nothing that shorter ones do not.
const MAX_INPUT: usize = 16 << 10;

const PIECES: &[&str] = &[
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{%- ",
    "-%}",
    "{# ",
    " #}",
    "{%+ ",
    "for m in messages",
    "endfor",
    "if ",
    "elif ",
    "else",
    "endif",
    "set x = ",
    "set ns.y = ",
    "set ns = namespace(y=1)",
    "endset",
    "macro f(a, b=1)",
    "endmacro",
    "f(1)",
    "generation",
    "endgeneration",
    "break",
    "continue",
    "raise_exception('no')",
    "strftime_now('%Y-%m-%d')",
    "messages",
    "m.content",
    "m['role']",
    "x",
    "ns.y",
    "tools",
    "bos_token",
    "add_generation_prompt",
    "loop.index0",
    "loop.last",
    "range(9)",
    " + ",
    " - ",
    " * ",
    " ~ ",
    " // ",
    " % ",
    " ** ",
    " == ",
    " < ",
    " in ",
    " not ",
    " and ",
    " or ",
    " is ",
    " if ",
    "defined",
    "none",
    "mapping",
    "string",
    "iterable",
    "true",
    "1",
    "0.5",
    "99",
    "'a'",
    "\"\\n\"",
    "'</think>'",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    ":",
    ",",
    ".",
    "|",
    "namespace(z=[])",
    "ns.y + ns.y",
    "[ns.y, ns.y]",
    "**",
    "loop.cycle(",
    "loop.changed(",
    "groupby('role')",
    "batch(2)",
    "slice(2)",
    "unique",
    "sum",
    "max",
    "{% call f(1) %}",
    "{% endcall %}",
    "recursive",
    "loop(",
    "caller()",
    "[::-1]",
    "[1:]",
    "[-1]",
    "tojson",
    "tojson(indent=2)",
    "trim",
    "join(',')",
    "length",
    "list",
    "string",
    "upper",
    "default('d')",
    "items",
    "dictsort",
    "map(attribute='role')",
    "selectattr('role')",
    "sort",
    "first",
    "last",
    "reverse",
    "fromjson",
    "indent(2)",
    "replace('a', 'b')",
    "round",
    ".strip()",
    ".split('a')",
    ".split()",
    ".rsplit(none, 1)",
    ".replace('', 'b')",
    ".items()",
    ".get('a')",
    ".startswith('a')",
    ".format(1)",
    ".title()",
    ".splitlines()",
    ".center(9)",
    ".partition('a')",
    ".find('a')",
    ".join(['a'])",
    ".zfill(9)",
    "\n",
    "  ",
    "text",
];

/// Compiling and rendering may fail, but neither panics, nor hangs, nor makes more text than the
/// budget allows; and what is left of a text by stop strings has none of them, and lacks nothing
/// else.
pub(crate) fn exercise(input: &[u8]) {
    if input.len() > MAX_INPUT {
        return;
    }
    match input.split_first() {
        Some((1, rest)) => stop_strings(&String::from_utf8_lossy(rest)),
        _ => template(input),
    }
}

fn template(input: &[u8]) {
    let mut fields = input.splitn(2, |&byte| byte == 0);
    let mut source = String::new();
    for &byte in fields.next().unwrap_or_default() {
        match byte.checked_sub(128) {
            None => source.push(char::from(byte)),
            Some(piece) => source.push_str(PIECES.get(usize::from(piece)).unwrap_or(&"\u{e9}")),
        }
    }
    let text = String::from_utf8_lossy(fields.next().unwrap_or_default());
    let messages = match serde_json::from_str(&text) {
        Ok(Value::Array(messages)) => messages,
        _ => vec![Message::user(text).to_json()],
    };
    let Ok(template) = ChatTemplate::new(&source, SpecialTexts::new("<s>", "</s>")) else { return };
    let mut options = RenderOptions::default();
    options.now = Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    if let Ok(text) = template.render_json(&messages, &options) {
        let most = MOST_BYTES + source.len();
        assert!(text.len() < most, "{} bytes", text.len());
        assert_eq!(template.render_json(&messages, &options), Ok(text), "the same again");
    }
}

fn stop_strings(input: &str) {
    let mut stops: Vec<&str> = input.split('\0').collect();
    let text = stops.pop().unwrap_or_default();
    let Ok(set) = StopStrings::new(stops.iter().copied()) else { return };
    let mut matcher = set.matcher();
    let (mut given, mut passed) = (String::new(), String::new());
    // Pieces of one, two and three characters in turn.
    let mut rest = text;
    for size in (1..=3).cycle() {
        let end = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at);
        let (piece, after) = rest.split_at(end);
        rest = after;
        given.push_str(piece);
        let (text, stopped) = matcher.push(piece);
        passed.push_str(text);
        if stopped.is_some() || rest.is_empty() {
            break;
        }
    }
    passed.push_str(&matcher.finish());
    assert!(given.starts_with(&passed));
    assert!(!stops.iter().any(|stop| passed.contains(stop)), "{passed:?}");
    if !stops.iter().any(|stop| given.contains(stop)) {
        assert_eq!(given, passed);
    }
}
