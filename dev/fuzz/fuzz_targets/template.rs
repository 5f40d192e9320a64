//! Arbitrary templates, from bytes and from pieces of the language, with arbitrary conversations.
//! Compiling and rendering may fail, but neither panics, nor hangs, nor makes more text than the
//! budget allows; and the text of a stop string never passes its matcher.

#![no_main]

use fucina_llm::StopStrings;
use fucina_llm::chat::{ChatTemplate, Message, RenderOptions, Role, SpecialTexts};
use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;

/// The engine's budget for the conversations made here: 64 bytes for each of the base of 50,000,
/// and as many for each value and byte, with room.
const MOST_BYTES: usize = 64 << 20;

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

fuzz_target!(|input: &[u8]| {
    // Input that ends early is no failure.
    let _ = run(&mut Unstructured::new(input));
});

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    if input.ratio(1, 8)? {
        return stop_strings(input);
    }
    let mut messages = Vec::new();
    for _ in 0..input.int_in_range(0..=3)? {
        const ROLES: [Role; 4] = [Role::System, Role::User, Role::Assistant, Role::Tool];
        let role = input.choose(&ROLES)?.clone();
        messages.push(Message::new(role, <&str>::arbitrary(input)?));
    }
    let mut options = RenderOptions::default();
    options.add_generation_prompt = bool::arbitrary(input)?;
    options.enable_thinking = Option::arbitrary(input)?;
    let mut source = String::new();
    while !input.is_empty() && source.len() < 1 << 12 {
        if input.ratio(1, 8)? {
            source.push_str(<&str>::arbitrary(input)?);
        } else {
            source.push_str(input.choose(PIECES)?);
        }
    }
    let Ok(template) = ChatTemplate::new(&source, SpecialTexts::new("<s>", "</s>")) else {
        return Ok(());
    };
    if let Ok(text) = template.render(&messages, &options) {
        assert!(text.len() < MOST_BYTES, "{} bytes", text.len());
        assert_eq!(template.render(&messages, &options), Ok(text), "the same again");
    }
    Ok(())
}

fn stop_strings(input: &mut Unstructured<'_>) -> Result<()> {
    let stops: Vec<&str> = Vec::arbitrary(input)?;
    let Ok(stops) = StopStrings::new(stops) else { return Ok(()) };
    let mut matcher = stops.matcher();
    let (mut given, mut passed) = (String::new(), String::new());
    while !input.is_empty() {
        let piece = <&str>::arbitrary(input)?;
        given.push_str(piece);
        let (text, stopped) = matcher.push(piece);
        passed.push_str(text);
        if stopped.is_some() {
            break;
        }
    }
    passed.push_str(&matcher.finish());
    assert!(given.starts_with(&passed));
    assert!(!stops.iter().any(|stop| passed.contains(stop)), "{passed:?}");
    if !stops.iter().any(|stop| given.contains(stop)) {
        assert_eq!(given, passed);
    }
    Ok(())
}
