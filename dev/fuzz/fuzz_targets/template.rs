//! Arbitrary templates, from bytes and from pieces of the language, with arbitrary conversations,
//! and stop strings. The body is shared with the test that replays the corpus.

#![no_main]

#[path = "../../../crates/llm/tests/chat_fuzz/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|input: &[u8]| exercise::exercise(input));
