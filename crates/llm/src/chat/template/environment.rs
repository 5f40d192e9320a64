//! The engine, set up as `transformers` sets up its own, with bounds.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{
    Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value, escape_formatter,
    filters,
};
use regex::Regex;

use super::value::{self, Context};
use super::{TemplateError, guards, json, methods, ops, program, repr, time};

/// Deepest recursion of macros and loops. The engine's stack is sound up to 500.
const MAX_RECURSION: usize = 200;

/// What a template said with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub(super) String);

/// The name under which `strftime_now` finds the time. No template can have a variable of it.
const NOW: &str = " now";

/// Stack for what a program does, in bytes: its recursion is bounded.
const STACK: usize = 16 << 20;

/// Stack for the compiler for each byte of the source. It recurses once for each `not` and `-` of a
/// chain, which takes half of this unoptimized. Only what is used becomes memory, but a process may
/// be allowed few addresses.
const STACK_PER_BYTE: usize = 4096;

/// Runs `work` on `source` with a stack on which it cannot overflow.
fn with_stack<T: Send>(
    source: &str,
    work: impl FnOnce() -> Result<T, TemplateError> + Send,
) -> Result<T, TemplateError> {
    // The length of a source is limited, so this does not overflow.
    let stack = STACK + source.len() * STACK_PER_BYTE;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack);
        let worker = thread.spawn_scoped(scope, work);
        let worker =
            worker.map_err(|error| TemplateError::Resources { detail: error.to_string() })?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Fails unless `source` compiles.
pub(super) fn check(source: &str) -> Result<(), TemplateError> {
    with_stack(source, || {
        let compiled = program::compile(source).map(|_| ());
        compiled.map_err(|error| TemplateError::from_engine(&error, 0))
    })
}

/// The engine, but for the budget and the time.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_recursion_limit(MAX_RECURSION);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(format);
    env.set_debug(false);
    env.add_test("iterable", is_iterable);
    env.add_test("sequence", is_sequence);
    env.add_filter("string", to_text);
    env.add_filter("tojson", json::to_json);
    env.add_filter("fromjson", from_json);
    env.add_filter("join", repr::join);
    env.add_filter("trim", methods::trim);
    // It would show what no template needs.
    env.remove_global("debug");
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    ops::install(&mut env);
    guards::install(&mut env);
    env
}

/// Renders `source`. The engine's program refers to it, so it is compiled each time, which takes
/// less than a millisecond.
pub(super) fn render(
    env: &Environment<'static>,
    source: &str,
    context: Context,
) -> Result<String, TemplateError> {
    let fuel = context.fuel;
    // The budget is a setting of the environment, which shares its parts with its clones.
    let mut env = env.clone();
    env.set_fuel(Some(fuel));
    env.add_global(NOW, context.now);
    with_stack(source, || {
        let rendered = program::compile(source)
            .and_then(|program| program::run(&env, &program, context.variables));
        rendered.map_err(|error| TemplateError::from_engine(&error, fuel))
    })
}

/// The source with the one kind of line break that Jinja leaves, and without `generation` blocks:
/// they mark what the model said, for training, and are scopes and nothing else.
pub(super) fn normalized(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let tags = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}");
    let tags = tags.expect("the expression is sound");
    tags.replace_all(&source, "{%$1 ${2}with $3%}").into_owned()
}

/// Prints a value as Python does.
fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match repr::text(state, value)? {
        Some(text) => out.write_str(&text).map_err(|_| ErrorKind::WriteFailure.into()),
        None => escape_formatter(out, state, value),
    }
}

/// The filter `string`.
fn to_text(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    match repr::text(state, value)? {
        Some(text) => Ok(text.into()),
        None => filters::string(state, value),
    }
}

/// The test `iterable`. The engine lets a loop over `none` pass and counts it in; Jinja does not.
fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
}

/// The test `sequence`: what has a length and items.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String};
    value.is_undefined() || matches!(value.kind(), Map | Seq | String)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "the template refuses the conversation")
        .with_source(Refusal(message)))
}

fn strftime_now(state: &State<'_, '_>, form: &str) -> Result<String, Error> {
    state.consume_fuel(form.len() as u64)?;
    let now = state.lookup(NOW).and_then(|now| now.as_i64()).unwrap_or(0);
    Ok(time::format(now, form))
}

fn from_json(state: &State<'_, '_>, text: &str, options: Kwargs) -> Result<Value, Error> {
    options.assert_all_used()?;
    state.consume_fuel(text.len() as u64)?;
    let invalid = |detail: String| Error::new(ErrorKind::InvalidOperation, detail);
    let json: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| invalid(format!("fromjson got no JSON: {error}")))?;
    value::to_value(&json, usize::MAX, &mut 0).map_err(|error| invalid(error.to_string()))
}
