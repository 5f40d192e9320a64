//! The same calls with and without a provider: the same results within the format's tolerance,
//! whatever the strides; and the host waits only where it reads.

#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a test: small numbers, and a panic is a failure"
)]

use std::sync::Arc;
use std::time::Duration;

use fucina_accel::reference::{ReferenceConfig, ReferenceProvider};
use fucina_accel::{DeviceError, Provider};
use fucina_runtime::{
    Activation, AttentionParams, CacheType, Config, DynTensor, Error, KvCache, KvShape, Offload,
    Pairing, RopeConfig, RopeTable, Runtime, Scaling, UnaryOp,
};
use fucina_testkit::Rng;
use half::{bf16, f16};

fn forced(provider: &Arc<ReferenceProvider>) -> Runtime {
    let mut config = Config::default();
    (config.offload, config.threads) = (Offload::Force, Some(2));
    let provider = Arc::clone(provider) as Arc<dyn Provider>;
    Runtime::builder().config(config).provider(provider).build().unwrap()
}

fn reference(change: impl FnOnce(&mut ReferenceConfig)) -> Arc<ReferenceProvider> {
    let mut config = ReferenceConfig::default();
    change(&mut config);
    Arc::new(ReferenceProvider::new(config))
}

fn normals(rt: &Runtime, rng: &mut Rng, shape: &[usize]) -> DynTensor {
    let len = shape.iter().product();
    rt.tensor(shape, &(0..len).map(|_| rng.normal()).collect::<Vec<_>>()).unwrap()
}

/// Every op, on views with every kind of stride.
fn every_op(rt: &Runtime) -> Vec<(&'static str, DynTensor)> {
    let mut rng = Rng::new(11);
    let x = normals(rt, &mut rng, &[6, 40]);
    let w = normals(rt, &mut rng, &[9, 40]);
    let part = x.narrow(1, 3, 33).unwrap();
    let halves: Vec<_> = w.to_vec().unwrap().iter().map(|&x| f16::from_f32(x)).collect();
    let brains: Vec<_> = w.to_vec().unwrap().iter().map(|&x| bf16::from_f32(x)).collect();
    let half = rt.tensor(&[9, 40], &halves).unwrap();
    let brain = rt.tensor(&[9, 40], &brains).unwrap();
    let row = normals(rt, &mut rng, &[40]);
    let heads = normals(rt, &mut rng, &[6, 4, 10]);
    let kv = normals(rt, &mut rng, &[11, 2, 10]);
    let config = RopeConfig { dims: 8, base: 1e4, freq_factors: None, scaling: Scaling::None };
    let table = RopeTable::new(rt, &config, &[3, 4, 5, 6, 7, 8]).unwrap();
    let ids = rt.tensor(&[4], &[8, 0, 3, 3]).unwrap();
    let params = AttentionParams {
        scale: 0.3,
        causal: true,
        q_offset: 5,
        window: Some(4),
        soft_cap: Some(3.0),
    };
    let shape = KvShape {
        layers: 1,
        capacity: 11,
        kv_heads: 2,
        k_dim: 10,
        v_dim: 10,
        cache: CacheType::F16,
    };
    let mut cache = KvCache::new(rt, shape).unwrap();
    cache.append(0, &kv.narrow(0, 0, 6).unwrap(), &kv.narrow(0, 5, 6).unwrap()).unwrap();
    let wide_heads = normals(rt, &mut rng, &[6, 4, 64]);
    let wide = normals(rt, &mut rng, &[6, 2, 64]);
    let shape = KvShape { k_dim: 64, v_dim: 32, cache: CacheType::Q8_0, ..shape };
    let mut blocks = KvCache::new(rt, shape).unwrap();
    blocks.append(0, &wide, &wide.narrow(2, 32, 32).unwrap()).unwrap();
    let causal = AttentionParams { q_offset: 0, window: None, soft_cap: None, ..params };
    let by_inner = x.permute(&[1, 0]).unwrap();
    let batch = heads.permute(&[1, 0, 2]).unwrap();
    let run = |out: fucina_runtime::Result<DynTensor>| out.unwrap();
    vec![
        ("f32", run(x.matmul_t(&w))),
        ("f16", run(x.matmul_t(&half))),
        ("bf16", run(x.matmul_t(&brain))),
        ("narrowed", run(part.matmul_t(&part))),
        ("transposed", run(by_inner.contract(&x, (1, 0)))),
        ("batched", run(batch.batch_contract(&batch, (0, 0), (2, 2)))),
        ("norm", run(part.rms_norm(Some(&row.narrow(0, 0, 33).unwrap()), 1e-6))),
        ("softmax", run(x.softmax(0.7))),
        ("rope", run(heads.rope(&table, Pairing::Halves))),
        ("rope pairs", run(heads.rope(&table, Pairing::Interleaved))),
        ("attention", run(heads.attention(&kv, &kv, &params))),
        ("cache", run(cache.attend(0, &heads, &causal))),
        ("q8_0 cache", run(blocks.attend(0, &wide_heads, &causal))),
        ("glu", run(x.glu(Activation::GeluTanh, &x))),
        ("add", run(x.add(&row))),
        ("sub", run(x.sub(&x.narrow(1, 7, 1).unwrap()))),
        ("div", run(x.div(&x.permute(&[1, 0]).unwrap().reshape(&[6, 40]).unwrap()))),
        ("silu", run(x.unary(UnaryOp::Silu))),
        ("sqrt", run(x.unary(UnaryOp::Sqrt))),
        ("cap", run(x.unary(UnaryOp::SoftCap(2.0)))),
        ("rows", run(w.rows(&ids))),
        ("chain", run(x.matmul_t(&w).unwrap().matmul_t(&w.permute(&[1, 0]).unwrap()))),
    ]
}

#[test]
fn r06_every_op_gives_the_same_with_and_without_a_provider() {
    let cpu = Runtime::builder().threads(2).build().unwrap();
    let want = every_op(&cpu);
    for seed in 0..4 {
        let provider = reference(|config| {
            (config.lanes, config.seed, config.max_delay_us) = (3, seed, 100);
            config.decline_percent = if seed == 3 { 50 } else { 0 };
        });
        let rt = forced(&provider);
        for ((name, got), (_, want)) in every_op(&rt).iter().zip(&want) {
            assert_eq!(got.shape(), want.shape(), "{name}");
            let (got, want) = (got.to_vec().unwrap(), want.to_vec().unwrap());
            for (got, want) in got.iter().zip(want) {
                let same = (got.is_nan() && want.is_nan())
                    || (got - want).abs() <= 2e-5 * want.abs().max(1.0);
                assert!(same, "{name}, seed {seed}: {got} {want}");
            }
        }
        assert!(rt.trace().counters().offloaded() >= 5, "seed {seed}");
    }
}

/// A chain of calls returns while the device has not started; views see the same fence.
#[test]
fn r05_the_host_waits_only_where_it_reads() {
    let provider = reference(|_| ());
    let rt = forced(&provider);
    let x = rt.tensor(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    provider.pause();
    let y = x.matmul_t(&x).unwrap();
    let z = y.scale(2.0).unwrap().add(&y).unwrap();
    let view = z.narrow(0, 1, 1).unwrap();
    assert!(!z.is_ready().unwrap() && !view.is_ready().unwrap());
    // An input can be read while the device reads it, and dropping a handle does not wait.
    assert_eq!(x.to_vec().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    drop((x, y));
    let reader = std::thread::spawn(move || view.to_vec());
    std::thread::sleep(Duration::from_millis(20));
    assert!(!reader.is_finished());
    provider.resume();
    assert_eq!(reader.join().unwrap().unwrap(), [33.0, 75.0]);
    assert!(z.is_ready().unwrap(), "a read through one view is a read for all");
}

#[test]
fn r04_a_write_after_a_call_does_not_change_its_result() {
    let provider = reference(|_| ());
    let rt = forced(&provider);
    let mut x = rt.tensor(&[1, 2], &[1.0f32, 2.0]).unwrap();
    provider.pause();
    let y = x.scale(3.0).unwrap();
    let writer = std::thread::spawn(move || {
        x.data_mut::<f32>().unwrap().fill(100.0);
        x
    });
    std::thread::sleep(Duration::from_millis(20));
    assert!(!writer.is_finished(), "the write waits for the device's read");
    provider.resume();
    let x = writer.join().unwrap();
    assert_eq!(y.to_vec().unwrap(), [3.0, 6.0]);
    // The device copy is stale now, and the next call sees the new bytes.
    assert_eq!(x.scale(3.0).unwrap().to_vec().unwrap(), [300.0, 300.0]);
}

#[test]
fn r07_a_fault_reaches_what_depends_on_it_and_nothing_else() {
    let provider = reference(|config| config.fault_at = Some(1));
    let rt = forced(&provider);
    let x = rt.tensor(&[1, 2], &[1.0f32, 2.0]).unwrap();
    let good = x.scale(2.0).unwrap();
    let bad = x.scale(3.0).unwrap();
    let child = bad.add(&good);
    let other = good.scale(5.0).unwrap();
    for _ in 0..2 {
        let error = bad.to_vec().unwrap_err();
        let Error::Device(DeviceError::Fault { provider, op, .. }) = &error else {
            panic!("{error:?}")
        };
        assert_eq!((*provider, *op), ("reference", "scale"));
        assert!(error.to_string().contains("[1, 2]"), "{error}");
        assert_eq!(bad.is_ready().unwrap_err(), error);
        assert_eq!(bad.wait().unwrap_err(), error);
    }
    assert!(child.and_then(|child| child.to_vec()).is_err());
    assert_eq!(good.to_vec().unwrap(), [2.0, 4.0]);
    assert_eq!(other.to_vec().unwrap(), [10.0, 20.0]);
    assert_eq!(x.to_vec().unwrap(), [1.0, 2.0]);
}

/// Without `force`, small calls stay on the CPU and say which gate they did not pass.
#[test]
fn the_trace_says_why_a_call_stayed() {
    let provider = reference(|_| ());
    let mut config = Config::default();
    (config.threads, config.trace) = (Some(1), true);
    let shared = Arc::clone(&provider) as Arc<dyn Provider>;
    let rt = Runtime::builder().config(config).provider(shared).build().unwrap();
    let x = rt.tensor(&[64, 64], &[1.0f32; 4096]).unwrap();
    x.matmul_t(&x).unwrap().scale(2.0).unwrap();
    assert_eq!(provider.submitted(), 0);
    let log = format!("{:?}", rt.trace().take_log());
    assert!(log.contains("FUCINA_GPU_MIN_WORK") && log.contains("NotResident"), "{log}");
}
