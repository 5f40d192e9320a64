//! Opening: what is not a file, whose tensor it is, and how long the bytes live.

mod common;

use std::io;

use common::folder::Folder;
use fucina_dtype::DType;
use fucina_gguf::{Access, Error, File, Writer};

const ALL: [Access; 3] = [Access::Auto, Access::Mmap, Access::Read];

fn one_tensor(name: &str, ggml_type: u32) -> File {
    let mut writer = Writer::new();
    writer.tensor_ggml(name, ggml_type, &[256], vec![5; 66]).expect("a valid tensor");
    File::from_bytes(writer.to_bytes().expect("memory takes everything")).expect("a valid file")
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = Folder::new("open-not");
    let missing = folder.join("missing.gguf");
    let empty = folder.join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    for access in ALL {
        let error = File::open_with(&missing, access).unwrap_err();
        assert!(matches!(error, Error::Io { kind: io::ErrorKind::NotFound, .. }), "{error}");
        let error = File::open_with(folder.path(), access).unwrap_err();
        assert!(matches!(error, Error::NotAFile { .. }), "{error}");
        let error = File::open_with(&empty, access).unwrap_err();
        assert!(matches!(error, Error::NotGguf { .. }), "{error}");
        assert!(error.to_string().starts_with(&*empty.to_string_lossy()), "{error}");
    }
}

#[test]
#[cfg(unix)]
fn a_device_without_end_is_refused_at_once() {
    for access in ALL {
        let error = File::open_with("/dev/zero", access).unwrap_err();
        assert_eq!(error, Error::NotAFile { file: "/dev/zero".into() });
    }
}

#[test]
fn tensor_data_outlives_the_file() {
    let file = one_tensor("w", 35);
    let data = file.tensor_data(file.tensor("w").unwrap()).unwrap();
    drop(file);
    assert_eq!(data, vec![5; 66]);
}

#[test]
fn tensor_data_is_a_slice_of_the_file_and_not_a_copy() {
    let mut writer = Writer::new();
    writer.tensor("w", DType::F32, &[2], vec![1; 8]).unwrap();
    let contents = writer.to_bytes().unwrap();
    let file = File::from_bytes(contents.clone()).unwrap();
    let info = file.tensor("w").unwrap();
    let data = file.tensor_data(info).unwrap();
    assert_eq!(data.as_ptr(), contents[info.file_offset()..].as_ptr());
}

#[test]
fn a_description_from_another_file_gets_no_bytes() {
    let (file, other) = (one_tensor("w", 35), one_tensor("other", 35));
    let foreign = other.tensor("other").unwrap();
    let expected = Error::ForeignTensor { file: "<memory>".into(), tensor: "other".into() };
    assert_eq!(file.tensor_data(foreign), Err(expected));
    // Same name, other type.
    let (i8s, tq2) = (one_tensor("w", 16), one_tensor("w", 35));
    assert!(matches!(i8s.tensor_data(tq2.tensor("w").unwrap()), Err(Error::ForeignTensor { .. })));
}

#[test]
fn an_unsupported_tensor_type_is_an_error_only_when_it_is_used() {
    let file = one_tensor("w", 16);
    let info = file.tensor("w").unwrap();
    assert_eq!((info.ggml_type(), info.type_name(), info.len_bytes()), (16, "IQ2_XXS", 66));
    let expected = Error::UnsupportedType {
        file: "<memory>".into(),
        tensor: "w".into(),
        ggml_type: 16,
        type_name: "IQ2_XXS",
    };
    assert_eq!(info.dtype(), Err(expected));
    assert_eq!(file.tensor_data(info).unwrap(), vec![5; 66]);
}

#[test]
fn a_tensor_of_unknown_type_reaches_to_the_next_one() {
    use common::raw::{F32, Raw};
    let raw = Raw::header(3, 0)
        .named("odd", &[7], 99, 0)
        .named("known", &[1], F32, 64)
        .named("last", &[7], 99, 96)
        .data(100);
    let file = File::from_bytes(raw.0.into()).unwrap();
    let lens: Vec<usize> = file.tensors().iter().map(|info| info.len_bytes()).collect();
    assert_eq!(lens, [64, 4, 4]);
    let error = file.tensor("odd").unwrap().dtype().unwrap_err().to_string();
    assert_eq!(error, "<memory>: tensor `odd` has the type unknown (99), which is not supported");
}

#[test]
fn the_header_is_what_comes_before_the_first_tensor() {
    let mut writer = Writer::new();
    writer.set("general.architecture", "x").unwrap();
    for (name, byte) in [("a", 1), ("b", 2)] {
        writer.tensor(name, DType::F32, &[10], vec![byte; 40]).unwrap();
    }
    let bytes = writer.to_bytes().unwrap();
    let file = File::from_bytes(bytes.clone()).unwrap();
    let start = file.tensor("a").unwrap().file_offset();
    assert_eq!(file.header_bytes(0), Some(&bytes[..start]));
    assert_eq!(file.header_bytes(1), None);
    let empty = Writer::new().to_bytes().unwrap();
    let file = File::from_bytes(empty.clone()).unwrap();
    assert_eq!(file.header_bytes(0), Some(&empty[..]));
}
