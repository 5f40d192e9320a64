//! The C interfaces of the driver, of cuBLAS and of the run-time compiler: types, constants, and
//! tables of entry points that are filled at run time. Nothing here is called except through
//! [`crate::driver`], [`crate::cublas`] and [`crate::nvrtc`].

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::NonNull;

use libloading::Library;

pub(crate) type Status = c_int;
pub(crate) type DevicePtr = u64;
pub(crate) type Ordinal = c_int;

/// An object of the driver, which only the driver can look into.
#[repr(C)]
pub(crate) struct Opaque {
    _private: [u8; 0],
}

/// A handle to an object of the driver. The driver's objects may be used from any thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(NonNull<Opaque>);

// SAFETY: the driver locks its objects itself; a handle is an address that only it follows.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(crate) fn new(raw: *mut Opaque) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }

    pub(crate) fn raw(self) -> *mut Opaque {
        self.0.as_ptr()
    }
}

pub(crate) const SUCCESS: Status = 0;
pub(crate) const OUT_OF_MEMORY: Status = 2;
pub(crate) const STUB_LIBRARY: Status = 34;
pub(crate) const NO_DEVICE: Status = 100;
pub(crate) const NOT_READY: Status = 600;

pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const EVENT_BLOCKING_SYNC: c_uint = 1;
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const HOST_ALLOC_PORTABLE: c_uint = 1;
pub(crate) const HOST_REGISTER_PORTABLE: c_uint = 1;
pub(crate) const FUNC_MAX_DYNAMIC_SHARED: c_int = 8;

pub(crate) const ATTR_SM_COUNT: c_int = 16;
pub(crate) const ATTR_CC_MAJOR: c_int = 75;
pub(crate) const ATTR_CC_MINOR: c_int = 76;

pub(crate) const BLAS_OP_N: c_int = 0;
pub(crate) const BLAS_OP_T: c_int = 1;
pub(crate) const BLAS_DEFAULT_MATH: c_int = 0;
pub(crate) const BLAS_TF32_MATH: c_int = 3;
pub(crate) const BLAS_ALLOC_FAILED: Status = 3;

pub(crate) const NVRTC_OUT_OF_MEMORY: Status = 1;

/// Declares a table of entry points and its loader. Each row is a field, the symbol, its type.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $symbol:literal ($($arg:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        pub(crate) struct $name {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> Status,)*
            /// Keeps the code of the entry points mapped.
            _library: Library,
        }

        impl $name {
            /// Opens the first library of `names` that exists and has every entry point.
            pub(crate) fn open(names: &[&Path]) -> Result<Self, String> {
                let (library, path) = open_first(names)?;
                // SAFETY: each symbol has the type that the library's public interface gives it;
                // the pointers are kept no longer than the library, which is a field beside them.
                $(let $field = unsafe { symbol(&library, path, $symbol) }?;)*
                Ok(Self { $($field,)* _library: library })
            }
        }
    };
}

table! {
    /// `libcuda`. Names with a version suffix are the ABI that every supported driver has.
    Driver {
        init: "cuInit" (c_uint);
        driver_version: "cuDriverGetVersion" (*mut c_int);
        error_name: "cuGetErrorName" (Status, *mut *const c_char);
        device_count: "cuDeviceGetCount" (*mut c_int);
        device_get: "cuDeviceGet" (*mut Ordinal, c_int);
        device_name: "cuDeviceGetName" (*mut c_char, c_int, Ordinal);
        device_total_mem: "cuDeviceTotalMem_v2" (*mut usize, Ordinal);
        device_attribute: "cuDeviceGetAttribute" (*mut c_int, c_int, Ordinal);
        context_retain: "cuDevicePrimaryCtxRetain" (*mut *mut Opaque, Ordinal);
        context_release: "cuDevicePrimaryCtxRelease_v2" (Ordinal);
        context_push: "cuCtxPushCurrent_v2" (*mut Opaque);
        context_pop: "cuCtxPopCurrent_v2" (*mut *mut Opaque);
        mem_info: "cuMemGetInfo_v2" (*mut usize, *mut usize);
        mem_alloc: "cuMemAlloc_v2" (*mut DevicePtr, usize);
        mem_free: "cuMemFree_v2" (DevicePtr);
        host_alloc: "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        host_free: "cuMemFreeHost" (*mut c_void);
        host_register: "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        host_unregister: "cuMemHostUnregister" (*mut c_void);
        copy_to_device: "cuMemcpyHtoDAsync_v2" (DevicePtr, *const c_void, usize, *mut Opaque);
        copy_to_host: "cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePtr, usize, *mut Opaque);
        copy_to_host_now: "cuMemcpyDtoH_v2" (*mut c_void, DevicePtr, usize);
        stream_create: "cuStreamCreate" (*mut *mut Opaque, c_uint);
        stream_destroy: "cuStreamDestroy_v2" (*mut Opaque);
        stream_sync: "cuStreamSynchronize" (*mut Opaque);
        stream_wait: "cuStreamWaitEvent" (*mut Opaque, *mut Opaque, c_uint);
        event_create: "cuEventCreate" (*mut *mut Opaque, c_uint);
        event_destroy: "cuEventDestroy_v2" (*mut Opaque);
        event_record: "cuEventRecord" (*mut Opaque, *mut Opaque);
        event_query: "cuEventQuery" (*mut Opaque);
        event_sync: "cuEventSynchronize" (*mut Opaque);
        event_elapsed: "cuEventElapsedTime" (*mut f32, *mut Opaque, *mut Opaque);
        module_load: "cuModuleLoadData" (*mut *mut Opaque, *const c_void);
        module_unload: "cuModuleUnload" (*mut Opaque);
        module_function: "cuModuleGetFunction" (*mut *mut Opaque, *mut Opaque, *const c_char);
        function_attribute: "cuFuncSetAttribute" (*mut Opaque, c_int, c_int);
        launch: "cuLaunchKernel" (
            *mut Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut Opaque,
            *mut *mut c_void, *mut *mut c_void
        );
    }
}

table! {
    /// `libcublas`, from 11.0 on.
    Blas {
        create: "cublasCreate_v2" (*mut *mut Opaque);
        destroy: "cublasDestroy_v2" (*mut Opaque);
        version: "cublasGetVersion_v2" (*mut Opaque, *mut c_int);
        set_stream: "cublasSetStream_v2" (*mut Opaque, *mut Opaque);
        set_workspace: "cublasSetWorkspace_v2" (*mut Opaque, DevicePtr, usize);
        set_math_mode: "cublasSetMathMode" (*mut Opaque, c_int);
        // Handle, two transpositions, three sizes, alpha, A with its stride, B with its stride,
        // beta, C with its stride.
        sgemm: "cublasSgemm_v2" (
            *mut Opaque, c_int, c_int, c_int, c_int, c_int, *const f32, DevicePtr, c_int,
            DevicePtr, c_int, *const f32, DevicePtr, c_int,
        );
        // The same with a distance of matrices after each stride, and the number of matrices.
        sgemm_strided: "cublasSgemmStridedBatched" (
            *mut Opaque, c_int, c_int, c_int, c_int, c_int, *const f32, DevicePtr, c_int, i64,
            DevicePtr, c_int, i64, *const f32, DevicePtr, c_int, i64, c_int,
        );
    }
}

table! {
    /// `libnvrtc`, from 11.2 on.
    Nvrtc {
        version: "nvrtcVersion" (*mut c_int, *mut c_int);
        arch_count: "nvrtcGetNumSupportedArchs" (*mut c_int);
        archs: "nvrtcGetSupportedArchs" (*mut c_int);
        create: "nvrtcCreateProgram" (
            *mut *mut Opaque, *const c_char, *const c_char, c_int, *const *const c_char,
            *const *const c_char,
        );
        destroy: "nvrtcDestroyProgram" (*mut *mut Opaque);
        compile: "nvrtcCompileProgram" (*mut Opaque, c_int, *const *const c_char);
        ptx_size: "nvrtcGetPTXSize" (*mut Opaque, *mut usize);
        ptx: "nvrtcGetPTX" (*mut Opaque, *mut c_char);
        log_size: "nvrtcGetProgramLogSize" (*mut Opaque, *mut usize);
        log: "nvrtcGetProgramLog" (*mut Opaque, *mut c_char);
    }
}

/// Opens the first of `names` that can be opened; the error is that of the last one.
fn open_first<'n>(names: &[&'n Path]) -> Result<(Library, &'n Path), String> {
    let mut last = "no name to look for".to_owned();
    for &name in names {
        // SAFETY: the library is the GPU vendor's, or what the user named in its place; its
        // initializers run with the trust that any driver has.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok((library, name)),
            Err(error) => last = format!("{} cannot be opened: {error}", name.display()),
        }
    }
    Err(last)
}

/// Looks an entry point up.
///
/// # Safety
///
/// `T` is the type of the function behind the symbol, and the result is not used after the library
/// is closed.
unsafe fn symbol<T: Copy>(library: &Library, path: &Path, name: &str) -> Result<T, String> {
    // SAFETY: passed on to the caller.
    let symbol = unsafe { library.get::<T>(name.as_bytes()) };
    let missing = |_| format!("{} has no entry point {name}", path.display());
    symbol.map(|symbol| *symbol).map_err(missing)
}
