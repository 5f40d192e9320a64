//! How a test steers a simulated driver and asks what happened: a handful of entry points beside
//! the driver's own, and [`Driver`], which calls them in the library that a provider opened.

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};

use libloading::Library;

/// When queued work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub enum Schedule {
    /// At once.
    #[default]
    Eager,
    /// As late as possible: only what a wait of the host needs.
    Lazy,
    /// Copies at once, and kernels as late as possible.
    CopiesFirst,
    /// Somewhere between, by the seed.
    Random,
}

/// A call of the driver that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Fail {
    name: [u8; 40],
    /// The call with this number, counted from 0, or every one: `u64::MAX`.
    pub at: u64,
    /// What it returns. 0: this is about no call.
    pub code: c_int,
    /// Every later call fails, too.
    pub onwards: bool,
}

impl Default for Fail {
    fn default() -> Self {
        Self { name: [0; 40], at: 0, code: 0, onwards: false }
    }
}

impl Fail {
    /// Lets call number `at` of an entry point, such as `cuMemAlloc_v2`, return `code`. A `*` at the
    /// end stands for any rest of the name; calls are counted by their full names.
    ///
    /// # Panics
    ///
    /// Panics if the name is longer than 40 bytes.
    pub fn new(call: &str, at: u64, code: c_int) -> Self {
        let mut name = [0; 40];
        name[..call.len()].copy_from_slice(call.as_bytes());
        Self { name, at, code, onwards: false }
    }

    /// The same for every call from number `at` on.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    pub fn from(call: &str, at: u64, code: c_int) -> Self {
        Self { onwards: true, ..Self::new(call, at, code) }
    }

    /// Whether this is about call number `number` of `call`.
    pub(crate) fn is(&self, call: &str, number: u64) -> bool {
        let len = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        let name = &self.name[..len];
        let named = match name.strip_suffix(b"*") {
            Some(start) => call.as_bytes().starts_with(start),
            None => name == call.as_bytes(),
        };
        self.code != 0
            && named
            && (self.at == number || self.at == u64::MAX || (self.onwards && number > self.at))
    }
}

/// How the device behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// Seed of the schedule.
    pub seed: u64,
    /// When queued work runs.
    pub schedule: Schedule,
    /// Memory of each device.
    pub memory_bytes: usize,
    /// Number of devices.
    pub devices: c_int,
    /// Compute capability, times ten.
    pub capability: c_int,
    /// Streaming multiprocessors.
    pub multiprocessors: c_int,
    /// Version of the driver, such as 12040.
    pub version: c_int,
    /// Version of cuBLAS, such as 120001.
    pub blas_version: c_int,
    /// A call that fails.
    pub fail: Fail,
    /// A call that reports success and does nothing, as if the program had left it out. Its code
    /// is not 0.
    pub ignore: Fail,
    /// The kernel or product with this number fails, and breaks the context. `u64::MAX`: none.
    pub fault_at: u64,
    /// Locking pages of the host fails.
    pub refuse_registration: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            schedule: Schedule::Eager,
            memory_bytes: 1 << 30,
            devices: 1,
            capability: 80,
            multiprocessors: 8,
            version: 12_000,
            blas_version: 120_001,
            fail: Fail::default(),
            ignore: Fail::default(),
            fault_at: u64::MAX,
            refuse_registration: false,
        }
    }
}

/// What happened, and what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Report {
    /// Rules of the driver that were broken; see [`Driver::violations`].
    pub violations: u64,
    /// Copies to the device that ran.
    pub uploads: u64,
    /// Their size.
    pub uploaded_bytes: u64,
    /// Copies to the host that ran.
    pub downloads: u64,
    /// Their size.
    pub downloaded_bytes: u64,
    /// Kernels that ran, and products of cuBLAS.
    pub launches: u64,
    /// Products of cuBLAS that ran.
    pub products: u64,
    /// Allocations of device memory that were not freed.
    pub live_allocations: u64,
    /// Ranges of host pages that are locked.
    pub live_registrations: u64,
    /// Allocations of locked host memory that were not freed.
    pub live_host_allocations: u64,
    /// Events that were not destroyed.
    pub live_events: u64,
    /// Streams that were not destroyed.
    pub live_streams: u64,
    /// Modules that were not unloaded.
    pub live_modules: u64,
    /// References to contexts that were not released.
    pub live_contexts: u64,
    /// Handles of cuBLAS that were not destroyed.
    pub live_blas_handles: u64,
}

impl Report {
    /// Objects of the driver that are left.
    pub const fn leaks(&self) -> u64 {
        self.live_allocations
            + self.live_registrations
            + self.live_host_allocations
            + self.live_events
            + self.live_streams
            + self.live_modules
            + self.live_contexts
            + self.live_blas_handles
    }
}

/// A private copy of the simulated driver's library. Each copy is a driver of its own, so tests
/// can run side by side.
#[derive(Debug)]
pub struct Driver {
    path: PathBuf,
    library: Library,
}

impl Driver {
    /// Copies the library at `built` into a file of its own, opens it and configures it.
    ///
    /// # Errors
    ///
    /// Says what could not be copied or opened.
    pub fn start(built: &Path, config: Config) -> Result<Self, String> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("fucina-cuda-driver-{}-{number}.so", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::copy(built, &path).map_err(|error| format!("{}: {error}", built.display()))?;
        // SAFETY: the library is the one that this crate builds; it runs no initializers.
        let library = unsafe { Library::new(&path) }.map_err(|error| error.to_string())?;
        let driver = Self { path, library };
        driver.configure(config);
        Ok(driver)
    }

    /// The library, for a provider to open.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Forgets everything and starts anew. Nothing of the driver may be in use.
    ///
    /// # Panics
    ///
    /// Panics if the library is not this crate's.
    pub fn configure(&self, config: Config) {
        type Configure = unsafe extern "C" fn(*const Config);
        // SAFETY: the symbol has this type in this crate.
        let symbol = unsafe { self.library.get::<Configure>(b"fucina_sim_configure") };
        let configure = symbol.expect("the library is the simulator");
        // SAFETY: the argument is a valid configuration.
        unsafe { configure(&raw const config) };
    }

    /// Runs everything that is queued, and says what happened.
    ///
    /// # Panics
    ///
    /// Panics if the library is not this crate's.
    pub fn report(&self) -> Report {
        type Get = unsafe extern "C" fn(*mut Report);
        // SAFETY: the symbol has this type in this crate.
        let symbol = unsafe { self.library.get::<Get>(b"fucina_sim_report") };
        let get = symbol.expect("the library is the simulator");
        let mut report = Report::default();
        // SAFETY: the argument is a place for a report.
        unsafe { get(&raw mut report) };
        report
    }

    /// How often an entry point was called.
    ///
    /// # Panics
    ///
    /// Panics if the library is not this crate's.
    pub fn calls(&self, call: &str) -> u64 {
        type Get = unsafe extern "C" fn(*const u8, usize) -> u64;
        // SAFETY: the symbol has this type in this crate.
        let symbol = unsafe { self.library.get::<Get>(b"fucina_sim_calls") };
        let get = symbol.expect("the library is the simulator");
        // SAFETY: the argument is a text of that length.
        unsafe { get(call.as_ptr(), call.len()) }
    }

    /// The rules that were broken, one line each.
    ///
    /// # Panics
    ///
    /// Panics if the library is not this crate's.
    pub fn violations(&self) -> String {
        type Get = unsafe extern "C" fn(*mut c_char, usize) -> usize;
        // SAFETY: the symbol has this type in this crate.
        let symbol = unsafe { self.library.get::<Get>(b"fucina_sim_violations") };
        let get = symbol.expect("the library is the simulator");
        let mut text = vec![0u8; 1 << 16];
        // SAFETY: the argument is a place for as many bytes.
        let len = unsafe { get(text.as_mut_ptr().cast(), text.len()) };
        text.truncate(len);
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The library stays mapped for whoever has it open; the file is not needed any more.
        let _ = std::fs::remove_file(&self.path);
    }
}
