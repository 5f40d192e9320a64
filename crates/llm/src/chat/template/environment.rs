//! The engine, set up as `transformers` sets up its own, with bounds.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use regex::Regex;

use super::value::{self, Context};
use super::{NAME, TemplateError, json, methods, time};

/// Deepest recursion of macros and loops. The engine's stack is sound up to 500.
const MAX_RECURSION: usize = 200;

/// What a template said with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub(super) String);

/// The name under which `strftime_now` finds the time. No template can have a variable of it.
const NOW: &str = " now";

/// Compiles `source`.
pub(super) fn compile(source: &str) -> Result<Environment<'static>, TemplateError> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the delimiters are the usual ones"));
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_recursion_limit(MAX_RECURSION);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(methods::call);
    env.add_filter("tojson", json::to_json);
    env.add_filter("fromjson", from_json);
    env.add_filter("trim", methods::trim);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_template_owned(NAME, without_generation_blocks(source))
        .map_err(|error| TemplateError::from_engine(&error, 0))?;
    Ok(env)
}

/// Renders the compiled template.
pub(super) fn render(
    env: &Environment<'static>,
    context: Context,
) -> Result<String, TemplateError> {
    let fuel = context.fuel;
    // The budget is a setting of the environment, which shares its parts with its clones.
    let mut env = env.clone();
    env.set_fuel(Some(fuel));
    env.add_global(NOW, context.now);
    let rendered = env.get_template(NAME).and_then(|template| template.render(context.variables));
    rendered.map_err(|error| TemplateError::from_engine(&error, fuel))
}

/// `{% generation %}` marks what the model said, for training. It is a scope and nothing else.
fn without_generation_blocks(source: &str) -> String {
    let tags = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}");
    let tags = tags.expect("the expression is sound");
    tags.replace_all(source, "{%$1 ${2}with $3%}").into_owned()
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
