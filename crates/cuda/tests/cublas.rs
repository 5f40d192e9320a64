//! Products by cuBLAS: every layout, many schedules, and everything that can be missing or fail.

mod common;

use common::scenario::{Matrix, Trouble, pool, program};
use common::{Rig, use_cublas};
use fucina_accel::{Call, MatMul, Operand, Pool, Provider as _, Storage, submit};
use fucina_cuda::OptionalLibrary;
use fucina_cuda_driver::control::{Config, Fail, Schedule};
use fucina_dtype::DType;

/// Large enough for cuBLAS, and for locked pages.
const SIDE: usize = 136;
const SMALL: usize = 24;

#[test]
fn any_legal_order_gives_the_same_results() {
    for seed in 0..60_u16 {
        let schedule = match seed % 6 {
            0 => Schedule::Lazy,
            1 => Schedule::CopiesFirst,
            _ => Schedule::Random,
        };
        let rig = Rig::with_cublas(Config { seed: u64::from(seed), schedule, ..Config::default() });
        let side = if seed % 6 == 3 { SIDE } else { SMALL };
        let outcome = program(&*rig.provider, usize::from(seed), side);
        assert!(outcome.is_ok(), "seed {seed}: {outcome:?}, {}", rig.driver.violations());
        let report = rig.finish();
        assert!(report.products >= 5, "{report:?}");
    }
}

/// Matrices of integers with these strides (batch, row, k) in one storage, and what is there of
/// each. What lies between their elements is not a number.
fn scattered(
    pool: &Pool,
    seed: usize,
    [batch, rows, k]: [usize; 3],
    strides: [usize; 3],
) -> (Storage, Vec<Matrix>) {
    let place = |batch, row, k| batch * strides[0] + row * strides[1] + k * strides[2];
    let mut elems = vec![f32::NAN; 1 + place(batch - 1, rows - 1, k - 1)];
    let places = |batch| (0..rows * k).map(move |at| place(batch, at / k, at % k));
    for index in 0..batch {
        let values = Matrix::integers(rows, k, seed + index).values;
        places(index).zip(values).for_each(|(at, value)| elems[at] = value);
    }
    let mut storage = pool.take(4 * elems.len()).expect("memory");
    let bytes = storage.host_mut().expect("host memory");
    for (to, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&elems) {
        *to = value.to_le_bytes();
    }
    let gather = |index| places(index).map(|at| elems[at]).collect();
    let matrix = |index| Matrix { rows, cols: k, values: gather(index) };
    (storage, (0..batch).map(matrix).collect())
}

/// Sizes that differ, so that mixed-up ones show.
const SIZES: [usize; 3] = [18, 40, 23];

/// A product of matrices with these strides (batch, row, k). Returns how many products cuBLAS has done.
fn layout(batch: usize, lhs: [usize; 3], rhs: [usize; 3]) -> u64 {
    let [m, n, k] = SIZES;
    let rig = Rig::with_cublas(Config::default());
    let pool = pool();
    let (sa, a) = scattered(&pool, 0, [batch, m, k], lhs);
    let (sb, b) = scattered(&pool, 100, [batch, n, k], rhs);
    let lhs = Operand::new(&sa, DType::F32, 0, &[batch, m, k], &lhs).expect("a view");
    let rhs = Operand::new(&sb, DType::F32, 0, &[batch, n, k], &rhs).expect("a view");
    let call = Call::MatMul(MatMul { lhs, rhs });
    let out = pool.take(call.out_bytes().expect("valid")).expect("memory");
    let out = submit(&*rig.provider, &call, out).map_err(|(why, _)| why).expect("accepted");
    let got = out.host().expect("a result");
    let want: Vec<f32> = a.iter().zip(&b).flat_map(|(a, b)| a.dot_t(b).values).collect();
    let got: Vec<f32> =
        got.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    assert_eq!(got[..want.len()], want);
    drop((out, sa, sb, pool));
    rig.finish().products
}

#[test]
fn every_layout_that_cublas_knows_is_right() {
    let [m, n, k] = SIZES;
    let lhs = [[m * k, k, 1], [m * k, 1, m], [m * k + 5, k, 1], [m * (k + 3), k + 3, 1]];
    let rhs = [[n * k, k, 1], [n * k, 1, n], [n * k + 7, k, 1], [(n + 2) * k, 1, n + 2], [0, k, 1]];
    for batch in [1, 3] {
        for lhs in lhs {
            for rhs in rhs {
                assert_eq!(layout(batch, lhs, rhs), 1, "{batch} {lhs:?} {rhs:?}");
            }
        }
    }
}

#[test]
fn rows_that_share_elements_are_for_own_kernels() {
    let [m, n, k] = SIZES;
    assert_eq!(layout(1, [m * k, 1, 1], [n * k, k, 1]), 0, "windows over one row");
    assert_eq!(layout(1, [m * k, k, 1], [0, 0, 1]), 0, "one row for all columns");
    assert_eq!(layout(1, [m * k * 2, 2 * k, 2], [n * k, k, 1]), 0, "every other element");
}

/// A call of cuBLAS that fails is not the end: our kernels do the rest, and a note says why.
#[test]
fn a_call_that_fails_switches_cublas_off() {
    let calls = [
        ("cublasCreate_v2", "does not start: CUBLAS_STATUS_INTERNAL_ERROR (14)"),
        ("cublasGetVersion_v2", "does not start"),
        ("cublasSetStream_v2", "does not start"),
        ("cublasSetWorkspace_v2", "does not start"),
        ("cublasSetMathMode", "does not start"),
        ("cublasSgemm_v2", "a call of cuBLAS failed with CUBLAS_STATUS_INTERNAL_ERROR (14)"),
    ];
    for (call, reason) in calls {
        for at in [0, 2, u64::MAX] {
            let fail = Fail::new(call, at, 14);
            let config = Config { fail, schedule: Schedule::Random, seed: 7, ..Config::default() };
            let rig = Rig::with_cublas(config);
            program(&*rig.provider, 2, SMALL).unwrap();
            let failed = rig.driver.calls(call) > at || at == u64::MAX;
            let notes = rig.provider.notes().join("\n");
            assert_eq!(notes.contains(reason), failed, "{call} {at}: {notes}");
            assert_eq!(
                rig.driver.calls(call),
                if failed { at % u64::MAX + 1 } else { 1 },
                "{call}"
            );
            rig.finish();
        }
    }
}

#[test]
fn r07_a_fault_in_a_product_is_a_value() {
    for fault_at in [0, 1, 3] {
        let config = Config { fault_at, schedule: Schedule::Lazy, ..Config::default() };
        let rig = Rig::with_cublas(config);
        match program(&*rig.provider, 3, SMALL) {
            Err(Trouble::Fault(error)) => assert!(error.to_string().contains("LAUNCH_FAILED")),
            Err(Trouble::Declined(why)) => assert_eq!(why, fucina_accel::Decline::DeviceLost),
            other => panic!("product {fault_at} failed, and the program ended with {other:?}"),
        }
        assert!(rig.provider.is_lost());
    }
}

/// What a note must say with a library that does not serve, and that the program is right.
fn without(config: Config, library: OptionalLibrary, reason: &str) {
    let rig = Rig::with(config, |cuda| cuda.cublas = library);
    program(&*rig.provider, 5, SMALL).expect("a right program");
    let notes = rig.provider.notes().join("\n");
    assert!(notes.contains("f32 products by own kernels: "), "{notes}");
    assert!(notes.contains(reason), "{notes}");
    assert_eq!(rig.finish().products, 0);
}

#[test]
fn without_cublas_own_kernels_do_and_a_note_says_why() {
    let config = Config::default();
    without(config, OptionalLibrary::Off, "cuBLAS is switched off");
    without(config, OptionalLibrary::System, "with another driver, cuBLAS must be named, too");
    let nowhere = OptionalLibrary::Path("no-such-folder/libcublas.so".into());
    without(config, nowhere, "no-such-folder/libcublas.so cannot be opened");
    let other = OptionalLibrary::Path("libm.so.6".into());
    without(config, other, "libm.so.6 has no entry point cublasCreate_v2");
}

#[test]
fn a_library_that_is_too_old_is_not_used() {
    let config = Config { blas_version: 10_203, ..Config::default() };
    let rig = Rig::with_cublas(config);
    program(&*rig.provider, 5, SMALL).unwrap();
    let notes = rig.provider.notes().join("\n");
    assert!(notes.contains("cuBLAS 10.2.3 is too old: 11.0 or newer is needed"), "{notes}");
    assert_eq!(rig.finish().products, 0);
}

#[test]
fn a_budget_without_room_for_the_workspace_does_without() {
    let rig = Rig::with(Config::default(), |cuda| {
        use_cublas(cuda);
        cuda.memory_bytes = Some(1 << 20);
    });
    program(&*rig.provider, 5, SMALL).unwrap();
    let notes = rig.provider.notes().join("\n");
    assert!(notes.contains("no device memory is left for the workspace of cuBLAS"), "{notes}");
    assert_eq!(rig.finish().products, 0);
}

/// 1 + 2^-12 is no TF32 number.
#[test]
fn only_who_asks_for_tf32_gets_it() {
    for tf32 in [false, true] {
        let rig = Rig::with(Config::default(), |cuda| {
            use_cublas(cuda);
            cuda.tf32 = tf32;
        });
        let pool = pool();
        let fine = 1.0 + 2.0_f32.powi(-12);
        let a = Matrix { rows: 16, cols: 16, values: vec![fine; 256] };
        let b = Matrix { rows: 16, cols: 16, values: vec![1.0; 256] };
        let (sa, sb) = (a.storage(&pool), b.storage(&pool));
        let view = |storage| Operand::dense(storage, DType::F32, 0, &[1, 16, 16]).expect("a view");
        let call = Call::MatMul(MatMul { lhs: view(&sa), rhs: view(&sb) });
        let out = pool.take(call.out_bytes().expect("valid")).expect("memory");
        let out = submit(&*rig.provider, &call, out).map_err(|(why, _)| why).expect("accepted");
        let want = if tf32 { 16.0 } else { 16.0 * fine };
        let first = out.host().expect("a result").first_chunk().copied().map(f32::from_le_bytes);
        assert_eq!(first, Some(want));
        let notes = rig.provider.notes().join("\n");
        assert!(notes.contains("large f32 products by cuBLAS 12.0.1"), "{notes}");
        assert_eq!(notes.contains("TF32"), tf32, "{notes}");
        drop((out, sa, sb, pool));
        rig.finish();
    }
}
