//! Products through a BLAS library: the stand-in, and real ones where `FUCINA_BLAS_FOLDER` names a
//! folder of them.

#![expect(clippy::unwrap_used, reason = "helpers of tests outside a test function")]

use std::path::{Path, PathBuf};

use fucina_blas_double::control::{Double, Role};
use fucina_blas_double::libraries;
use fucina_runtime::{BlasChoice, BlasKind, BlasState, Config, DType, DynTensor, Runtime};
use fucina_testkit::{DotOracle, Rng};

fn runtime(library: Option<&Path>, choice: BlasChoice, threads: usize) -> Runtime {
    let mut config = Config::default();
    config.blas = choice;
    config.blas_library = library.map(Path::to_owned);
    Runtime::builder().config(config).threads(threads).build().unwrap()
}

/// Calls of products by kernel, as the trace counts them.
fn kernels(rt: &Runtime) -> Vec<(&'static str, u64)> {
    let counters = rt.trace().counters();
    counters.kernels.iter().map(|(&(_, kernel), &calls)| (kernel, calls)).collect()
}

fn random(rt: &Runtime, shape: &[usize], seed: u64) -> DynTensor {
    rt.tensor(shape, &Rng::new(seed).normals(shape.iter().product(), 1.0)).unwrap()
}

/// `lhs: [b, m, k]` and `rhs: [b, n, k]`, at any strides, as batches.
fn check(lhs: &DynTensor, rhs: &DynTensor, label: &str) -> DynTensor {
    let out = lhs.batch_contract(rhs, (0, 0), (2, 2)).unwrap();
    let (x, w, got) = (lhs.to_vec().unwrap(), rhs.to_vec().unwrap(), out.to_vec().unwrap());
    let &[_, m, k] = lhs.shape() else { panic!("rank three") };
    let n = rhs.shape()[1];
    for (at, &got) in got.iter().enumerate() {
        let (batch, i, j) = (at / (m * n), at / n % m, at % n);
        let x = &x[(batch * m + i) * k..][..k];
        let w = &w[(batch * n + j) * k..][..k];
        DotOracle::new(x, w).assert_close(got, &format!("{label} {batch} {i} {j}"));
    }
    out
}

/// Every layout that the interface has, dense, and as parts of larger matrices.
fn check_layouts(rt: &Runtime, [b, m, n, k]: [usize; 4]) {
    for transposed in [(false, false), (true, false), (false, true)] {
        for extra in [0, 3] {
            let make = |rows: usize, is_transposed: bool, seed: u64| {
                let shape = if is_transposed { [b, k, rows + extra] } else { [b, rows, k + extra] };
                let all = random(rt, &shape, seed);
                let all = all.narrow(2, extra, shape[2] - extra).unwrap();
                if is_transposed { all.permute(&[0, 2, 1]).unwrap() } else { all }
            };
            let (lhs, rhs) = (make(m, transposed.0, 1), make(n, transposed.1, 2));
            check(&lhs, &rhs, &format!("[{b}, {m}, {n}, {k}] {transposed:?} {extra}"));
        }
    }
}

const SIZES: [[usize; 4]; 5] =
    [[1, 64, 16, 16], [3, 65, 31, 16], [1, 300, 70, 33], [1, 70, 700, 64], [2, 97, 49, 130]];

#[test]
fn products_agree_with_f64_at_all_layouts_and_say_what_ran() {
    for role in [Role::OpenBlas, Role::OpenBlasOpenMp, Role::Mkl] {
        let double = Double::start(role);
        let rt = runtime(Some(double.path()), BlasChoice::Auto, 3);
        for sizes in SIZES {
            check_layouts(&rt, sizes);
        }
        let name = if role == Role::Mkl { "mkl" } else { "openblas" };
        assert_eq!(kernels(&rt), [(name, 6 * SIZES.len() as u64)], "{role:?}");
        assert_eq!(double.breaches(), 0, "{role:?}");
    }
}

#[test]
fn one_large_product_is_split_and_the_same_for_any_number_of_threads() {
    let double = Double::start(Role::OpenBlas);
    let mut results = Vec::new();
    for threads in [1, 2, 5] {
        // Each runtime opens the library with three products of its own.
        let rt = runtime(Some(double.path()), BlasChoice::Auto, threads);
        let (x, w) = (random(&rt, &[300, 257], 1), random(&rt, &[1100, 257], 2));
        let before = double.calls();
        results.push(x.matmul_t(&w).unwrap().to_vec().unwrap());
        let parts = double.calls() - before - 3;
        assert!(parts >= 4, "{parts} calls");
    }
    assert!(results.iter().all(|result| *result == results[0]));
    assert_eq!(double.breaches(), 0);
}

#[test]
fn what_the_library_cannot_or_need_not_do_runs_here_with_its_reason() {
    let double = Double::start(Role::OpenBlas);
    let rt = runtime(Some(double.path()), BlasChoice::Kind(BlasKind::OpenBlas), 2);
    assert!(matches!(rt.blas(), BlasState::Ready(_)));
    let opened = double.calls();
    for sizes in [[1, 63, 64, 64], [1, 64, 15, 64], [1, 64, 64, 15], [2, 1, 64, 64]] {
        let [b, m, n, k] = sizes;
        check(&random(&rt, &[b, m, k], 1), &random(&rt, &[b, n, k], 2), "small");
    }
    assert_eq!(kernels(&rt), [("own kernel: too small for a BLAS library", 4)]);
    // Every second element, a repeated row, and rows that overlap.
    let strided = random(&rt, &[1, 70, 40, 2], 3).narrow(3, 1, 1).unwrap();
    let strided = strided.reshape(&[1, 70, 40]).unwrap();
    assert!(!strided.is_contiguous());
    let dense = random(&rt, &[1, 74, 40], 4);
    check(&strided, &dense, "strided");
    check(&dense, &strided, "strided weights");
    let repeated = random(&rt, &[1, 1, 40], 5).broadcast(&[1, 70, 40]).unwrap();
    check(&repeated, &dense, "repeated");
    assert_eq!(kernels(&rt)[0], ("own kernel: strides that BLAS does not have", 3));
    assert_eq!(double.calls(), opened, "nothing of this went to the library");
    // Weights of other types have no choice.
    let half = rt.zeros(DType::F16, &[64, 64]).unwrap();
    random(&rt, &[64, 64], 6).matmul_t(&half).unwrap();
    assert_eq!(kernels(&rt).len(), 2);
}

#[test]
fn without_a_usable_library_products_are_computed_and_the_reason_is_told() {
    let wrong = Double::start(Role::Wrong);
    let nowhere = PathBuf::from("/nowhere/libopenblas.so");
    for path in [nowhere.as_path(), wrong.path()] {
        let rt = runtime(Some(path), BlasChoice::Auto, 2);
        check_layouts(&rt, [2, 20, 30, 40]);
        assert_eq!(kernels(&rt), [("own kernel: no BLAS library is usable", 6)]);
        let BlasState::Absent(error) = rt.blas() else { panic!("{path:?} is usable") };
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    }
}

#[test]
fn a_library_that_is_switched_off_is_not_opened() {
    let double = Double::start(Role::OpenBlas);
    let rt = runtime(Some(double.path()), BlasChoice::Off, 2);
    check_layouts(&rt, [1, 20, 30, 40]);
    assert!(matches!(rt.blas(), BlasState::Off));
    assert_eq!((double.calls(), kernels(&rt)), (0, vec![]));
}

#[test]
fn a_library_of_another_kind_than_asked_for_is_not_used() {
    let double = Double::start(Role::OpenBlas);
    let rt = runtime(Some(double.path()), BlasChoice::Kind(BlasKind::Mkl), 1);
    let BlasState::Absent(error) = rt.blas() else { panic!("it is not MKL") };
    assert!(error.to_string().contains("it is openblas, and mkl was asked for"), "{error}");
}

#[test]
fn nan_and_infinity_reach_the_results_that_they_belong_to() {
    let double = Double::start(Role::OpenBlas);
    specials(&runtime(Some(double.path()), BlasChoice::Auto, 2));
}

fn specials(rt: &Runtime) {
    let (m, n, k) = (80, 50, 20);
    let mut x = vec![1.0f32; m * k];
    (x[3 * k + 4], x[5 * k + 6]) = (f32::NAN, f32::INFINITY);
    // The pool hands out memory that was NaN.
    drop(rt.tensor(&[m, n], &vec![f32::NAN; m * n]).unwrap());
    let out = rt.tensor(&[m, k], &x).unwrap();
    let out = out.matmul_t(&rt.tensor(&[n, k], &vec![2.0f32; n * k]).unwrap()).unwrap();
    for (i, row) in out.to_vec().unwrap().chunks(n).enumerate() {
        match i {
            3 => assert!(row.iter().all(|got| got.is_nan())),
            5 => assert!(row.iter().all(|&got| got == f32::INFINITY)),
            _ => assert!(row.iter().all(|&got| got == 40.0), "row {i}: {row:?}"),
        }
    }
}

#[test]
fn threads_that_multiply_at_once_do_not_disturb_each_other() {
    let double = Double::start(Role::Mkl);
    let rt = runtime(Some(double.path()), BlasChoice::Auto, 3);
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let rt = &rt;
            scope.spawn(move || {
                let (x, w) = (random(rt, &[1, 70, 50], seed), random(rt, &[1, 300, 50], seed + 9));
                check(&x, &w, "at once");
            });
        }
    });
    assert_eq!(double.breaches(), 0);
}

#[test]
fn real_libraries_agree_with_f64() {
    let Some(folder) = std::env::var_os("FUCINA_BLAS_FOLDER") else {
        println!("SKIPPED: FUCINA_BLAS_FOLDER names no folder of BLAS libraries");
        return;
    };
    let found = libraries(Path::new(&folder));
    assert!(!found.is_empty(), "no library in {}", folder.display());
    for path in found {
        let rt = runtime(Some(&path), BlasChoice::Auto, 2);
        let BlasState::Ready(blas) = rt.blas() else {
            println!("{}: {:?}", path.display(), rt.blas());
            continue;
        };
        println!("{}: {}", path.display(), blas.version());
        for sizes in SIZES {
            check_layouts(&rt, sizes);
        }
        specials(&rt);
        let one = runtime(Some(&path), BlasChoice::Auto, 1);
        let of = |rt: &Runtime| {
            let (x, w) = (random(rt, &[300, 700], 1), random(rt, &[1500, 700], 2));
            x.matmul_t(&w).unwrap().to_vec().unwrap()
        };
        assert!(of(&rt) == of(&one), "the number of threads changes nothing");
        assert_eq!(kernels(&rt).len(), 1);
    }
}
