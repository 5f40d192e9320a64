//! The tiny model against the definition, and what damaged files give.
//!
//! Bound. Weights and activations are f32 on our side, so a product of up to 64 terms is off by
//! about `sqrt(64) * 2^-25` of its size. From one layer to the next lie about ten such steps, in
//! seven layers 70: in all `sqrt(70 * 64) * 2^-25`, 2.0e-6 of the standard deviation. That error
//! also moves a few keys and values over the middle between two numbers of f16, which the
//! definition rounds to as well. The numbers are up to 2^-10 apart, so the share of elements that
//! jump is about `2.0e-6 / 2^-11`, 0.4 %; the rms of the jumps is `sqrt(0.004) * 2^-11`, 3.1e-5 of
//! an element, and 14 of them, keys and values of each layer, add up to 1.2e-4. The bound of the
//! rms is the sum; the largest of 6256 differences may be six times as much.

use fucina_gguf::Value;
use fucina_llm::{Error, Model, SessionOptions};
use fucina_runtime::Runtime;

use crate::definition::{Rules, gelu_erf, logits, silu};
use crate::tiny::{LAYERS, Tiny, VOCAB};

const RMS: f64 = 2.0e-6 + 1.2e-4;
/// More than four windows, and not a multiple of one.
const TOKENS: usize = 23;

fn tokens() -> Vec<u32> {
    (0..TOKENS).map(|at| u32::try_from((at * at * 7 + 3 * at + 1) % VOCAB).unwrap()).collect()
}

fn load(tiny: &Tiny, changes: &[(&str, Option<Value>)]) -> Result<Model, Error> {
    let rt = Runtime::builder().threads(2).build().unwrap();
    Model::load(&rt, &tiny.file(changes, ""), &|_, _| ())
}

/// Rms and largest difference, as parts of the standard deviation of `want`.
fn difference(got: &[f32], want: &[f64]) -> (f64, f64) {
    assert_eq!(got.len(), want.len());
    let n = want.len() as f64;
    let mean = want.iter().sum::<f64>() / n;
    let std = (want.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    let errors = || got.iter().zip(want).map(|(&a, &b)| (f64::from(a) - b).abs() / std);
    let rms = (errors().map(|error| error * error).sum::<f64>() / n).sqrt();
    assert!(rms.is_finite());
    (rms, errors().fold(0.0, f64::max))
}

#[track_caller]
fn assert_agree(got: &[f32], want: &[f64], label: &str) {
    let (rms, max) = difference(got, want);
    println!("{label}: rms {rms:.2e} (bound {RMS:.2e}), max {max:.2e}");
    assert!(rms <= RMS && max <= 6.0 * RMS, "{label}: rms {rms}, max {max}, bound {RMS}");
}

fn all_logits(model: &Model) -> Vec<f32> {
    model.session(&SessionOptions::default()).unwrap().feed_all(&tokens()).unwrap()
}

#[test]
fn a_tiny_random_model_matches_the_definition() {
    for (half, label) in [(false, "f32"), (true, "f16")] {
        let tiny = Tiny::new(half);
        let model = load(&tiny, &[]).unwrap();
        assert_eq!(model.info().unused_tensors, Vec::<String>::new());
        let want = logits(&tiny, &Rules::right(), &tokens());
        assert_agree(&all_logits(&model), &want, label);
        // In parts of every kind: one token, within a window, and beyond one.
        let mut session = model.session(&SessionOptions::default()).unwrap();
        let (mut got, mut rest) = (Vec::new(), tokens());
        for part in [1, 1, 2, 7, 1, 11] {
            let after = rest.split_off(part);
            got.extend(session.feed_all(&rest).unwrap());
            rest = after;
        }
        assert!(rest.is_empty());
        assert_agree(&got, &want, &format!("{label} in parts"));
        // The last token of a prompt, for which alone the last layer runs.
        let last = model.session(&SessionOptions::default()).unwrap().feed(&tokens()).unwrap();
        let all: Vec<f64> = all_logits(&model).iter().map(|&logit| logit.into()).collect();
        assert_agree(&last, &all[all.len() - last.len()..], &format!("{label}, the last token"));
    }
}

#[test]
fn what_runners_get_wrong_would_be_noticed() {
    let tiny = Tiny::new(false);
    let got = all_logits(&load(&tiny, &[]).unwrap());
    let right = Rules::right;
    let wrong: [(&str, Rules); 17] = [
        ("a window one shorter", Rules { window: right().window - 1, ..right() }),
        ("a window one longer", Rules { window: right().window + 1, ..right() }),
        ("no window", Rules { window: usize::MAX, ..right() }),
        ("all layers local", Rules { pattern: 100, ..right() }),
        ("another layer global", Rules { pattern: 7, ..right() }),
        ("one base for all layers", Rules { local_base: 1e6, ..right() }),
        ("the local base for all", Rules { global_base: 1e4, ..right() }),
        ("local layers scaled too", Rules { local_factor: 8.0, ..right() }),
        ("no frequency scaling", Rules { global_factor: 1.0, ..right() }),
        ("neighbours pair up", Rules { halves: false, ..right() }),
        ("scaled by hidden / heads", Rules { scale: 1.0 / 10f64.sqrt(), ..right() }),
        ("no soft cap", Rules { cap: 1e9, ..right() }),
        ("no soft cap of logits", Rules { logit_cap: 1e9, ..right() }),
        ("no post norms", Rules { post_norms: false, ..right() }),
        ("one added twice", Rules { more_norm: 1.0, ..right() }),
        ("SiLU", Rules { activation: silu, ..right() }),
        ("the exact GELU", Rules { activation: gelu_erf, ..right() }),
    ];
    let more = [
        ("no scaled embedding", Rules { embedding: 1.0, ..right() }),
        ("the scale rounded to bf16", Rules { embedding: 6.3125, ..right() }),
        ("no norms of heads", Rules { head_norms: false, ..right() }),
    ];
    for (label, rules) in wrong.into_iter().chain(more) {
        let (rms, _) = difference(&got, &logits(&tiny, &rules, &tokens()));
        println!("{label}: rms {rms:.2e}");
        assert!(rms > 2.0 * RMS, "{label}: rms {rms} would pass the bound of {RMS}");
    }
}

#[test]
fn what_a_file_says_is_followed() {
    let tiny = Tiny::new(false);
    let right = Rules::right;
    let key = "gemma3.attention.sliding_window_pattern";
    let flags = |flags: [bool; LAYERS]| Some(Value::from(flags.to_vec()));
    let every_third = flags([true, true, false, true, true, false, true]);
    type Changes = Vec<(&'static str, Option<Value>)>;
    let cases: Vec<(&str, Changes, Rules)> = vec![
        ("a pattern by number", vec![(key, Some(3u32.into()))], Rules { pattern: 3, ..right() }),
        ("a pattern by flags", vec![(key, every_third)], Rules { pattern: 3, ..right() }),
        (
            "no window: all layers are global",
            vec![("gemma3.attention.sliding_window", None)],
            Rules { pattern: 1, ..right() },
        ),
        (
            "a window of zero means none",
            vec![("gemma3.attention.sliding_window", Some(0u32.into()))],
            Rules { pattern: 1, ..right() },
        ),
        (
            "no caps",
            vec![("gemma3.attn_logit_softcapping", None), ("gemma3.final_logit_softcapping", None)],
            Rules { cap: 1e9, logit_cap: 1e9, ..right() },
        ),
        (
            "scale and local base",
            vec![
                ("gemma3.attention.scale", Some(0.5f32.into())),
                ("gemma3.rope.freq_base_swa", Some(500f32.into())),
            ],
            Rules { scale: 0.5, local_base: 500.0, ..right() },
        ),
    ];
    for (label, changes, rules) in cases {
        let got = all_logits(&load(&tiny, &changes).unwrap());
        assert_agree(&got, &logits(&tiny, &rules, &tokens()), label);
    }
}

#[test]
fn a_file_that_makes_no_sense_is_an_error_that_names_the_key() {
    let tiny = Tiny::new(false);
    let error = |key: &str, value: Value| {
        let error = load(&tiny, &[(key, Some(value))]).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
        error
    };
    let pattern = "gemma3.attention.sliding_window_pattern";
    let short = error(pattern, vec![true; LAYERS - 1].into());
    let why = "one flag for each layer is expected";
    let value = "an array of 6".to_owned();
    assert_eq!(short, Error::Metadata { key: pattern.to_owned(), value, why });
    error(pattern, 0u32.into());
    error(pattern, vec![1f32].into());
    error("gemma3.attention.sliding_window", (-1i32).into());
    for key in [
        "gemma3.attn_logit_softcapping",
        "gemma3.final_logit_softcapping",
        "gemma3.rope.freq_base_swa",
        "gemma3.attention.scale",
    ] {
        for value in [0f32, -1.0, f32::NAN, f32::INFINITY] {
            error(key, value.into());
        }
        error(key, "x".into());
    }
}

#[test]
fn a_missing_tensor_is_an_error_that_names_it() {
    let tiny = Tiny::new(false);
    let rt = Runtime::builder().threads(1).build().unwrap();
    for name in tiny.tensors.keys() {
        let file = tiny.file(&[], name);
        let error = Model::load(&rt, &file, &|_, _| ()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(name.as_str()), "{name}: {error}");
    }
}
