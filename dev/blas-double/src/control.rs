//! A private copy of the library, what it passes for, and what happened in it.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use libloading::Library;

use crate::entry::{EACH_THREAD, WIDE, WIDE_LAYER, WRONG};

/// What a copy passes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// OpenBLAS, with threads of its own.
    OpenBlas,
    /// OpenBLAS, with the threads of OpenMP: each thread of a program has its own setting.
    OpenBlasOpenMp,
    /// OpenBLAS with 64-bit sizes under the usual names.
    OpenBlasWide,
    /// OpenBLAS with 64-bit sizes under other names.
    OpenBlasWideNames,
    /// MKL.
    Mkl,
    /// MKL, for which somebody has chosen 64-bit sizes.
    MklWide,
    /// A library of which nothing is known but that it multiplies.
    Unknown,
    /// OpenBLAS with a wrong product.
    Wrong,
}

/// Names that a copy does not have.
const MKL: &str = "MKL_Set_Num_Threads_Local";
const THREADS: &str = "openblas_set_num_threads";
const PRODUCT: &str = "cblas_sgemm";

impl Role {
    const fn mode(self) -> c_int {
        match self {
            Self::OpenBlasOpenMp => EACH_THREAD,
            Self::OpenBlasWide => WIDE,
            Self::MklWide => WIDE_LAYER,
            Self::Wrong => WRONG,
            _ => 0,
        }
    }

    const fn removed(self) -> &'static [&'static str] {
        match self {
            Self::Mkl | Self::MklWide => &[],
            Self::OpenBlasWideNames => &[MKL, PRODUCT],
            Self::Unknown => &[MKL, THREADS],
            _ => &[MKL],
        }
    }
}

/// A copy of the library.
#[derive(Debug)]
pub struct Double {
    library: Library,
    path: PathBuf,
}

impl Double {
    /// A copy of the library that the build of the running test has made.
    ///
    /// # Panics
    ///
    /// Panics if there is none.
    pub fn start(role: Role) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let test = std::env::current_exe().expect("a test knows where it is");
        let folder = test.parent().expect("a test lies in a folder");
        let (start, end) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let library = folder.join(format!("{start}fucina_blas_double{end}"));
        let mut bytes = std::fs::read(&library)
            .unwrap_or_else(|error| panic!("{} was not built: {error}", library.display()));
        for name in role.removed() {
            remove(&mut bytes, name);
        }
        let number = NEXT.fetch_add(1, SeqCst);
        let name = format!("fucina-blas-double-{}-{number}{end}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).expect("a temporary file can be written");
        // SAFETY: its initializers are those of this crate.
        let library = unsafe { Library::new(&path) }.expect("the copy opens");
        let double = Self { library, path };
        // SAFETY: its type in `entry`.
        let set = unsafe { double.library.get::<extern "C" fn(c_int)>(b"blas_double_mode") };
        set.expect("the copy has it")(role.mode());
        double
    }

    /// Where the copy is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn ask(&self, name: &str) -> usize {
        // SAFETY: its type in `entry`.
        let get = unsafe { self.library.get::<extern "C" fn() -> usize>(name.as_bytes()) };
        get.expect("the copy has it")()
    }

    /// Products so far, those at opening included.
    pub fn calls(&self) -> usize {
        self.ask("blas_double_calls")
    }

    /// Products that the interface forbids, or that would have started threads.
    pub fn breaches(&self) -> usize {
        self.ask("blas_double_breaches")
    }

    /// Most products at once.
    pub fn most_inside(&self) -> usize {
        self.ask("blas_double_most_inside")
    }

    /// Threads that a product of the calling thread would use.
    pub fn threads(&self) -> usize {
        self.ask("blas_double_threads")
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        // It lies where temporary files lie.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Makes a symbol one that nobody finds: its name no longer agrees with its hash.
///
/// # Panics
///
/// Panics if the library has no such name.
fn remove(bytes: &mut [u8], name: &str) {
    let whole = format!("\0{name}\0");
    let mut found = false;
    for at in 0..=bytes.len() - whole.len() {
        if bytes[at..].starts_with(whole.as_bytes()) {
            bytes[at + 1] = b'#';
            found = true;
        }
    }
    assert!(found, "the library has no name {name}");
}
