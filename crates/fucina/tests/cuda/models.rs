//! Models of random weights, every eligible call on the device: the tokens of the CPU, no weight
//! streamed, and each activation uploaded once.
//!
//! The two sides round differently: the CPU rounds activations to 8 bits before a product with
//! quantized weights, the device rounds both operands to f16. The bound of the difference is that of
//! `crates/llm/tests/parity.rs`: such a product is off by 0.6 % of its size, and each of the
//! `2 * layers + 1` sums into the residual stream adds such an error twice. A token is compared
//! where the best logit leads by more than the difference that this allows; the seeds are such that
//! most do, and the text is the CPU's, so that one near tie does not end the comparison.

use std::collections::BTreeMap;
use std::sync::Arc;

use fucina::accel::{Arrival, Outcome, Record, Timeline};
use fucina::llm::{Model, SessionOptions};
use fucina::{Config as Knobs, Offload, Runtime};
use fucina_cuda_driver::control::{Config, Schedule};

use crate::Rig;
use crate::model::{self, Arch, LAYERS, Mix};

const PROMPT: [u32; 7] = [12, 80, 3, 200, 41, 7, 150];
const STEPS: usize = 6;

fn knobs(offload: Offload) -> Knobs {
    let mut knobs = Knobs::default();
    (knobs.offload, knobs.threads) = (offload, Some(2));
    knobs
}

fn load(rt: &Runtime, arch: Arch, mix: Mix) -> Model {
    let model = Model::load(rt, &model::file(arch, mix, 11), &|_, _| ()).unwrap();
    assert_eq!(model.info().architecture, format!("{arch:?}").to_lowercase());
    model
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// The logits after the prompt and after each token of `text`, or of the best ones.
fn logits(model: &Model, text: Option<&[u32]>) -> Vec<Vec<f32>> {
    let mut session = model.session(&SessionOptions::default()).unwrap();
    let mut all = vec![session.feed(&PROMPT).unwrap()];
    while all.len() < STEPS {
        let at = all.len() - 1;
        let next = text.map_or_else(|| best(&all[at]), |text| text[at]);
        all.push(session.feed(&[next]).unwrap());
    }
    all
}

/// How far the logits of the two sides may be apart, as a part of their standard deviation: both
/// are off, so `sqrt(2)` times the bound of one, and six times that for the largest of them.
fn bound() -> f64 {
    let sums = (2 * LAYERS + 1) as f64;
    6.0 * 2f64.sqrt() * 0.006 * (2.0 * sums).sqrt()
}

fn std_dev(values: &[f32]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    (values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n).sqrt()
}

/// Compares the logits, and the tokens that are not near ties. Returns how many tokens those were.
fn compare(cpu: &[Vec<f32>], gpu: &[Vec<f32>], label: &str) -> usize {
    let mut compared = 0;
    for (step, (cpu, gpu)) in cpu.iter().zip(gpu).enumerate() {
        let limit = bound() * std_dev(cpu);
        let apart = cpu.iter().zip(gpu).map(|(&a, &b)| f64::from(a - b).abs()).fold(0.0, f64::max);
        assert!(apart <= limit, "{label}, step {step}: logits differ by {apart}, limit {limit}");
        let token = best(cpu);
        let mut others = cpu.clone();
        let lead = f64::from(others.swap_remove(token as usize));
        let lead = lead - others.into_iter().map(f64::from).fold(f64::MIN, f64::max);
        // Each of the two may move by what the sides are apart.
        if lead > 2.0 * apart {
            assert_eq!(best(gpu), token, "{label}, step {step}");
            compared += 1;
        }
    }
    compared
}

fn check(arch: Arch, mix: Mix, schedule: Schedule, label: &str) {
    let cpu = Runtime::builder().config(knobs(Offload::Off)).build().unwrap();
    let cpu = logits(&load(&cpu, arch, mix), None);
    let text: Vec<u32> = cpu.iter().map(|logits| best(logits)).collect();
    let timeline = Arc::new(Timeline::new(1 << 16));
    let device = Config { schedule, seed: 5, ..Config::default() };
    let rig = Rig::new(device, knobs(Offload::Force), Some(Arc::clone(&timeline)));
    let model = load(&rig.rt, arch, mix);
    let gpu = logits(&model, Some(&text));
    assert!(compare(&cpu, &gpu, label) >= STEPS - 2, "{label}: nearly all are near ties");

    // Every call of an op was eligible, and ran there.
    let decisions = rig.rt.trace().counters().decisions;
    let taken = Outcome::Offloaded { provider: "cuda" };
    for ((op, outcome), count) in &decisions {
        assert_eq!(*outcome, taken, "{label}: {op}, {count} times");
    }
    let products = if arch == Arch::Qwen3 { "matmul" } else { "grouped_matmul" };
    assert!(decisions[&(products, taken)] >= (STEPS * LAYERS * 3) as u64, "{decisions:?}");
    let counters = rig.counters();
    assert_eq!((counters.weights.again.copies, counters.evictions), (0, 0), "{label}: streamed");
    assert!(counters.weights.first.copies > 0);
    assert_eq!(counters.activations.again.copies, 0, "{label}");
    each_content_once(&timeline, label);
    drop(model);
    rig.finish();
}

/// By what the bytes are, not by what the provider says of them.
fn each_content_once(timeline: &Timeline, label: &str) {
    let mut uploads: BTreeMap<(u64, usize, usize), u32> = BTreeMap::new();
    for record in timeline.records() {
        let Record::Inputs { inputs, .. } = record else { continue };
        for input in inputs.into_iter().flatten() {
            if input.arrival != Arrival::OnDevice {
                let bytes = (input.content, input.offset_bytes, input.len_bytes);
                *uploads.entry(bytes).or_default() += 1;
            }
        }
    }
    assert!(!uploads.is_empty());
    let twice: Vec<_> = uploads.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{label}: uploaded more than once: {twice:?}");
}

#[test]
fn qwen3_on_the_device_gives_the_tokens_of_the_cpu() {
    check(Arch::Qwen3, model::q4_k_m, Schedule::Random, "qwen3, Q4_K_M");
    check(Arch::Qwen3, model::q5_k_q8_0, Schedule::Eager, "qwen3, Q5_K and Q8_0");
}

#[test]
fn qwen3moe_on_the_device_gives_the_tokens_of_the_cpu() {
    check(Arch::Qwen3moe, model::q4_k_m, Schedule::Lazy, "qwen3moe, Q4_K_M");
    check(Arch::Qwen3moe, model::q5_k_q8_0, Schedule::Random, "qwen3moe, Q5_K and Q8_0");
}
