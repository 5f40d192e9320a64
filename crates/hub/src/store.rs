//! The folder of models.
//!
//! ```text
//! FILE.gguf                  a model of the catalogue, or one that somebody put here
//! FILE.gguf.json             what is known of it: name, licence, source, sum
//! hf/OWNER/REPO/FILE.gguf    a model of the hub
//! FILE.gguf.part, .part.json, .part.d    a pull that broke off
//! .locks/                    empty files that keep two processes apart
//! ```
//!
//! Only plain files below the folder are touched; what a link points to is never deleted, and a
//! folder behind a link is not looked into. What looks like a leftover is one only if the state
//! beside it is ours: other programs call their downloads `.part` as well.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::catalogue;
use crate::error::Error;
use crate::files::{self, Lock, Rules};
use crate::index::size_of_dir;
use crate::licence::Licence;
use crate::name::Reference;
use crate::part::{PART, STATE, State, WORK, beside, read_json};

/// Where models of the hub are.
const HUB_FOLDER: &str = "hf";
const LOCKS: &str = ".locks";
const RECORD: &str = ".json";

/// Folders below folders that are looked into.
const MAX_DEPTH: u32 = 11;

/// Files that are looked at.
const MAX_FILES: usize = 100_000;

/// What is known of a model that was pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// What it is called.
    pub name: String,
    /// What it is, in a few words.
    pub title: String,
    /// Under which terms.
    pub licence: Licence,
    /// `general.architecture`, if it was known before.
    pub architecture: Option<String>,
    /// Where it came from.
    pub source: String,
    /// Sum of each file, in order.
    pub sha256: Vec<String>,
    /// What each file was like when its sum was made, in order.
    #[serde(default)]
    pub(crate) marks: Vec<Option<Mark>>,
}

/// What changes when somebody writes to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    bytes: u64,
    /// Time of the last change, since 1970.
    modified: Duration,
}

impl Mark {
    /// `None` if the system does not say.
    pub(crate) fn of(data: &fs::Metadata) -> Option<Self> {
        let modified = data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Self { bytes: data.len(), modified })
    }
}

/// A model in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// What it is called.
    pub name: String,
    /// Its file, or the first of them.
    pub path: PathBuf,
    /// All its files.
    pub files: Vec<PathBuf>,
    /// Of a split model, files that are not there.
    pub missing_files: usize,
    /// All its bytes.
    pub bytes: u64,
    /// `None` if nobody pulled it.
    pub record: Option<Record>,
}

/// What a broken pull left.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftover {
    /// The model's name, as far as it can be told.
    pub name: String,
    /// The file that it was to become.
    pub target: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// It is none: a pull is at work.
    pub busy: bool,
}

/// The folder of models.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// Everything in the folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// Models, by name.
    pub models: Vec<Stored>,
    /// What broken pulls left, by name.
    pub leftovers: Vec<Leftover>,
    /// Folders that were not looked into, and why.
    pub skipped: Vec<Error>,
}

impl Store {
    /// A store in a folder, which need not exist.
    #[must_use]
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a file, which `relative` names with `/`.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        relative.split('/').fold(self.folder.clone(), |path, part| path.join(part))
    }

    /// Where a file of the hub goes, relative to the folder.
    pub(crate) fn hub_path(repo: &str, file: &str) -> String {
        format!("{HUB_FOLDER}/{repo}/{file}")
    }

    /// Everything in the folder.
    ///
    /// # Errors
    ///
    /// Fails if the folder exists and cannot be read.
    pub fn contents(&self) -> Result<Contents, Error> {
        let rules =
            Rules { inside: HUB_FOLDER, opaque: WORK, max_depth: MAX_DEPTH, max_files: MAX_FILES };
        let walk = match rules.walk(&self.folder) {
            Ok(walk) => walk,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::default()),
            Err(error) => return Err(Error::io("read", &self.folder, &error)),
        };
        let mut contents = Contents { skipped: walk.skipped, ..Contents::default() };
        for (relative, bytes) in &walk.files {
            if is_gguf(relative) && split(relative).is_none_or(|(_, part, _)| part == 1) {
                contents.models.push(self.stored(relative, *bytes, &walk.files));
            }
            // Every leftover has a state: it is written first and deleted last.
            if let Some(target) = relative.strip_suffix(STATE)
                && is_left(&self.path(target))
            {
                contents.leftovers.push(self.left(target));
            }
        }
        contents.models.sort_by(|a, b| a.name.cmp(&b.name));
        contents.leftovers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(contents)
    }

    fn stored(&self, relative: &str, bytes: u64, all: &[(String, u64)]) -> Stored {
        let path = self.path(relative);
        let record = read_json::<Record>(&beside(&path, RECORD));
        let (mut total, mut files, mut missing) = (bytes, vec![path.clone()], 0);
        if let Some((stem, _, count)) = split(relative) {
            for part in 2..=count {
                let name = part_name(stem, part, count);
                match all.binary_search_by(|(known, _)| known.cmp(&name)) {
                    Ok(at) => {
                        total += all[at].1;
                        files.push(self.path(&name));
                    }
                    Err(_) => missing += 1,
                }
            }
        }
        let name = name_of(relative);
        Stored { name, path, files, missing_files: missing, bytes: total, record }
    }

    fn left(&self, target: &str) -> Leftover {
        let path = self.path(target);
        let len = |ending| fs::symlink_metadata(beside(&path, ending)).map_or(0, |data| data.len());
        let bytes = len(PART) + len(STATE) + size_of_dir(&beside(&path, WORK), 4);
        let busy = files::is_locked(&self.lock_path(&path));
        Leftover { name: name_of(target), target: path, bytes, busy }
    }

    /// The model of a name, or `None` if it is not here.
    ///
    /// A short name is that of a model, or of its file with or without ending. A repository of the
    /// hub stands for the one model of it that is here.
    ///
    /// # Errors
    ///
    /// Fails if there are several, and if the folder cannot be read.
    pub fn find(&self, reference: &Reference) -> Result<Option<Stored>, Error> {
        let models = self.contents()?.models;
        let found: Vec<_> = match reference {
            Reference::Short(name) => {
                let own = models.iter().find(|model| model.name == *name);
                let listed = catalogue::entry(name)
                    .and_then(|entry| models.iter().find(|model| model.name == entry.name));
                if let Some(model) = own.or(listed) {
                    return Ok(Some(model.clone()));
                }
                models.into_iter().filter(|model| is_called(model, name)).collect()
            }
            Reference::Hub { repo, file } => {
                let prefix = format!("hf:{repo}:");
                let wanted = file.as_deref().unwrap_or_default();
                let exact = models.iter().find(|m| m.name.strip_prefix(&prefix) == Some(wanted));
                if let Some(model) = exact {
                    return Ok(Some(model.clone()));
                }
                let wanted = wanted.to_ascii_lowercase();
                let fits = |model: &Stored| {
                    let rest = model.name.strip_prefix(&prefix);
                    rest.is_some_and(|file| file.to_ascii_lowercase().contains(&wanted))
                };
                models.into_iter().filter(fits).collect()
            }
        };
        match &*found {
            [] => Ok(None),
            [_] => Ok(found.into_iter().next()),
            _ => Err(Error::Ambiguous {
                name: match reference {
                    Reference::Short(name) => name.clone(),
                    Reference::Hub { repo, .. } => format!("hf:{repo}"),
                },
                choices: found.into_iter().map(|model| model.name).collect(),
            }),
        }
    }

    /// Deletes a model with all that belongs to it.
    ///
    /// # Errors
    ///
    /// Fails if another process pulls it, or a file cannot be deleted.
    pub fn remove(&self, model: &Stored) -> Result<u64, Error> {
        let _lock = self.lock(&model.path, &model.name)?;
        let mut freed = 0;
        for path in &model.files {
            freed += remove_file(path)?;
            freed += remove_left(path)?;
        }
        freed += remove_file(&beside(&model.path, RECORD))?;
        self.remove_empty(&model.path);
        Ok(freed)
    }

    /// Deletes what a broken pull left.
    ///
    /// # Errors
    ///
    /// Fails if another process goes on with it, or a file cannot be deleted.
    pub fn remove_leftover(&self, leftover: &Leftover) -> Result<u64, Error> {
        let _lock = self.lock(&leftover.target, &leftover.name)?;
        let freed = remove_left(&leftover.target)?;
        self.remove_empty(&leftover.target);
        Ok(freed)
    }

    /// Deletes the folders of a repository that has no file any more.
    fn remove_empty(&self, path: &Path) {
        let hub = self.folder.join(HUB_FOLDER);
        for folder in path.ancestors().skip(1) {
            // A folder that is not empty stays.
            if !folder.starts_with(&hub) || fs::remove_dir(folder).is_err() {
                return;
            }
        }
    }

    fn lock_path(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix(&self.folder).unwrap_or(path).to_string_lossy();
        self.folder.join(LOCKS).join(relative.replace(['/', '\\'], "+") + ".lock")
    }

    /// Takes the lock of a file, which makes the folder if need be.
    pub(crate) fn lock(&self, path: &Path, name: &str) -> Result<Lock, Error> {
        let folder = self.folder.join(LOCKS);
        fs::create_dir_all(&folder).map_err(|error| Error::io("make", &folder, &error))?;
        let path = self.lock_path(path);
        files::lock(&path, name)
    }
}

/// The file with what is known of a model.
pub(crate) fn record_path(model: &Path) -> PathBuf {
    beside(model, RECORD)
}

/// Whether a pull of ours that broke off left something of `target`.
fn is_left(target: &Path) -> bool {
    let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    is_gguf(name) && read_json::<State>(&beside(target, STATE)).is_some_and(|state| state.is_ours())
}

/// Deletes what a pull of ours left of `target`. The state goes last: without it, nobody could tell
/// whose the rest is.
fn remove_left(target: &Path) -> Result<u64, Error> {
    if !is_left(target) {
        return Ok(0);
    }
    let work = beside(target, WORK);
    let mut freed = size_of_dir(&work, 4);
    match fs::remove_dir_all(&work) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(Error::io("delete", &work, &error)),
    }
    freed += remove_file(&beside(target, PART))?;
    freed += remove_file(&beside(target, STATE))?;
    Ok(freed)
}

/// Deletes a file, if it is there, and tells how many bytes it had.
fn remove_file(path: &Path) -> Result<u64, Error> {
    let bytes = fs::symlink_metadata(path).map_or(0, |data| data.len());
    match fs::remove_file(path) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(Error::io("delete", path, &error)),
    }
}

pub(crate) fn is_gguf(path: &str) -> bool {
    without_ending(path).is_some()
}

/// The path of a GGUF file without its ending, which may be in capitals.
fn without_ending(path: &str) -> Option<&str> {
    let (stem, ending) = path.split_at_checked(path.len().checked_sub(5)?)?;
    (!stem.is_empty() && ending.eq_ignore_ascii_case(".gguf")).then_some(stem)
}

/// What a file in the folder is called.
fn name_of(relative: &str) -> String {
    let hub = relative.strip_prefix(HUB_FOLDER).and_then(|rest| rest.strip_prefix('/'));
    if let Some(rest) = hub {
        let mut parts = rest.splitn(3, '/');
        if let (Some(owner), Some(repo), Some(file)) = (parts.next(), parts.next(), parts.next()) {
            return format!("hf:{owner}/{repo}:{file}");
        }
    }
    match catalogue::CATALOGUE.iter().find(|entry| entry.file == relative) {
        Some(entry) => entry.name.to_owned(),
        None => without_ending(relative).unwrap_or(relative).to_owned(),
    }
}

/// Whether `name` is that of the file, with or without ending.
fn is_called(model: &Stored, name: &str) -> bool {
    let file = model.path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
    file == name || without_ending(file) == Some(name)
}

/// Stem, number and count of `STEM-00001-of-00003.gguf`.
pub(crate) fn split(path: &str) -> Option<(&str, u32, u32)> {
    let rest = path.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |text: &str| {
        let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (part, count) = (number(part)?, number(count)?);
    // More parts than this would be a mistake, and is refused where they are wanted.
    (part >= 1 && part <= count && count <= 1000).then_some((stem, part, count))
}

/// The name of a part of a split model.
pub(crate) fn part_name(stem: &str, part: u32, count: u32) -> String {
    format!("{stem}-{part:05}-of-{count:05}.gguf")
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
