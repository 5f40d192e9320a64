//! A saved session with some bytes changed, cut or added. Checksums hold whatever the bytes are
//! (see `saved.rs`), so that the input gets past them.
//!
//! What is refused leaves the session as it was; what is accepted can be used and saved again.

#![no_main]

use std::io::Cursor;
use std::sync::OnceLock;

use bytes::Bytes;
use fucina_gguf::File;
use fucina_llm::{Error, Model, Session, SessionOptions};
use fucina_runtime::{CacheType, Runtime};
use libfuzzer_sys::fuzz_target;

const CONTEXT: usize = 8;
static AUSTEN: &[u8] = include_bytes!("../../../crates/cli/assets/austen-q8_0.gguf");

fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let rt = Runtime::builder().threads(1).build().expect("one thread");
        let file = File::from_bytes(Bytes::from_static(AUSTEN)).expect("a sound file");
        Model::load(&rt, &file, &|_, _| ()).expect("a sound model")
    })
}

fn session(cache: CacheType) -> Session<'static> {
    let options = SessionOptions::default().context(Some(CONTEXT)).cache(cache);
    model().session(&options).expect("a small context")
}

fn saved(session: &Session<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    session.save(&mut bytes).expect("memory takes everything");
    bytes
}

/// A file of a few tokens, for each type.
fn good(cache: CacheType, tokens: usize) -> Vec<u8> {
    static FILES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let files = FILES.get_or_init(|| {
        let mut files = Vec::new();
        for cache in CacheType::ALL {
            let mut session = session(cache);
            files.push(saved(&session));
            for id in 0..3 {
                session.feed(&[id]).expect("there is room");
                files.push(saved(&session));
            }
        }
        files
    });
    let at = CacheType::ALL.iter().position(|&other| other == cache).unwrap_or(0);
    files[at * 4 + tokens].clone()
}

/// `[kind, cut, tail.., (place, place, value)..]`
fn damaged(cache: CacheType, kind: u8, edits: &[u8]) -> Vec<u8> {
    let mut bytes = good(cache, usize::from(kind >> 1 & 3));
    let (edits, rest) = edits.as_chunks::<3>();
    for &[low, high, value] in edits {
        // Most of them in the header and the tokens.
        let place = usize::from(u16::from_le_bytes([low, high & 0x1f]));
        let place = if high & 0x80 == 0 { place % 96 } else { place };
        if let Some(byte) = bytes.get_mut(place) {
            *byte = value;
        }
    }
    match *rest {
        [len] => bytes.truncate(usize::from(len) * 24),
        [byte, count] => bytes.extend(std::iter::repeat_n(byte, usize::from(count))),
        _ => {}
    }
    bytes
}

fuzz_target!(|input: &[u8]| {
    let Some((&kind, edits)) = input.split_first() else { return };
    let cache = CacheType::ALL[usize::from(kind & 1)];
    let bytes = damaged(cache, kind, edits);
    let mut session = session(cache);
    session.feed(&[5, 6]).expect("there is room");
    let before = saved(&session);
    let prompt = (kind & 0x80 != 0).then_some(&[0, 1, 9][..]);
    match session.restore(&mut Cursor::new(&bytes), prompt) {
        Ok(held) => {
            assert_eq!((session.len(), session.tokens().len()), (held, held));
            if prompt.is_none() {
                let again = saved(&session);
                assert_eq!(again[72..again.len() - 16], bytes[72..bytes.len() - 16]);
            }
            // Keys and values may be anything now.
            match session.feed(&[7]) {
                Ok(_) | Err(Error::NotFinite { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        Err(Error::Saved(_)) => assert_eq!(saved(&session), before),
        Err(error) => panic!("{error}"),
    }
});
