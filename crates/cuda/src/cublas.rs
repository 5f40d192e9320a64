//! Large f32 products by cuBLAS, where it can be had.
//!
//! The library is opened when a product first wants it. Whatever goes wrong, then or later, switches
//! it off, with a reason that [`CuBlas::about`] tells; our own kernels run the same calls. Only what
//! went wrong for want of memory is tried again. All calls
//! of the one handle are made under the lock of the queue, as launches are: it works in the compute
//! lane. It is destroyed before the lanes are.

use std::ffi::c_int;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

use crate::config::{CudaConfig, OptionalLibrary};
use crate::driver::{Context, CuError, Entered, held};
use crate::memory::Buffer;
use crate::queue::Device;
use crate::retry::Retry;
use crate::sys::{self, DevicePtr, Handle, Status};

/// Names of the library, in the order of search.
const NAMES: [&str; 3] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"];

/// Oldest series with the entry points as they are called here.
const MIN_MAJOR: i32 = 11;

/// Memory that the library may use while it computes, as its manual recommends: before compute
/// capability 9.0, and from there on.
const WORKSPACE_BYTES: [usize; 2] = [4 << 20, 32 << 20];

type Result<T> = std::result::Result<T, CuError>;

/// cuBLAS, or why there is none.
pub(crate) struct CuBlas {
    config: CudaConfig,
    capability: (i32, i32),
    state: Mutex<State>,
}

enum State {
    Untried,
    /// Memory was short, with the library open. It is tried again, now and then.
    Waiting {
        table: Arc<sys::Blas>,
        retry: Retry,
        why: String,
    },
    Ready(Arc<Blas>),
    Off(String),
}

/// Why there is no handle.
enum NoHandle {
    Memory(Arc<sys::Blas>, String),
    Never(String),
}

impl From<String> for NoHandle {
    fn from(why: String) -> Self {
        Self::Never(why)
    }
}

impl CuBlas {
    pub(crate) fn new(config: &CudaConfig, capability: (i32, i32)) -> Self {
        Self { config: config.clone(), capability, state: Mutex::new(State::Untried) }
    }

    /// The library, which the first call opens. `None` if it is switched off.
    pub(crate) fn get(&self, device: &Device, entered: &Entered<'_>) -> Option<Arc<Blas>> {
        let mut state = held(&self.state);
        let (table, mut retry) = match &mut *state {
            State::Untried => (None, Retry::default()),
            State::Waiting { table, retry, .. } => {
                if !retry.is_due() {
                    return None;
                }
                (Some(Arc::clone(table)), std::mem::take(retry))
            }
            State::Ready(blas) if blas.failure.get().is_none() => return Some(Arc::clone(blas)),
            _ => return None,
        };
        *state = match self.open(device, entered, table) {
            Ok(blas) => State::Ready(Arc::new(blas)),
            Err(NoHandle::Never(why)) => State::Off(why),
            Err(NoHandle::Memory(table, why)) => {
                retry.failed();
                State::Waiting { table, retry, why }
            }
        };
        match &*state {
            State::Ready(blas) if blas.failure.get().is_none() => Some(Arc::clone(blas)),
            _ => None,
        }
    }

    /// One line on what computes large f32 products.
    pub(crate) fn about(&self, device: &Device, entered: &Entered<'_>) -> String {
        let _ = self.get(device, entered);
        let own = |why: &str| format!("f32 products by own kernels: {why}");
        match &*held(&self.state) {
            State::Untried => own("cuBLAS was not tried"),
            State::Off(why) => own(why),
            State::Waiting { why, .. } => own(&format!("{why}; it will be tried again")),
            State::Ready(blas) => match blas.failure.get() {
                Some(error) => own(&format!("a call of cuBLAS failed with {error}")),
                None => {
                    let rounding = if self.config.tf32 { ", operands rounded to TF32" } else { "" };
                    format!("large f32 products by cuBLAS {}{rounding}", blas.version)
                }
            },
        }
    }

    fn table(&self) -> std::result::Result<sys::Blas, String> {
        match &self.config.cublas {
            OptionalLibrary::Off => Err("cuBLAS is switched off".to_owned()),
            OptionalLibrary::Path(path) => sys::Blas::open(&[path]),
            // It would open the system's driver, which knows nothing of our objects.
            OptionalLibrary::System if self.config.library.is_some() => {
                Err("with another driver, cuBLAS must be named, too".to_owned())
            }
            OptionalLibrary::System => sys::Blas::open(&NAMES.map(Path::new)),
        }
    }

    /// A handle, of the library that an earlier try has opened.
    fn open(
        &self,
        device: &Device,
        entered: &Entered<'_>,
        opened: Option<Arc<sys::Blas>>,
    ) -> std::result::Result<Blas, NoHandle> {
        let size = WORKSPACE_BYTES[usize::from(self.capability >= (9, 0))];
        let (table, workspace) = match opened {
            // Copies of weights are not dropped for it again and again.
            Some(table) => (table, device.memory.take_spare(size)),
            None => (Arc::new(self.table()?), device.memory.take(size)),
        };
        let Some(workspace) = workspace else {
            let why = "no device memory is left for the workspace of cuBLAS".to_owned();
            return Err(NoHandle::Memory(table, why));
        };
        let failed = |error: CuError| {
            let why = format!("cuBLAS does not start: {error}");
            if error.code == sys::BLAS_ALLOC_FAILED {
                return NoHandle::Memory(Arc::clone(&table), why);
            }
            NoHandle::Never(why)
        };
        let workspace = (Arc::new(workspace), size);
        let mut blas = Blas::create(&table, device, workspace).map_err(failed)?;
        blas.set_up(device, entered, self.config.tf32).map_err(failed)?;
        // 11.4.1 is 110401; before that, 10.2.3 was 10203.
        let unit = if blas.number >= 100_000 { 10_000 } else { 1000 };
        let (major, minor) = (blas.number / unit, blas.number % unit / 100);
        blas.version = format!("{major}.{minor}.{}", blas.number % 100);
        if major < MIN_MAJOR {
            let why = format!("cuBLAS {} is too old: 11.0 or newer is needed", blas.version);
            return Err(NoHandle::Never(why));
        }
        Ok(blas)
    }
}

/// A handle of the library, at work in the compute lane.
pub(crate) struct Blas {
    table: Arc<sys::Blas>,
    handle: Handle,
    context: Arc<Context>,
    number: c_int,
    version: String,
    /// Memory that every call may use; calls follow one another in the lane.
    workspace: Arc<Buffer>,
    workspace_bytes: usize,
    /// The first call that failed for another reason than memory. There is none after it.
    failure: OnceLock<CuError>,
}

/// `out[m, n] = lhs[m, k] * rhs[n, k]ᵀ`, or several of them.
pub(crate) struct Gemm {
    pub(crate) lhs: Matrix,
    pub(crate) rhs: Matrix,
    pub(crate) out: DevicePtr,
    pub(crate) batch: c_int,
    pub(crate) m: c_int,
    pub(crate) n: c_int,
    pub(crate) k: c_int,
}

/// f32 rows or columns, each dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) address: DevicePtr,
    /// Neighbours along k are neighbours in memory.
    pub(crate) along_k: bool,
    /// Elements from one row or column to the next.
    pub(crate) stride: c_int,
    /// Elements from one matrix to the next.
    pub(crate) step: i64,
}

impl Blas {
    fn create(
        table: &Arc<sys::Blas>,
        device: &Device,
        (workspace, workspace_bytes): (Arc<Buffer>, usize),
    ) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the device's context is current; the library stores a handle.
        check(unsafe { (table.create)(&raw mut raw) })?;
        let handle = Handle::new(raw).ok_or_else(|| error(14))?;
        let (context, failure) = (Arc::clone(&device.context), OnceLock::new());
        let (table, number, version) = (Arc::clone(table), 0, String::new());
        let blas =
            Self { table, handle, context, number, version, workspace, workspace_bytes, failure };
        Ok(blas)
    }

    fn set_up(&mut self, device: &Device, _entered: &Entered<'_>, tf32: bool) -> Result<()> {
        let (table, handle) = (&self.table, self.handle.raw());
        // SAFETY: the handle is alive; the library stores an integer.
        check(unsafe { (table.version)(handle, &raw mut self.number) })?;
        let stream = device.lanes.compute.handle().raw();
        // SAFETY: the handle is alive, and destroyed before the stream is.
        check(unsafe { (table.set_stream)(handle, stream) })?;
        // After the stream, which takes a workspace back.
        let (address, size) = (self.workspace.address(), self.workspace_bytes);
        // SAFETY: the memory belongs to the handle, and every command that uses it holds it.
        check(unsafe { (table.set_workspace)(handle, address, size) })?;
        let mode = if tf32 { sys::BLAS_TF32_MATH } else { sys::BLAS_DEFAULT_MATH };
        // SAFETY: the handle is alive.
        check(unsafe { (table.set_math_mode)(handle, mode) })
    }

    /// Memory that commands of the library use beside their operands.
    pub(crate) const fn workspace(&self) -> &Arc<Buffer> {
        &self.workspace
    }

    /// Starts a product in the compute lane.
    ///
    /// # Safety
    ///
    /// The device memory that the product names is large enough, and nothing frees it until the
    /// lane has passed the product. The caller holds the lock of the queue.
    pub(crate) unsafe fn run(&self, _entered: &Entered<'_>, gemm: &Gemm) -> Result<()> {
        let Gemm { lhs, rhs, out, batch, m, n, k } = gemm;
        let op = |transposed| if transposed { sys::BLAS_OP_T } else { sys::BLAS_OP_N };
        // The library counts along columns. What is rows to us are columns to it, so it computes
        // the transposed product: outᵀ[n, m] = rhs[n, k] * lhs[m, k]ᵀ.
        let (first, second) = (op(rhs.along_k), op(!lhs.along_k));
        let (one, zero) = (1.0_f32, 0.0_f32);
        let (table, handle) = (&self.table, self.handle.raw());
        let status = if *batch == 1 {
            // SAFETY: the caller vouches for the memory; the factors are read before it returns.
            unsafe {
                (table.sgemm)(
                    handle,
                    first,
                    second,
                    *n,
                    *m,
                    *k,
                    &raw const one,
                    rhs.address,
                    rhs.stride,
                    lhs.address,
                    lhs.stride,
                    &raw const zero,
                    *out,
                    *n,
                )
            }
        } else {
            let plane = i64::from(*m) * i64::from(*n);
            // SAFETY: as above.
            unsafe {
                (table.sgemm_strided)(
                    handle,
                    first,
                    second,
                    *n,
                    *m,
                    *k,
                    &raw const one,
                    rhs.address,
                    rhs.stride,
                    rhs.step,
                    lhs.address,
                    lhs.stride,
                    lhs.step,
                    &raw const zero,
                    *out,
                    *n,
                    plane,
                    *batch,
                )
            }
        };
        // The device has nothing of a call that failed.
        check(status).inspect_err(|error| {
            if error.code != sys::BLAS_ALLOC_FAILED {
                let _ = self.failure.set(error.clone());
            }
        })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // Not in a forked child.
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: this is the owner. The library waits for its work.
            let _ = unsafe { (self.table.destroy)(self.handle.raw()) };
        }
    }
}

fn check(code: Status) -> Result<()> {
    if code == sys::SUCCESS { Ok(()) } else { Err(error(code)) }
}

fn error(code: Status) -> CuError {
    let name = match code {
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "unknown cuBLAS error",
    };
    CuError::of_library(code, name)
}
