//! The libraries that are known.

use std::fmt;

/// A family of libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Apple's, a part of macOS. **Typed only**: nobody has run it here.
    Accelerate,
    /// Intel's.
    Mkl,
    /// OpenBLAS, also as the Python packages bring it.
    OpenBlas,
}

impl Kind {
    /// Every kind, in the order of search.
    pub const ALL: [Self; 3] = [Self::Accelerate, Self::Mkl, Self::OpenBlas];

    /// Its name in variables, features and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accelerate => "accelerate",
            Self::Mkl => "mkl",
            Self::OpenBlas => "openblas",
        }
    }

    /// The kind of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether this program was built with the feature of its name, and so looks for it.
    pub const fn is_built_in(self) -> bool {
        match self {
            Self::Accelerate => cfg!(feature = "accelerate"),
            Self::Mkl => cfg!(feature = "mkl"),
            Self::OpenBlas => cfg!(feature = "openblas"),
        }
    }

    /// Names under which the system's loader may know the library, the best first.
    pub(crate) fn library_names(self) -> &'static [&'static str] {
        match (self, std::env::consts::OS) {
            (Self::Accelerate, "macos") => {
                &["/System/Library/Frameworks/Accelerate.framework/Accelerate"]
            }
            (Self::Accelerate, _) => &[],
            (Self::Mkl, "macos") => &["libmkl_rt.2.dylib", "libmkl_rt.1.dylib", "libmkl_rt.dylib"],
            (Self::Mkl, "windows") => &["mkl_rt.3.dll", "mkl_rt.2.dll", "mkl_rt.1.dll"],
            (Self::Mkl, _) => {
                &["libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so.1", "libmkl_rt.so"]
            }
            (Self::OpenBlas, "macos") => &[
                "libopenblas.0.dylib",
                "libopenblas.dylib",
                "/opt/homebrew/opt/openblas/lib/libopenblas.dylib",
                "/usr/local/opt/openblas/lib/libopenblas.dylib",
                "libscipy_openblas.dylib",
            ],
            (Self::OpenBlas, "windows") => &["libopenblas.dll", "libscipy_openblas.dll"],
            (Self::OpenBlas, _) => &["libopenblas.so.0", "libopenblas.so", "libscipy_openblas.so"],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(Kind::from_name("OpenBLAS"), None);
        assert_eq!(Kind::from_name(""), None);
    }

    #[test]
    fn accelerate_is_looked_for_where_it_exists() {
        let found = Kind::Accelerate.library_names().is_empty();
        assert_eq!(found, !cfg!(target_os = "macos"));
    }
}
