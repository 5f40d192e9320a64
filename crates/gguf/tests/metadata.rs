//! The typed getters: what they accept, and what their errors say.

use fucina_gguf::{Array, Error, File, Metadata, Value, Writer};

fn metadata(entries: Vec<(&str, Value)>) -> Metadata {
    let mut writer = Writer::new();
    for (key, value) in entries {
        writer.set(key, value).expect("a valid entry");
    }
    let file = File::from_bytes(writer.to_bytes().expect("memory takes everything"));
    file.expect("a valid file").metadata().clone()
}

fn wrong(key: &str, wanted: &'static str, found: &'static str) -> Error {
    Error::WrongType { file: "<memory>".into(), key: key.into(), wanted, found }
}

fn missing(key: &str) -> Error {
    Error::MissingKey { file: "<memory>".into(), key: key.into() }
}

fn out_of_range(key: &str, value: i128, wanted: &'static str) -> Error {
    Error::OutOfRange { file: "<memory>".into(), key: key.into(), value, wanted }
}

#[test]
fn integers_of_any_width_are_accepted_if_they_fit() {
    let meta = metadata(vec![
        ("u8", 7_u8.into()),
        ("i8", (-7_i8).into()),
        ("u16", 7_u16.into()),
        ("i16", (-7_i16).into()),
        ("u32", u32::MAX.into()),
        ("i32", (-7_i32).into()),
        ("u64", u64::MAX.into()),
        ("i64", i64::MIN.into()),
    ]);
    for key in ["u8", "u16"] {
        assert_eq!(meta.u32(key), Ok(7));
        assert_eq!(meta.i32(key), Ok(7));
        assert_eq!(meta.u64(key), Ok(7));
        assert_eq!(meta.usize(key), Ok(7));
    }
    for key in ["i8", "i16", "i32"] {
        assert_eq!(meta.i32(key), Ok(-7));
        assert_eq!(meta.i64(key), Ok(-7));
        assert_eq!(meta.u32(key), Err(out_of_range(key, -7, "u32")));
        assert_eq!(meta.u64(key), Err(out_of_range(key, -7, "u64")));
        assert_eq!(meta.usize(key), Err(out_of_range(key, -7, "usize")));
    }
    assert_eq!(meta.u32("u32"), Ok(u32::MAX));
    assert_eq!(meta.i32("u32"), Err(out_of_range("u32", u32::MAX.into(), "i32")));
    assert_eq!(meta.u64("u64"), Ok(u64::MAX));
    assert_eq!(meta.i64("u64"), Err(out_of_range("u64", u64::MAX.into(), "i64")));
    assert_eq!(meta.i64("i64"), Ok(i64::MIN));
    let message = meta.u32("i32").unwrap_err().to_string();
    assert_eq!(message, "<memory>: key `i32` is -7, which does not fit u32");
}

#[test]
fn a_missing_key_is_forgiven_only_where_the_caller_says_so() {
    let meta = metadata(vec![]);
    assert!(meta.is_empty());
    assert_eq!(meta.u32("k"), Err(missing("k")));
    assert_eq!(meta.f32("k"), Err(missing("k")));
    assert_eq!(meta.bool("k"), Err(missing("k")));
    assert_eq!(meta.str("k"), Err(missing("k")));
    assert_eq!(meta.str_array("k"), Err(missing("k")));
    assert_eq!(meta.i32_array("k"), Err(missing("k")));
    assert_eq!(meta.f32_array("k"), Err(missing("k")));
    assert_eq!(meta.bool_array("k"), Err(missing("k")));
    assert_eq!(meta.u32_opt("k"), Ok(None));
    assert_eq!(meta.f32_opt("k"), Ok(None));
    assert_eq!(meta.bool_opt("k"), Ok(None));
    assert_eq!(meta.str_opt("k"), Ok(None));
    assert_eq!(meta.str_array_opt("k"), Ok(None));
    assert_eq!(meta.i32_array_opt("k"), Ok(None));
    assert_eq!(meta.f32_array_opt("k"), Ok(None));
    assert_eq!(meta.bool_array_opt("k"), Ok(None));
    assert_eq!(meta.usize_or("k", 3), Ok(3));
    assert_eq!(meta.f32_or("k", 0.5), Ok(0.5));
    assert_eq!(meta.bool_or("k", true), Ok(true));
    assert_eq!(meta.str_or("k", "none"), Ok("none"));
}

#[test]
fn a_wrong_type_is_an_error_in_every_form() {
    let meta = metadata(vec![
        ("text", "4".into()),
        ("number", 4_u32.into()),
        ("real", 4.0_f32.into()),
        ("texts", vec!["4"].into()),
        ("reals", vec![4.0_f32].into()),
    ]);
    assert_eq!(meta.u32("text"), Err(wrong("text", "u32", "str")));
    assert_eq!(meta.u32_opt("text"), Err(wrong("text", "u32", "str")));
    assert_eq!(meta.u32_or("text", 1), Err(wrong("text", "u32", "str")));
    assert_eq!(meta.u64("real"), Err(wrong("real", "u64", "f32")));
    assert_eq!(meta.f32("number"), Err(wrong("number", "f32", "u32")));
    assert_eq!(meta.f32_or("number", 1.0), Err(wrong("number", "f32", "u32")));
    assert_eq!(meta.bool_or("number", true), Err(wrong("number", "bool", "u32")));
    assert_eq!(meta.str_opt("texts"), Err(wrong("texts", "str", "an array of str")));
    assert_eq!(meta.str_array("text"), Err(wrong("text", "an array of str", "str")));
    assert_eq!(meta.i32_array("texts"), Err(wrong("texts", "an array of i32", "an array of str")));
    assert_eq!(meta.i32_array("number"), Err(wrong("number", "an array of i32", "u32")));
    assert_eq!(meta.u64_array("reals"), Err(wrong("reals", "an array of u64", "an array of f32")));
    assert_eq!(meta.f32_array("texts"), Err(wrong("texts", "an array of f32", "an array of str")));
    assert_eq!(meta.bool_array_opt("text"), Err(wrong("text", "an array of bool", "str")));
    let message = meta.u32("text").unwrap_err().to_string();
    assert_eq!(message, "<memory>: key `text` should be u32, but is str");
}

#[test]
fn arrays_are_borrowed_or_widened() {
    let meta = metadata(vec![
        ("i32", vec![-1, 2].into()),
        ("u8", vec![1_u8, 255].into()),
        ("i64", vec![i64::from(i32::MAX) + 1].into()),
        ("f32", vec![0.5_f32].into()),
        ("f64", vec![0.1_f64].into()),
        ("bool", vec![true, false].into()),
    ]);
    let borrowed = meta.i32_array("i32").unwrap();
    assert!(matches!(borrowed, std::borrow::Cow::Borrowed(_)));
    assert_eq!(*borrowed, [-1, 2]);
    assert_eq!(*meta.i32_array("u8").unwrap(), [1, 255]);
    assert_eq!(*meta.u32_array("u8").unwrap(), [1, 255]);
    assert_eq!(*meta.u64_array("i64").unwrap(), [1 << 31]);
    assert_eq!(meta.i32_array("i64"), Err(out_of_range("i64", 1 << 31, "i32")));
    assert_eq!(meta.u32_array("i32"), Err(out_of_range("i32", -1, "u32")));
    assert_eq!(*meta.f32_array("f32").unwrap(), [0.5]);
    assert_eq!(*meta.f32_array("f64").unwrap(), [0.1]);
    assert_eq!(meta.bool_array("bool"), Ok(&[true, false][..]));
}

#[test]
fn entries_keep_the_order_of_the_file() {
    let meta = metadata(vec![("z", 1_u32.into()), ("a", 2_u32.into()), ("m", 3_u32.into())]);
    let keys: Vec<&str> = meta.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["z", "a", "m"]);
    assert_eq!(meta.len(), 3);
    assert_eq!(meta.get("a"), Some(&Value::U32(2)));
    assert!(meta.contains("m") && !meta.contains("b"));
}

#[test]
fn strings_come_back_by_index_and_in_order() {
    let texts = ["", "a", "é", "", "日本", "\0"];
    let meta = metadata(vec![("k", texts.to_vec().into())]);
    let strings = meta.str_array("k").unwrap();
    assert!(strings.iter().eq(texts));
    assert_eq!(strings.iter().len(), 6);
    for (at, text) in texts.into_iter().enumerate() {
        assert_eq!(strings.get(at), Some(text));
    }
    assert_eq!(strings.get(6), None);
    assert_eq!(format!("{strings:?}"), format!("{texts:?}"));
}

#[test]
fn values_are_shown_in_short() {
    let nested = Array::Array(vec![Array::U8(vec![1]), Array::Bool(vec![])]);
    for (value, shown) in [
        (Value::from("plain"), "plain"),
        (Value::from(true), "true"),
        (Value::from(-1.5_f32), "-1.5"),
        (Value::from(vec![1_u8, 2]), "[1, 2]"),
        (Value::from((0..100).collect::<Vec<i32>>()), "[0, 1, 2, 3, 4, 5, .. 100 items]"),
        (Value::from(vec!["a", "b\n"]), r#"["a", "b\n"]"#),
        (Value::from(nested), r#"["an array of u8", "an array of bool"]"#),
        (Value::from(Vec::<u64>::new()), "[]"),
    ] {
        assert_eq!(value.to_string(), shown);
    }
}
