//! Faults that GGUF readers are known to have had. The classes keep the numbers of the list in
//! which they were collected; 3 and 6 are not about files.

mod common;

use common::cases::{self, Case};
use common::exercise::exercise;
use common::raw::{self, Raw};
use fucina_gguf::{Access, AccessUsed, Error, File};

/// Opens every case of one class and compares the whole error.
fn check(class: &str) {
    let cases: Vec<Case> =
        cases::all().into_iter().filter(|case| case.name.starts_with(class)).collect();
    assert!(!cases.is_empty(), "{class}");
    for Case { name, bytes, expected } in cases {
        exercise(&bytes);
        assert_eq!(File::from_bytes(bytes.into()).map(|_| ()), expected, "{name}");
    }
}

#[test]
fn e01_a_size_that_wraps_is_refused() {
    check("e01");
}

#[test]
fn e02_an_offset_that_wraps_is_refused() {
    check("e02");
}

#[test]
fn e04_absurd_dimension_counts_and_alignments_are_refused() {
    check("e04");
}

#[test]
fn e05_zero_dimensions_and_empty_names_are_refused() {
    check("e05");
}

#[test]
fn e07_padding_and_the_alignment_key_cannot_mislead() {
    check("e07");
}

#[test]
fn e08_counts_are_bounded_by_the_file_and_nesting_by_a_limit() {
    check("e08");
}

#[test]
fn e09_element_counts_that_wrap_are_refused() {
    check("e09");
}

#[test]
fn e10_crafted_files_are_refused_with_the_reason() {
    check("e10");
}

#[test]
fn e11_truncated_files_are_refused() {
    check("e11");
}

#[test]
fn e12_other_byte_orders_versions_and_formats_are_named() {
    check("e12");
}

#[test]
fn e15_an_unknown_architecture_is_metadata_like_any_other() {
    check("e15");
}

#[test]
fn e16_not_a_number_is_passed_on_bit_by_bit() {
    check("e16");
    let case = cases::all().into_iter().find(|case| case.name.starts_with("e16")).unwrap();
    let file = File::from_bytes(case.bytes.into()).unwrap();
    assert_eq!(file.metadata().f32("k").unwrap().to_bits(), 0x7fc0_1234);
}

#[test]
fn sound_files_open() {
    check("sound");
}

/// Metadata of several types, two tensors, no padding at the end.
fn sound() -> Vec<u8> {
    Raw::header(2, 4)
        .key("general.architecture", raw::STR)
        .str(b"qwen3")
        .entry_u32("general.alignment", 64)
        .key("tokens", raw::ARRAY)
        .u32(raw::STR)
        .u64(3)
        .str(b"a")
        .str(b"")
        .str(b"cd")
        .key("flag", raw::BOOL)
        .bytes(&[1])
        .named("first", &[32, 2], raw::Q8_0, 0)
        .named("second", &[4, 4], raw::F32, 128)
        .pad(64)
        .bytes(&[1; 68])
        .pad(64)
        .bytes(&[2; 64])
        .0
}

#[test]
fn e11_a_file_cut_at_any_byte_is_refused() {
    let whole = sound();
    assert!(File::from_bytes(whole.clone().into()).is_ok());
    for len in 0..whole.len() {
        let error = File::from_bytes(whole[..len].to_vec().into()).unwrap_err();
        let as_it_should = matches!(
            error,
            Error::NotGguf { .. }
                | Error::Truncated { .. }
                | Error::CountTooLarge { .. }
                | Error::OutOfBounds { .. }
        );
        assert!(as_it_should, "{len} bytes: {error}");
    }
}

#[test]
fn e11_a_file_cut_at_a_tensor_edge_names_the_tensor() {
    let whole = sound();
    let file = File::from_bytes(whole.clone().into()).unwrap();
    for name in ["first", "second"] {
        let info = file.tensor(name).unwrap();
        let (start, end) = (info.file_offset(), info.file_offset() + info.len_bytes());
        for len in [start - 1, start, start + 1, end - 1] {
            let error = File::from_bytes(whole[..len].to_vec().into()).unwrap_err();
            let Error::OutOfBounds { tensor, .. } = &error else {
                panic!("{name} cut to {len} bytes: {error}");
            };
            assert_eq!(&**tensor, name);
        }
    }
}

#[test]
fn e13_a_missing_tensor_is_an_error_that_names_it() {
    let file = File::from_bytes(sound().into()).unwrap();
    let error = file.tensor("blk.0.attn_q.weight").unwrap_err();
    let expected =
        Error::MissingTensor { file: "<memory>".into(), tensor: "blk.0.attn_q.weight".into() };
    assert_eq!(error, expected);
    assert_eq!(error.to_string(), "<memory>: tensor `blk.0.attn_q.weight` is missing");
    assert_eq!(file.tensor_opt("blk.0.attn_q.weight"), None);
}

#[test]
fn e14_how_the_file_is_accessed_is_reported() {
    let path = std::env::temp_dir().join(format!("fucina-gguf-e14-{}.gguf", std::process::id()));
    std::fs::write(&path, sound()).unwrap();
    let used = |access| File::open_with(&path, access).unwrap().access().clone();
    assert_eq!(used(Access::Auto), AccessUsed::Mapped);
    assert_eq!(used(Access::Mmap), AccessUsed::Mapped);
    assert_eq!(used(Access::Read), AccessUsed::ReadAsAsked);
    assert_eq!(used(Access::Read).to_string(), "read into memory, as asked");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_corpus_of_the_fuzz_target_never_panics() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/fuzz/corpus/gguf");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        exercise(&std::fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files >= cases::all().len());
}

#[test]
fn the_committed_corpus_is_what_the_example_writes() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/fuzz/corpus/gguf");
    for case in cases::all() {
        assert!(case.bytes.len() < 2048, "{} is too long for a seed", case.name);
        let committed = std::fs::read(folder.join(case.name)).unwrap_or_default();
        assert_eq!(committed, case.bytes, "{}: run the example fuzz_corpus", case.name);
    }
}
