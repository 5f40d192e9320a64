//! Eight times the text takes about eight times the time, whatever the text: a ratio, so that the
//! speed of the machine does not matter.
//!
//! A step that is quadratic makes the ratio 64. Linear work, the logarithm of the queue (20 steps
//! for 17) and caches that the longer text no longer fits make it 8 to 15. The limit lies in the
//! middle, `8 * sqrt(8)`. The time is that of the thread, not of the clock, where the system tells it: a long run
//! shares its core with other processes where a short one gets it whole. What other processes do
//! to the caches can only slow down a run, so a time is the least of those so far, and a text is
//! only at fault if the ratio is too large after eight runs of each.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::{Duration, Instant};

use fucina_gguf::File;
use fucina_llm::tokenizer::{Algorithm, Bos, Special, TokenType, Tokenizer, Vocab};
use fucina_testkit::{golden_path, thread_time};

const LIMIT: f64 = 22.6;
/// The shorter text, at least.
const LEN: usize = 16 << 10;
/// What the shorter text takes, at least, so that the clock and the system's other work matter
/// little.
const WORK: Duration = Duration::from_millis(1);
const ATTEMPTS: usize = 8;

fn byte_pairs() -> Tokenizer {
    let file = File::open(golden_path("qwen2-vocab.gguf")).unwrap();
    Tokenizer::from_gguf(file.metadata()).unwrap().0
}

/// Pieces of a few letters and of spaces, up to 2048 long, and ten thousand control tokens.
fn pieces() -> Tokenizer {
    let mut tokens: Vec<(String, TokenType, f32)> =
        (0..=u8::MAX).map(|byte| (format!("<0x{byte:02X}>"), TokenType::Byte, 0.0)).collect();
    for letter in ["\u{2581}", "a", "b", "t", "h", "e", "(", "漢"] {
        tokens.push((letter.to_owned(), TokenType::Normal, -1.0));
    }
    for text in ["a", "\u{2581}", "ab", "漢"] {
        // The longest neither first nor last.
        for power in 1..12u8 {
            tokens.push((text.repeat(1 << power), TokenType::Normal, f32::from(power % 5)));
        }
    }
    for number in 0..10_000 {
        tokens.push((format!("<|reserved_{number}|>"), TokenType::Control, 0.0));
    }
    let vocab = Vocab {
        algorithm: Algorithm::SentencePiece,
        tokens: tokens.iter().map(|(text, ..)| &**text).collect(),
        types: tokens.iter().map(|(_, kind, _)| *kind).collect(),
        scores: tokens.iter().map(|(.., score)| *score).collect(),
        ..Vocab::default()
    };
    Tokenizer::new(&vocab).unwrap().0
}

fn time(tokenizer: &Tokenizer, text: &str) -> Duration {
    let (start, before) = (Instant::now(), thread_time());
    let ids = tokenizer.encode(text, Special::Parse, Bos::Never).unwrap();
    let taken = thread_time().zip(before).map(|(after, before)| after - before);
    assert!(!ids.is_empty());
    taken.unwrap_or_else(|| start.elapsed())
}

/// The ratio of the least times. More attempts are made until it is good.
fn ratio(tokenizer: &Tokenizer, unit: &str) -> f64 {
    let mut short = unit.repeat(LEN / unit.len());
    while time(tokenizer, &short) < WORK && short.len() < 1 << 20 {
        short = short.repeat(2);
    }
    let long = short.repeat(8);
    // The allocator keeps the memory of the longer text: neither run pays for fresh pages.
    time(tokenizer, &long);
    let mut least = [Duration::MAX; 2];
    let mut ratio = f64::INFINITY;
    for _ in 0..ATTEMPTS {
        least = [least[0].min(time(tokenizer, &short)), least[1].min(time(tokenizer, &long))];
        ratio = least[1].as_secs_f64() / least[0].as_secs_f64();
        if ratio < LIMIT {
            break;
        }
    }
    ratio
}

/// One letter, all spaces, brackets, line breaks, bytes without a piece, control tokens and what
/// only begins like one.
const UNITS: [&str; 8] =
    ["a", " ", "\n ", "(", "漢", "<|reserved_9999|>", "<|reserved_99", "<|im_start|>a"];

#[test]
fn byte_pairs_take_eight_times_the_time_for_eight_times_the_text() {
    let tokenizer = byte_pairs();
    for unit in UNITS {
        let ratio = ratio(&tokenizer, unit);
        assert!(ratio < LIMIT, "{unit:?}: {ratio:.2}");
    }
}

#[test]
fn pieces_take_eight_times_the_time_for_eight_times_the_text() {
    let tokenizer = pieces();
    for unit in UNITS {
        let ratio = ratio(&tokenizer, unit);
        assert!(ratio < LIMIT, "{unit:?}: {ratio:.2}");
    }
}

/// The rules of several cuts go over the text once for each cut.
#[test]
fn every_pre_tokenizer_takes_eight_times_the_time_for_eight_times_the_text() {
    let bytes: Vec<String> = (b'!'..=b'~').map(|byte| char::from(byte).to_string()).collect();
    // The byte alphabet of GPT-2 for the space, the line break and what 漢 is made of.
    let others = ["Ġ", "Ċ", "æ", "¼", "¢", "Ã", "©"];
    for pre in ["smollm", "llama-bpe", "gpt-4o", "minicpm5"] {
        let tokens = bytes.iter().map(String::as_str).chain(others).collect();
        let vocab = Vocab { tokens, pre: Some(pre), ..Vocab::default() };
        let (tokenizer, _) = Tokenizer::new(&vocab).unwrap();
        assert_eq!(tokenizer.pre_tokenizer(), pre);
        for unit in [" ", "\n ", "aA1 ", "漢"] {
            let ratio = ratio(&tokenizer, unit);
            assert!(ratio < LIMIT, "{pre}, {unit:?}: {ratio:.2}");
        }
    }
}
