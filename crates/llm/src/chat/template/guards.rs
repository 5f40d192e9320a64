//! The engine's filters and tests, for those whose work it does not bound.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters, tests};

use super::ops::{contains, equal, invalid, order, pay, weigh};

type Outcome = Result<Value, Error>;

/// Longest name of an attribute, with those of attributes of attributes.
const MAX_PATH_BYTES: usize = 200;

/// Most arguments of a filter that gives them on for each item.
const MAX_ARGS: usize = 8;

/// Puts them in the place of the engine's.
pub(super) fn install(env: &mut Environment<'static>) {
    add_filters(env);
    add_tests(env);
    // No template needs these, and Jinja has neither of the first two: they compute later what
    // nobody paid for.
    for name in ["chain", "zip", "pprint"] {
        env.remove_filter(name);
    }
}

fn add_filters(env: &mut Environment<'static>) {
    env.add_filter("sort", |state: &State<'_, '_>, value: Value, options: Kwargs| {
        pay_sort(state, &value, &options)?;
        filters::sort(state, value, options)
    });
    env.add_filter("unique", |state: &State<'_, '_>, value: Value, options: Kwargs| {
        pay_sort(state, &value, &options)?;
        filters::unique(state, value, options)
    });
    env.add_filter("min", |state: &State<'_, '_>, value: Value, options: Kwargs| {
        pay_sort(state, &value, &options)?;
        filters::min(state, value, options)
    });
    env.add_filter("max", |state: &State<'_, '_>, value: Value, options: Kwargs| {
        pay_sort(state, &value, &options)?;
        filters::max(state, value, options)
    });
    env.add_filter("dictsort", |state: &State<'_, '_>, value: &Value, options: Kwargs| {
        pay_sort(state, value, &options)?;
        filters::dictsort(value, options)
    });
    env.add_filter("groupby", groupby);
    env.add_filter("sum", sum);
    env.add_filter("batch", batch);
    env.add_filter("slice", slice);
    env.add_filter("items", items);
    env.add_filter("reverse", reverse);
    env.add_filter("attr", attr);
    env.add_filter("replace", replace);
    env.add_filter("map", map);
    env.add_filter("select", select);
    env.add_filter("reject", reject);
    env.add_filter("selectattr", selectattr);
    env.add_filter("rejectattr", rejectattr);
}

fn add_tests(env: &mut Environment<'static>) {
    for name in ["eq", "equalto", "=="] {
        env.add_test(name, equal);
    }
    for name in ["ne", "!="] {
        env.add_test(name, |state: &State<'_, '_>, a: &Value, b: &Value| Ok(!equal(state, a, b)?));
    }
    for name in ["lt", "lessthan", "<"] {
        env.add_test(name, |state: &State<'_, '_>, a: &Value, b: &Value| {
            Ok(order(state, a, b)?.is_lt())
        });
    }
    for name in ["le", "<="] {
        env.add_test(name, |state: &State<'_, '_>, a: &Value, b: &Value| {
            Ok(order(state, a, b)?.is_le())
        });
    }
    for name in ["gt", "greaterthan", ">"] {
        env.add_test(name, |state: &State<'_, '_>, a: &Value, b: &Value| {
            Ok(order(state, a, b)?.is_gt())
        });
    }
    for name in ["ge", ">="] {
        env.add_test(name, |state: &State<'_, '_>, a: &Value, b: &Value| {
            Ok(order(state, a, b)?.is_ge())
        });
    }
    env.add_test("in", contains);
    env.add_test("sameas", |state: &State<'_, '_>, a: &Value, b: &Value| {
        pay_text(state, a)?;
        Ok(tests::is_sameas(a, b))
    });
    env.add_test("lower", |state: &State<'_, '_>, value: &Value| {
        pay_text(state, value)?;
        Ok(tests::is_lower(value))
    });
    env.add_test("upper", |state: &State<'_, '_>, value: &Value| {
        pay_text(state, value)?;
        Ok(tests::is_upper(value))
    });
    env.add_test("startingwith", |state: &State<'_, '_>, value: &Value, affix: &Value| {
        pay_text(state, affix)?;
        Ok(text(value)?.starts_with(text(affix)?))
    });
    env.add_test("endingwith", |state: &State<'_, '_>, value: &Value, affix: &Value| {
        pay_text(state, affix)?;
        Ok(text(value)?.ends_with(text(affix)?))
    });
}

fn text(value: &Value) -> Result<&str, Error> {
    value.as_str().ok_or_else(|| invalid("the test takes texts"))
}

fn pay_text(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    pay(state, value.as_str().map_or(0, str::len) as u64)
}

/// A sort reads every item as often as the logarithm of their number.
fn pay_sort(state: &State<'_, '_>, value: &Value, options: &Kwargs) -> Result<(), Error> {
    check_attribute(state, value, options)?;
    let units = weigh(state, value)?;
    let count = value.len().unwrap_or(0).saturating_add(1);
    pay(state, units.saturating_mul(u64::from(count.ilog2())))
}

/// An attribute can be the name of many, and a place in a text.
fn check_attribute(state: &State<'_, '_>, value: &Value, options: &Kwargs) -> Result<(), Error> {
    let attribute: Option<Value> =
        if options.has("attribute") { options.peek("attribute")? } else { None };
    attribute.map_or(Ok(()), |attribute| check_path(state, value, &attribute))
}

fn check_path(state: &State<'_, '_>, value: &Value, path: &Value) -> Result<(), Error> {
    match path.kind() {
        ValueKind::Number | ValueKind::None | ValueKind::Undefined => {}
        ValueKind::String if path.as_str().is_some_and(|path| path.len() <= MAX_PATH_BYTES) => {}
        _ => return Err(invalid("an attribute is a short text or a number")),
    }
    let bytes = path.as_str().map_or(1, str::len) as u64;
    for item in value.try_iter().into_iter().flatten() {
        let len = item.as_str().map_or(0, str::len) as u64;
        state.consume_fuel(1 + len / 8)?;
        pay(state, bytes.saturating_mul(4))?;
    }
    Ok(())
}

fn groupby(
    state: &State<'_, '_>,
    value: Value,
    attribute: Option<&str>,
    options: Kwargs,
) -> Outcome {
    if let Some(attribute) = attribute {
        check_path(state, &value, &attribute.into())?;
    }
    pay_sort(state, &value, &options)?;
    let groups = filters::groupby(value, attribute, options)?;
    weigh(state, &groups)?;
    Ok(groups)
}

fn sum(
    state: &State<'_, '_>,
    value: Value,
    attribute: Option<&str>,
    start: Option<Value>,
    options: Kwargs,
) -> Outcome {
    if let Some(attribute) = attribute {
        check_path(state, &value, &attribute.into())?;
    }
    check_attribute(state, &value, &options)?;
    let named: Option<Value> = if options.has("start") { options.peek("start")? } else { None };
    let is_number = |value: &Value| value.kind() == ValueKind::Number;
    if !start.iter().chain(&named).all(is_number) {
        return Err(invalid("sum adds numbers"));
    }
    filters::sum(state, value, attribute, start, options)
}

fn batch(state: &State<'_, '_>, value: Value, count: usize, fill_with: Option<Value>) -> Outcome {
    let parts = filters::batch(state, value, count, fill_with)?;
    weigh(state, &parts)?;
    Ok(parts)
}

fn slice(state: &State<'_, '_>, value: Value, count: usize, fill_with: Option<Value>) -> Outcome {
    let parts = filters::slice(state, value, count, fill_with)?;
    weigh(state, &parts)?;
    Ok(parts)
}

/// The list of what the engine would compute later.
fn settled(state: &State<'_, '_>, value: Value) -> Outcome {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        state.consume_fuel(1)?;
        items.push(item?);
    }
    Ok(items.into())
}

fn items(state: &State<'_, '_>, value: &Value) -> Outcome {
    settled(state, filters::items(value)?)
}

fn reverse(state: &State<'_, '_>, value: &Value) -> Outcome {
    pay(state, (value.len().unwrap_or(0) as u64).saturating_mul(32))?;
    settled(state, filters::reverse(value)?)
}

fn attr(state: &State<'_, '_>, value: &Value, key: &Value) -> Outcome {
    weigh(state, key)?;
    filters::attr(value, key)
}

fn replace(state: &mut State<'_, '_>, value: StringInput<'_>, from: &Value, to: &Value) -> Outcome {
    weigh(state, from)?;
    weigh(state, to)?;
    let (from, to) = (StringInput::new(state, from)?, StringInput::new(state, to)?);
    pay(state, value.as_str().len() as u64)?;
    filters::replace(state, value, from, to)
}

/// Looks at what is given on for each item.
fn check_args(
    state: &State<'_, '_>,
    value: &Value,
    args: &Rest<ValueOrKwargs>,
) -> Result<(), Error> {
    if args.len() > MAX_ARGS {
        return Err(invalid("a filter has too many arguments"));
    }
    for arg in args.iter() {
        let is_map = arg.kind() == ValueKind::Map;
        if let Some(options) = is_map.then(|| Kwargs::try_from(Value::clone(arg)).ok()).flatten() {
            check_attribute(state, value, &options)?;
        }
    }
    Ok(())
}

fn map(
    state: &mut State<'_, '_>,
    value: Value,
    args: Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error> {
    check_args(state, &value, &args)?;
    filters::map(state, value, args)
}

fn select(
    state: &mut State<'_, '_>,
    value: Value,
    test: Option<Cow<'_, str>>,
    args: Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error> {
    check_args(state, &value, &args)?;
    filters::select(state, value, test, args)
}

fn reject(
    state: &mut State<'_, '_>,
    value: Value,
    test: Option<Cow<'_, str>>,
    args: Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error> {
    check_args(state, &value, &args)?;
    filters::reject(state, value, test, args)
}

fn selectattr(
    state: &mut State<'_, '_>,
    value: Value,
    attribute: Cow<'_, str>,
    test: Option<Cow<'_, str>>,
    args: Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error> {
    check_path(state, &value, &attribute.as_ref().into())?;
    check_args(state, &value, &args)?;
    filters::selectattr(state, value, attribute, test, args)
}

fn rejectattr(
    state: &mut State<'_, '_>,
    value: Value,
    attribute: Cow<'_, str>,
    test: Option<Cow<'_, str>>,
    args: Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error> {
    check_path(state, &value, &attribute.as_ref().into())?;
    check_args(state, &value, &args)?;
    filters::rejectattr(state, value, attribute, test, args)
}
