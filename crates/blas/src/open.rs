//! Which library is used: the search, and why a library is refused.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::kind::Kind;
use crate::matrix::Matrix;
use crate::output::Output;
use crate::slots::Slots;
use crate::{Blas, sys};

/// What is wrong with a library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The system does not open it.
    #[error("it cannot be opened: {error}")]
    Open {
        /// What the system says.
        error: String,
    },
    /// It is no BLAS library.
    #[error("it has no entry point cblas_sgemm")]
    NoProduct,
    /// Its sizes have 64 bits.
    #[error("its sizes have 64 bits; use a build with sizes of 32 bits")]
    Sizes64,
    /// It would start threads of its own for each call.
    #[error(
        "it cannot be kept to one thread: it is neither OpenBLAS, MKL nor Accelerate of macOS 15"
    )]
    Threads,
    /// A file is missing that it loads later.
    #[error("it needs {}, which is not there", .file.display())]
    Part {
        /// The file.
        file: PathBuf,
    },
    /// It computes something else.
    #[error("its product of {layout} matrices is wrong")]
    Product {
        /// Which operands are transposed: `NN`, `NT` or `TN`.
        layout: &'static str,
    },
    /// It is another kind than was asked for.
    #[error("it is {found}, and {asked} was asked for")]
    Kind {
        /// What it is.
        found: Kind,
        /// What was asked for.
        asked: Kind,
    },
}

/// A library that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The name that the system's loader was asked for.
    pub library: PathBuf,
    /// What was wrong.
    pub refusal: Refusal,
}

/// There is no library to use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct NoBlas {
    /// What was tried, in this order. Empty: nothing was looked for.
    pub tried: Vec<Attempt>,
}

impl fmt::Display for NoBlas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tried.is_empty() {
            return f.write_str(
                "no BLAS library was looked for: the program was built without the feature of one \
                 that this system can have",
            );
        }
        f.write_str("no BLAS library is usable")?;
        for (at, Attempt { library, refusal }) in self.tried.iter().enumerate() {
            let mark = if at == 0 { ":" } else { ";" };
            write!(f, "{mark} {}: {refusal}", library.display())?;
        }
        Ok(())
    }
}

pub(crate) fn find(kinds: &[Kind]) -> Result<Blas, NoBlas> {
    let mut tried = Vec::new();
    for kind in kinds.iter().filter(|kind| kind.is_built_in()) {
        for name in kind.library_names() {
            match open(Path::new(name), Some(*kind)) {
                Ok(blas) => return Ok(blas),
                Err(attempt) => tried.push(attempt),
            }
        }
    }
    Err(NoBlas { tried })
}

pub(crate) fn at(path: &Path, kind: Option<Kind>) -> Result<Blas, NoBlas> {
    open(path, kind).map_err(|attempt| NoBlas { tried: vec![attempt] })
}

fn open(name: &Path, asked: Option<Kind>) -> Result<Blas, Attempt> {
    let refused = |refusal| Attempt { library: name.to_owned(), refusal };
    let sys::Found { library, kind, version, file } = sys::open(name).map_err(refused)?;
    if let Some(asked) = asked.filter(|asked| *asked != kind) {
        return Err(refused(Refusal::Kind { found: kind, asked }));
    }
    let blas = Blas { kind, library, version, file, slots: Slots::new() };
    wrong_product(&blas).map_or(Ok(blas), |layout| Err(refused(Refusal::Product { layout })))
}

/// Multiplies small whole numbers, exactly, into memory of NaNs.
fn wrong_product(blas: &Blas) -> Option<&'static str> {
    const SIZES: [usize; 3] = [5, 7, 3];
    let [m, n, k] = SIZES;
    let small = |at: usize| f32::from(u8::try_from(at * 7 % 11).unwrap_or(0)) - 4.0;
    let a = |i: usize, p: usize| small(i * 5 + p * 3 + 1);
    let b = |p: usize, j: usize| small(p * 2 + j * 4 + 3);
    let layouts = [("NN", [k, 1], [n, 1]), ("NT", [k, 1], [1, k]), ("TN", [1, m], [n, 1])];
    let wrong = |&(_, of_a, of_b): &(_, [usize; 2], [usize; 2])| {
        let (mut left, mut right) = (vec![0.0; m * k], vec![0.0; k * n]);
        for p in 0..k {
            (0..m).for_each(|i| left[i * of_a[0] + p * of_a[1]] = a(i, p));
            (0..n).for_each(|j| right[p * of_b[0] + j * of_b[1]] = b(p, j));
        }
        let mut out = vec![f32::NAN; m * n];
        let (Ok(left), Ok(right)) =
            (Matrix::new(&left, [m, k], of_a), Matrix::new(&right, [k, n], of_b))
        else {
            return true;
        };
        blas.multiply(left, right, &mut Output::new(&mut out, m, n));
        let want = |at: usize| (0..k).map(|p| a(at / n, p) * b(p, at % n)).sum::<f32>();
        out.iter().enumerate().any(|(at, &got)| got != want(at))
    };
    layouts.iter().find(|layout| wrong(layout)).map(|&(layout, ..)| layout)
}
