//! Damaged models: whatever is wrong with one, the command ends with a code and a sentence.

#![cfg(test)]

mod common;

use std::ops::Range;

use common::{Done, asset, call, file};
use fucina::gguf::{File, Writer};
use fucina_testkit::Rng;

/// Ended by itself, with a code that fits, and without the words of a panic.
#[track_caller]
fn ended_well(done: &Done, what: &str) {
    assert!(matches!(done.code, Some(0 | 1 | 3 | 4)), "{what}: {done:?}");
    if done.code == Some(0) {
        assert!(!done.stderr.contains("panicked"), "{what}: {done:?}");
    } else {
        done.says(&[]);
    }
}

/// Spoils one to four bytes of a range, many times, and runs and inspects the result.
fn spoil(name: &str, range: &Range<usize>, rounds: usize) {
    let whole = std::fs::read(asset()).unwrap();
    let mut rng = Rng::new(7);
    let mut refused = 0;
    for round in 0..rounds {
        let mut bytes = whole.clone();
        let mut what = format!("{name} {round}:");
        for _ in 0..=rng.below(4) {
            let at = range.start + rng.below(range.len());
            let values = [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at] ^ 0x10];
            let value = values[rng.below(values.len())];
            bytes[at] = value;
            what.push_str(&format!(" {at}={value}"));
        }
        let path = file(&format!("spoilt-{name}.gguf"), &bytes);
        let done = call(&["run", &path, "It is", "-n", "2", "-q"]);
        ended_well(&done, &what);
        refused += usize::from(done.code != Some(0));
        if round % 4 == 0 {
            ended_well(&call(&["inspect", &path, "--check"]), &what);
        }
    }
    println!("{name}: {refused} of {rounds} refused");
}

#[test]
fn spoilt_metadata_ends_well() {
    // Up to the vocabulary, which is most of the header and is spoilt below.
    let bytes = std::fs::read(asset()).unwrap();
    let key = b"tokenizer.ggml.tokens";
    let end = bytes.windows(key.len()).position(|window| window == key).unwrap();
    spoil("metadata", &(0..end + key.len() + 40), 120);
}

#[test]
fn a_spoilt_vocabulary_ends_well() {
    let start = bytes_before("tokenizer.ggml.tokens");
    spoil("vocabulary", &(start..bytes_before("general.quantization_version")), 60);
}

#[test]
fn spoilt_tensor_descriptions_end_well() {
    let start = bytes_before("general.quantization_version");
    let first = File::open(asset()).unwrap();
    let end = first.tensors().iter().map(fucina::gguf::TensorInfo::file_offset).min().unwrap();
    spoil("tensors", &(start..end), 120);
}

#[test]
fn spoilt_weights_end_well() {
    let len = std::fs::read(asset()).unwrap().len();
    spoil("weights", &(len - 3_800_000..len), 40);
}

fn bytes_before(key: &str) -> usize {
    let bytes = std::fs::read(asset()).unwrap();
    bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap()
}

#[test]
fn a_missing_tensor_and_a_wrong_shape_are_named() {
    let source = File::open(asset()).unwrap();
    for victim in ["blk.2.ffn_up.weight", "output_norm.weight"] {
        for missing in [true, false] {
            let mut writer = Writer::new();
            for (key, value) in source.metadata().iter() {
                writer.set(key, value.clone()).unwrap();
            }
            for info in source.tensors() {
                let mut shape = info.shape().to_vec();
                let mut data = source.tensor_data(info).unwrap();
                if info.name() == victim {
                    if missing {
                        continue;
                    }
                    // Half of the rows, or of the vector.
                    *shape.last_mut().unwrap() /= 2;
                    data.truncate(data.len() / 2);
                }
                writer.tensor(info.name(), info.dtype().unwrap(), &shape, data).unwrap();
            }
            let path = file("incomplete.gguf", &writer.to_bytes().unwrap());
            call(&["run", &path, "x"]).failed(3, &[victim]);
        }
    }
}
