//! Metadata values as the bytes that the header has for them.

use crate::value::{Array, Value};

/// Levels of arrays inside arrays.
pub(crate) fn depth(array: &Array) -> usize {
    match array {
        Array::Array(inner) => 1 + inner.iter().map(depth).max().unwrap_or(0),
        _ => 1,
    }
}

pub(crate) fn put_str(out: &mut Vec<u8>, string: &str) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend(string.as_bytes());
}

pub(crate) fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::Str(v) => put_str(out, v),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

pub(crate) fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.type_id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(items) => out.extend(items),
        Array::I8(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::U16(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::I16(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::U32(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::I32(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::F32(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::Bool(items) => out.extend(items.iter().map(|&v| u8::from(v))),
        Array::Str(items) => items.view().iter().for_each(|string| put_str(out, string)),
        Array::Array(items) => items.iter().for_each(|inner| put_array(out, inner)),
        Array::U64(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::I64(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::F64(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
    }
}
