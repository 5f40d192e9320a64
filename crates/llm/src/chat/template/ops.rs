//! Operators that take fuel for all that they read and make, and lists that are only lists.
//!
//! Three rules hold for every value that a template makes. A list is written out when it is made:
//! nothing is computed later, so reading it costs its length. A container is nested at most
//! [`MAX_DEPTH`] levels deep and holds no namespace and no loop, so it ends, and so does dropping
//! it. And whoever reads all of a container pays for each way to each value in it, not for each
//! value: two lists that hold the same one pay twice.

use std::cmp::Ordering;

use minijinja::value::{DynObject, Kwargs, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, functions};

use super::repr;

// No template can have a variable of such a name.
pub(super) const ADD: &str = " +";
pub(super) const MUL: &str = " *";
pub(super) const CONCAT: &str = " ~";
pub(super) const EQ: &str = " ==";
pub(super) const NE: &str = " !=";
pub(super) const LT: &str = " <";
pub(super) const LE: &str = " <=";
pub(super) const GT: &str = " >";
pub(super) const GE: &str = " >=";
pub(super) const IN: &str = " in";
pub(super) const ITEM: &str = " item";
pub(super) const SLICE: &str = " slice";
pub(super) const LIST: &str = " list";
pub(super) const TUPLE: &str = " tuple";
pub(super) const MAP: &str = " map";
pub(super) const KWARGS: &str = " kwargs";
pub(super) const KEEP: &str = " keep";
pub(super) const VISIT: &str = " visit";
pub(super) const WEIGH: &str = " weigh";
pub(super) const CHANGED: &str = " changed";
pub(super) const CYCLE: &str = " cycle";

/// Deepest nesting of what a template makes: that of a conversation, and what lists around it.
const MAX_DEPTH: usize = 160;

/// Units of work for one unit of fuel, which also pays for one instruction. One byte is a unit, as
/// in the engine.
const UNITS: u64 = 64;

/// Units for reading one value.
const VALUE_UNITS: u64 = 16;

/// Units for a place in a list. A value takes 24 bytes.
const SLOT_UNITS: u64 = 32;

type Outcome = Result<Value, Error>;

/// Adds the operators to `env`.
pub(super) fn install(env: &mut Environment<'static>) {
    env.add_function(ADD, add);
    env.add_function(MUL, mul);
    env.add_function(CONCAT, concat);
    env.add_function(EQ, equal);
    env.add_function(NE, |state: &State<'_, '_>, a: &Value, b: &Value| Ok(!equal(state, a, b)?));
    env.add_function(LT, |state: &State<'_, '_>, a: &Value, b: &Value| {
        Ok(order(state, a, b)?.is_lt())
    });
    env.add_function(LE, |state: &State<'_, '_>, a: &Value, b: &Value| {
        Ok(order(state, a, b)?.is_le())
    });
    env.add_function(GT, |state: &State<'_, '_>, a: &Value, b: &Value| {
        Ok(order(state, a, b)?.is_gt())
    });
    env.add_function(GE, |state: &State<'_, '_>, a: &Value, b: &Value| {
        Ok(order(state, a, b)?.is_ge())
    });
    env.add_function(IN, contains);
    env.add_function(ITEM, item);
    env.add_function(SLICE, slice);
    env.add_function(LIST, list);
    env.add_function(TUPLE, tuple);
    env.add_function(MAP, map);
    env.add_function(KWARGS, merge_kwargs);
    env.add_function(KEEP, keep);
    env.add_function(VISIT, visit);
    env.add_function(WEIGH, |state: &State<'_, '_>, value: ValueOrKwargs| {
        weigh(state, &value).map(|_| ())
    });
    env.add_function("namespace", namespace);
    env.add_function("dict", dict);
    env.add_function("range", range);
}

pub(super) fn invalid(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// Takes fuel for `units` of work, less than what one instruction costs not counted.
pub(super) fn pay(state: &State<'_, '_>, units: u64) -> Result<(), Error> {
    state.consume_fuel(units / UNITS)
}

/// Fails unless the fuel suffices for `units`, which the engine takes once the value is there.
pub(super) fn ensure(state: &State<'_, '_>, units: u64) -> Result<(), Error> {
    match state.fuel_levels() {
        Some((_, left)) if left <= units / UNITS => state.consume_fuel(u64::MAX),
        _ => Ok(()),
    }
}

fn slots(count: usize) -> u64 {
    (count as u64).saturating_mul(SLOT_UNITS)
}

/// Whether a value is part of the engine's state. It can change, so that it could hold itself.
fn is_live(object: &DynObject) -> bool {
    let name = object.type_name();
    name.ends_with("::Namespace") || name.ends_with("::Loop")
}

/// Takes fuel for all that is in `value`, and returns how much, in units.
///
/// Fails for what no container may hold.
pub(super) fn weigh(state: &State<'_, '_>, value: &Value) -> Result<u64, Error> {
    let mut scale = Scale { state, paid: 0, units: 0 };
    scale.add(value, 0)?;
    scale.pay()?;
    Ok(scale.units)
}

struct Scale<'a> {
    state: &'a State<'a, 'a>,
    paid: u64,
    units: u64,
}

impl Scale<'_> {
    fn pay(&mut self) -> Result<(), Error> {
        let fuel = (self.units - self.paid) / UNITS;
        self.paid += fuel * UNITS;
        if fuel > 0 { self.state.consume_fuel(fuel) } else { Ok(()) }
    }

    fn add(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("a value is nested too deeply"));
        }
        let bytes = value.as_str().map_or(0, str::len) as u64;
        self.units = self.units.saturating_add(VALUE_UNITS + bytes);
        self.pay()?;
        let Some(object) = value.as_object() else { return Ok(()) };
        if is_live(object) {
            return Err(invalid("a namespace or loop cannot be part of a value"));
        }
        match object.repr() {
            ObjectRepr::Map => {
                for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                    self.add(&key, depth + 1)?;
                    self.add(&item, depth + 1)?;
                }
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                for item in object.try_iter().into_iter().flatten() {
                    self.add(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Looks at a value that becomes part of a container.
fn vet(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    // What is no container is a part of nothing but this one.
    if value.as_object().is_some() { weigh(state, value).map(|_| ()) } else { Ok(()) }
}

/// Looks at what a namespace is to hold. Containers were looked at when they were made.
fn keep(value: ValueOrKwargs) -> Result<(), Error> {
    match value.as_object() {
        Some(object) if is_live(object) => {
            Err(invalid("a namespace or loop cannot be part of a value"))
        }
        _ => Ok(()),
    }
}

/// Takes fuel for what a loop does with a value before its first step.
fn visit(state: &State<'_, '_>, value: ValueOrKwargs) -> Result<(), Error> {
    let bytes = value.as_str().map_or(0, str::len) as u64;
    pay(state, bytes)?;
    let items = value.as_object().and_then(|_| value.len()).unwrap_or(0) as u64;
    pay(state, items.saturating_mul(4))
}

fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// The items of a sequence, which were counted before.
fn items(value: &Value) -> impl Iterator<Item = Result<Value, Error>> + use<> {
    value.try_iter().into_iter().flat_map(|items| items.checked())
}

fn length(value: &Value) -> Result<usize, Error> {
    value.len().ok_or_else(|| invalid("a list without a length"))
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    let (a, b) = (a.kind(), b.kind());
    let detail = format!("tried to use {operator} operator on unsupported types {a} and {b}");
    Error::new(ErrorKind::InvalidOperation, detail)
}

fn add(state: &State<'_, '_>, a: &Value, b: &Value) -> Outcome {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        ensure(state, (left.len() + right.len()) as u64)?;
        return Ok([left, right].concat().into());
    }
    if is_sequence(a) && is_sequence(b) && a.is_tuple() == b.is_tuple() {
        ensure(state, slots(length(a)?.saturating_add(length(b)?)))?;
        let all = items(a).chain(items(b)).collect::<Result<Vec<Value>, _>>()?;
        return Ok(if a.is_tuple() { Tuple::from(all).into() } else { all.into() });
    }
    numbers(a, b, "+", i128::checked_add, |a, b| a + b)
}

fn mul(state: &State<'_, '_>, a: &Value, b: &Value) -> Outcome {
    let repeats = |value: &Value| value.as_str().is_some() || is_sequence(value);
    let (what, count) = match (repeats(a), repeats(b)) {
        (true, false) => (a, b),
        (false, true) => (b, a),
        (true, true) => return Err(unsupported("*", a, b)),
        _ => return numbers(a, b, "*", i128::checked_mul, |a, b| a * b),
    };
    let count = whole(count).ok_or_else(|| unsupported("*", a, b))?;
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = what.as_str() {
        ensure(state, (text.len() as u64).saturating_mul(count as u64))?;
        return Ok(text.repeat(if text.is_empty() { 0 } else { count }).into());
    }
    let len = length(what)?;
    ensure(state, slots(len).saturating_mul(count as u64))?;
    let once = items(what).collect::<Result<Vec<Value>, _>>()?;
    let all: Vec<Value> = once.iter().cycle().take(len.saturating_mul(count)).cloned().collect();
    Ok(if what.is_tuple() { Tuple::from(all).into() } else { all.into() })
}

/// A number without a fraction, or a truth value.
fn whole(value: &Value) -> Option<i128> {
    let is_whole = value.kind() == ValueKind::Bool || value.is_integer();
    is_whole.then(|| i128::try_from(value.clone()).ok()).flatten()
}

fn numbers(
    a: &Value,
    b: &Value,
    operator: &str,
    of_whole: fn(i128, i128) -> Option<i128>,
    of_all: fn(f64, f64) -> f64,
) -> Outcome {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(a) || !is_number(b) {
        return Err(unsupported(operator, a, b));
    }
    let number = |value: &Value| match whole(value) {
        #[expect(clippy::cast_precision_loss, reason = "as in Python")]
        Some(whole) => Ok(whole as f64),
        None => f64::try_from(value.clone()),
    };
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => {
            let result = of_whole(a, b).ok_or_else(|| invalid("a number is too large"))?;
            Ok(i64::try_from(result).map_or_else(|_| result.into(), Value::from))
        }
        _ => Ok(of_all(number(a)?, number(b)?).into()),
    }
}

fn concat(state: &State<'_, '_>, a: &Value, b: &Value) -> Outcome {
    let mut out = String::new();
    for value in [a, b] {
        match (value.as_str(), repr::text(state, value)?) {
            (Some(text), _) => {
                ensure(state, (out.len() + text.len()) as u64)?;
                out.push_str(text);
            }
            (None, Some(text)) => out.push_str(&text),
            (None, None) => out.push_str(&value.to_string()),
        }
    }
    Ok(out.into())
}

/// Takes fuel for a comparison.
fn pay_comparison(state: &State<'_, '_>, a: &Value, b: &Value) -> Result<(), Error> {
    match (a.as_str(), b.as_str()) {
        // Many bytes at a time.
        (Some(a), Some(b)) => pay(state, (a.len().min(b.len()) / 16) as u64),
        // They go side by side, so one of them says how far.
        _ if a.as_object().is_some() && b.as_object().is_some() => weigh(state, a).map(|_| ()),
        _ => Ok(()),
    }
}

pub(super) fn equal(state: &State<'_, '_>, a: &Value, b: &Value) -> Result<bool, Error> {
    pay_comparison(state, a, b)?;
    Ok(a == b)
}

pub(super) fn order(state: &State<'_, '_>, a: &Value, b: &Value) -> Result<Ordering, Error> {
    pay_comparison(state, a, b)?;
    Ok(a.cmp(b))
}

pub(super) fn contains(state: &State<'_, '_>, what: &Value, all: &Value) -> Result<bool, Error> {
    if all.is_undefined() {
        return Ok(false);
    }
    if let Some(text) = all.as_str() {
        pay(state, text.len() as u64)?;
        return match (what.as_str(), what.as_object()) {
            (Some(what), _) => Ok(text.contains(what)),
            (None, None) => Ok(text.contains(&what.to_string())),
            _ => Err(invalid("only a text can be in a text")),
        };
    }
    match all.as_object() {
        Some(object) if object.repr() == ObjectRepr::Map => {
            weigh(state, what)?;
            Ok(object.get_value(what).is_some())
        }
        Some(_) if is_sequence(all) => {
            for item in items(all) {
                state.consume_fuel(1)?;
                if equal(state, what, &item?)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(invalid("cannot look for something in a value that holds nothing")),
    }
}

fn item(state: &State<'_, '_>, all: &Value, key: &Value) -> Outcome {
    if let (Some(text), Some(index)) = (all.as_str(), whole(key)) {
        pay(state, text.len() as u64)?;
        let count = if text.is_ascii() { text.len() } else { text.chars().count() };
        let from_end = if index < 0 { i128::try_from(count).unwrap_or(i128::MAX) } else { 0 };
        let Ok(at) = usize::try_from(index.saturating_add(from_end)) else {
            return Ok(Value::UNDEFINED);
        };
        let found = if count == text.len() {
            text.as_bytes().get(at).map(|&byte| char::from(byte))
        } else {
            text.chars().nth(at)
        };
        return Ok(found.map_or(Value::UNDEFINED, Value::from));
    }
    if all.kind() == ValueKind::Iterable {
        pay(state, (all.len().unwrap_or(0) as u64).saturating_mul(VALUE_UNITS))?;
    }
    if key.as_str().is_some() || key.as_object().is_some() {
        weigh(state, key)?;
    }
    all.get_item(key)
}

/// The places of a slice in `len` items, as Python counts them.
fn places(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl ExactSizeIterator<Item = usize> {
    let len = i128::try_from(len).unwrap_or(i128::MAX);
    let step = i128::from(step);
    let (least, most) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |place: i64| {
        let place = i128::from(place);
        (if place < 0 { place + len } else { place }).clamp(least, most)
    };
    let start = start.map_or(if step > 0 { least } else { most }, clamp);
    let stop = stop.map_or(if step > 0 { most } else { least }, clamp);
    let span = if step > 0 { stop - start } else { start - stop };
    let count = if span > 0 { (span - 1) / step.abs() + 1 } else { 0 };
    let count = usize::try_from(count).unwrap_or(0);
    (0..count).map(move |index| {
        let place = start + step * i128::try_from(index).unwrap_or(0);
        usize::try_from(place).unwrap_or(0)
    })
}

fn slice(state: &State<'_, '_>, all: &Value, start: &Value, stop: &Value, step: &Value) -> Outcome {
    let whole = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => i64::try_from(value.clone()).map(Some),
    };
    let (start, stop, step) = (whole(start)?, whole(stop)?, whole(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("cannot slice by step size of 0"));
    }
    if let Some(text) = all.as_str() {
        pay(state, text.len() as u64)?;
        if text.is_ascii() {
            let places = places(text.len(), start, stop, step);
            return Ok(places.map(|at| char::from(text.as_bytes()[at])).collect::<String>().into());
        }
        ensure(state, 4 * text.len() as u64)?;
        let chars: Vec<char> = text.chars().collect();
        let places = places(chars.len(), start, stop, step);
        return Ok(places.map(|at| chars[at]).collect::<String>().into());
    }
    if all.is_none() || all.is_undefined() {
        return Ok(Vec::<Value>::new().into());
    }
    if !is_sequence(all) {
        let detail = format!("value of type {} cannot be sliced", all.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    let len = length(all)?;
    pay(state, (len as u64).saturating_mul(VALUE_UNITS))?;
    ensure(state, slots(len))?;
    let whole = items(all).collect::<Result<Vec<Value>, _>>()?;
    let part: Vec<Value> =
        places(whole.len(), start, stop, step).map(|at| whole[at].clone()).collect();
    Ok(if all.is_tuple() { Tuple::from(part).into() } else { part.into() })
}

fn vetted(state: &State<'_, '_>, items: Rest<ValueOrKwargs>) -> Result<Vec<Value>, Error> {
    ensure(state, slots(items.len()))?;
    let items = items.iter().map(|item| vet(state, item).map(|()| Value::clone(item)));
    items.collect()
}

fn list(state: &State<'_, '_>, items: Rest<ValueOrKwargs>) -> Outcome {
    vetted(state, items).map(Value::from)
}

fn tuple(state: &State<'_, '_>, items: Rest<ValueOrKwargs>) -> Outcome {
    Ok(Tuple::from(vetted(state, items)?).into())
}

fn map(state: &State<'_, '_>, items: Rest<ValueOrKwargs>) -> Outcome {
    let items = vetted(state, items)?;
    let pairs = items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    // A key that is a long text is read to the end.
    for (key, _) in pairs.clone() {
        pay(state, key.as_str().map_or(0, str::len) as u64)?;
    }
    Ok(Value::from_pairs(pairs))
}

fn merge_kwargs(state: &State<'_, '_>, maps: Rest<ValueOrKwargs>) -> Outcome {
    let mut all = Vec::new();
    for map in maps.iter() {
        let object = map.as_object().filter(|object| object.repr() == ObjectRepr::Map);
        let pairs = object.and_then(DynObject::try_iter_pairs);
        for (key, item) in pairs.ok_or_else(|| invalid("`**` takes a dictionary"))? {
            state.consume_fuel(1)?;
            let key = key.as_str().ok_or_else(|| invalid("`**` takes names only"))?;
            pay(state, key.len() as u64)?;
            all.push((key.to_owned(), item));
        }
    }
    Ok(all.into_iter().collect::<Kwargs>().into())
}

fn namespace(state: &State<'_, '_>, initial: Option<ValueOrKwargs>) -> Outcome {
    if let Some(initial) = &initial {
        weigh(state, initial)?;
    }
    functions::namespace(initial)
}

fn dict(state: &State<'_, '_>, all: Option<Value>, more: Kwargs) -> Outcome {
    if let Some(all) = &all {
        weigh(state, all)?;
    }
    for name in more.args() {
        vet(state, &more.peek::<Value>(name)?)?;
    }
    functions::dict(all, more)
}

/// Longest `range`.
const MAX_RANGE: i128 = 100_000;

fn range(start: i64, stop: Option<i64>, step: Option<i64>) -> Outcome {
    let (start, stop) = stop.map_or((0, start), |stop| (start, stop));
    let (first, step) = (i128::from(start), i128::from(step.unwrap_or(1)));
    if step == 0 {
        return Err(invalid("cannot create range with step of 0"));
    }
    let span = (i128::from(stop) - first) * step.signum();
    let count = if span > 0 { (span - 1) / step.abs() + 1 } else { 0 };
    if count > MAX_RANGE {
        return Err(invalid("range has too many elements"));
    }
    let count = usize::try_from(count).unwrap_or(0);
    Ok(Value::make_iterable(move || {
        (0..count).map(move |index| {
            let item = first + step * i128::try_from(index).unwrap_or(0);
            Value::from(i64::try_from(item).unwrap_or(0))
        })
    }))
}

/// The methods of loops that the engine does not bound.
pub(super) fn of_loop(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Option<Outcome> {
    let is_loop = value.as_object().is_some_and(is_live);
    let name = match method {
        CHANGED if is_loop => "changed",
        CYCLE if is_loop && args.is_empty() => return Some(Err(invalid("cycle takes arguments"))),
        CYCLE if is_loop => "cycle",
        _ => return None,
    };
    for arg in args {
        if let Err(error) = weigh(state, arg) {
            return Some(Err(error));
        }
    }
    Some(value.call_method(state, name, args))
}
