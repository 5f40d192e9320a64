//! The embedded model and the oracle models, as goldens of real files.

use std::path::{Path, PathBuf};

use fucina_dtype::DType;
use fucina_gguf::{Access, AccessUsed, File, Writer};

fn austen() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/assets/austen-q8_0.gguf")
}

#[test]
fn the_embedded_model_has_its_known_metadata_and_tensors() {
    let file = File::open(austen()).unwrap();
    assert_eq!(file.version(), 3);
    assert_eq!(file.alignment(), 32);
    assert_eq!(file.total_bytes(), 3_974_880);
    let meta = file.metadata();
    assert_eq!(meta.str("general.architecture").unwrap(), "qwen3");
    assert_eq!(meta.usize("qwen3.block_count").unwrap(), 4);
    assert_eq!(meta.usize("qwen3.embedding_length").unwrap(), 256);
    assert_eq!(meta.usize("qwen3.attention.head_count").unwrap(), 4);
    assert_eq!(meta.usize("qwen3.attention.head_count_kv").unwrap(), 2);
    assert_eq!(meta.usize("qwen3.context_length").unwrap(), 512);
    let tokens = meta.str_array("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.len(), 2048);
    assert!(tokens.iter().eq((0..2048).map(|i| tokens.get(i).unwrap())));
    let types = meta.i32_array("tokenizer.ggml.token_type").unwrap();
    assert_eq!(types.len(), 2048);

    let embedding = file.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.shape_row_major(), [2048, 256]);
    assert_eq!(embedding.dtype().unwrap(), DType::Q8_0);
    assert_eq!(embedding.len_bytes(), 2048 * 256 / 32 * 34);
    let norm = file.tensor("output_norm.weight").unwrap();
    assert_eq!((norm.shape(), norm.dtype().unwrap()), (&[256][..], DType::F32));
}

#[test]
fn tensor_data_is_the_same_bytes_mapped_read_or_given() {
    let contents = std::fs::read(austen()).unwrap();
    let mapped = File::open_with(austen(), Access::Mmap).unwrap();
    let read = File::open_with(austen(), Access::Read).unwrap();
    let given = File::from_bytes(contents.clone().into()).unwrap();
    assert_eq!(mapped.access(), &AccessUsed::Mapped);
    assert_eq!(read.access(), &AccessUsed::ReadAsAsked);
    assert_eq!(given.access(), &AccessUsed::Given);
    for info in mapped.tensors() {
        let expected = &contents[info.file_offset()..][..info.len_bytes()];
        assert_eq!(mapped.tensor_data(info).unwrap(), expected);
        for other in [&read, &given] {
            let theirs = other.tensor(info.name()).unwrap();
            assert_eq!(other.tensor_data(theirs).unwrap(), expected);
        }
    }
}

/// Everything in `file`, written again.
fn rewritten(file: &File) -> bytes::Bytes {
    let mut writer = Writer::new();
    writer.version(file.version()).expect("a version that was read");
    for (key, value) in file.metadata().iter() {
        writer.set(key, value.clone()).expect("an entry that was read");
    }
    for info in file.tensors() {
        let data = file.tensor_data(info).expect("a listed tensor has data");
        let (name, id) = (info.name(), info.ggml_type());
        writer.tensor_ggml(name, id, info.shape(), data).expect("a tensor that was read");
    }
    writer.to_bytes().expect("memory takes everything")
}

/// The file was written by another implementation, so this checks the writer as much as the reader.
#[test]
fn the_embedded_model_is_written_again_byte_for_byte() {
    let file = File::open(austen()).unwrap();
    assert!(rewritten(&file) == std::fs::read(austen()).unwrap());
}

#[test]
fn every_oracle_model_opens_and_is_written_again_byte_for_byte() {
    let test = "every_oracle_model_opens_and_is_written_again_byte_for_byte";
    let Some(oracles) = fucina_testkit::oracles_dir(test) else { return };
    let mut opened = 0;
    for entry in std::fs::read_dir(oracles.join("models")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        let file = File::open(&path).unwrap();
        assert!(!file.tensors().is_empty());
        for info in file.tensors() {
            assert!(info.dtype().is_ok(), "{}: {}", path.display(), info.type_name());
        }
        assert!(rewritten(&file) == std::fs::read(&path).unwrap(), "{}", path.display());
        opened += 1;
    }
    assert!(opened > 0, "no models in {}", oracles.display());
}
