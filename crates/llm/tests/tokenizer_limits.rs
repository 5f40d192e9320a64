//! Long texts and large vocabularies take linear time, and streams never split a character.
//!
//! The time limits are far above what the work takes, also unoptimized and on a busy machine, and
//! far below what a quadratic step on a million items would take (hours).

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::{Duration, Instant};

use fucina_gguf::File;
use fucina_llm::tokenizer::{Bos, ControlTokens, Special, TokenType, Tokenizer, Vocab};
use fucina_testkit::{golden_path, repository_root};

const LIMIT: Duration = Duration::from_secs(30);

fn austen() -> Tokenizer {
    let file = File::open(repository_root().join("crates/cli/assets/austen-q8_0.gguf")).unwrap();
    Tokenizer::from_gguf(file.metadata()).unwrap().0
}

fn qwen2() -> Tokenizer {
    let file = File::open(golden_path("qwen2-vocab.gguf")).unwrap();
    Tokenizer::from_gguf(file.metadata()).unwrap().0
}

#[track_caller]
fn round_trip_in_time(tokenizer: &Tokenizer, text: &str, label: &str) -> Vec<u32> {
    let start = Instant::now();
    let ids = tokenizer.encode(text, Special::Parse, Bos::Never).unwrap();
    assert_eq!(tokenizer.decode(&ids, ControlTokens::Show).unwrap(), text, "{label}");
    let took = start.elapsed();
    assert!(took < LIMIT, "{label}: {took:?}");
    ids
}

#[test]
fn a_megabyte_of_anything_takes_linear_time() {
    let tokenizer = qwen2();
    let mib = 1 << 20;
    for unit in ["a", "(", " ", "\n", "\n ", " \n", "1", "é", "漢", "ab", "the ", "'s", "\u{301}"]
    {
        let text = unit.repeat(mib / unit.len());
        round_trip_in_time(&tokenizer, &text, &format!("{unit:?}"));
    }
    round_trip_in_time(&tokenizer, &"(".repeat(60_000), "60,000 brackets");
    let letters: Vec<char> = ('a'..='z').collect();
    let word: String = (0..mib).map(|i| letters[i * i / 7 % 26]).collect();
    round_trip_in_time(&tokenizer, &word, "a word without spaces");
    round_trip_in_time(&tokenizer, &"<|im_start|>".repeat(mib / 12), "control tokens");
    round_trip_in_time(&tokenizer, &"<|im_star".repeat(mib / 9), "almost control tokens");
}

#[test]
fn ten_thousand_control_tokens_do_not_slow_the_search() {
    let bytes: Vec<String> = (b'!'..=b'~').map(|byte| char::from(byte).to_string()).collect();
    let controls: Vec<String> = (0..10_000).map(|i| format!("<|reserved_{i}|>")).collect();
    let tokens: Vec<&str> = bytes.iter().chain(&controls).map(String::as_str).collect();
    let mut types = vec![TokenType::Normal; bytes.len()];
    types.resize(tokens.len(), TokenType::Control);
    let vocab = Vocab { tokens, types, pre: Some("qwen2"), ..Vocab::default() };
    let start = Instant::now();
    let (tokenizer, _) = Tokenizer::new(&vocab).unwrap();
    let text = "<|reserved_9999|><|reserved_99".repeat(40_000);
    let ids = round_trip_in_time(&tokenizer, &text, "10,000 control tokens");
    assert!(start.elapsed() < LIMIT);
    // The complete one is one token, the rest 13 bytes.
    assert_eq!(ids.len(), 40_000 * 14);
    assert_eq!(u32::try_from(bytes.len()).unwrap() + 9999, ids[0]);
}

#[test]
fn a_stream_of_single_tokens_equals_the_batch() {
    let texts = [
        "plain",
        "👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈",
        "नमस्ते दुनिया",
        "漢字かな e\u{301}",
        "a😀<|im_end|>b\u{10ffff}",
        "\u{80}\u{7ff}\u{800}\u{ffff}\u{10000}",
    ];
    for tokenizer in [austen(), qwen2()] {
        for text in texts {
            let ids = tokenizer.encode(text, Special::Parse, Bos::Never).unwrap();
            for control in [ControlTokens::Show, ControlTokens::Skip] {
                let mut stream = tokenizer.stream(control);
                let mut streamed = String::new();
                for &id in &ids {
                    let piece = stream.push(id).unwrap();
                    assert!(!piece.contains('\u{fffd}'), "{text}: {piece:?}");
                    streamed.push_str(piece);
                }
                assert_eq!(stream.finish(), "");
                assert_eq!(streamed, tokenizer.decode(&ids, control).unwrap());
            }
        }
    }
}

#[test]
fn broken_bytes_stream_like_the_batch() {
    let tokenizer = austen();
    // The tokens of single bytes, so that any byte string can be made.
    let mut byte_ids = [0; 256];
    for id in 0..2048 {
        if let [byte] = tokenizer.token_bytes(id).unwrap() {
            byte_ids[usize::from(*byte)] = id;
        }
    }
    let mut rng = fucina_testkit::Rng::new(7);
    // Bytes that begin, continue or break sequences of every length.
    let pool = [0x41, 0x80, 0xbf, 0xc2, 0xe0, 0xa0, 0xed, 0x9f, 0xf0, 0x90, 0xf4, 0x8f, 0xc0, 0xff];
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..rng.below(10)).map(|_| pool[rng.below(pool.len())]).collect();
        let ids: Vec<u32> = bytes.iter().map(|&byte| byte_ids[usize::from(byte)]).collect();
        let want = String::from_utf8_lossy(&bytes);
        assert_eq!(tokenizer.decode_bytes(&ids, ControlTokens::Skip).unwrap(), bytes);
        assert_eq!(tokenizer.decode(&ids, ControlTokens::Skip).unwrap(), want);
        let mut stream = tokenizer.stream(ControlTokens::Skip);
        let mut streamed = String::new();
        for &id in &ids {
            streamed.push_str(stream.push(id).unwrap());
        }
        streamed.push_str(stream.finish());
        assert_eq!(streamed, want, "{bytes:02x?}");
    }
}

#[test]
fn text_is_held_back_only_while_a_character_is_incomplete() {
    let tokenizer = austen();
    let byte_id =
        |byte: u8| (0..2048).find(|&id| tokenizer.token_bytes(id).unwrap() == [byte]).unwrap();
    let mut stream = tokenizer.stream(ControlTokens::Skip);
    let mut push = |byte| stream.push(byte_id(byte)).unwrap().to_owned();
    let got = [0xf0, 0x9f, 0x98, 0x80, b'x', 0xe2, 0x82, b'y', 0xff].map(&mut push);
    assert_eq!(got, ["", "", "", "😀", "x", "", "", "\u{fffd}y", "\u{fffd}"]);
    push(0xc3);
    assert_eq!(stream.finish(), "\u{fffd}");
}
