//! What the driver refuses once is done in another way, or later: the device stays in use.

#![allow(clippy::unwrap_used, reason = "a test: a panic is a failure")]

mod common;

use common::scenario::{Matrix, Trouble, expect, pool};
use common::{Rig, use_cublas};
use fucina_accel::{
    Call, Decline, DeviceError, MatMul, Operand, Pool, PoolConfig, Provider as _, Storage, submit,
};
use fucina_cuda::OptionalLibrary;
use fucina_cuda_driver::control::{Config, Fail, Schedule};
use fucina_dtype::DType;

/// Rows of results that are staged, and of results whose pages are locked.
const ROWS: [usize; 2] = [9, 1100];
const COLS: usize = 20;
const K: usize = 24;

/// A product, submitted, and what it should be.
struct Product {
    out: Storage,
    want: Matrix,
}

fn product(rig: &Rig, pool: &Pool, rows: usize, seed: usize) -> Result<Product, Decline> {
    let (a, b) = (Matrix::integers(rows, K, seed), Matrix::integers(COLS, K, seed + 1));
    let (sa, sb) = (a.storage(pool), b.storage(pool));
    let view = |storage, rows| Operand::dense(storage, DType::F32, 0, &[1, rows, K]).unwrap();
    let call = Call::MatMul(MatMul { lhs: view(&sa, rows), rhs: view(&sb, COLS) });
    let out = pool.take(call.out_bytes().unwrap()).unwrap();
    let out = submit(&*rig.provider, &call, out).map_err(|(why, _)| why)?;
    Ok(Product { out, want: a.dot_t(&b) })
}

fn right(product: &Product) {
    expect(&product.out, &product.want, "a product").unwrap();
}

/// A device that moves only when somebody waits, so that every wait counts.
fn lazy(fail: Fail) -> Config {
    Config { schedule: Schedule::Lazy, fail, ..Config::default() }
}

/// Everything that bringing results to the host may call.
const CALLS: [&str; 6] = [
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
    "cuMemcpyDtoHAsync_v2",
];

/// Lets each call fail that happens while `read` brings results of `rows` to the host. Returns how
/// many there were.
fn each_refusal(rows: &[usize], read: &dyn Fn(&[Product])) -> u64 {
    let mut refused = 0;
    for call in CALLS {
        let run = |fail: Fail| {
            let rig = Rig::new(lazy(fail));
            let pool = pool();
            let products: Vec<_> = rows.iter().map(|&r| product(&rig, &pool, r, r)).collect();
            let products: Vec<_> = products.into_iter().map(Result::unwrap).collect();
            let before = rig.driver.calls(call);
            read(&products);
            let during = before..rig.driver.calls(call);
            assert!(!rig.provider.is_lost(), "{call} failed once");
            right(&product(&rig, &pool, ROWS[0], 77).unwrap());
            drop((products, pool));
            rig.finish();
            during
        };
        // The driver asks again and again until a lazy device moves: some of these are enough.
        let numbers = run(Fail::default()).step_by(if call == "cuEventQuery" { 13 } else { 1 });
        for at in numbers {
            // 2 is no memory, 304 an error of the operating system.
            run(Fail::new(call, at, if at % 2 == 0 { 2 } else { 304 }));
            refused += 1;
        }
    }
    refused
}

#[test]
fn a_result_arrives_although_a_call_is_refused() {
    for rows in ROWS {
        assert!(each_refusal(&[rows], &|products| right(&products[0])) > 5);
    }
}

#[test]
fn results_that_are_fetched_together_arrive_although_a_call_is_refused() {
    let fetch = |products: &[Product]| {
        Storage::fetch(products.iter().map(|product| &product.out)).unwrap();
        products.iter().for_each(right);
    };
    assert!(each_refusal(&[ROWS[1], ROWS[0], ROWS[1]], &fetch) > 10);
}

/// Only the result is lost that cannot be brought.
#[test]
fn a_result_that_cannot_be_brought_is_an_error_and_the_device_goes_on() {
    for rows in ROWS {
        let rig = Rig::new(lazy(Fail::new("cuMemcpyDtoH*", u64::MAX, 304)));
        let pool = pool();
        for seed in 0..2 {
            let out = product(&rig, &pool, rows, seed).unwrap().out;
            match out.host() {
                Err(DeviceError::Fault { provider: "cuda", op: "matmul", code, .. }) => {
                    assert!(code.contains("(304)"), "{code}");
                }
                other => panic!("{:?}", other.map(<[u8]>::len)),
            }
            // Those who need it on the device find it there.
            assert!(out.wait().is_err());
        }
        assert!(!rig.provider.is_lost());
        assert_eq!(rig.provider.counters().faults, 0);
        assert_eq!(rig.driver.report().violations, 0, "{}", rig.driver.violations());
    }
}

/// Copies of results that are read together are queued together: the host waits for the last.
#[test]
fn results_that_are_fetched_together_take_one_wait() {
    let waits = |together: bool| {
        let rig = Rig::new(lazy(Fail::default()));
        let pool = pool();
        let products = [(ROWS[0], 1), (ROWS[1], 2), (ROWS[0], 3)];
        let products = products.map(|(rows, seed)| product(&rig, &pool, rows, seed).unwrap());
        assert_eq!(rig.driver.calls("cuEventSynchronize"), 0, "nothing has waited");
        if together {
            Storage::fetch(products.iter().map(|product| &product.out)).unwrap();
            assert_eq!(rig.provider.counters().downloads, 3);
        }
        products.iter().for_each(right);
        let waits = rig.driver.calls("cuEventSynchronize");
        drop((products, pool));
        rig.finish();
        waits
    };
    assert_eq!((waits(true), waits(false)), (1, 3));
}

/// A page stays locked until the uploads from it have passed, whoever forgets the lock.
#[test]
fn pages_stay_locked_while_an_upload_reads_them() {
    let rig = Rig::new(lazy(Fail::default()));
    let pool = pool();
    let a = Matrix::integers(ROWS[1], K, 1);
    let b = Matrix::integers(COLS, K, 2);
    let (sa, sb) = (a.storage(&pool), b.storage(&pool));
    let view = |storage, rows| Operand::dense(storage, DType::F32, 0, &[1, rows, K]).unwrap();
    let call = Call::MatMul(MatMul { lhs: view(&sa, ROWS[1]), rhs: view(&sb, COLS) });
    let out = pool.take(call.out_bytes().unwrap()).unwrap();
    let out = submit(&*rig.provider, &call, out).map_err(|(why, _)| why).unwrap();
    let locked = rig.driver.calls("cuMemHostRegister_v2");
    assert!(locked >= 2, "the operand and the result");
    sa.forget_resource(rig.provider.device().id.provider);
    assert_eq!(rig.driver.calls("cuMemHostUnregister"), 0, "the upload has not run");
    expect(&out, &a.dot_t(&b), "a product").unwrap();
    assert!(rig.driver.calls("cuMemHostUnregister") >= 1, "the upload has run");
    drop((out, sa, sb, pool));
    rig.finish();
}

/// Nobody asks for the first result. Its operand can be freed when the second one is there, and
/// then its pages must not be locked any more.
#[test]
fn pages_are_unlocked_before_they_are_freed() {
    let rig = Rig::new(lazy(Fail::default()));
    let pool = Pool::new(PoolConfig { retention_bytes: 0, ..PoolConfig::default() });
    let unread = product(&rig, &pool, ROWS[1], 1).unwrap();
    let read = product(&rig, &pool, ROWS[0], 2).unwrap();
    right(&read);
    drop((unread, read));
    pool.trim();
    assert_eq!(pool.stats().parked, 0);
    assert_eq!(rig.driver.report().live_registrations, 0);
    rig.finish();
}

/// The first try finds no memory for the code of a kernel; a later one does.
#[test]
fn a_module_that_found_no_memory_is_loaded_later() {
    let fail = Fail::new("cuModuleLoadData", 0, 2);
    let rig = Rig::with(Config { fail, ..Config::default() }, |cuda| {
        cuda.nvrtc = OptionalLibrary::Off;
    });
    let pool = pool();
    let first = product(&rig, &pool, ROWS[0], 1).map(|_| ());
    assert_eq!(first, Err(Decline::OutOfDeviceMemory));
    right(&product(&rig, &pool, ROWS[0], 1).unwrap());
    assert_eq!(rig.provider.notes()[0], "kernels as shipped, in PTX");
    drop(pool);
    rig.finish();
}

/// Tries become rarer, because each takes time. What the driver cannot translate is tried once.
#[test]
fn a_module_is_not_asked_for_at_every_call() {
    for (code, why, tries) in [(2, Decline::OutOfDeviceMemory, 6), (218, Decline::Refused, 1)] {
        let fail = Fail::new("cuModuleLoadData", u64::MAX, code);
        let rig = Rig::with(Config { fail, ..Config::default() }, |cuda| {
            cuda.nvrtc = OptionalLibrary::Off;
        });
        let pool = pool();
        for _ in 0..32 {
            assert_eq!(product(&rig, &pool, ROWS[0], 1).map(|_| ()), Err(why));
        }
        assert_eq!(rig.driver.calls("cuModuleLoadData"), tries, "code {code}");
        let notes = rig.provider.notes().join("\n");
        let word = if code == 2 { "no memory is left for kernels" } else { "refuses it" };
        assert!(notes.contains(word), "{notes}");
        drop(pool);
        rig.finish();
    }
}

/// cuBLAS without memory, for its handle or for a product: our kernels do that call, and the
/// library serves later ones.
#[test]
fn cublas_without_memory_is_tried_again() {
    for call in ["cublasCreate_v2", "cublasSetWorkspace_v2", "cublasSgemm_v2"] {
        let rig = Rig::with_cublas(Config { fail: Fail::new(call, 0, 3), ..Config::default() });
        let pool = pool();
        for round in 0..3 {
            right(&product(&rig, &pool, 40, round).unwrap());
            assert_eq!(rig.driver.report().products, round as u64, "{call}");
        }
        let notes = rig.provider.notes().join("\n");
        assert!(notes.contains("large f32 products by cuBLAS"), "{notes}");
        drop(pool);
        rig.finish();
    }
}

/// The workspace gets memory once that is free, and nothing is dropped for it again and again.
#[test]
fn cublas_gets_its_workspace_when_memory_is_free() {
    let rig = Rig::with(Config::default(), |cuda| {
        use_cublas(cuda);
        cuda.memory_bytes = Some(5 << 20);
    });
    let pool = pool();
    // A result that only the device has, so nothing can drop it: 1.4 MB.
    let large = product(&rig, &pool, 18_000, 1).unwrap();
    let products = || rig.driver.report().products;
    for round in 0..4 {
        right(&product(&rig, &pool, 40, round).unwrap());
    }
    assert_eq!(products(), 0);
    let notes = rig.provider.notes().join("\n");
    assert!(notes.contains("the workspace of cuBLAS; it will be tried again"), "{notes}");
    right(&large);
    drop(large);
    for round in 0..8 {
        right(&product(&rig, &pool, 40, round).unwrap());
    }
    assert!(products() > 0, "{:?}", rig.provider.counters());
    drop(pool);
    rig.finish();
}

/// What the tests above take for granted.
#[test]
fn a_device_without_refusals_is_right() -> Result<(), Trouble> {
    let rig = Rig::new(lazy(Fail::default()));
    let pool = pool();
    for rows in ROWS {
        let Product { out, want } = product(&rig, &pool, rows, 3).map_err(Trouble::Declined)?;
        expect(&out, &want, "a product")?;
    }
    drop(pool);
    rig.finish();
    Ok(())
}
