//! Everything that can go wrong, as values that tests can compare.
//!
//! Each message names the file, host or name, and says what to do where something can be done. No
//! message holds a token or the query of an address: download addresses are signed there.

use std::io;
use std::path::{Path, PathBuf};

/// A model could not be fetched, found or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is no name of a model.
    #[error("`{name}` is no name of a model: {why}")]
    Name {
        /// What was given.
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// Neither catalogue nor folder knows the name.
    #[error("no model is called `{name}`; {known}")]
    Unknown {
        /// What was given.
        name: String,
        /// What is known instead.
        known: String,
    },
    /// Several models have the name.
    #[error("`{name}` stands for several models; say which: {}", choices.join(", "))]
    Ambiguous {
        /// What was given.
        name: String,
        /// The full names.
        choices: Vec<String>,
    },
    /// A repository has several files and none was named.
    #[error(
        "{repo} has no single file `{wanted}`; name one as hf:{repo}:FILE, from: {}",
        choices.join(", ")
    )]
    Choices {
        /// The repository.
        repo: String,
        /// What was asked for, or `*`.
        wanted: String,
        /// Its GGUF files.
        choices: Vec<String>,
    },
    /// A repository without a GGUF file.
    #[error("{repo} holds no GGUF file; look for a repository whose name ends in -GGUF")]
    NoGguf {
        /// The repository.
        repo: String,
    },
    /// A knob of the environment has a value that it does not take.
    #[error("{variable} is wrong: it takes {expected}")]
    Variable {
        /// The variable. Its value is not repeated, it may be a secret.
        variable: &'static str,
        /// What it takes.
        expected: &'static str,
    },
    /// Nothing says where models go.
    #[error("there is no folder for models; set FUCINA_MODELS to one")]
    NoFolder,
    /// The operating system refused.
    #[error("could not {action} {}: {reason}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Kind of the I/O error.
        kind: io::ErrorKind,
        /// What it means.
        reason: String,
    },
    /// The file system has too little room.
    #[error(
        "{} MiB are needed in {} and {} are free; make room, or set FUCINA_MODELS to a folder on \
        another disk",
        needed_bytes.div_ceil(1 << 20), folder.display(), free_bytes >> 20
    )]
    NoRoom {
        /// What is still to be written.
        needed_bytes: u64,
        /// What is free.
        free_bytes: u64,
        /// The folder of models.
        folder: PathBuf,
    },
    /// Another process is at it.
    #[error("{name} is being pulled or removed by another process; wait until it is done")]
    Busy {
        /// The model.
        name: String,
    },
    /// No connection, or it broke and stayed broken.
    #[error("{host}: {reason}")]
    Network {
        /// The host.
        host: String,
        /// What happened, and what to do.
        reason: String,
    },
    /// A certificate was refused, or there was none to compare with.
    #[error(
        "{host}: the connection is not trusted ({reason}); behind a proxy that opens connections, \
        set SSL_CERT_FILE to its certificates"
    )]
    Certificate {
        /// The host.
        host: String,
        /// The library's words.
        reason: String,
    },
    /// 404.
    #[error("{url}: there is no such repository or file (404)")]
    NotFound {
        /// The address without its query.
        url: String,
    },
    /// 401 or 403.
    #[error("{url}: access is refused ({status}); {advice}")]
    Denied {
        /// The address without its query.
        url: String,
        /// The status.
        status: u16,
        /// What to do.
        advice: &'static str,
    },
    /// Another status that is no success.
    #[error("{url}: the server answers {status}{}", status_words(*status))]
    Status {
        /// The address without its query.
        url: String,
        /// The status.
        status: u16,
    },
    /// The server redirects in circles, or to something that is not followed.
    #[error("{url}: {reason}")]
    Redirect {
        /// The address without its query.
        url: String,
        /// Why it is not followed.
        reason: &'static str,
    },
    /// The server says something that the protocol does not allow.
    #[error("{host}: the answer makes no sense: {reason}")]
    Answer {
        /// The host.
        host: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The bytes are no model.
    #[error("{from} sent something else than a GGUF file ({found}); nothing was kept")]
    NotGguf {
        /// Where it came from.
        from: String,
        /// What it looks like.
        found: String,
    },
    /// More or fewer bytes than promised.
    #[error("{from} has {found_bytes} bytes, {expected_bytes} were expected; nothing was kept")]
    Length {
        /// Where it came from.
        from: String,
        /// The promise.
        expected_bytes: u64,
        /// What there is.
        found_bytes: u64,
    },
    /// All bytes came, and they are others.
    #[error(
        "{from} is damaged or was replaced: its sha256 is {found}, {expected} was expected; \
        nothing was kept"
    )]
    Checksum {
        /// Where it came from.
        from: String,
        /// In hexadecimal.
        expected: String,
        /// In hexadecimal.
        found: String,
    },
    /// The package index could not be used.
    #[error("the package index did not give {package}: {reason}")]
    Pip {
        /// Name and version.
        package: String,
        /// The tool's words, or what is missing.
        reason: String,
    },
    /// A package does not hold what it should.
    #[error("{file}: {reason}")]
    Package {
        /// The file in the package, or the package.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Every source failed.
    #[error("{name} could not be had: {}", join(failures))]
    Sources {
        /// The model.
        name: String,
        /// Source and failure, in order.
        failures: Vec<(String, Self)>,
    },
}

fn join(failures: &[(String, Error)]) -> String {
    let lines: Vec<_> = failures.iter().map(|(from, error)| format!("{from}: {error}")).collect();
    lines.join("; ")
}

fn status_words(status: u16) -> &'static str {
    match status {
        416 => ", it does not give the rest of the file",
        429 => ", it wants fewer requests; try again later, or set HF_TOKEN",
        500..=599 => ", it has trouble of its own; try again later",
        _ => "",
    }
}

impl Error {
    /// An I/O error at a path.
    pub(crate) fn io(action: &'static str, path: &Path, error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        let reason = match error.kind() {
            Kind::StorageFull => "the disk is full; what came so far is kept".to_owned(),
            Kind::QuotaExceeded => "your quota is used up; what came so far is kept".to_owned(),
            Kind::PermissionDenied => {
                "permission is denied; set FUCINA_MODELS to a folder that you may write".to_owned()
            }
            Kind::ReadOnlyFilesystem => {
                "the file system is read-only; set FUCINA_MODELS to another folder".to_owned()
            }
            _ => error.to_string(),
        };
        Self::Io { action, path: path.to_owned(), kind: error.kind(), reason }
    }

    /// A folder of ours is somebody else's.
    pub(crate) fn linked(folder: &Path) -> Self {
        Self::Io {
            action: "use",
            path: folder.to_owned(),
            kind: io::ErrorKind::NotADirectory,
            reason: "it is a link, and links to folders are not followed; set FUCINA_MODELS to \
                where the models are"
                .to_owned(),
        }
    }

    /// Whether another source of the same file may do better.
    pub(crate) const fn is_about_the_source(&self) -> bool {
        !matches!(self, Self::Io { .. } | Self::NoRoom { .. } | Self::Busy { .. })
    }
}

/// Text from outside for a message: one line, no control characters, not long.
pub(crate) fn shown(text: &str, limit: usize) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut out: String = words.chars().filter(|c| !c.is_control()).take(limit).collect();
    if out.len() < words.len() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failures_of_a_disk_are_sentences() {
        let of = |kind| Error::io("write", Path::new("x"), &io::Error::from(kind)).to_string();
        assert!(of(io::ErrorKind::StorageFull).contains("the disk is full"));
        assert!(of(io::ErrorKind::PermissionDenied).contains("FUCINA_MODELS"));
        assert!(of(io::ErrorKind::ReadOnlyFilesystem).contains("read-only"));
        assert_eq!(of(io::ErrorKind::NotFound), "could not write x: entity not found");
    }

    #[test]
    fn room_that_lacks_is_told_in_units_for_people() {
        let (needed_bytes, free_bytes) = ((5 << 20) + 1, (2 << 20) - 1);
        let error = Error::NoRoom { needed_bytes, free_bytes, folder: "m".into() };
        assert!(error.to_string().starts_with("6 MiB are needed in m and 1 are free"), "{error}");
    }

    #[test]
    fn text_from_outside_is_one_short_line() {
        assert_eq!(shown("a\nb\u{1b}[2Jc", 20), "a b[2Jc…");
        assert_eq!(shown("abcdef", 3), "abc…");
        assert_eq!(shown("abc", 3), "abc");
    }
}
