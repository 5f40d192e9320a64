//! The C interfaces of the libraries, and the one place where they are called.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_float, c_int, c_void};
use std::path::{Path, PathBuf};

use crate::kind::Kind;
use crate::matrix::Matrix;
use crate::open::Refusal;
use crate::output::Output;

/// `cblas_sgemm`: layout, two transpositions, `m`, `n`, `k`, alpha, A with its row length, B with
/// its, beta, C with its.
type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_float,
    *const f32,
    c_int,
    *const f32,
    c_int,
    c_float,
    *mut f32,
    c_int,
);
type SetInt = unsafe extern "C" fn(c_int);
type SwapInt = unsafe extern "C" fn(c_int) -> c_int;
type GetInt = unsafe extern "C" fn() -> c_int;
type GetText = unsafe extern "C" fn() -> *const c_char;
type WriteText = unsafe extern "C" fn(*mut c_char, c_int);

const ROW_MAJOR: c_int = 101;
const NO_TRANS: c_int = 111;
const TRANS: c_int = 112;

/// What `openblas_get_parallel` says of a library whose threads are those of OpenMP.
const OPENMP: c_int = 2;
/// Layers of MKL: 32-bit sizes, the same with the calling convention of GNU Fortran, no threads.
const MKL_LP64: c_int = 0;
const MKL_GNU: c_int = 2;
const MKL_SEQUENTIAL: c_int = 1;
/// `BLAS_THREADING_SINGLE_THREADED`, as macOS has it from 15 on.
const ACCELERATE_SINGLE: u32 = 1;

/// Names of the product, by the prefix that a build of OpenBLAS may have.
const PREFIXES: [&str; 2] = ["", "scipy_"];
/// Names of the product with 64-bit sizes, after the prefix.
const WIDE: [&str; 3] = ["cblas_sgemm64_", "cblas_sgemm_64", "cblas_sgemm_64_"];

/// The functions of a library, which stays open for as long as the process lives.
pub(crate) struct Library {
    sgemm: Sgemm,
    control: Control,
}

/// What keeps a call on its own thread.
#[derive(Clone, Copy)]
enum Control {
    /// It was said once, for the process.
    Once,
    /// It is said once on every thread.
    EachThread(SetInt),
    /// It is said around every call, and taken back.
    EachCall(SwapInt),
    /// It is said before every call.
    Accelerate(unsafe extern "C" fn(u32) -> c_int),
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}

/// What was found out about a library while it was opened.
pub(crate) struct Found {
    pub(crate) library: Library,
    pub(crate) kind: Kind,
    pub(crate) version: String,
    pub(crate) file: PathBuf,
}

/// A library whose functions are looked up.
struct Opened(libloading::Library);

/// Opens a library and keeps it to one thread.
pub(crate) fn open(name: &Path) -> Result<Found, Refusal> {
    // SAFETY: the library is the system's, or what the user named in its place; its initializers
    // run with the trust that any library of the program has.
    let opened = unsafe { libloading::Library::new(name) };
    let opened = Opened(opened.map_err(|error| Refusal::Open { error: error.to_string() })?);
    let found = opened.look(name);
    // Its threads, if it has started some, run its code until the process ends.
    std::mem::forget(opened);
    found
}

impl Opened {
    /// # Safety
    ///
    /// `T` is the type of the function behind the symbol.
    unsafe fn symbol<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: passed on to the caller; the library is never closed.
        unsafe { self.0.get::<T>(name.as_bytes()) }.ok().map(|symbol| *symbol)
    }

    fn look(&self, name: &Path) -> Result<Found, Refusal> {
        let found = PREFIXES.into_iter().find_map(|prefix| {
            // SAFETY: the interface is a standard, and the name is its name.
            unsafe { self.symbol::<Sgemm>(&format!("{prefix}cblas_sgemm")) }.map(|f| (prefix, f))
        });
        let Some((prefix, sgemm)) = found else {
            let wide = PREFIXES.iter().any(|prefix| {
                // SAFETY: the address alone is looked at.
                let has = |name: &str| unsafe { self.symbol::<*const c_void>(name) }.is_some();
                WIDE.iter().any(|name| has(&format!("{prefix}{name}")))
            });
            return Err(if wide { Refusal::Sizes64 } else { Refusal::NoProduct });
        };
        let file = file_of(sgemm).unwrap_or_else(|| name.to_owned());
        let (kind, control, version) = match self.mkl(&file) {
            Some(mkl) => mkl.map(|(control, version)| (Kind::Mkl, control, version))?,
            None => match self.openblas(prefix)? {
                Some((control, version)) => (Kind::OpenBlas, control, version),
                None => (Kind::Accelerate, self.accelerate()?, String::new()),
            },
        };
        Ok(Found { library: Library { sgemm, control }, kind, version, file })
    }

    /// `None` if it is not MKL.
    fn mkl(&self, file: &Path) -> Option<Result<(Control, String), Refusal>> {
        // SAFETY: its type by the manual.
        let local = unsafe { self.symbol::<SwapInt>("MKL_Set_Num_Threads_Local") }?;
        // SAFETY: its type by the manual.
        let interface = unsafe { self.symbol::<SwapInt>("MKL_Set_Interface_Layer") };
        // SAFETY: its type by the manual.
        let threading = unsafe { self.symbol::<SwapInt>("MKL_Set_Threading_Layer") };
        // SAFETY: its type by the manual.
        let version = unsafe { self.symbol::<WriteText>("MKL_Get_Version_String") };
        if let Some(missing) = missing_part(file) {
            return Some(Err(Refusal::Part { file: missing }));
        }
        // A library that was made from parts of MKL has no layers to choose.
        if let (Some(interface), Some(threading)) = (interface, threading) {
            // SAFETY: it takes any number, and the files that it may load are there.
            let layer = unsafe { interface(MKL_LP64) };
            if layer != MKL_LP64 && layer != MKL_GNU {
                return Some(Err(Refusal::Sizes64));
            }
            // SAFETY: as above. If somebody else has chosen before, each call still says one thread.
            let _ = unsafe { threading(MKL_SEQUENTIAL) };
        }
        let text = version.map_or(String::new(), |version| {
            let mut text = [0u8; 200];
            // SAFETY: it writes at most as many bytes as it is told, with a zero at the end.
            unsafe { version(text.as_mut_ptr().cast(), 200) };
            let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
            text.to_string_lossy().trim().to_owned()
        });
        Some(Ok((Control::EachCall(local), text)))
    }

    /// `None` if it is not OpenBLAS.
    fn openblas(&self, prefix: &str) -> Result<Option<(Control, String)>, Refusal> {
        let name = |name: &str| format!("{prefix}openblas_{name}");
        // SAFETY: its type by the library's header.
        let set = unsafe { self.symbol::<SetInt>(&name("set_num_threads")) };
        let Some(set) = set else { return Ok(None) };
        let text = |what: &str| {
            // SAFETY: its type by the library's header.
            let get = unsafe { self.symbol::<GetText>(&name(what)) }?;
            // SAFETY: it takes nothing, and may be called at any time.
            let text = unsafe { get() };
            // SAFETY: if not null it is a text of the library's, which ends in a zero and stays.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
        };
        let config = text("get_config").unwrap_or_default();
        if config.contains("USE64BITINT") {
            return Err(Refusal::Sizes64);
        }
        // SAFETY: its type by the library's header.
        let parallel = unsafe { self.symbol::<GetInt>(&name("get_parallel")) };
        // SAFETY: it takes nothing, and may be called at any time.
        let parallel = parallel.map(|parallel| unsafe { parallel() });
        let control = if parallel == Some(OPENMP) {
            Control::EachThread(set)
        } else {
            // SAFETY: it takes any number. Nobody of this process computes in the library yet, or
            // whoever does keeps the threads that it began with.
            unsafe { set(1) };
            Control::Once
        };
        let core =
            text("get_corename").map_or(String::new(), |core| format!(", kernels for {core}"));
        Ok(Some((control, format!("{}{core}", config.trim()))))
    }

    fn accelerate(&self) -> Result<Control, Refusal> {
        // SAFETY: its type by the system's header: an enumeration without a sign, and a status.
        let set = unsafe { self.symbol("BLASSetThreading") };
        set.map(Control::Accelerate).ok_or(Refusal::Threads)
    }
}

impl Library {
    /// `out = a * b`. The sizes fit together and none is zero.
    pub(crate) fn sgemm(&self, a: Matrix<'_>, b: Matrix<'_>, out: &mut Output<'_>) {
        let int = |size: usize| c_int::try_from(size).expect("checked when the operand was made");
        let trans = |matrix: &Matrix<'_>| if matrix.is_transposed() { TRANS } else { NO_TRANS };
        let (m, n, k) = (int(out.rows()), int(out.cols()), int(a.cols()));
        let (lda, ldb, ldc) = (int(a.leading()), int(b.leading()), int(out.row_stride()));
        let (ta, tb, c) = (trans(&a), trans(&b), out.as_mut_ptr());
        let (a, b) = (a.as_ptr(), b.as_ptr());
        let before = self.keep_to_one_thread();
        // SAFETY: the library reads lines of `a` and `b` and writes rows of `out`, of the sizes and
        // strides given. Operands are inside their slices, whose lines do not overlap, by the
        // checks of `Matrix::new`; the output is exclusive. With beta zero nothing of it is read.
        unsafe {
            (self.sgemm)(ROW_MAJOR, ta, tb, m, n, k, 1.0, a, lda, b, ldb, 0.0, c, ldc);
        }
        if let (Control::EachCall(set), Some(before)) = (self.control, before) {
            // SAFETY: it takes any number, here one that it gave.
            unsafe { set(before) };
        }
    }

    /// Returns what is to be set again afterwards.
    fn keep_to_one_thread(&self) -> Option<c_int> {
        thread_local! {
            /// Address of the product of the library that this thread has prepared.
            static PREPARED: Cell<usize> = const { Cell::new(0) };
        }
        /// The setting of one thread changes buffers of all.
        static SETTING: std::sync::Mutex<()> = std::sync::Mutex::new(());
        match self.control {
            Control::Once => None,
            Control::EachThread(set) => {
                let this = self.sgemm as usize;
                if PREPARED.get() != this {
                    let _alone = SETTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    // SAFETY: it takes any number.
                    unsafe { set(1) };
                    PREPARED.set(this);
                }
                None
            }
            // SAFETY: it takes any number, and returns the one before.
            Control::EachCall(set) => Some(unsafe { set(1) }),
            Control::Accelerate(set) => {
                // SAFETY: it takes a value of its enumeration, which this is. A refusal costs
                // time, not results.
                let _ = unsafe { set(ACCELERATE_SINGLE) };
                None
            }
        }
    }
}

/// The file that a function was loaded from, where the system tells.
#[cfg(unix)]
fn file_of(function: Sgemm) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;

    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: it takes any address, and writes to `info`.
    let found = unsafe { libc::dladdr(function as *const c_void, info.as_mut_ptr()) };
    // SAFETY: zeros are a value of its type, and so is what was written.
    let name = unsafe { info.assume_init() }.dli_fname;
    if found == 0 || name.is_null() {
        return None;
    }
    // SAFETY: a text that ends in a zero, and stays for as long as the library is open.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

#[cfg(not(unix))]
fn file_of(_: Sgemm) -> Option<PathBuf> {
    None
}

/// A file beside `libmkl_rt` without which MKL ends the process.
fn missing_part(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.to_str()?;
    let ending = name.strip_prefix("libmkl_rt")?;
    let folder = file.parent()?;
    let parts = ["core", "sequential", "intel_lp64", "def"];
    let files = parts.map(|part| folder.join(format!("libmkl_{part}{ending}")));
    files.into_iter().find(|file| !file.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_mkl_are_looked_for_beside_it_and_by_its_ending() {
        let folder = std::env::temp_dir().join(format!("fucina-mkl-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let main = folder.join("libmkl_rt.so.3");
        let mut files = ["core", "sequential", "intel_lp64", "def"]
            .map(|part| folder.join(format!("libmkl_{part}.so.3")))
            .to_vec();
        while let Some(file) = files.pop() {
            assert!(missing_part(&main).is_some(), "before {}", file.display());
            std::fs::write(file, "").unwrap();
        }
        assert_eq!(missing_part(&main), None);
        assert!(missing_part(&folder.join("libmkl_rt.so.2")).is_some());
        assert_eq!(missing_part(&folder.join("libmkl_ours.so")), None, "made from its parts");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
