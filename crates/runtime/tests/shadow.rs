//! The f32 copy of 16-bit weights: when it is made, what it costs, and that it is never stale.

#![expect(clippy::unwrap_used, reason = "helpers of tests outside a test function")]

use bytes::Bytes;
use fucina_blas_double::control::{Double, Role};
use fucina_runtime::{BlasChoice, Config, DType, DynTensor, Isa, Runtime};
use fucina_testkit::{DotOracle, Rng};
use half::{bf16, f16};

/// A runtime without a kernel for 16-bit weights in tiles.
fn runtime(adjust: impl FnOnce(&mut Config)) -> Runtime {
    let mut config = Config::default();
    config.f32_shadow = true;
    adjust(&mut config);
    let isa = Isa::available().into_iter().rfind(|isa| isa.name() != "avx512-amx").unwrap();
    Runtime::builder().config(config).threads(2).isa(isa).build().unwrap()
}

/// A weight as a file has it.
fn weight(rt: &Runtime, dtype: DType, shape: &[usize], seed: u64) -> DynTensor {
    let values = Rng::new(seed).normals(shape.iter().product(), 1.0);
    let bytes: Vec<u8> = match dtype {
        DType::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
    };
    rt.tensor_from_bytes(dtype, shape, Bytes::from(bytes)).unwrap()
}

fn activations(rt: &Runtime, m: usize, k: usize) -> DynTensor {
    rt.tensor(&[m, k], &Rng::new(77).normals(m * k, 1.0)).unwrap()
}

fn check(x: &DynTensor, w: &DynTensor, label: &str) {
    let got = x.matmul_t(w).unwrap().to_vec().unwrap();
    let (n, k) = (w.shape()[0], w.shape()[1]);
    let (x, w) = (x.to_vec().unwrap(), w.to_vec().unwrap());
    for (at, &got) in got.iter().enumerate() {
        let (x, w) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
        DotOracle::new(x, w).assert_close(got, &format!("{label} {at}"));
    }
}

fn kernels(rt: &Runtime) -> Vec<(&'static str, u64)> {
    let counters = rt.trace().counters();
    counters.kernels.iter().map(|(&(_, kernel), &calls)| (kernel, calls)).collect()
}

const OWN: &str = "own kernel on an f32 shadow";

#[test]
fn the_copy_is_made_at_the_first_product_with_enough_rows_and_goes_with_the_weight() {
    for dtype in [DType::F16, DType::BF16] {
        let rt = runtime(|_| ());
        let w = weight(&rt, dtype, &[50, 70], 1);
        check(&activations(&rt, 31, 70), &w, "31 rows");
        assert_eq!((w.f32_shadow_bytes(), kernels(&rt)), (0, vec![]));
        let live = rt.pool().stats().live_bytes;
        check(&activations(&rt, 32, 70), &w, "32 rows");
        check(&activations(&rt, 100, 70), &w, "100 rows");
        assert_eq!(w.f32_shadow_bytes(), 4 * 50 * 70);
        assert_eq!(kernels(&rt), [(OWN, 2)]);
        assert!(rt.pool().stats().live_bytes >= live + 4 * 50 * 70);
        let view = w.clone();
        drop(w);
        assert_eq!(view.f32_shadow_bytes(), 4 * 50 * 70, "it belongs to the storage");
        drop(view);
        assert_eq!(rt.pool().stats().live_bytes, live);
    }
}

#[test]
fn it_is_off_by_default_and_the_least_number_of_rows_is_a_knob() {
    let rt = runtime(|config| config.f32_shadow = false);
    let w = weight(&rt, DType::BF16, &[50, 70], 1);
    check(&activations(&rt, 40, 70), &w, "off");
    assert_eq!((w.f32_shadow_bytes(), kernels(&rt)), (0, vec![]));
    assert!(!Config::default().f32_shadow);
    let rt = runtime(|config| config.f32_shadow_min_m = Some(2));
    let w = weight(&rt, DType::BF16, &[50, 70], 1);
    check(&activations(&rt, 1, 70), &w, "one row");
    assert_eq!(w.f32_shadow_bytes(), 0);
    check(&activations(&rt, 2, 70), &w, "two rows");
    assert_eq!(w.f32_shadow_bytes(), 4 * 50 * 70);
}

#[test]
fn a_write_to_the_weight_makes_a_new_copy() {
    let rt = runtime(|_| ());
    let mut w = weight(&rt, DType::BF16, &[40, 64], 1).copy().unwrap();
    let x = activations(&rt, 33, 64);
    check(&x, &w, "before");
    assert!(w.f32_shadow_bytes() > 0);
    w.data_mut::<bf16>().unwrap()[40 * 64 - 1] = bf16::from_f32(-1000.0);
    assert_eq!(w.f32_shadow_bytes(), 0);
    check(&x, &w, "after");
    assert!(w.f32_shadow_bytes() > 0);
    // Memory that the pool hands out again has no copy of what was in it.
    drop(w);
    let mut next = weight(&rt, DType::BF16, &[40, 64], 2).copy().unwrap();
    check(&x, &next, "another weight in the same memory");
    next.data_mut::<bf16>().unwrap().fill(bf16::ZERO);
    assert!(x.matmul_t(&next).unwrap().to_vec().unwrap().iter().all(|&got| got == 0.0));
}

#[test]
fn views_at_any_offset_and_strides_use_the_copy_of_the_whole() {
    let rt = runtime(|_| ());
    let all = weight(&rt, DType::F16, &[60, 70], 1);
    let x = activations(&rt, 36, 70);
    check(&x, &all.narrow(0, 7, 40).unwrap(), "rows from 7 on");
    assert_eq!(all.f32_shadow_bytes(), 4 * 60 * 70);
    check(&activations(&rt, 36, 41), &all.narrow(1, 29, 41).unwrap(), "columns from 29 on");
    check(&activations(&rt, 36, 60), &all.permute(&[1, 0]).unwrap(), "transposed");
    assert_eq!(kernels(&rt), [(OWN, 3)]);
    check(&x, &all.narrow(0, 7, 20).unwrap(), "a third");
    assert!(kernels(&rt).contains(&("no f32 shadow: less than half of the storage is used", 1)));
}

#[test]
fn a_blas_library_multiplies_with_the_copy() {
    let double = Double::start(Role::OpenBlas);
    let rt = runtime(|config| {
        config.blas = BlasChoice::Auto;
        config.blas_library = Some(double.path().to_owned());
    });
    let w = weight(&rt, DType::BF16, &[300, 70], 1);
    check(&activations(&rt, 70, 70), &w, "library");
    assert_eq!(kernels(&rt), [("openblas on an f32 shadow", 1)]);
    assert!(double.calls() > 3 && double.breaches() == 0);
}

#[test]
fn threads_that_race_to_the_first_product_make_one_copy() {
    for _ in 0..20 {
        let rt = runtime(|_| ());
        let w = weight(&rt, DType::BF16, &[64, 128], 3);
        let x = activations(&rt, 32, 128);
        let want = rt.pool().stats().live;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| check(&x, &w, "race"));
            }
        });
        assert_eq!(rt.pool().stats().live, want + 1, "one copy, and nothing else is left");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_cpu_with_a_kernel_for_16_bits_makes_no_copy() {
    let mut config = Config::default();
    config.f32_shadow = true;
    let rt = Runtime::builder().config(config).threads(1).build().unwrap();
    if rt.isa().name() != "avx512-amx" {
        println!("SKIPPED: this CPU has no AMX");
        return;
    }
    let w = weight(&rt, DType::BF16, &[50, 70], 1);
    activations(&rt, 40, 70).matmul_t(&w).unwrap();
    assert_eq!(w.f32_shadow_bytes(), 0);
    assert_eq!(kernels(&rt), [("no f32 shadow: this CPU has a kernel for 16 bits", 1)]);
}
