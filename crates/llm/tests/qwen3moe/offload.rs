//! A whole model with experts on the reference provider: the same tokens as on the CPU, and never
//! wrong ones when the device misbehaves.

use std::sync::Arc;

use fucina_accel::reference::{ReferenceConfig, ReferenceProvider};
use fucina_accel::{Counters, Outcome, Provider};
use fucina_llm::{Error, Model, Session, SessionOptions};
use fucina_runtime::{Config, DType, Offload, Runtime};

use crate::tiny;

const STEPS: usize = 8;
const PROMPT: [u32; 9] = [12, 80, 3, 200, 41, 41, 7, 150, 99];

fn runtime(provider: Option<&Arc<ReferenceProvider>>) -> Runtime {
    let mut config = Config::default();
    (config.offload, config.threads) = (Offload::Force, Some(2));
    let builder = Runtime::builder().config(config);
    match provider {
        Some(provider) => builder.provider(Arc::clone(provider) as Arc<dyn Provider>),
        None => builder,
    }
    .build()
    .unwrap()
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

fn greedy(session: &mut Session<'_>) -> Result<Vec<u32>, Error> {
    let mut ids = vec![best(&session.feed(&PROMPT)?)];
    while ids.len() < STEPS {
        ids.push(best(&session.feed(&ids[ids.len() - 1..])?));
    }
    Ok(ids)
}

/// Weights are f32, so that the CPU rounds no more than the device does.
fn model(rt: &Runtime) -> Model {
    tiny::load(rt, &tiny::file(DType::F32, &[], "")).unwrap()
}

fn run(provider: Option<ReferenceConfig>) -> (Result<Vec<u32>, Error>, Counters) {
    let provider = provider.map(|config| Arc::new(ReferenceProvider::new(config)));
    let rt = runtime(provider.as_ref());
    let model = model(&rt);
    let ids = greedy(&mut model.session(&SessionOptions::default()).unwrap());
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
fn experts_on_a_device_give_the_same_tokens() {
    let want = on_the_cpu();
    for lanes in 1..=3 {
        // Room for all commands, so that none is declined.
        let (ids, counters) = run(Some(config(|config| {
            (config.lanes, config.max_in_flight) = (lanes, 1000);
        })));
        assert_eq!(ids.unwrap(), want, "{lanes} lanes");
        let provider = "reference";
        let taken = |op| counters.decisions[&(op, Outcome::Offloaded { provider })];
        // Three products and a sum for each of two layers and each pass.
        assert_eq!(taken("grouped_matmul"), STEPS as u64 * 2 * 3);
        assert_eq!(taken("combine"), STEPS as u64 * 2);
        let all: u64 = counters.decisions.values().sum();
        assert_eq!(counters.offloaded(), all, "{:?}", counters.decisions);
    }
}

/// The activation of a block goes to the device once for the router and all of its experts, and
/// what lies between the products stays there.
#[test]
fn a_block_uploads_its_weights_once_and_no_activation_twice() {
    let provider = Arc::new(ReferenceProvider::new(ReferenceConfig::default()));
    let rt = runtime(Some(&provider));
    let model = model(&rt);
    let mut session = model.session(&SessionOptions::default()).unwrap();
    session.feed(&PROMPT).unwrap();
    let first = provider.counters().uploads;
    session.feed(&[5]).unwrap();
    let second = provider.counters().uploads;
    session.feed(&[6]).unwrap();
    // Ids and the table of rotations (two), and for each of two layers the weights of the choices
    // and the keys and values of the cache: no weight again.
    let (first, second, third) = (first, second - first, provider.counters().uploads - second);
    assert_eq!(second, third);
    assert_eq!(third, 3 + 2 * 3, "{first} in the first pass");
}

#[test]
fn random_declines_of_experts_change_nothing() {
    let want = on_the_cpu();
    for seed in 0..4 {
        let (ids, counters) = run(Some(config(|config| {
            (config.seed, config.lanes, config.decline_percent) = (seed, 2, 40);
        })));
        assert_eq!(ids.unwrap(), want, "seed {seed}");
        let declined = |op: &str| {
            let is = |(name, outcome): &(&str, Outcome)| {
                *name == op && matches!(outcome, Outcome::Declined { .. })
            };
            counters.decisions.keys().any(is)
        };
        assert!(declined("grouped_matmul") && counters.offloaded() > 0);
    }
}

/// A fault at any command of the first pass is an error, and the session goes on afterwards.
#[test]
fn a_fault_among_the_experts_is_an_error_and_never_a_wrong_token() {
    let want = on_the_cpu();
    for fault_at in 0..48 {
        let provider =
            Arc::new(ReferenceProvider::new(config(|config| config.fault_at = Some(fault_at))));
        let rt = runtime(Some(&provider));
        let model = model(&rt);
        let mut session = model.session(&SessionOptions::default()).unwrap();
        let error = greedy(&mut session).unwrap_err();
        let device = matches!(&error, Error::Tensor(fucina_runtime::Error::Device(_)));
        assert!(device, "command {fault_at}: {error:?}");
        session.truncate(0);
        assert_eq!(greedy(&mut session), Ok(want.clone()), "after command {fault_at}");
    }
}

#[test]
fn random_faults_among_the_experts_never_give_a_wrong_token() {
    let want = on_the_cpu();
    let mut faults = 0;
    for seed in 0..8 {
        let (ids, _) = run(Some(config(|config| {
            (config.seed, config.lanes, config.fault_percent) = (seed, 3, 1);
            config.max_delay_us = 20;
        })));
        match ids {
            Ok(ids) => assert_eq!(ids, want, "seed {seed}"),
            Err(Error::Tensor(fucina_runtime::Error::Device(_))) => faults += 1,
            Err(error) => panic!("seed {seed}: {error:?}"),
        }
    }
    assert!(faults > 0, "no seed made a fault");
}
