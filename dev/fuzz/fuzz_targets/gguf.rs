//! Arbitrary bytes as a GGUF file. What opens is read through every getter, written, and read
//! again. The body is shared with the test that replays the corpus.

#![no_main]

#[path = "../../../crates/gguf/tests/common/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|contents: &[u8]| exercise::exercise(contents));
