//! The types of the key/value cache on whole models: what 8 bits change, over a long context, at its
//! edge, and after tokens were forgotten.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test: small numbers, and a panic is a failure"
)]

use fucina_gguf::File;
use fucina_llm::{Error, Model, SessionOptions};
use fucina_runtime::{CacheType, Runtime};
use fucina_testkit::golden_path;

const CONTEXT: usize = 512;

fn austen() -> Model {
    let rt = Runtime::builder().threads(2).build().unwrap();
    let file = File::open(golden_path("../crates/cli/assets/austen-q8_0.gguf")).unwrap();
    Model::load(&rt, &file, &|_, _| ()).unwrap()
}

fn options(cache: CacheType) -> SessionOptions {
    SessionOptions::default().context(Some(CONTEXT)).cache(cache)
}

fn ids(count: usize) -> Vec<u32> {
    (0..count as u32).map(|at| at * 29 % 2000).collect()
}

/// Root of the mean square of the differences, over the standard deviation of `want`.
fn relative_rms(got: &[f32], want: &[f32]) -> f64 {
    let len = want.len() as f64;
    let mean = want.iter().map(|&x| f64::from(x)).sum::<f64>() / len;
    let variance = want.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
    let difference: f64 =
        got.iter().zip(want).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    (difference / variance).sqrt()
}

/// Rounding keys and values to 8 bits in blocks of 32 is the rounding that every product makes of
/// its activations, so the logits move by no more than the bound of those (2.5 % rms; see the
/// parity tests), at the beginning and after hundreds of tokens.
#[test]
fn eight_bits_change_the_logits_little_at_any_depth() {
    let model = austen();
    let ids = ids(CONTEXT);
    let logits = |cache| {
        let mut session = model.session(&options(cache)).unwrap();
        let mut all = session.feed_all(&ids[..CONTEXT - 40]).unwrap();
        // The last ones row by row: the other path of attention.
        for id in &ids[CONTEXT - 40..] {
            all.extend(session.feed(&[*id]).unwrap());
        }
        all
    };
    let (want, got) = (logits(CacheType::F16), logits(CacheType::Q8_0));
    assert!(got != want, "the cache is another one");
    let vocab = model.info().vocab;
    for (at, (got, want)) in got.chunks(64 * vocab).zip(want.chunks(64 * vocab)).enumerate() {
        let error = relative_rms(got, want);
        assert!(error < 0.025, "positions from {}: {error}", 64 * at);
    }
}

#[test]
fn memory_is_what_the_type_takes() {
    let model = austen();
    let bytes = |cache| model.session(&options(cache)).unwrap().cache_bytes();
    assert_eq!(bytes(CacheType::F16), CONTEXT * 4 * (2 + 2) * 64 * 2);
    assert_eq!(bytes(CacheType::Q8_0), CONTEXT * 4 * (2 + 2) * 64 / 32 * 34);
}

/// To the last position, then back and to it again: the same bits.
#[test]
fn the_edge_of_the_context_is_reached_and_reached_again() {
    let model = austen();
    let ids = ids(CONTEXT);
    for cache in CacheType::ALL {
        let mut session = model.session(&options(cache)).unwrap();
        session.feed(&ids[..CONTEXT - 9]).unwrap();
        let want = session.feed(&ids[CONTEXT - 9..]).unwrap();
        assert_eq!(session.len(), CONTEXT);
        let error = session.feed(&[1]).unwrap_err();
        assert_eq!(error, Error::PromptTooLong { prompt: 1, held: CONTEXT, context: CONTEXT });
        session.truncate(100);
        session.feed(&[5; 20]).unwrap();
        session.truncate(100);
        session.feed(&ids[100..CONTEXT - 9]).unwrap();
        let again = session.feed(&ids[CONTEXT - 9..]).unwrap();
        let error = relative_rms(&again, &want);
        // Other batches, so other orders of sums: the rounding of activations may fall otherwise.
        assert!(error < 0.025, "{cache}: {error}");
        session.truncate(CONTEXT - 9);
        assert_eq!(session.feed(&ids[CONTEXT - 9..]).unwrap(), again, "{cache}");
    }
}
