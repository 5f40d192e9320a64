//! The writer: what it refuses, how it streams, and that a file appears whole or not at all.

mod common;

use std::io;

use common::folder::Folder;
use fucina_dtype::DType;
use fucina_gguf::{Array, Data, Error, File, MAX_ALIGNMENT, MAX_ARRAY_DEPTH, Writer};

fn file() -> std::sync::Arc<str> {
    "<new file>".into()
}

fn names_in(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).expect("the folder is there");
    let names = entries.map(|entry| entry.expect("a readable entry").file_name());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

#[test]
fn what_is_written_is_read_back() {
    let folder = Folder::new("write-read");
    let path = folder.join("model.gguf");
    let q8 = vec![3_u8; 2 * 34];
    let mut writer = Writer::new();
    writer.version(2).unwrap();
    writer.set("general.architecture", "llama").unwrap();
    writer.set("general.alignment", 256_u32).unwrap();
    writer.set("nested", Array::Array(vec![Array::I32(vec![1, -2])])).unwrap();
    writer.tensor("owned", DType::Q8_0, &[32, 2], q8.clone()).unwrap();
    writer.tensor("borrowed", DType::Q8_0, &[64], &q8[..]).unwrap();
    writer
        .tensor("streamed", DType::F32, &[2], Data::from_fn(|out| out.write_all(&[9; 8])))
        .unwrap();
    writer.save(&path).unwrap();

    let file = File::open(&path).unwrap();
    assert_eq!((file.version(), file.alignment()), (2, 256));
    assert_eq!(file.metadata().str("general.architecture"), Ok("llama"));
    for (name, shape, data) in
        [("owned", &[32, 2][..], &q8[..]), ("borrowed", &[64], &q8), ("streamed", &[2], &[9; 8])]
    {
        let info = file.tensor(name).unwrap();
        assert_eq!(info.shape(), shape);
        assert!(info.file_offset().is_multiple_of(256));
        assert_eq!(file.tensor_data(info).unwrap(), data);
    }
    assert!(file.total_bytes().is_multiple_of(256), "the last tensor is padded, too");
    assert_eq!(names_in(&folder), ["model.gguf"]);
}

#[test]
fn a_file_can_be_written_twice() {
    let mut writer = Writer::new();
    writer.tensor("w", DType::F32, &[1], Data::from_fn(|out| out.write_all(&[1; 4]))).unwrap();
    assert_eq!(writer.to_bytes().unwrap(), writer.to_bytes().unwrap());
}

#[test]
fn entries_that_cannot_be_read_back_are_refused() {
    let mut writer = Writer::new();
    let name =
        |what: &str, len_bytes| Error::BadName { file: file(), what: what.into(), len_bytes };
    let alignment = |alignment| Error::BadAlignment { file: file(), alignment };
    let long = "k".repeat(65_536);
    assert_eq!(writer.set("", 1_u32).unwrap_err(), name("a key", 0));
    assert_eq!(writer.set(&long, 1_u32).unwrap_err(), name("a key", 65_536));
    for bad in [0, 24, 2 * MAX_ALIGNMENT as u64] {
        assert_eq!(writer.set("general.alignment", bad).unwrap_err(), alignment(bad));
    }
    assert!(matches!(writer.set("general.alignment", "32"), Err(Error::WrongType { .. })));
    writer.set("k", 1_u32).unwrap();
    let twice = Error::DuplicateKey { file: file(), key: "k".into() };
    assert_eq!(writer.set("k", 2_u32).unwrap_err(), twice);
    let deep = (1..=MAX_ARRAY_DEPTH).fold(Array::U8(vec![]), |inner, _| Array::Array(vec![inner]));
    assert!(matches!(writer.set("deep", deep), Err(Error::NestedTooDeep { .. })));
    assert_eq!(
        writer.version(1).unwrap_err(),
        Error::UnsupportedVersion { file: file(), version: 1 }
    );

    let read = File::from_bytes(writer.to_bytes().unwrap()).unwrap();
    assert_eq!(read.metadata().len(), 1, "a refused entry leaves no trace");
    assert_eq!(read.metadata().u32("k"), Ok(1), "and does not replace another");
    assert_eq!(read.alignment(), 32);
}

#[test]
fn a_second_alignment_is_refused_and_the_first_one_holds() {
    let mut writer = Writer::new();
    writer.set("general.alignment", 64_u32).unwrap();
    assert!(matches!(writer.set("general.alignment", 128_u32), Err(Error::DuplicateKey { .. })));
    writer.tensor("w", DType::F32, &[1], vec![1; 4]).unwrap();
    let file = File::from_bytes(writer.to_bytes().unwrap()).unwrap();
    assert_eq!(file.alignment(), 64);
    // Header, padding, one tensor, padding: twice the alignment, not of 128.
    assert_eq!(file.total_bytes(), 128 + 64);
}

#[test]
fn tensors_that_cannot_be_read_back_are_refused() {
    let tensor = || Box::<str>::from("w");
    let mut writer = Writer::new();
    let mut refused = |dtype, shape: &[usize], len| {
        writer.tensor("w", dtype, shape, vec![0; len]).map(|_| ()).unwrap_err()
    };
    assert_eq!(
        refused(DType::F32, &[1; 5], 4),
        Error::TooManyDims { file: file(), tensor: tensor(), n_dims: 5 }
    );
    assert_eq!(
        refused(DType::F32, &[2, 0], 0),
        Error::ZeroDim { file: file(), tensor: tensor(), shape: [2, 0].into() }
    );
    assert_eq!(
        refused(DType::F32, &[1 << 40, 1 << 40], 0),
        Error::SizeOverflow { file: file(), tensor: tensor(), shape: [1 << 40, 1 << 40].into() }
    );
    assert!(matches!(
        refused(DType::Q8_0, &[16, 2], 34),
        Error::PartialBlock { row_elems: 16, .. }
    ));
    assert_eq!(
        refused(DType::F32, &[2], 7),
        Error::DataLength { file: file(), tensor: tensor(), expected: 8, found: 7 }
    );
    assert_eq!(
        refused(DType::U8, &[2], 2),
        Error::NotInGguf { file: file(), tensor: tensor(), dtype: DType::U8 }
    );
    assert!(matches!(
        writer.tensor_ggml("w", 99, &[1], vec![0]),
        Err(Error::UnsupportedType { ggml_type: 99, .. })
    ));
    assert!(matches!(writer.tensor("", DType::F32, &[1], vec![0; 4]), Err(Error::BadName { .. })));
    writer.tensor("w", DType::F32, &[1], vec![0; 4]).unwrap();
    let twice = Error::DuplicateTensor { file: file(), tensor: tensor() };
    assert_eq!(writer.tensor("w", DType::F32, &[1], vec![0; 4]).unwrap_err(), twice);
}

/// Saves over a file with a tensor of 8 bytes whose function writes something else.
fn failed_save(test: &str, data: Data<'_>) -> Error {
    let folder = Folder::new(test);
    let path = folder.join("model.gguf");
    std::fs::write(&path, b"as it was").expect("the folder is writable");
    let mut writer = Writer::new();
    writer.tensor("w", DType::F32, &[2], data).expect("a valid tensor");
    let error = writer.save(&path).expect_err("the data is wrong");
    assert_eq!(std::fs::read(&path).expect("the file is still there"), b"as it was");
    assert_eq!(names_in(&folder), ["model.gguf"], "no temporary file is left");
    error
}

#[test]
fn a_function_that_writes_too_little_or_too_much_leaves_the_old_file() {
    let found = |error| match error {
        Error::DataLength { expected: 8, found, .. } => found,
        other => panic!("{other}"),
    };
    let short = Data::from_fn(|out| out.write_all(&[0; 5]));
    assert_eq!(found(failed_save("write-short", short)), 5);
    let long = Data::from_fn(|out| (0..3).try_for_each(|_| out.write_all(&[0; 4])));
    assert_eq!(found(failed_save("write-long", long)), 9);
    // A function cannot hide that it wrote too much.
    let hidden = Data::from_fn(|out| {
        let _ = out.write_all(&[0; 9]);
        Ok(())
    });
    assert_eq!(found(failed_save("write-hidden", hidden)), 9);
}

#[test]
fn a_function_that_fails_is_an_error_and_leaves_the_old_file() {
    let error = failed_save("write-failed", Data::from_fn(|_| Err(io::Error::other("no more"))));
    assert!(
        matches!(&error, Error::Io { action: "write", message, .. } if &**message == "no more")
    );
}

#[test]
fn a_folder_that_does_not_exist_is_an_error() {
    let folder = Folder::new("write-nowhere");
    let error = Writer::new().save(folder.join("no/such/model.gguf")).unwrap_err();
    assert!(matches!(error, Error::Io { kind: io::ErrorKind::NotFound, .. }), "{error}");
}

#[test]
fn a_saved_file_can_replace_one_that_is_open() {
    let folder = Folder::new("write-replace");
    let path = folder.join("model.gguf");
    let save = |byte| {
        let mut writer = Writer::new();
        writer.tensor("w", DType::F32, &[1], vec![byte; 4])?.save(&path)
    };
    save(1).unwrap();
    let before = File::open(&path).unwrap();
    save(2).unwrap();
    let after = File::open(&path).unwrap();
    let data = |file: &File| file.tensor_data(file.tensor("w").unwrap()).unwrap()[0];
    assert_eq!((data(&before), data(&after)), (1, 2));
}
