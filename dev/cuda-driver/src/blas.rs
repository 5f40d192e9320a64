//! A stand-in for `libcublas`, in the same library: the handful of entry points that Fucina's
//! provider uses. A product is computed when its stream gets there, one element after another.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use crate::entry::{DEPTH, number, pointer, sim, store};
use crate::heap::Heap;
use crate::sim::{Op, Sim};
use crate::status::Status;

const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1;
const ALLOC_FAILED: Status = 3;
const INVALID_VALUE: Status = 7;
const EXECUTION_FAILED: Status = 13;
const INTERNAL_ERROR: Status = 14;

/// Most that a product uses of its workspace.
const SCRATCH_BYTES: u64 = 1 << 20;

/// A handle of the library.
#[derive(Clone, Default)]
pub(crate) struct Handle {
    stream: u64,
    workspace: Option<Range<u64>>,
    tf32: bool,
}

/// Columns of f32.
#[derive(Clone, Copy)]
struct Matrix {
    address: u64,
    transposed: bool,
    /// Elements from one column to the next.
    stride: i64,
    /// Elements from one matrix to the next.
    step: i64,
}

/// `C[m, n] = A[m, k] * B[k, n]`, by columns.
pub(crate) struct Gemm {
    a: Matrix,
    b: Matrix,
    c: Matrix,
    batch: i64,
    m: i64,
    n: i64,
    k: i64,
    alpha: f32,
    beta: f32,
    workspace: Range<u64>,
    tf32: bool,
}

type Result<T> = std::result::Result<T, Status>;

/// Runs an entry point as the driver's are run, with the library's codes.
fn call(name: &'static str, body: impl FnOnce(&mut Sim) -> Result<()>) -> Status {
    if DEPTH.get() == 0 {
        return NOT_INITIALIZED;
    }
    let run = || {
        let mut sim = sim();
        match sim.begin(name) {
            Ok(true) => body(&mut sim),
            Ok(false) => Ok(()),
            Err(_) if sim.is_broken() => Err(EXECUTION_FAILED),
            Err(code) => Err(code),
        }
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => INTERNAL_ERROR,
    }
}

fn handle(sim: &mut Sim, handle: *mut c_void) -> Result<&mut Handle> {
    if !sim.blas.contains_key(&number(handle)) {
        sim.violation("a handle of cuBLAS was used that does not exist");
    }
    sim.blas.get_mut(&number(handle)).ok_or(NOT_INITIALIZED)
}

/// Defines an entry point: what is before the bar is the C signature.
macro_rules! entry {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?) |$sim:ident| $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of cuBLAS.")]
            // No other library defines the name for those who open this one by its path.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "as the library has it")]
            extern "C" fn $name($($arg: $type),*) -> Status {
                call(stringify!($name), |$sim| $body)
            }
        )*
    };
}

entry! {
    cublasCreate_v2(at: *mut *mut c_void) |sim| {
        let new = sim.handle();
        sim.blas.insert(new, Handle::default());
        store(at, pointer(new)).map_err(|_| INVALID_VALUE)
    }
    cublasDestroy_v2(raw: *mut c_void) |sim| {
        let stream = handle(sim, raw)?.stream;
        // 0 is the default stream.
        if stream != 0 && sim.streams.get(&stream).is_none_or(|stream| stream.destroyed) {
            sim.violation("a handle of cuBLAS outlives its stream");
        }
        // It waits for its work.
        let drained = sim.drain();
        sim.blas.remove(&number(raw));
        drained.map_err(|_| EXECUTION_FAILED)
    }
    cublasGetVersion_v2(raw: *mut c_void, version: *mut c_int) |sim| {
        handle(sim, raw)?;
        store(version, sim.config.blas_version).map_err(|_| INVALID_VALUE)
    }
    cublasSetStream_v2(raw: *mut c_void, stream: *mut c_void) |sim| {
        let handle = handle(sim, raw)?;
        handle.stream = number(stream);
        handle.workspace = None;
        Ok(())
    }
    cublasSetWorkspace_v2(raw: *mut c_void, address: u64, len: usize) |sim| {
        if !address.is_multiple_of(256) {
            return Err(INVALID_VALUE);
        }
        handle(sim, raw)?.workspace = Some(address..address + len as u64);
        Ok(())
    }
    cublasSetMathMode(raw: *mut c_void, mode: c_int) |sim| {
        handle(sim, raw)?.tf32 = match mode {
            0 => false,
            3 => true,
            _ => return Err(INVALID_VALUE),
        };
        Ok(())
    }
    cublasSgemm_v2(
        raw: *mut c_void, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int,
        alpha: *const f32, a: u64, lda: c_int, b: u64, ldb: c_int, beta: *const f32, c: u64,
        ldc: c_int,
    ) |sim| {
        let matrices = [(a, op_a, lda, 0), (b, op_b, ldb, 0), (c, 0, ldc, 0)];
        gemm(sim, raw, [m, n, k, 1], matrices, [alpha, beta])
    }
    cublasSgemmStridedBatched(
        raw: *mut c_void, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int,
        alpha: *const f32, a: u64, lda: c_int, step_a: i64, b: u64, ldb: c_int, step_b: i64,
        beta: *const f32, c: u64, ldc: c_int, step_c: i64, batch: c_int,
    ) |sim| {
        let matrices = [(a, op_a, lda, step_a), (b, op_b, ldb, step_b), (c, 0, ldc, step_c)];
        gemm(sim, raw, [m, n, k, batch], matrices, [alpha, beta])
    }
}

fn gemm(
    sim: &mut Sim,
    raw: *mut c_void,
    sizes: [c_int; 4],
    [a, b, c]: [(u64, c_int, c_int, i64); 3],
    factors: [*const f32; 2],
) -> Result<()> {
    let handle = handle(sim, raw)?.clone();
    let [m, n, k, batch] = sizes.map(i64::from);
    let matrix = |(address, op, stride, step): (u64, c_int, c_int, i64), rows: [i64; 2]| {
        let transposed = op == 1;
        let rows = rows[usize::from(transposed)];
        let good = (0..=1).contains(&op) && i64::from(stride) >= rows.max(1) && address % 4 == 0;
        let stride = i64::from(stride);
        good.then_some(Matrix { address, transposed, stride, step }).ok_or(INVALID_VALUE)
    };
    if m < 0 || n < 0 || k < 0 || batch < 0 || factors.iter().any(|factor| factor.is_null()) {
        return Err(INVALID_VALUE);
    }
    let (a, b, c) = (matrix(a, [m, k])?, matrix(b, [k, n])?, matrix(c, [m, m])?);
    // SAFETY: neither is null, and the caller passes the addresses of two numbers.
    let [alpha, beta] = factors.map(|factor| unsafe { factor.read() });
    // Without memory of the caller the library would allocate some of its own.
    let workspace = handle.workspace.ok_or(ALLOC_FAILED)?;
    let tf32 = handle.tf32;
    let gemm = Gemm { a, b, c, batch, m, n, k, alpha, beta, workspace, tf32 };
    sim.push(handle.stream, Op::Gemm(gemm)).map_err(|_| EXECUTION_FAILED)
}

impl Gemm {
    /// Computes it. The fault, in one line, if there is one.
    pub(crate) fn run(&self, heap: &Heap) -> std::result::Result<(), String> {
        let scratch = SCRATCH_BYTES.min(self.workspace.end - self.workspace.start);
        heap.scribble(&(self.workspace.start..self.workspace.start + scratch))
            .map_err(|error| format!("the workspace of a product: {error}"))?;
        for index in 0..self.batch {
            // Rows of `A` and columns of `B`, each along k.
            let a = self.lines(heap, &self.a, index, self.m, !self.a.transposed)?;
            let b = self.lines(heap, &self.b, index, self.n, self.b.transposed)?;
            let mut column = Vec::new();
            for (j, b) in (0..self.n).zip(&b) {
                column.clear();
                let at = self.c.address_of(index, j);
                if self.beta != 0.0 {
                    return Err("a product that adds to its output is not simulated".to_owned());
                }
                for a in &a {
                    let sum = a.iter().zip(b).fold(0.0_f32, |sum, (a, b)| a.mul_add(*b, sum));
                    column.extend((self.alpha * sum).to_le_bytes());
                }
                heap.upload(at, &column).map_err(|error| format!("a product writes: {error}"))?;
            }
        }
        Ok(())
    }

    /// Lines of `k` elements: the columns of a matrix, or, `across` them, its rows.
    fn lines(
        &self,
        heap: &Heap,
        matrix: &Matrix,
        index: i64,
        count: i64,
        across: bool,
    ) -> std::result::Result<Vec<Vec<f32>>, String> {
        let (columns, rows) = if across { (self.k, count) } else { (count, self.k) };
        let mut read = Vec::new();
        for column in 0..columns {
            let mut bytes = vec![0; 4 * usize::try_from(rows).unwrap_or(0)];
            let at = matrix.address_of(index, column);
            let got = heap.download(at, &mut bytes);
            got.map_err(|error| format!("a product reads: {error}"))?;
            let values = bytes.as_chunks::<4>().0.iter();
            let values = values.map(|&bytes| self.rounded(f32::from_le_bytes(bytes)));
            read.push(values.collect::<Vec<f32>>());
        }
        if !across {
            return Ok(read);
        }
        let rows = 0..usize::try_from(rows).unwrap_or(0);
        Ok(rows.map(|row| read.iter().map(|column| column[row]).collect()).collect())
    }

    /// An operand as the tensor cores see it: 10 bits of mantissa, to nearest.
    fn rounded(&self, value: f32) -> f32 {
        if self.tf32 && value.is_finite() {
            f32::from_bits((value.to_bits() + 0x1000) & !0x1fff)
        } else {
            value
        }
    }
}

impl Matrix {
    fn address_of(&self, index: i64, column: i64) -> u64 {
        self.address.wrapping_add_signed(4 * (index * self.step + column * self.stride))
    }
}
