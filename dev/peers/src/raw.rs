//! The peers' products that take pointers, behind slices: `out[m, n] = x[m, k] * w[n, k]ᵀ`.

use std::ffi::c_int;

use anyhow::{Context as _, Result};
use gemm::Parallelism;
use half::f16;
use libloading::{Library, Symbol};

fn check([m, n, k]: [usize; 3], x: usize, w: usize, out: usize) {
    assert!(x == m * k && w == n * k && out == m * n, "sizes of the operands");
}

const fn parallel(threads: usize) -> Parallelism {
    if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None }
}

/// # Panics
///
/// Panics if an operand has another size.
pub(crate) fn gemm_f32(sizes: [usize; 3], x: &[f32], w: &[f32], out: &mut [f32], threads: usize) {
    check(sizes, x.len(), w.len(), out.len());
    let [m, n, k] = sizes;
    let (out, x, w) = (out.as_mut_ptr(), x.as_ptr(), w.as_ptr());
    let (rows, depth) = (n as isize, k as isize);
    let parallel = parallel(threads);
    // SAFETY: the pointers are valid for the sizes and strides, which `check` has compared with
    // the slices; the destination is exclusive.
    unsafe {
        gemm::gemm(
            m, n, k, out, 1, rows, false, x, 1, depth, w, depth, 1, 0.0, 1.0, false, false, false,
            parallel,
        );
    }
}

/// # Panics
///
/// As [`gemm_f32`].
pub(crate) fn gemm_f16(sizes: [usize; 3], x: &[f16], w: &[f16], out: &mut [f16], threads: usize) {
    check(sizes, x.len(), w.len(), out.len());
    let [m, n, k] = sizes;
    let (out, x, w) = (out.as_mut_ptr(), x.as_ptr(), w.as_ptr());
    let (rows, depth) = (n as isize, k as isize);
    let (zero, one, parallel) = (f16::ZERO, f16::ONE, parallel(threads));
    // SAFETY: as in `gemm_f32`.
    unsafe {
        gemm::gemm(
            m, n, k, out, 1, rows, false, x, 1, depth, w, depth, 1, zero, one, false, false, false,
            parallel,
        );
    }
}

/// `cblas_sgemm`: layout, two transpositions, sizes, factor, operands with their row lengths.
type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    f32,
    *mut f32,
    c_int,
);

const ROW_MAJOR: c_int = 101;
const NO_TRANS: c_int = 111;
const TRANS: c_int = 112;

/// A library with the C interface of BLAS and 32-bit sizes.
pub(crate) struct Blas {
    sgemm: Sgemm,
    /// Keeps the code loaded.
    _library: Library,
}

impl Blas {
    pub(crate) fn open(path: &str) -> Result<Self> {
        // SAFETY: whoever runs the benchmark names the library and trusts its initializers.
        let library = unsafe { Library::new(path) }.context("the library does not open")?;
        let names = [&b"cblas_sgemm\0"[..], b"scipy_cblas_sgemm\0"];
        let found = names.into_iter().find_map(|name| {
            // SAFETY: a symbol of this name has this signature by the standard of the interface.
            let symbol: Symbol<'_, Sgemm> = unsafe { library.get(name) }.ok()?;
            Some(*symbol)
        });
        let sgemm = found.context("the library has no cblas_sgemm")?;
        Ok(Self { sgemm, _library: library })
    }

    /// # Panics
    ///
    /// As [`gemm_f32`].
    pub(crate) fn sgemm_nt(
        &self,
        sizes: [usize; 3],
        x: &[f32],
        w: &[f32],
        out: &mut [f32],
    ) -> Result<()> {
        check(sizes, x.len(), w.len(), out.len());
        let size = |size: usize| c_int::try_from(size).context("size");
        let (m, n, k) = (size(sizes[0])?, size(sizes[1])?, size(sizes[2])?);
        let (out, x, w) = (out.as_mut_ptr(), x.as_ptr(), w.as_ptr());
        // SAFETY: as in `gemm_f32`; row lengths are those of dense matrices.
        unsafe {
            (self.sgemm)(ROW_MAJOR, NO_TRANS, TRANS, m, n, k, 1.0, x, k, w, k, 0.0, out, n);
        }
        Ok(())
    }
}
