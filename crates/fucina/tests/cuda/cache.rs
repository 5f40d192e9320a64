//! Keys and values that grow: only what was added goes to the device.

use fucina::accel::Outcome;
use fucina::{AttentionParams, CacheType, Config as Knobs, DynTensor, KvCache, KvShape};
use fucina::{Offload, Runtime};
use fucina_cuda_driver::control::{Config, Schedule};
use fucina_testkit::Rng;

use crate::Rig;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
/// Bytes of the keys, or of the values, of a position.
const ROW_BYTES: u64 = 2 * (KV_HEADS * DIM) as u64;

/// One session, on one side.
struct Side {
    rt: Runtime,
    cache: KvCache,
    rng: Rng,
}

impl Side {
    fn new(rt: &Runtime) -> Self {
        let shape = KvShape {
            layers: 1,
            capacity: 256,
            kv_heads: KV_HEADS,
            k_dim: DIM,
            v_dim: DIM,
            cache: CacheType::F16,
        };
        let cache = KvCache::new(rt, shape).unwrap();
        Self { rt: rt.clone(), cache, rng: Rng::new(4) }
    }

    fn random(&mut self, tokens: usize, heads: usize) -> DynTensor {
        let values: Vec<f32> =
            (0..tokens * heads * DIM).map(|_| self.rng.uniform(-1.0, 1.0)).collect();
        self.rt.tensor(&[tokens, heads, DIM], &values).unwrap()
    }

    /// Appends random positions and attends to all.
    fn step(&mut self, tokens: usize) -> DynTensor {
        let [k, v] = [KV_HEADS; 2].map(|heads| self.random(tokens, heads));
        let q = self.random(tokens, HEADS);
        self.cache.append(0, &k, &v).unwrap();
        let params = AttentionParams {
            scale: 1.0 / (DIM as f32).sqrt(),
            causal: true,
            q_offset: self.cache.len(),
            window: None,
            soft_cap: None,
        };
        let out = self.cache.attend(0, &q, &params).unwrap();
        self.cache.advance(tokens).unwrap();
        out
    }
}

/// A score is a product of operands that are rounded to f16, and of magnitudes up to one; so are
/// the weights and the values of the sum.
fn close(got: &DynTensor, want: &DynTensor, label: &str) {
    let unit = 2f64.powi(-11);
    let score = 2.1 * unit * DIM as f64 / (DIM as f64).sqrt();
    let bound = (2.0 * score).exp_m1() + 2.1 * unit;
    for (got, want) in got.to_vec().unwrap().into_iter().zip(want.to_vec().unwrap()) {
        assert!(f64::from(got - want).abs() <= bound, "{label}: {got} {want}, bound {bound}");
    }
}

#[test]
fn r15_a_cache_uploads_what_was_added_and_stays_right() {
    for (seed, schedule) in [
        (0, Schedule::Eager),
        (1, Schedule::Lazy),
        (2, Schedule::CopiesFirst),
        (3, Schedule::Random),
    ] {
        let mut knobs = Knobs::default();
        (knobs.offload, knobs.threads) = (Offload::Force, Some(2));
        let rig = Rig::new(Config { seed, schedule, ..Config::default() }, knobs, None);
        let cpu = Runtime::builder().threads(2).build().unwrap();
        let (mut there, mut here) = (Side::new(&rig.rt), Side::new(&cpu));
        let mut results = Vec::new();
        let mut step = |there: &mut Side, here: &mut Side, tokens| {
            let before = rig.counters().activations.grown;
            results.push((there.step(tokens), here.step(tokens)));
            let after = rig.counters().activations.grown;
            (after.copies - before.copies, after.bytes - before.bytes)
        };
        assert_eq!(step(&mut there, &mut here, 20), (0, 0));
        // There is room for ten more.
        for _ in 0..9 {
            assert_eq!(step(&mut there, &mut here, 1), (2, 2 * ROW_BYTES));
        }
        // Other tokens instead of those from position 23 on: only they go up.
        there.cache.truncate(23);
        here.cache.truncate(23);
        assert_eq!(step(&mut there, &mut here, 2), (2, 4 * ROW_BYTES));
        assert_eq!(step(&mut there, &mut here, 1), (2, 2 * ROW_BYTES));
        // More than there is room for: all of it, with new room.
        let (copies, bytes) = step(&mut there, &mut here, 30);
        assert_eq!((copies, bytes), (2, 2 * 56 * ROW_BYTES));
        assert_eq!(step(&mut there, &mut here, 1), (2, 2 * ROW_BYTES));
        for (number, (there, here)) in results.iter().enumerate() {
            close(there, here, &format!("{schedule:?}, step {number}"));
        }
        let decisions = rig.rt.trace().counters().decisions;
        let taken = Outcome::Offloaded { provider: "cuda" };
        assert_eq!(decisions[&("attention", taken)], results.len() as u64, "{decisions:?}");
        drop((results, there));
        rig.finish();
    }
}
