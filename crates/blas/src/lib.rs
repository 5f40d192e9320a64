//! Internal to Fucina; the `fucina` crate is its public face. Products of f32 matrices by a BLAS
//! library that is on the machine.
//!
//! The library is opened at run time, by its usual names or by a path; nothing is linked. It is kept
//! to one thread: who calls it from several threads, each with a rectangle of the output, is the
//! caller. What the C interface cannot express, the caller computes in another way.
//!
//! A library is asked for a small product before it is trusted, and refused if its sizes have 64
//! bits, if it cannot be kept to one thread, or if a file that it needs is missing: some libraries
//! end the process in that case. It is never closed, because its threads may still run.
//!
//! `unsafe` is in `sys.rs` and `output.rs` only.

#![deny(unsafe_code)]

mod kind;
mod matrix;
mod open;
#[expect(unsafe_code, reason = "a rectangle of the caller's memory is written through a pointer")]
mod output;
mod slots;
#[expect(unsafe_code, reason = "the library's functions are called here")]
mod sys;

pub use kind::Kind;
pub use matrix::{Matrix, Misfit};
pub use open::{Attempt, NoBlas, Refusal};
pub use output::Output;

use std::path::{Path, PathBuf};

/// A library that multiplies.
#[derive(Debug)]
pub struct Blas {
    kind: Kind,
    library: sys::Library,
    /// What the library says of itself.
    version: String,
    file: PathBuf,
    slots: slots::Slots,
}

impl Blas {
    /// Opens the first library of `kinds` that is on this machine and is usable. Kinds that this
    /// program was not built for are not looked for.
    ///
    /// # Errors
    ///
    /// Returns every library that was tried, and what was wrong with it.
    pub fn find(kinds: &[Kind]) -> Result<Self, NoBlas> {
        open::find(kinds)
    }

    /// Opens a library by its path, whatever its name and whatever this program was built for. With
    /// a kind, it must be one of that kind.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with it.
    pub fn open(path: &Path, kind: Option<Kind>) -> Result<Self, NoBlas> {
        open::at(path, kind)
    }

    /// What it is.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// What it says of itself; empty if it says nothing.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The file that it was loaded from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// `out = a * b`, on the calling thread. `out` may hold anything. May be called from any number
    /// of threads: if more than the library allows call at once, some wait.
    ///
    /// The additions of a dot product may be reordered. NaN and infinities behave as in f32.
    ///
    /// # Panics
    ///
    /// Panics if the sizes do not fit together.
    pub fn multiply(&self, a: Matrix<'_>, b: Matrix<'_>, out: &mut Output<'_>) {
        assert_eq!(a.cols(), b.rows(), "the contracted sizes");
        assert_eq!((a.rows(), b.cols()), (out.rows(), out.cols()), "the sizes of the output");
        if out.rows() == 0 || out.cols() == 0 {
            return;
        }
        if a.cols() == 0 {
            out.zero();
            return;
        }
        let _slot = self.slots.take();
        self.library.sgemm(a, b, out);
    }
}
