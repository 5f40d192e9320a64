//! Logits against the definition in f64.
//!
//! The bounds of the logits are those of `tests/parity.rs`: 8-bit activations before a product with
//! quantized weights are off by 0.6 %, each of the `2 * layers + 1` sums adds such an error twice,
//! and weights that are not quantized leave only the f16 cache, a tenth of that.
//!
//! A router adds something that is not continuous: where the last expert that is chosen and the
//! first that is not are closer than the router's input is exact, a runner may choose the other
//! one, and be as right. The score that separates them is a product of the input with the
//! difference of two rows; an input that is off by a part `r` of its size, in a random direction,
//! moves it by `r * |difference| * rms(input)`. Only choices whose margin is at most six times that
//! may differ, and then the logits are compared with the definition *with that choice*. Nothing
//! else is allowed.

use std::collections::BTreeSet;

use fucina_gguf::File;
use fucina_llm::SessionOptions;
use fucina_runtime::{DType, Runtime};
use fucina_testkit::{oracles_dir, read_f32};

use crate::definition::{Definition, Pass, Rules, Swap};
use crate::tiny::{self, VOCAB};

const TOKENS: usize = 41;

fn tokens() -> Vec<u32> {
    (0..TOKENS).map(|at| ((at * at * 7 + 3 * at + 1) % VOCAB) as u32).collect()
}

/// The error of a value after `sums` sums into the residual stream, as a part of its size.
fn error(exact: bool, sums: usize) -> f64 {
    let step = 0.006 * (2.0 * sums as f64).sqrt();
    if exact { 0.1 * step } else { step }
}

/// Rms and largest difference, as parts of the standard deviation of `want`.
fn difference(got: &[f32], want: &[f64], std: f64) -> (f64, f64) {
    assert_eq!(got.len(), want.len());
    let errors = || got.iter().zip(want).map(|(&a, &b)| (f64::from(a) - b).abs() / std);
    let rms = (errors().map(|error| error * error).sum::<f64>() / want.len() as f64).sqrt();
    assert!(rms.is_finite());
    (rms, errors().fold(0.0, f64::max))
}

fn std_dev(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt()
}

/// The definition with the choices that a runner made: token by token, where the logits are out of
/// bounds and a choice of that token is close enough to be made differently.
fn follow(model: &Definition, tokens: &[u32], got: &[f32], exact: bool) -> (Pass, BTreeSet<Swap>) {
    let mut swaps = BTreeSet::new();
    let mut pass = model.run(&Rules::default(), tokens, &swaps);
    let std = std_dev(&pass.logits);
    let bound = error(exact, 2 * model.layers + 1);
    let rms = |pass: &Pass, token: usize| {
        let row = token * model.vocab..(token + 1) * model.vocab;
        difference(&got[row.clone()], &pass.logits[row], std).0
    };
    for token in 0..tokens.len() {
        let close = pass.ties.iter().filter(|tie| {
            let sums = 2 * tie.swap.layer + 1;
            tie.swap.token == token && tie.margin <= 6.0 * error(exact, sums) * tie.slope
        });
        let close: Vec<Swap> = close.map(|tie| tie.swap).collect();
        for swap in close {
            // One token may be off by more than all are together, but not by so much.
            if rms(&pass, token) <= 2.0 * bound {
                break;
            }
            let with: BTreeSet<_> = swaps.iter().copied().chain([swap]).collect();
            let other = model.run(&Rules::default(), tokens, &with);
            if rms(&other, token) < rms(&pass, token) {
                (pass, swaps) = (other, with);
            }
        }
    }
    (pass, swaps)
}

/// Returns the choices that differ.
fn check(file: &File, tokens: &[u32], exact: bool, label: &str) -> usize {
    let rt = Runtime::builder().threads(2).build().unwrap();
    let model = tiny::load(&rt, file).unwrap();
    assert!(model.info().unused_tensors.is_empty());
    let got = model.session(&SessionOptions::default()).unwrap().feed_all(tokens).unwrap();
    let definition = Definition::read(file);
    let (pass, swaps) = follow(&definition, tokens, &got, exact);
    let (rms, max) = difference(&got, &pass.logits, std_dev(&pass.logits));
    let bound = error(exact, 2 * definition.layers + 1);
    println!(
        "{label}: rms {:.2} % (bound {:.2} %), max {:.2} %, {} of {} choices differ: {swaps:?}",
        100.0 * rms,
        100.0 * bound,
        100.0 * max,
        swaps.len(),
        pass.ties.len(),
    );
    assert!(rms <= bound && max <= 6.0 * bound, "{label}: rms {rms}, max {max}, bound {bound}");
    swaps.len()
}

#[test]
fn tiny_models_of_every_kind_of_weights_match_the_definition() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q5_1] {
        let file = tiny::file(dtype, &[], "");
        let differ = check(&file, &tokens(), !dtype.is_block(), dtype.name());
        // 82 choices; the margins are seldom as small as the bound.
        assert!(differ <= if dtype.is_block() { 4 } else { 0 }, "{dtype}: {differ}");
    }
}

/// The test above would find every one of these mistakes.
#[test]
fn wrong_rules_are_far_away() {
    let model = Definition::read(&tiny::file(DType::F32, &[], ""));
    let right = Rules::default();
    let run = |rules: &Rules| model.run(rules, &tokens(), &BTreeSet::new()).logits;
    let want = run(&right);
    let wrong = [
        ("not normalized", Rules { normalized: false, ..right }),
        ("softmax twice", Rules { softmax_twice: true, ..right }),
        ("smallest experts", Rules { smallest: true, ..right }),
        ("one expert more", Rules { more_used: 1, ..right }),
        ("router without norm", Rules { router_norms: 0, ..right }),
        ("router with two norms", Rules { router_norms: 2, ..right }),
        ("gate and up swapped", Rules { gate_and_up_swapped: true, ..right }),
        ("no head norms", Rules { head_norms: false, ..right }),
    ];
    for (name, rules) in wrong {
        let got: Vec<f32> = run(&rules).iter().map(|&x| x as f32).collect();
        let (rms, _) = difference(&got, &want, std_dev(&want));
        println!("{name}: {:.0} %", 100.0 * rms);
        assert!(rms > 3.0 * error(false, 5), "{name}: {rms}");
    }
}

/// Token by token, with most experts idle, and in two batches.
#[test]
fn parts_of_a_text_give_what_the_whole_gives() {
    let file = tiny::file(DType::F32, &[], "");
    let rt = Runtime::builder().threads(2).build().unwrap();
    let model = tiny::load(&rt, &file).unwrap();
    let tokens = tokens();
    let whole = model.session(&SessionOptions::default()).unwrap().feed_all(&tokens).unwrap();
    let mut parts = model.session(&SessionOptions::default()).unwrap();
    let mut got = parts.feed_all(&tokens[..7]).unwrap();
    for token in &tokens[7..20] {
        got.extend(parts.feed(&[*token]).unwrap());
    }
    got.extend(parts.feed_all(&tokens[20..]).unwrap());
    let want: Vec<f64> = whole.iter().map(|&x| f64::from(x)).collect();
    let (rms, _) = difference(&got, &want, std_dev(&want));
    assert!(rms <= error(true, 5), "{rms}");
    // The last token of a prompt, for which alone the last layer runs.
    let last = model.session(&SessionOptions::default()).unwrap().feed(&tokens).unwrap();
    let want = &want[want.len() - last.len()..];
    let (rms, _) = difference(&last, want, std_dev(want));
    assert!(rms <= error(true, 5), "the last token: {rms}");
}

/// A file of the larger oracles: the definition is that of another program, and the runner is within
/// its bound of it.
#[test]
fn oracle_models_match_the_definition_and_it_the_oracle() {
    let Some(dir) = oracles_dir("oracle_models_match_the_definition_and_it_the_oracle") else {
        return;
    };
    let golden = fucina_testkit::golden_path("models/models.json");
    let oracles: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap();
    for format in ["f16", "q4_k_m", "q6_k"] {
        let name = format!("random-qwen3moe-{format}.gguf");
        let path = dir.join("models").join(&name);
        let file = File::open(&path).unwrap();
        let oracle = &oracles["models"][&name];
        let ids = |key: &str| {
            let ids = oracle[key].as_array().unwrap().iter();
            ids.map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>()
        };
        let (prompt, greedy) = (ids("prompt_ids"), ids("exact_greedy"));
        let definition = Definition::read(&file);
        let tokens = [&prompt[..], &greedy[..greedy.len() - 1]].concat();
        let pass = definition.run(&Rules::default(), &tokens, &BTreeSet::new());
        let want = read_f32(&dir.join("models").join(format!("{name}.logits.f32")));
        let of_prompt = &pass.logits[..want.len()];
        let (rms, max) = difference(&want, of_prompt, std_dev(of_prompt));
        // The oracle is the same in f64, stored as f32; 1e-6 are 32 units of the largest logits.
        assert!(rms < 1e-6 && max < 1e-5, "{name}: rms {rms}, max {max}");
        let last = pass.logits.chunks_exact(definition.vocab).skip(prompt.len() - 1);
        let best = last.map(|row| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])));
        let best: Vec<_> = best.map(|id| id.unwrap() as u32).collect();
        assert_eq!(best, greedy, "{name}");
        let differ = check(&file, &tokens, format == "f16", &name);
        assert!(differ <= if format == "f16" { 0 } else { 8 }, "{name}: {differ} of 164");
    }
}
