//! Libraries that are opened by their path: the stand-in in all its roles, and real ones where
//! `FUCINA_BLAS_FOLDER` names a folder of them.

use std::path::Path;

use fucina_blas::{Blas, Kind, Matrix, NoBlas, Output, Refusal};
use fucina_blas_double::control::{Double, Role};
use fucina_blas_double::libraries;
use fucina_testkit::{DotOracle, Rng};

fn refusal(role: Role, kind: Option<Kind>) -> Refusal {
    let double = Double::start(role);
    let NoBlas { mut tried } = Blas::open(double.path(), kind).expect_err("it is refused");
    assert_eq!(tried.len(), 1);
    let attempt = tried.remove(0);
    assert_eq!(attempt.library, double.path());
    attempt.refusal
}

#[test]
fn a_library_is_what_its_functions_say() {
    for (role, kind) in [
        (Role::OpenBlas, Kind::OpenBlas),
        (Role::OpenBlasOpenMp, Kind::OpenBlas),
        (Role::Mkl, Kind::Mkl),
    ] {
        let double = Double::start(role);
        let blas = Blas::open(double.path(), None).unwrap();
        assert_eq!(blas.kind(), kind, "{role:?}");
        assert_eq!(double.calls(), 3, "a small product of each layout");
        assert_eq!(double.breaches(), 0, "{role:?}");
        assert_eq!(blas.version().contains("double"), kind == Kind::OpenBlas);
        if cfg!(unix) {
            assert_eq!(blas.file(), double.path());
        }
    }
}

#[test]
fn what_cannot_be_used_is_refused_with_its_reason() {
    assert_eq!(refusal(Role::OpenBlasWide, None), Refusal::Sizes64);
    assert_eq!(refusal(Role::OpenBlasWideNames, None), Refusal::Sizes64);
    assert_eq!(refusal(Role::MklWide, None), Refusal::Sizes64);
    assert_eq!(refusal(Role::Unknown, None), Refusal::Threads);
    assert_eq!(refusal(Role::Wrong, None), Refusal::Product { layout: "NN" });
    let (found, asked) = (Kind::OpenBlas, Kind::Mkl);
    assert_eq!(refusal(Role::OpenBlas, Some(asked)), Refusal::Kind { found, asked });
    let open = |path: &Path| Blas::open(path, None).unwrap_err().tried.remove(0).refusal;
    assert!(matches!(open(Path::new("/nowhere/libopenblas.so")), Refusal::Open { .. }));
    assert!(matches!(open(&std::env::current_exe().unwrap()), Refusal::Open { .. }));
}

#[test]
#[cfg(target_os = "linux")]
fn a_library_of_something_else_is_refused() {
    let error = Blas::open(Path::new("libm.so.6"), None).unwrap_err();
    assert_eq!(error.tried[0].refusal, Refusal::NoProduct);
    let text = error.to_string();
    assert!(text.contains("libm.so.6: it has no entry point cblas_sgemm"), "{text}");
}

#[test]
fn a_search_names_everything_that_was_tried() {
    match Blas::find(&Kind::ALL) {
        Ok(blas) => assert!(blas.kind().is_built_in()),
        Err(NoBlas { tried }) => {
            let looked_for = Kind::ALL.iter().any(|kind| {
                kind.is_built_in() && (*kind != Kind::Accelerate || cfg!(target_os = "macos"))
            });
            assert_eq!(!tried.is_empty(), looked_for);
            assert!(NoBlas { tried }.to_string().contains("no BLAS library"));
        }
    }
    assert_eq!(Blas::find(&[]).unwrap_err(), NoBlas { tried: Vec::new() });
}

/// Every call says one thread, on whatever thread it is made, and MKL's setting is taken back.
#[test]
fn a_call_stays_on_its_thread() {
    for role in [Role::OpenBlas, Role::OpenBlasOpenMp, Role::Mkl] {
        let double = Double::start(role);
        let blas = Blas::open(double.path(), None).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let before = double.threads();
                    check(&blas, [9, 8, 7], "NT", 0);
                    check(&blas, [9, 8, 7], "NN", 0);
                    let want = if role == Role::Mkl { before } else { 1 };
                    assert_eq!(double.threads(), want, "{role:?}");
                });
            }
        });
        assert_eq!(double.breaches(), 0, "{role:?}");
        assert_eq!(double.calls(), 3 + 8);
    }
}

#[test]
fn more_threads_than_buffers_wait() {
    let double = Double::start(Role::OpenBlas);
    let blas = Blas::open(double.path(), None).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..80 {
            scope.spawn(|| check(&blas, [17, 33, 65], "NT", 0));
        }
    });
    assert!(double.most_inside() <= 32, "{}", double.most_inside());
    assert_eq!((double.calls(), double.breaches()), (3 + 80, 0));
}

fn matrix(data: &[f32], sizes: [usize; 2], strides: [usize; 2]) -> Matrix<'_> {
    Matrix::new(data, sizes, strides).expect("the interface can say it")
}

/// A product of `[m, n, k]` against f64, into a rectangle whose surroundings must stay. `extra` are
/// elements between lines.
fn check(blas: &Blas, [m, n, k]: [usize; 3], layout: &str, extra: usize) {
    let mut rng = Rng::new((m * 31 + n * 7 + k) as u64);
    let (of_a, len_a) = if layout == "TN" {
        ([1, m + extra], k * (m + extra))
    } else {
        ([k + extra, 1], m * (k + extra))
    };
    let (of_b, len_b) = if layout == "NT" {
        ([1, k + extra], n * (k + extra))
    } else {
        ([n + extra, 1], k * (n + extra))
    };
    let (left, right) = (rng.normals(len_a, 1.0), rng.normals(len_b, 1.0));
    let (row, guard) = (n + 3, 7.5);
    let mut all = vec![guard; (m + 2) * row];
    for i in 0..m {
        all[(i + 1) * row + 1..][..n].fill(f32::NAN);
    }
    let first = all[row + 1..].as_mut_ptr();
    // SAFETY: the rectangle is inside `all`, which is not used until the product is done.
    let mut out = unsafe { Output::from_raw(first, row, m, n) };
    let (a, b) = (matrix(&left, [m, k], of_a), matrix(&right, [k, n], of_b));
    blas.multiply(a, b, &mut out);
    for (at, &got) in all.iter().enumerate() {
        let (i, j) = (at / row, at % row);
        if !(1..=m).contains(&i) || !(1..=n).contains(&j) {
            assert!(got == guard, "{m} {n} {k} {layout}: [{i}, {j}] is outside and was written");
            continue;
        }
        let (i, j) = (i - 1, j - 1);
        let x: Vec<f32> = (0..k).map(|p| left[i * of_a[0] + p * of_a[1]]).collect();
        let y: Vec<f32> = (0..k).map(|p| right[p * of_b[0] + j * of_b[1]]).collect();
        DotOracle::new(&x, &y).assert_close(got, &format!("{m} {n} {k} {layout} [{i}, {j}]"));
    }
}

fn check_all(blas: &Blas) {
    let sizes = [[1, 1, 1], [1, 17, 5], [17, 1, 5], [16, 16, 16], [33, 47, 129], [20, 40, 513]];
    for sizes in sizes {
        for layout in ["NN", "NT", "TN"] {
            for extra in [0, 5] {
                check(blas, sizes, layout, extra);
            }
        }
    }
    // Nothing to add up is zero, and nothing to write is no call.
    let mut out = [f32::NAN; 6];
    let none = |rows, cols| matrix(&[], [rows, cols], [cols, 1]);
    blas.multiply(none(2, 0), none(0, 3), &mut Output::new(&mut out, 2, 3));
    assert_eq!(out, [0.0; 6]);
    blas.multiply(none(0, 0), none(0, 3), &mut Output::new(&mut [], 0, 3));
}

/// NaN and infinities of the operands reach the results that they belong to, and no others; what the
/// output held does not count.
fn check_specials(blas: &Blas) {
    let (m, n, k) = (19, 21, 18);
    for layout in ["NN", "NT"] {
        let mut left = vec![1.0; m * k];
        left[3 * k + 4] = f32::NAN;
        left[5 * k + 6] = f32::INFINITY;
        let right = vec![2.0; k * n];
        let of_b = if layout == "NT" { [1, k] } else { [n, 1] };
        let mut out = vec![f32::NAN; m * n];
        let (a, b) = (matrix(&left, [m, k], [k, 1]), matrix(&right, [k, n], of_b));
        blas.multiply(a, b, &mut Output::new(&mut out, m, n));
        for (i, row) in out.chunks(n).enumerate() {
            for &got in row {
                match i {
                    3 => assert!(got.is_nan()),
                    5 => assert_eq!(got, f32::INFINITY),
                    _ => assert_eq!(got, 36.0, "row {i} {layout}"),
                }
            }
        }
    }
}

#[test]
fn products_agree_with_f64_at_all_layouts_and_strides() {
    for role in [Role::OpenBlas, Role::OpenBlasOpenMp, Role::Mkl] {
        let double = Double::start(role);
        let blas = Blas::open(double.path(), None).unwrap();
        check_all(&blas);
        check_specials(&blas);
        assert_eq!(double.breaches(), 0, "{role:?}");
    }
}

#[test]
fn real_libraries_agree_with_f64_at_all_layouts_and_strides() {
    let Some(folder) = std::env::var_os("FUCINA_BLAS_FOLDER") else {
        println!("SKIPPED: FUCINA_BLAS_FOLDER names no folder of BLAS libraries");
        return;
    };
    let found = libraries(Path::new(&folder));
    assert!(!found.is_empty(), "no library in {}", folder.display());
    for path in found {
        match Blas::open(&path, None) {
            Ok(blas) => {
                println!("{}: {} {}", path.display(), blas.kind(), blas.version());
                check_all(&blas);
                check_specials(&blas);
                std::thread::scope(|scope| {
                    for _ in 0..40 {
                        scope.spawn(|| check(&blas, [65, 129, 257], "NT", 3));
                    }
                });
            }
            Err(error) => {
                println!("{error}");
                assert_eq!(error.tried[0].refusal, Refusal::Sizes64, "{}", path.display());
            }
        }
    }
}
