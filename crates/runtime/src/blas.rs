//! Which BLAS library a runtime has.

use std::path::PathBuf;
use std::sync::OnceLock;

use fucina_blas::{Blas, Kind, NoBlas};

use crate::config::{BlasChoice, Config};

/// The BLAS library of a runtime.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum BlasState<'a> {
    /// None is wanted: it is switched off, or the program was built for none and none was named.
    Off,
    /// None is there, and why.
    Absent(&'a NoBlas),
    /// This one.
    Ready(&'a Blas),
}

/// A library that is opened when it is first asked for.
pub(crate) struct Library {
    /// Kinds to look for.
    kinds: Vec<Kind>,
    /// The file, instead of a search.
    path: Option<PathBuf>,
    asked: Option<Kind>,
    state: OnceLock<Result<Blas, NoBlas>>,
}

impl Library {
    pub(crate) fn new(config: &Config) -> Self {
        let (kinds, asked) = match config.blas {
            BlasChoice::Off => (Vec::new(), None),
            BlasChoice::Kind(kind) => (vec![kind], Some(kind)),
            BlasChoice::Auto => {
                let mut kinds = Kind::ALL.to_vec();
                kinds.retain(|kind| kind.is_built_in());
                (kinds, None)
            }
        };
        let path = config.blas_library.clone().filter(|_| config.blas != BlasChoice::Off);
        Self { kinds, path, asked, state: OnceLock::new() }
    }

    pub(crate) fn get(&self) -> BlasState<'_> {
        if self.kinds.is_empty() && self.path.is_none() {
            return BlasState::Off;
        }
        let state = self.state.get_or_init(|| match &self.path {
            Some(path) => Blas::open(path, self.asked),
            None => Blas::find(&self.kinds),
        });
        match state {
            Ok(blas) => BlasState::Ready(blas),
            Err(error) => BlasState::Absent(error),
        }
    }
}
