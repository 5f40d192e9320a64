//! A whole model on the reference provider: the same tokens as on the CPU, and never wrong ones
//! when the device misbehaves.

#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a test: small numbers, and a panic is a failure"
)]

use std::sync::Arc;

use fucina_accel::reference::{ReferenceConfig, ReferenceProvider};
use fucina_accel::{Counters, DeviceError, Outcome, Provider};
use fucina_gguf::File;
use fucina_llm::{Error, Model, Session, SessionOptions};
use fucina_runtime::{Config, Offload, Runtime};
use fucina_testkit::golden_path;

const STEPS: usize = 12;
/// "It is a truth universally acknowledged," in the vocabulary of the model.
const PROMPT: &str = "It is a truth universally acknowledged,";

fn runtime(provider: Option<&Arc<ReferenceProvider>>) -> Runtime {
    let mut config = Config::default();
    config.offload = Offload::Force;
    config.threads = Some(2);
    let builder = Runtime::builder().config(config);
    match provider {
        Some(provider) => builder.provider(Arc::clone(provider) as Arc<dyn Provider>),
        None => builder,
    }
    .build()
    .unwrap()
}

fn model(rt: &Runtime) -> Model {
    let path = golden_path("../crates/cli/assets/austen-q8_0.gguf");
    Model::load(rt, &File::open(path).unwrap(), &|_, _| ()).unwrap()
}

fn best(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    best.try_into().unwrap()
}

/// Greedy tokens after the prompt, from a session that may already hold the prompt.
fn greedy(model: &Model, session: &mut Session<'_>) -> Result<Vec<u32>, Error> {
    let (special, bos) = (fucina_llm::tokenizer::Special::Plain, fucina_llm::tokenizer::Bos::Auto);
    let prompt = model.tokenizer().encode(PROMPT, special, bos)?;
    let mut logits = session.feed(&prompt)?;
    let mut ids = vec![best(&logits)];
    while ids.len() < STEPS {
        logits = session.feed(&ids[ids.len() - 1..])?;
        ids.push(best(&logits));
    }
    Ok(ids)
}

fn run(provider: Option<ReferenceConfig>) -> (Result<Vec<u32>, Error>, Counters) {
    let provider = provider.map(|config| Arc::new(ReferenceProvider::new(config)));
    let rt = runtime(provider.as_ref());
    let model = model(&rt);
    let ids = greedy(&model, &mut model.session(&SessionOptions::default()).unwrap());
    (ids, rt.trace().counters())
}

fn config(change: impl FnOnce(&mut ReferenceConfig)) -> ReferenceConfig {
    let mut config = ReferenceConfig::default();
    change(&mut config);
    config
}

fn on_the_cpu() -> Vec<u32> {
    let (ids, counters) = run(None);
    assert_eq!(counters.offloaded(), 0);
    ids.unwrap()
}

#[test]
fn everything_offloaded_gives_the_tokens_of_the_cpu() {
    let want = on_the_cpu();
    for (lanes, max_delay_us) in [(1, 0), (3, 200)] {
        let (ids, counters) = run(Some(config(|config| {
            config.lanes = lanes;
            config.max_delay_us = max_delay_us;
        })));
        assert_eq!(ids.unwrap(), want, "{lanes} lanes");
        for ((op, outcome), count) in &counters.decisions {
            // The provider offers every op; only a full queue may decline.
            let fine = match outcome {
                Outcome::Offloaded { .. } => true,
                Outcome::Declined { reason, .. } => !reason.is_unsupported(),
                _ => false,
            };
            assert!(fine, "{op}: {outcome:?}, {count} times");
        }
        // Per pass: embedding, final norm, output, and for each of four layers 7 products,
        // 4 norms, 2 rotations, attention, a gated unit and 2 sums.
        let calls: u64 = counters.decisions.values().sum();
        assert_eq!(calls, STEPS as u64 * (3 + 4 * (7 + 4 + 2 + 1 + 1 + 2)));
    }
}

#[test]
fn random_declines_change_nothing() {
    let want = on_the_cpu();
    for seed in 0..3 {
        let (ids, counters) = run(Some(config(|config| {
            config.seed = seed;
            config.lanes = 2;
            config.decline_percent = 40;
        })));
        assert_eq!(ids.unwrap(), want, "seed {seed}");
        let declined =
            |(_, outcome): &&(&str, Outcome)| matches!(outcome, Outcome::Declined { .. });
        assert!(counters.decisions.keys().any(|key| declined(&key)));
        assert!(counters.offloaded() > 0);
    }
}

/// A fault at any command is an error that names it, or does not matter; the tokens are never
/// wrong. The session then still holds what it held, and goes on once the device works again.
#[test]
fn a_fault_is_an_error_and_never_a_wrong_token() {
    let want = on_the_cpu();
    // Places in the first pass (embedding, a norm, products, attention, the output), and later.
    for fault_at in [0, 1, 2, 3, 9, 10, 11, 12, 13, 16, 17, 35, 69, 70, 71, 150, 400] {
        let provider = Arc::new(ReferenceProvider::new(config(|config| {
            config.lanes = 2;
            config.fault_at = Some(fault_at);
        })));
        let rt = runtime(Some(&provider));
        let model = model(&rt);
        let mut session = model.session(&SessionOptions::default()).unwrap();
        let error = greedy(&model, &mut session).unwrap_err();
        let Error::Tensor(fucina_runtime::Error::Device(fault)) = &error else {
            panic!("command {fault_at}: {error:?}")
        };
        assert!(matches!(fault, DeviceError::Fault { .. }), "{fault:?}");
        assert!(error.to_string().contains("reference"), "{error}");
        session.truncate(0);
        let again = greedy(&model, &mut session);
        assert_eq!(again, Ok(want.clone()), "after command {fault_at}");
        let counters = rt.trace().counters();
        assert!(counters.delivered_faults > 0, "command {fault_at}");
    }
}

#[test]
fn a_lost_device_is_an_error_and_then_the_cpu_goes_on() {
    let want = on_the_cpu();
    for lose_at in [0, 40, 300] {
        let provider = Arc::new(ReferenceProvider::new(config(|config| {
            config.lanes = 2;
            config.lose_at = Some(lose_at);
        })));
        let rt = runtime(Some(&provider));
        let model = model(&rt);
        let mut session = model.session(&SessionOptions::default()).unwrap();
        let error = greedy(&model, &mut session).unwrap_err();
        let lost = |error: &DeviceError| {
            matches!(error, DeviceError::Lost { .. } | DeviceError::Fault { .. })
        };
        assert!(
            matches!(&error, Error::Tensor(fucina_runtime::Error::Device(e)) if lost(e)),
            "command {lose_at}: {error:?}"
        );
        assert!(provider.is_lost());
        session.truncate(0);
        assert_eq!(greedy(&model, &mut session).unwrap(), want, "after command {lose_at}");
    }
}

#[test]
fn many_random_faults_never_give_a_wrong_token() {
    let want = on_the_cpu();
    let mut faults = 0;
    for seed in 0..6 {
        let (ids, _) = run(Some(config(|config| {
            config.seed = seed;
            config.lanes = 3;
            config.fault_percent = 1;
            config.max_delay_us = 20;
        })));
        match ids {
            Ok(ids) => assert_eq!(ids, want, "seed {seed}"),
            Err(error) => {
                faults += 1;
                assert!(
                    matches!(error, Error::Tensor(fucina_runtime::Error::Device(_))),
                    "seed {seed}: {error:?}"
                );
            }
        }
    }
    assert!(faults > 0, "no seed made a fault");
}

/// Queries, keys and values read one activation: it goes to the device once.
#[test]
fn one_activation_is_uploaded_once() {
    let provider = Arc::new(ReferenceProvider::new(ReferenceConfig::default()));
    let rt = runtime(Some(&provider));
    let x = rt.tensor(&[3, 8], &[0.5f32; 24]).unwrap();
    let weights: Vec<_> = (0..3).map(|_| rt.tensor(&[4, 8], &[1.0f32; 32]).unwrap()).collect();
    let out: Vec<_> = weights.iter().map(|w| x.matmul_t(w).unwrap()).collect();
    for out in &out {
        assert_eq!(out.to_vec().unwrap(), [4.0; 12]);
    }
    let counters = provider.counters();
    assert_eq!(counters.uploads, 4, "three weights and one activation");
    // A host read keeps the device copy: the next call uploads nothing.
    let again = out[0].matmul_t(&out[1]).unwrap();
    again.wait().unwrap();
    assert_eq!(provider.counters().uploads, 4);
    // And a wait copies nothing to the host.
    assert_eq!(provider.counters().downloads, 3);
}
