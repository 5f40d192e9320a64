//! Values that are NaN or infinite are an error that names where they began, and the session goes
//! on as if nothing had happened.

#![allow(clippy::unwrap_used, reason = "a test: a panic is a failure")]

use bytes::Bytes;
use fucina_gguf::{File, Writer};
use fucina_llm::{Error, Model, SessionOptions, Stage};
use fucina_runtime::{DType, Runtime};
use fucina_testkit::golden_path;

const LAYERS: usize = 4;
const EMBEDDING: &str = "token_embd.weight";

/// The embedded model with an output of its own, and with the values of one tensor changed, which
/// becomes f32.
fn damaged(name: &str, change: impl FnOnce(&mut [f32])) -> Model {
    let file = File::open(golden_path("../crates/cli/assets/austen-q8_0.gguf")).unwrap();
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter() {
        writer.set(key, value.clone()).unwrap();
    }
    let mut change = Some(change);
    for tensor in file.tensors() {
        let (mut dtype, mut data) = (tensor.dtype().unwrap(), file.tensor_data(tensor).unwrap());
        if tensor.name() == name {
            let mut values = vec![0.0; tensor.len_elems()];
            dtype.decode(&data, &mut values).unwrap();
            change.take().unwrap()(&mut values);
            dtype = DType::F32;
            data = Bytes::from(values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>());
        }
        if tensor.name() == EMBEDDING {
            // The damage of a row is not to reach every logit.
            let data = file.tensor_data(tensor).unwrap();
            writer.tensor("output.weight", DType::Q8_0, tensor.shape(), data).unwrap();
        }
        writer.tensor(tensor.name(), dtype, tensor.shape(), data).unwrap();
    }
    assert!(change.is_none(), "no tensor {name}");
    let file = File::from_bytes(writer.to_bytes().unwrap()).unwrap();
    Model::load(&Runtime::builder().threads(1).build().unwrap(), &file, &|_, _| ()).unwrap()
}

/// Prompts of one row, of few rows, of many, and of two batches fail alike.
#[track_caller]
fn fails_at(model: &Model, stage: Stage) {
    let mut session = model.session(&SessionOptions::default().context(None)).unwrap();
    for tokens in [1, 3, 40, 512] {
        let ids = vec![7; tokens];
        let error = session.feed(&ids).unwrap_err();
        assert_eq!(error, Error::NotFinite { stage }, "{tokens} tokens");
        assert_eq!(session.len(), 0);
        assert_eq!(session.feed_all(&ids).unwrap_err(), Error::NotFinite { stage });
    }
}

#[test]
fn the_layer_of_a_damaged_weight_is_named() {
    for layer in 0..LAYERS {
        for (name, value) in [
            ("attn_norm", f32::NAN),
            ("attn_q_norm", f32::NAN),
            ("attn_v", f32::INFINITY),
            ("ffn_norm", f32::NEG_INFINITY),
            ("ffn_down", f32::NAN),
        ] {
            let name = format!("blk.{layer}.{name}.weight");
            fails_at(&damaged(&name, |w| w[5] = value), Stage::Layer(layer));
        }
    }
}

#[test]
fn the_ends_are_named() {
    // One row of the table: the tokens of the prompt.
    let row = |w: &mut [f32]| w[7 * 256..8 * 256].fill(f32::NAN);
    fails_at(&damaged(EMBEDDING, row), Stage::Embedding);
    fails_at(&damaged("output_norm.weight", |w| w[0] = f32::INFINITY), Stage::Output);
}

/// The values are finite in f32, and too large for the cache's f16.
#[test]
fn an_overflow_of_the_cache_is_named() {
    for layer in 0..LAYERS {
        let name = format!("blk.{layer}.attn_v.weight");
        let model = damaged(&name, |w| w.iter_mut().for_each(|w| *w *= 1e7));
        fails_at(&model, Stage::Layer(layer));
    }
}

#[test]
fn a_session_goes_on_after_the_error() {
    let bad = 9;
    let model = damaged(EMBEDDING, |w| w[bad * 256] = f32::NAN);
    let bad = u32::try_from(bad).unwrap();
    let options = SessionOptions::default();
    let mut session = model.session(&options).unwrap();
    session.feed(&[1, 2, 3]).unwrap();
    for ids in [vec![bad], vec![4, bad, 5], vec![bad; 60]] {
        assert!(matches!(session.feed(&ids), Err(Error::NotFinite { .. })));
        assert_eq!(session.len(), 3);
    }
    let mut other = model.session(&options).unwrap();
    other.feed(&[1, 2, 3]).unwrap();
    assert_eq!(session.feed(&[4, 5]).unwrap(), other.feed(&[4, 5]).unwrap());
}
