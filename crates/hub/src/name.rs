//! What models are called, and why no name leads out of the folder of models.
//!
//! A name is a short one, of the catalogue or of a file, or `hf:OWNER/REPO` with `:FILE` after it.
//! Every part of a name that becomes part of a path goes through [`segment`].

use crate::error::Error;

/// The prefix of names on the hub.
const HUB: &str = "hf:";

/// Longest name, and longest path inside a repository, in bytes.
const MAX_BYTES: usize = 512;

/// A model that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reference {
    /// A short name.
    Short(String),
    /// A repository of the hub.
    Hub {
        /// `OWNER/REPO`.
        repo: String,
        /// A file, or a part of its name that no other file has.
        file: Option<String>,
    },
}

impl Reference {
    /// Reads a name.
    ///
    /// # Errors
    ///
    /// Fails if it breaks a rule that [`Error::Name`] tells.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let wrong = |why| Error::Name { name: crate::error::shown(name, 120), why };
        if name.len() > MAX_BYTES {
            return Err(wrong("it is too long"));
        }
        let Some(rest) = name.strip_prefix(HUB) else {
            return match segment(name) {
                Ok(()) => Ok(Self::Short(name.to_owned())),
                Err(_) if name.contains('/') => {
                    Err(wrong("models of the hub are called hf:OWNER/REPO:FILE"))
                }
                Err(why) => Err(wrong(why)),
            };
        };
        let (repo, file) = match rest.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (rest, None),
        };
        check_repo(repo).map_err(wrong)?;
        if let Some(file) = file {
            check_path(file).map_err(wrong)?;
        }
        Ok(Self::Hub { repo: repo.to_owned(), file: file.map(str::to_owned) })
    }
}

/// Whether `text` is `OWNER/REPO`.
pub(crate) fn check_repo(text: &str) -> Result<(), &'static str> {
    match text.split('/').collect::<Vec<_>>()[..] {
        [owner, repo] => segment(owner).and_then(|()| segment(repo)),
        _ => Err("a repository is called OWNER/REPO"),
    }
}

/// Whether every part of a path with `/` is a plain name.
pub(crate) fn check_path(path: &str) -> Result<(), &'static str> {
    if path.len() > MAX_BYTES || path.split('/').count() > 8 {
        return Err("the path is too long");
    }
    path.split('/').try_for_each(segment)
}

/// Whether `text` is a plain name of a file or folder, on every system.
pub(crate) fn segment(text: &str) -> Result<(), &'static str> {
    if text.is_empty() || text.len() > 200 {
        return Err("a part of it is empty or too long");
    }
    if text.starts_with('.') || text.ends_with(['.', ' ']) {
        return Err("a part of it starts or ends with a dot");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+=()[], @~".contains(c);
    if !text.chars().all(plain) {
        return Err("it has a character that names of models do not have");
    }
    let stem = text.split('.').next().unwrap_or_default().to_ascii_uppercase();
    let device = matches!(&*stem, "CON" | "PRN" | "AUX" | "NUL")
        || ((stem.starts_with("COM") || stem.starts_with("LPT")) && stem.len() == 4);
    if device { Err("a part of it is the name of a device on some systems") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_or_of_the_hub() {
        let hub = |repo: &str, file: Option<&str>| {
            Ok(Reference::Hub { repo: repo.into(), file: file.map(Into::into) })
        };
        assert_eq!(Reference::parse("gemma-3"), Ok(Reference::Short("gemma-3".into())));
        assert_eq!(Reference::parse("hf:a/b-GGUF"), hub("a/b-GGUF", None));
        assert_eq!(Reference::parse("hf:a/b:Q4/x.gguf"), hub("a/b", Some("Q4/x.gguf")));
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for name in [
            "",
            "..",
            ".",
            "../x",
            "/etc/passwd",
            "a/b",
            "a\\b",
            "C:x",
            "a\0b",
            "x\u{202e}y",
            "~/x",
            "hf:",
            "hf:a",
            "hf:a/..",
            "hf:../a",
            "hf:a/b/c",
            "hf:a/b:../../x",
            "hf:a/b:/etc/x",
            "hf:a/b:x//y",
            "hf:a/b:.hidden",
            "hf:a/b:x?y",
            "hf:a/b:x#y",
            "hf:a/b:x%2e%2e",
            "hf:a/b:",
            "hf:a/b:c:d",
            "nul",
            "COM1.gguf",
            "é",
        ] {
            let error = Reference::parse(name).expect_err(name);
            assert!(matches!(error, Error::Name { .. }), "{name:?}: {error}");
        }
        assert!(Reference::parse(&"x".repeat(300)).is_err());
        assert!(Reference::parse(&format!("hf:a/b:{}x", "d/".repeat(20))).is_err());
    }
}
