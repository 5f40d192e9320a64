//! The entry points, as C has them.
//!
//! The names of MKL are among them: a copy that passes for OpenBLAS has them removed.

use std::cell::Cell;
use std::ffi::{c_char, c_float, c_int};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};

/// Threads that a call would use where nobody has asked for fewer.
const MANY: c_int = 4;

const OPENMP: c_int = 2;

/// Bits of the mode, as `control` sets it.
pub(crate) const WRONG: c_int = 1;
pub(crate) const WIDE: c_int = 2;
pub(crate) const EACH_THREAD: c_int = 4;
pub(crate) const WIDE_LAYER: c_int = 8;

static MODE: AtomicI32 = AtomicI32::new(0);
/// Threads of the process.
static THREADS: AtomicI32 = AtomicI32::new(MANY);
static CALLS: AtomicUsize = AtomicUsize::new(0);
static BREACHES: AtomicUsize = AtomicUsize::new(0);
static INSIDE: AtomicUsize = AtomicUsize::new(0);
static MOST_INSIDE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Threads that this thread has asked for; 0: those of the process.
    static LOCAL: Cell<c_int> = const { Cell::new(0) };
}

fn mode(bit: c_int) -> bool {
    MODE.load(SeqCst) & bit != 0
}

fn threads() -> c_int {
    match LOCAL.get() {
        0 if mode(EACH_THREAD) => MANY,
        0 => THREADS.load(SeqCst),
        threads => threads,
    }
}

/// An operand: its first element, its row length, and whether it is transposed.
#[derive(Clone, Copy)]
struct Operand {
    data: *const f32,
    row: usize,
    transposed: bool,
}

impl Operand {
    /// `None` if the interface does not take it.
    fn new(
        data: *const f32,
        transposition: c_int,
        row: c_int,
        sizes: (usize, usize),
    ) -> Option<Self> {
        let transposed = match transposition {
            111 => false,
            112 => true,
            _ => return None,
        };
        let dense = if transposed { sizes.0 } else { sizes.1 };
        let row = usize::try_from(row).ok().filter(|&row| row >= dense.max(1))?;
        (!data.is_null()).then_some(Self { data, row, transposed })
    }

    /// # Safety
    ///
    /// The element is inside the operand.
    unsafe fn at(self, i: usize, j: usize) -> f64 {
        let (i, j) = if self.transposed { (j, i) } else { (i, j) };
        // SAFETY: passed on to the caller.
        let element = unsafe { self.data.add(i * self.row + j) };
        // SAFETY: as above.
        f64::from(unsafe { element.read() })
    }
}

/// The product of the interface.
///
/// # Safety
///
/// As the interface says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cblas_sgemm(
    layout: c_int,
    trans_a: c_int,
    trans_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: c_float,
    a: *const f32,
    lda: c_int,
    b: *const f32,
    ldb: c_int,
    beta: c_float,
    c: *mut f32,
    ldc: c_int,
) {
    CALLS.fetch_add(1, SeqCst);
    MOST_INSIDE.fetch_max(INSIDE.fetch_add(1, SeqCst) + 1, SeqCst);
    let size = |size: c_int| usize::try_from(size).ok();
    let taken = (|| {
        let (m, n, k, ldc) = (size(m)?, size(n)?, size(k)?, size(ldc)?);
        let a = Operand::new(a, trans_a, lda, (m, k))?;
        let b = Operand::new(b, trans_b, ldb, (k, n))?;
        // Nobody here adds or scales, so nothing else is computed.
        let plain = layout == 101 && (alpha, beta) == (1.0, 0.0);
        (plain && ldc >= n.max(1) && !c.is_null()).then_some((m, n, k, a, b, ldc))
    })();
    if taken.is_none() || threads() != 1 {
        BREACHES.fetch_add(1, SeqCst);
    }
    if let Some((m, n, k, a, b, ldc)) = taken {
        for i in 0..m {
            for j in 0..n {
                // SAFETY: indices are below the sizes, inside what the caller vouches for.
                let product = |p| unsafe { a.at(i, p) } * unsafe { b.at(p, j) };
                let sum = (0..k).map(product).sum::<f64>();
                let off = if mode(WRONG) && i + 1 == m { 1.0 } else { 0.0 };
                // SAFETY: as above.
                let element = unsafe { c.add(i * ldc + j) };
                #[expect(clippy::cast_possible_truncation, reason = "the result is rounded once")]
                // SAFETY: as above.
                unsafe {
                    element.write((sum + off) as f32);
                }
            }
        }
    }
    INSIDE.fetch_sub(1, SeqCst);
}

/// The same with 64-bit sizes, for those that look whether it is there.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cblas_sgemm64_() {
    BREACHES.fetch_add(1, SeqCst);
}

/// Sets the threads of the process; where the library says that its threads are those of OpenMP,
/// of the calling thread.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn openblas_set_num_threads(threads: c_int) {
    if mode(EACH_THREAD) {
        LOCAL.set(threads);
    } else {
        THREADS.store(threads, SeqCst);
    }
}

/// What the library was built as.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn openblas_get_config() -> *const c_char {
    let text = if mode(WIDE) { c"OpenBLAS double USE64BITINT" } else { c"OpenBLAS double" };
    text.as_ptr()
}

/// Whose threads it would use.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn openblas_get_parallel() -> c_int {
    if mode(EACH_THREAD) { OPENMP } else { 1 }
}

/// Sets the threads of the calling thread and returns the number before.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn MKL_Set_Num_Threads_Local(threads: c_int) -> c_int {
    LOCAL.replace(threads)
}

/// Chooses the sizes, and returns the choice that holds.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn MKL_Set_Interface_Layer(layer: c_int) -> c_int {
    if mode(WIDE_LAYER) { 1 } else { layer }
}

/// Chooses the threads, and returns the choice that holds.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn MKL_Set_Threading_Layer(layer: c_int) -> c_int {
    layer
}

/// For `control`: what the library passes for.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn blas_double_mode(mode: c_int) {
    MODE.store(mode, SeqCst);
}

/// For `control`: products so far.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn blas_double_calls() -> usize {
    CALLS.load(SeqCst)
}

/// For `control`: products that the interface forbids, or that would have started threads.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn blas_double_breaches() -> usize {
    BREACHES.load(SeqCst)
}

/// For `control`: most products at once.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn blas_double_most_inside() -> usize {
    MOST_INSIDE.load(SeqCst)
}

/// For `control`: threads that a product of the calling thread would use.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn blas_double_threads() -> usize {
    usize::try_from(threads()).unwrap_or(0)
}
