//! JSON values as the engine's.

use minijinja::Value;
use serde_json::Value as Json;

use super::{RenderOptions, SpecialTexts, TemplateError, time};

/// Deepest nesting of a value. The parser of JSON has the same limit.
const MAX_DEPTH: usize = 128;

/// The variables of one rendering.
pub(super) struct Context {
    pub(super) variables: Value,
    /// Seconds since 1970, UTC.
    pub(super) now: i64,
    /// What the rendering may cost.
    pub(super) fuel: u64,
}

/// Any rendering may cost as much: steps, or 64 bytes each. Some steps of the engine take time in
/// proportion to a text without being charged for it, so this is also a limit of time.
const BASE_FUEL: u64 = 50_000;

/// For each value of the conversation, so that long ones are not refused.
const VALUE_FUEL: u64 = 300;

impl Context {
    pub(super) fn new(
        messages: &[Json],
        specials: &SpecialTexts,
        options: &RenderOptions,
    ) -> Result<Self, TemplateError> {
        let mut fuel = BASE_FUEL;
        let mut of = |json: &Json| to_value(json, MAX_DEPTH, &mut fuel);
        let messages = messages.iter().map(&mut of).collect::<Result<Vec<_>, _>>()?;
        let tools = options.tools.iter().map(&mut of).collect::<Result<Vec<_>, _>>()?;
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(tools) };
        let mut variables = vec![
            ("messages", Value::from(messages)),
            ("tools", tools),
            ("documents", Value::from(())),
            ("add_generation_prompt", options.add_generation_prompt.into()),
        ];
        for (name, text) in [("bos_token", &specials.bos), ("eos_token", &specials.eos)] {
            if !text.is_empty() {
                variables.push((name, text.as_str().into()));
            }
        }
        if let Some(thinking) = options.enable_thinking {
            variables.push(("enable_thinking", thinking.into()));
        }
        for (name, json) in &options.extra {
            variables.push((name, of(json)?));
        }
        Ok(Self { variables: Value::from_pairs(variables), now: time::seconds(options.now), fuel })
    }
}

/// The value of `json`, nested at most `depth` levels. Adds what it may cost to `fuel`.
pub(super) fn to_value(json: &Json, depth: usize, fuel: &mut u64) -> Result<Value, TemplateError> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(TemplateError::TooDeep { limit: MAX_DEPTH });
    };
    *fuel += VALUE_FUEL;
    Ok(match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::from(whole),
            (_, Some(whole)) => Value::from(whole),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => {
            *fuel += text.len() as u64;
            Value::from(text.as_str())
        }
        Json::Array(items) => {
            let items = items.iter().map(|item| to_value(item, depth, fuel));
            Value::from(items.collect::<Result<Vec<_>, _>>()?)
        }
        Json::Object(object) => {
            let mut pairs = Vec::with_capacity(object.len());
            for (key, item) in object {
                *fuel += key.len() as u64;
                pairs.push((key.as_str(), to_value(item, depth, fuel)?));
            }
            Value::from_pairs(pairs)
        }
    })
}
