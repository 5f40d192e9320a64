//! Models split over several files.

mod common;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use common::folder::Folder;
use fucina_dtype::DType;
use fucina_gguf::{Error, File, Writer};

/// One part as other tools write them: the first has the metadata of the model.
struct Part {
    no: u16,
    count: u16,
    tensors: i32,
    /// One-element tensors whose data is the length of the name.
    names: &'static [&'static str],
}

impl Part {
    fn bytes(&self) -> Bytes {
        let mut writer = Writer::new();
        let mut build = || {
            if self.no == 0 {
                writer.set("general.architecture", "qwen3")?;
            }
            writer.set("split.no", self.no)?.set("split.count", self.count)?;
            writer.set("split.tensors.count", self.tensors)?;
            for name in self.names {
                let data = name.len().to_le_bytes()[..4].to_vec();
                writer.tensor(name, DType::F32, &[1], data)?;
            }
            writer.to_bytes()
        };
        build().expect("a valid part")
    }
}

const PARTS: [Part; 3] = [
    Part { no: 0, count: 3, tensors: 3, names: &["a"] },
    Part { no: 1, count: 3, tensors: 3, names: &["bb"] },
    Part { no: 2, count: 3, tensors: 3, names: &["ccc"] },
];

fn path_of(folder: &Folder, part: usize) -> PathBuf {
    folder.join(&format!("model-{part:05}-of-00003.gguf"))
}

fn write(folder: &Folder, parts: &[Part]) {
    for (at, part) in parts.iter().enumerate() {
        std::fs::write(path_of(folder, at + 1), part.bytes()).expect("the folder is writable");
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[test]
fn opening_the_first_part_opens_all() {
    let folder = Folder::new("split-all");
    write(&folder, &PARTS);
    let file = File::open(path_of(&folder, 1)).unwrap();
    assert_eq!(file.parts(), 3);
    assert_eq!(file.metadata().str("general.architecture"), Ok("qwen3"));
    let names: Vec<&str> = file.tensors().iter().map(fucina_gguf::TensorInfo::name).collect();
    assert_eq!(names, ["a", "bb", "ccc"]);
    for info in file.tensors() {
        assert_eq!(file.tensor_data(info).unwrap()[0] as usize, info.name().len());
        assert_eq!(info.part(), info.name().len() - 1);
    }
    let lens = PARTS.iter().map(|part| part.bytes().len() as u64);
    assert_eq!(file.total_bytes(), lens.sum::<u64>());
    assert_eq!(file.tensor_bytes(), 12);
}

#[test]
fn a_missing_part_is_named() {
    let folder = Folder::new("split-missing");
    write(&folder, &PARTS);
    std::fs::remove_file(path_of(&folder, 2)).unwrap();
    let first = path_of(&folder, 1);
    let expected = Error::MissingPart {
        file: shown(&first).into(),
        part: 2,
        count: 3,
        part_file: shown(&path_of(&folder, 2)).into(),
    };
    assert_eq!(File::open(first).unwrap_err(), expected);
}

#[test]
fn opening_another_part_says_which_to_open() {
    let folder = Folder::new("split-other");
    write(&folder, &PARTS);
    let third = path_of(&folder, 3);
    let expected = Error::NotFirstPart {
        file: shown(&third).into(),
        part: 3,
        count: 3,
        first: shown(&path_of(&folder, 1)).into(),
    };
    assert_eq!(File::open(third).unwrap_err(), expected);
}

#[test]
fn a_part_of_another_model_is_refused() {
    let folder = Folder::new("split-mixed");
    write(&folder, &PARTS);
    let second = path_of(&folder, 2);
    let mismatch = |what, found, expected| Error::SplitMismatch {
        file: shown(&second).into(),
        what,
        found,
        expected,
    };
    for (part, expected) in [
        (Part { no: 2, count: 3, tensors: 3, names: &["bb"] }, mismatch("split.no", 2, 1)),
        (Part { no: 1, count: 4, tensors: 3, names: &["bb"] }, mismatch("split.count", 4, 3)),
    ] {
        std::fs::write(&second, part.bytes()).unwrap();
        assert_eq!(File::open(path_of(&folder, 1)).unwrap_err(), expected);
    }
}

#[test]
fn a_tensor_in_two_parts_is_refused() {
    let folder = Folder::new("split-twice");
    write(&folder, &PARTS);
    let third = path_of(&folder, 3);
    let part = Part { no: 2, count: 3, tensors: 3, names: &["a"] };
    std::fs::write(&third, part.bytes()).unwrap();
    let expected = Error::DuplicateTensor { file: shown(&third).into(), tensor: "a".into() };
    assert_eq!(File::open(path_of(&folder, 1)).unwrap_err(), expected);
}

#[test]
fn fewer_tensors_than_promised_are_refused() {
    let folder = Folder::new("split-fewer");
    write(&folder, &PARTS);
    let part = Part { no: 2, count: 3, tensors: 3, names: &[] };
    std::fs::write(path_of(&folder, 3), part.bytes()).unwrap();
    let first = path_of(&folder, 1);
    let expected = Error::SplitMismatch {
        file: shown(&first).into(),
        what: "the number of tensors",
        found: 2,
        expected: 3,
    };
    assert_eq!(File::open(first).unwrap_err(), expected);
}

#[test]
fn a_renamed_first_part_is_refused_with_the_name_it_needs() {
    let folder = Folder::new("split-renamed");
    let path = folder.join("model.gguf");
    std::fs::write(&path, PARTS[0].bytes()).unwrap();
    let error = File::open(&path).unwrap_err();
    assert_eq!(error, Error::SplitName { file: shown(&path).into(), count: 3 });
    assert!(error.to_string().contains("NAME-00001-of-00003.gguf"), "{error}");
}

#[test]
fn a_damaged_part_is_named_in_the_error() {
    let folder = Folder::new("split-damaged");
    write(&folder, &PARTS);
    let second = path_of(&folder, 2);
    std::fs::write(&second, b"GGUF\x01\0\0\0").unwrap();
    let expected = Error::UnsupportedVersion { file: shown(&second).into(), version: 1 };
    assert_eq!(File::open(path_of(&folder, 1)).unwrap_err(), expected);
}

#[test]
fn one_part_in_memory_is_not_a_model() {
    let error = File::from_bytes(PARTS[0].bytes()).unwrap_err();
    assert_eq!(error, Error::SplitInMemory { file: "<memory>".into(), part: 1, count: 3 });
}

#[test]
fn a_split_into_one_part_is_an_ordinary_file() {
    let only = Part { no: 0, count: 1, tensors: 1, names: &["a"] };
    let file = File::from_bytes(only.bytes()).unwrap();
    assert_eq!((file.parts(), file.tensors().len()), (1, 1));
}

#[test]
fn absurd_split_keys_are_refused() {
    let folder = Folder::new("split-absurd");
    let path = folder.join("model-00001-of-00003.gguf");
    for (no, count) in [(0_u64, u64::MAX), (u64::MAX, u64::MAX), (1, 0), (7, 3)] {
        let mut writer = Writer::new();
        writer.set("split.no", no).unwrap().set("split.count", count).unwrap();
        writer.save(&path).unwrap();
        let error = File::open(&path).unwrap_err();
        let refused = matches!(
            error,
            Error::SplitName { .. } | Error::NotFirstPart { .. } | Error::SplitMismatch { .. }
        );
        assert!(refused, "{no} of {count}: {error}");
    }
}
