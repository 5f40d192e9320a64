//! Kernels from their sources, by the run-time compiler: if that is asked for, or if the driver
//! refuses the compiled ones.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr;

use crate::config::OptionalLibrary;
use crate::sources::{HEADERS, Source};
use crate::sys::{self, Opaque, Status};

/// Names of the library, in the order of search.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];

/// Longest part of the compiler's log in a reason.
const MAX_LOG: usize = 200;

type Result<T> = std::result::Result<T, String>;

/// Why a source was not compiled.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Memory was short: the same may work later.
    Memory,
    /// One line.
    Other(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

/// The compiler.
pub(crate) struct Compiler {
    table: sys::Nvrtc,
    version: (c_int, c_int),
    /// Virtual architectures that it writes code for, such as 70; ascending.
    archs: Vec<c_int>,
}

impl Compiler {
    /// Opens the library. The error is one line that says why there is none.
    pub(crate) fn open(choice: &OptionalLibrary) -> Result<Self> {
        let table = match choice {
            OptionalLibrary::Off => return Err("NVRTC is switched off".to_owned()),
            OptionalLibrary::Path(path) => sys::Nvrtc::open(&[path])?,
            OptionalLibrary::System => sys::Nvrtc::open(&NAMES.map(Path::new))?,
        };
        let mut version = (0, 0);
        // SAFETY: the library stores two integers.
        let status = unsafe { (table.version)(&raw mut version.0, &raw mut version.1) };
        check("nvrtcVersion", status)?;
        let mut count = 0;
        // SAFETY: the library stores an integer.
        check("nvrtcGetNumSupportedArchs", unsafe { (table.arch_count)(&raw mut count) })?;
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: there is room for as many integers as the library has said.
        check("nvrtcGetSupportedArchs", unsafe { (table.archs)(archs.as_mut_ptr()) })?;
        archs.sort_unstable();
        Ok(Self { table, version, archs })
    }

    pub(crate) fn about(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// PTX for a device of this compute capability.
    pub(crate) fn compile(
        &self,
        source: &Source,
        capability: (i32, i32),
    ) -> std::result::Result<CString, Failure> {
        let device = 10 * capability.0 + capability.1;
        // New compilers have forgotten the oldest chips.
        let fits = |&&arch: &&c_int| source.chip <= arch && arch <= device;
        let arch = *self.archs.iter().find(fits).ok_or_else(|| {
            format!("{} writes no code for compute capability {device}", self.about())
        })?;
        let program = Program::new(self, source)?;
        program.compile(&source.options(arch))?;
        Ok(program.ptx()?)
    }
}

/// A source that is being compiled.
struct Program<'c> {
    table: &'c sys::Nvrtc,
    raw: *mut Opaque,
}

impl<'c> Program<'c> {
    fn new(compiler: &'c Compiler, source: &Source) -> Result<Self> {
        let text = terminated(source.text)?;
        let name = terminated(source.file)?;
        let mut texts = Vec::with_capacity(HEADERS.len());
        let mut names = Vec::with_capacity(HEADERS.len());
        for (name, text) in HEADERS {
            names.push(terminated(name)?);
            texts.push(terminated(text)?);
        }
        let (texts, names) = (addresses(&texts), addresses(&names));
        let count = c_int::try_from(HEADERS.len()).unwrap_or(0);
        let (mut raw, table) = (ptr::null_mut(), &compiler.table);
        // SAFETY: all texts are terminated and outlive the call, which copies them; the lists of
        // headers have as many as the count says.
        let status = unsafe {
            (table.create)(
                &raw mut raw,
                text.as_ptr(),
                name.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        check("nvrtcCreateProgram", status)?;
        Ok(Self { table, raw })
    }

    fn compile(&self, options: &[String]) -> std::result::Result<(), Failure> {
        let options: Vec<_> = options.iter().map(|o| terminated(o)).collect::<Result<_>>()?;
        let options = (addresses(&options), options);
        let count = c_int::try_from(options.0.len()).unwrap_or(0);
        // SAFETY: the program is alive, and the list has as many terminated texts.
        let status = unsafe { (self.table.compile)(self.raw, count, options.0.as_ptr()) };
        if status == sys::NVRTC_OUT_OF_MEMORY {
            return Err(Failure::Memory);
        }
        check("nvrtcCompileProgram", status).map_err(|error| {
            let log = self.text(self.table.log_size, self.table.log).unwrap_or_default();
            let log = log.to_string_lossy();
            let line = log.lines().find(|line| line.contains("error")).unwrap_or_default();
            let line: String = line.chars().take(MAX_LOG).collect();
            Failure::Other(format!("{error}: {line}"))
        })
    }

    fn ptx(&self) -> Result<CString> {
        self.text(self.table.ptx_size, self.table.ptx)
    }

    /// A text that the library writes after it has told its size.
    fn text(
        &self,
        size: unsafe extern "C" fn(*mut Opaque, *mut usize) -> Status,
        text: unsafe extern "C" fn(*mut Opaque, *mut c_char) -> Status,
    ) -> Result<CString> {
        let mut len = 0;
        // SAFETY: the program is alive; the library stores a size.
        check("the size of a text", unsafe { size(self.raw, &raw mut len) })?;
        let mut bytes = vec![0_u8; len + 1];
        // SAFETY: there is room for as many bytes as the library has said.
        check("a text", unsafe { text(self.raw, bytes.as_mut_ptr().cast()) })?;
        let text = CStr::from_bytes_until_nul(&bytes);
        text.map(CStr::to_owned).map_err(|_| "the compiler's text does not end".to_owned())
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: this is the owner; the library stores null.
        let _ = unsafe { (self.table.destroy)(&raw mut self.raw) };
    }
}

fn terminated(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| "a source has a zero byte".to_owned())
}

fn addresses(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn check(call: &str, code: Status) -> Result<()> {
    if code == sys::SUCCESS { Ok(()) } else { Err(format!("{call} failed with code {code}")) }
}
