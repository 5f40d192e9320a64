//! Saved sessions: bit for bit what was held, and an error with an unchanged session for whatever
//! else a file may be.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test: small numbers, and a panic is a failure"
)]

use std::io::{self, Cursor, Write};

use bytes::Bytes;
use fucina_gguf::{File, Writer};
use fucina_llm::{Error, Model, SavedError, Session, SessionOptions};
use fucina_runtime::{CacheType, Runtime};
use fucina_testkit::golden_path;
use twox_hash::xxhash3_128::Hasher;

/// Bytes of the header, and where things are in it.
const HEADER: usize = 72;
const VERSION: usize = 8;
const TYPE: usize = 12;
const SIZES: usize = 32;
const TOKENS: usize = 48;
const SUM: usize = 56;
/// Keys or values of one token of one layer in f16: two heads of 64 elements.
const ROW: usize = 2 * 64 * 2;
const LAYERS: usize = 4;

fn load(file: &File) -> Model {
    let rt = Runtime::builder().threads(2).build().unwrap();
    Model::load(&rt, file, &|_, _| ()).unwrap()
}

fn file() -> File {
    File::open(golden_path("../crates/cli/assets/austen-q8_0.gguf")).unwrap()
}

fn session(model: &Model, cache: CacheType, context: usize) -> Session<'_> {
    model.session(&SessionOptions::default().context(Some(context)).cache(cache)).unwrap()
}

fn saved(session: &Session<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    session.save(&mut bytes).unwrap();
    bytes
}

fn restore(
    session: &mut Session<'_>,
    bytes: &[u8],
    prompt: Option<&[u32]>,
) -> Result<usize, Error> {
    session.restore(&mut Cursor::new(bytes), prompt)
}

/// Writes both checksums anew.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = Hasher::oneshot(&bytes[..SUM]).to_le_bytes();
    bytes[SUM..HEADER].copy_from_slice(&sum);
    let end = bytes.len() - 16;
    let sum = Hasher::oneshot(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&sum);
    bytes
}

fn greedy(session: &mut Session<'_>, mut id: u32, steps: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    for _ in 0..steps {
        let logits = session.feed(&[id]).unwrap();
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        id = best as u32;
        ids.push(id);
    }
    ids
}

/// Of hundreds of tokens, in both types: the same bits, so the same logits and the same text.
#[test]
fn a_restored_session_goes_on_as_the_saved_one() {
    let model = load(&file());
    let ids: Vec<u32> = (0..300).map(|at| at * 29 % 2000).collect();
    for cache in CacheType::ALL {
        let mut first = session(&model, cache, 512);
        first.feed(&ids).unwrap();
        let bytes = saved(&first);
        let mut second = session(&model, cache, 400);
        second.feed(&[3; 90]).unwrap();
        assert_eq!(restore(&mut second, &bytes, None), Ok(300));
        assert_eq!(second.tokens(), ids);
        assert_eq!(saved(&second), bytes);
        let want = first.feed(&[8, 9]).unwrap();
        assert_eq!(second.feed(&[8, 9]).unwrap(), want, "{cache}");
        assert_eq!(greedy(&mut second, 5, 60), greedy(&mut first, 5, 60), "{cache}");
    }
}

#[test]
fn the_tokens_held_are_known_through_every_change() {
    let model = load(&file());
    let mut session = session(&model, CacheType::F16, 16);
    session.feed(&[1, 2, 3]).unwrap();
    session.feed_all(&[4, 5]).unwrap();
    assert_eq!(session.tokens(), [1, 2, 3, 4, 5]);
    session.truncate(2);
    session.feed(&[6, u32::MAX]).unwrap_err();
    assert_eq!(session.tokens(), [1, 2]);
    assert_eq!(session.feed_with(&[7], &mut |_| false), Ok(None));
    assert_eq!(session.tokens(), [1, 2, 7]);
}

#[test]
fn only_what_the_prompt_begins_with_is_restored() {
    let model = load(&file());
    for cache in CacheType::ALL {
        let mut first = session(&model, cache, 64);
        first.feed(&[1, 2, 3, 4, 5]).unwrap();
        let bytes = saved(&first);
        for (prompt, same) in
            [(&[1, 2, 3, 9][..], 3), (&[1, 2, 3, 4, 5, 6], 5), (&[1], 1), (&[2, 1], 0), (&[], 0)]
        {
            let mut second = session(&model, cache, 64);
            second.feed(&[8; 20]).unwrap();
            assert_eq!(restore(&mut second, &bytes, Some(prompt)), Ok(same));
            assert_eq!(second.tokens(), &[1, 2, 3, 4, 5][..same]);
            first.truncate(same);
            assert_eq!(saved(&second), saved(&first), "{cache} {prompt:?}");
            assert_eq!(second.feed(&[6]).unwrap(), first.feed(&[6]).unwrap());
            restore(&mut first, &bytes, None).unwrap();
        }
    }
}

/// Tries a file on a session that holds tokens; returns the error, after a look at the session.
#[track_caller]
fn refused(session: &mut Session<'_>, bytes: &[u8]) -> SavedError {
    let before = saved(session);
    let error = restore(session, bytes, None).unwrap_err();
    assert!(saved(session) == before, "the session changed: {error}");
    let Error::Saved(error) = error else { panic!("{error}") };
    error
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let model = load(&file());
    let mut holder = session(&model, CacheType::F16, 8);
    holder.feed(&[1, 2, 3]).unwrap();
    let bytes = saved(&holder);
    assert_eq!(bytes.len(), HEADER + 3 * 4 + 3 * 2 * LAYERS * ROW + 16);
    holder.feed(&[4]).unwrap();
    for len in 0..bytes.len() {
        let expected = if len < HEADER { HEADER } else { bytes.len() } as u64;
        let error = refused(&mut holder, &bytes[..len]);
        assert_eq!(error, SavedError::Truncated { expected, found: len as u64 });
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(refused(&mut holder, &longer), SavedError::Damaged { .. }));
    assert_eq!(restore(&mut holder, &bytes, None), Ok(3));
}

#[test]
fn a_change_of_any_byte_is_noticed() {
    let model = load(&file());
    let mut holder = session(&model, CacheType::F16, 8);
    holder.feed(&[1, 2, 3]).unwrap();
    let bytes = saved(&holder);
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let error = refused(&mut holder, &changed);
        let right = match at {
            0..VERSION => error == SavedError::NotASession,
            VERSION..TYPE => matches!(error, SavedError::Version { .. }),
            _ => matches!(error, SavedError::Damaged { .. }),
        };
        assert!(right, "byte {at}: {error}");
    }
}

#[test]
fn foreign_bytes_are_no_session() {
    let model = load(&file());
    let mut holder = session(&model, CacheType::F16, 8);
    holder.feed(&[1, 2]).unwrap();
    let text = b"It is a truth universally acknowledged, that a single man in possession of a \
        good fortune, must be in want of a wife.";
    for bytes in [&text[..], &text[..9], &[0; 200], b"GGUF\x03\0\0\0"] {
        assert_eq!(refused(&mut holder, bytes), SavedError::NotASession);
    }
}

/// Right checksums, and lies under them. Sizes are checked before memory is taken for them.
#[test]
fn lies_under_right_checksums_are_refused() {
    let model = load(&file());
    let mut holder = session(&model, CacheType::F16, 8);
    holder.feed(&[1, 2, 3]).unwrap();
    let bytes = saved(&holder);
    let forged = |at: usize, new: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        sealed(bytes)
    };
    assert_eq!(restore(&mut holder, &sealed(bytes.clone()), None), Ok(3));
    for count in [u64::MAX, u64::MAX / 8, 1 << 61, 1 << 40, 4, 2, 0] {
        let error = refused(&mut holder, &forged(TOKENS, &count.to_le_bytes()));
        let right = matches!(error, SavedError::Damaged { .. } | SavedError::Truncated { .. });
        assert!(right, "{count}: {error}");
    }
    for at in (SIZES..TOKENS).step_by(4) {
        let error = refused(&mut holder, &forged(at, &9_u32.to_le_bytes()));
        assert_eq!(error, SavedError::OtherModel);
    }
    for kind in [0_u32, 2, 14, u32::MAX] {
        let error = refused(&mut holder, &forged(TYPE, &kind.to_le_bytes()));
        assert!(matches!(error, SavedError::Damaged { .. }), "{error}");
    }
    for id in [2048_u32, u32::MAX] {
        let error = refused(&mut holder, &forged(HEADER + 4, &id.to_le_bytes()));
        assert_eq!(error, SavedError::Damaged { what: "a token outside the vocabulary" });
    }
}

#[test]
fn another_type_or_a_smaller_context_is_an_error_that_says_so() {
    let model = load(&file());
    let mut first = session(&model, CacheType::Q8_0, 16);
    first.feed(&[1, 2, 3, 4, 5]).unwrap();
    let bytes = saved(&first);
    let mut other = session(&model, CacheType::F16, 16);
    other.feed(&[7]).unwrap();
    let (found, wanted) = (CacheType::Q8_0, CacheType::F16);
    assert_eq!(refused(&mut other, &bytes), SavedError::OtherType { found, wanted });
    let mut small = session(&model, CacheType::Q8_0, 4);
    small.feed(&[7]).unwrap();
    assert_eq!(refused(&mut small, &bytes), SavedError::TooLong { tokens: 5, context: 4 });
    // The part that is asked for fits.
    assert_eq!(restore(&mut small, &bytes, Some(&[1, 2, 3, 9])), Ok(3));
}

/// A key, a name, or one weight.
#[test]
fn another_model_is_told_by_its_metadata_and_its_weights() {
    let file = file();
    let copy = |key: Option<&str>, tensor: Option<&str>| {
        let mut writer = Writer::new();
        for (name, value) in file.metadata().iter() {
            writer.set(name, value.clone()).unwrap();
        }
        if let Some(key) = key {
            writer.set(key, "other").unwrap();
        }
        for info in file.tensors() {
            let mut data = file.tensor_data(info).unwrap().to_vec();
            if tensor == Some(info.name()) {
                *data.last_mut().unwrap() ^= 1;
            }
            let data = Bytes::from(data);
            writer.tensor(info.name(), info.dtype().unwrap(), info.shape(), data).unwrap();
        }
        load(&File::from_bytes(writer.to_bytes().unwrap()).unwrap())
    };
    let model = copy(None, None);
    let mut first = session(&model, CacheType::F16, 8);
    first.feed(&[1, 2, 3]).unwrap();
    let bytes = saved(&first);
    let same = copy(None, None);
    assert_eq!(restore(&mut session(&same, CacheType::F16, 8), &bytes, None), Ok(3));
    for other in [copy(Some("general.note"), None), copy(None, Some("blk.2.ffn_up.weight"))] {
        let mut session = session(&other, CacheType::F16, 8);
        session.feed(&[1]).unwrap();
        assert_eq!(refused(&mut session, &bytes), SavedError::OtherModel);
    }
}

#[test]
fn a_disk_that_is_full_is_an_error() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(self.0);
            self.0 -= len;
            if len == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(len) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let model = load(&file());
    let mut session = session(&model, CacheType::F16, 8);
    session.feed(&[1, 2, 3]).unwrap();
    for room in [0, 40, HEADER, HEADER + 5, 3000, saved(&session).len() - 1] {
        let error = session.save(&mut Full(room)).unwrap_err();
        let full = io::ErrorKind::StorageFull;
        assert!(matches!(error, Error::Saved(SavedError::Io { kind, .. }) if kind == full));
    }
}
