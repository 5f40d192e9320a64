//! A file that grows: `NAME.part` with `NAME.part.json` beside it, so that the next process knows
//! what the bytes are and goes on where this one stopped.
//!
//! Bytes of an older state stay until something better is there: only [`Part::restart`] and
//! [`Part::discard`] delete any.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::{Hasher, Sha256};
use crate::error::Error;
use crate::files;

/// Endings of what belongs to a file that is not complete.
pub(crate) const PART: &str = ".part";
pub(crate) const STATE: &str = ".part.json";
pub(crate) const WORK: &str = ".part.d";

/// Longest state or record that is read.
pub(crate) const MAX_JSON_BYTES: u64 = 1 << 20;

/// What the bytes of a part are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Where they come from; bytes of two sources are not mixed.
    pub(crate) source: String,
    /// The server's name for this version of the file.
    #[serde(default)]
    pub(crate) etag: Option<String>,
    /// What the server says the sum of the whole is.
    #[serde(default)]
    pub(crate) sha256: Option<String>,
    /// Length of the whole.
    #[serde(default)]
    pub(crate) total_bytes: Option<u64>,
    /// Of a file in pieces, how many are there, and how long these are together.
    #[serde(default)]
    pub(crate) pieces: Option<(u32, u64)>,
}

impl State {
    /// Whether it was written here. Other programs have files of this name as well.
    pub(crate) fn is_ours(&self) -> bool {
        self.source.starts_with("hf:") || self.source.starts_with("index:")
    }
}

/// `path` with an ending after its name.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

/// See the module.
pub(crate) struct Part {
    file: File,
    path: PathBuf,
    state_path: PathBuf,
    state: State,
    /// The sum of the bytes that count.
    hasher: Hasher,
    /// The file has bytes of another source, which may still be of use to that.
    foreign: bool,
}

impl Part {
    /// Opens or creates the part of `target`. Bytes count if they come from `source`.
    /// `on_bytes` hears how many were read again, and how many there are.
    pub(crate) fn open(
        target: &Path,
        source: &str,
        on_bytes: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        let (path, state_path) = (beside(target, PART), beside(target, STATE));
        let state = read_json::<State>(&state_path).filter(|state| state.source == source);
        let known = state.is_some();
        let state =
            state.unwrap_or_else(|| State { source: source.to_owned(), ..State::default() });
        // Whose the file is has to be known from its first moment on. Bytes that are there already
        // belong to another source, or to another program.
        if !known && fs::symlink_metadata(&path).map_or(0, |data| data.len()) == 0 {
            write_json(&state_path, &state)?;
        }
        let mut options = files::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(|error| Error::io("open", &path, &error))?;
        let mut hasher = Hasher::default();
        let wrong = |error: &io::Error| Error::io("read", &path, error);
        let held = file.metadata().map_err(|error| wrong(&error))?.len();
        let counts = match (state.pieces, state.total_bytes) {
            (Some((_, len)), _) => {
                if len <= held {
                    len
                } else {
                    0
                }
            }
            (None, Some(_)) => held,
            (None, None) => 0,
        };
        hasher
            .read(&mut (&mut file).take(counts), &mut |done| on_bytes(done, counts))
            .map_err(|error| wrong(&error))?;
        let foreign = held > 0 && counts == 0;
        let mut part = Self { file, path, state_path, state, hasher, foreign };
        if part.len() < counts || counts == 0 {
            part.forget();
        }
        Ok(part)
    }

    /// The bytes that count do so no more. They stay in the file until the next write.
    fn forget(&mut self) {
        let source = std::mem::take(&mut self.state.source);
        self.state = State { source, ..State::default() };
        self.hasher = Hasher::default();
    }

    pub(crate) const fn state(&self) -> &State {
        &self.state
    }

    /// How many bytes count.
    pub(crate) const fn len(&self) -> u64 {
        self.hasher.len_bytes()
    }

    /// Starts from nothing, with what is known of the whole.
    pub(crate) fn restart(&mut self, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        self.forget();
        change(&mut self.state);
        self.foreign = false;
        self.file.set_len(0).map_err(|error| self.wrong("empty", &error))?;
        self.save()
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file
            .seek(SeekFrom::Start(self.len()))
            .and_then(|_| self.file.write_all(bytes))
            .map_err(|error| self.wrong("write", &error))?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// A piece is complete.
    pub(crate) fn piece_done(&mut self, pieces: u32) -> Result<(), Error> {
        self.file.sync_data().map_err(|error| self.wrong("write", &error))?;
        self.state.pieces = Some((pieces, self.len()));
        self.save()
    }

    /// Takes the bytes after `len` back, all of which were appended by this process. The sum is
    /// made again.
    pub(crate) fn cut(&mut self, len: u64) -> Result<(), Error> {
        self.hasher = Hasher::default();
        self.file
            .set_len(len)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .and_then(|_| self.hasher.read(&mut (&mut self.file).take(len), &mut |_| {}))
            .map_err(|error| self.wrong("cut", &error))
    }

    fn save(&self) -> Result<(), Error> {
        write_json(&self.state_path, &self.state)
    }

    /// Deletes what came, but nothing of another source.
    pub(crate) fn discard(self) {
        drop(self.file);
        if self.foreign {
            return;
        }
        // What cannot be deleted now is a leftover that `list` shows.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.state_path);
    }

    /// The first bytes, up to four.
    pub(crate) fn magic(&mut self) -> Result<Vec<u8>, Error> {
        let mut magic = Vec::new();
        self.file
            .seek(SeekFrom::Start(0))
            .and_then(|_| (&mut self.file).take(4).read_to_end(&mut magic))
            .map_err(|error| self.wrong("read", &error))?;
        Ok(magic)
    }

    /// The sum of everything.
    pub(crate) fn sha256(&self) -> Sha256 {
        self.hasher.clone().finish()
    }

    /// The file is complete: gives it its name.
    pub(crate) fn finish(self, target: &Path) -> Result<(), Error> {
        self.file
            .set_len(self.len())
            .and_then(|()| self.file.sync_all())
            .map_err(|error| self.wrong("write", &error))?;
        drop(self.file);
        fs::rename(&self.path, target).map_err(|error| Error::io("rename to", target, &error))?;
        // Without its part the state means nothing.
        let _ = fs::remove_file(&self.state_path);
        Ok(())
    }

    fn wrong(&self, action: &'static str, error: &io::Error) -> Error {
        Error::io(action, &self.path, error)
    }
}

/// Reads JSON, or `None` if there is none that makes sense: all of it can be made again.
pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    let mut text = Vec::new();
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    File::open(path).ok()?.take(MAX_JSON_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Writes JSON, complete or not at all.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let wrong = |error: io::Error| Error::io("write", path, &error);
    let text = serde_json::to_vec(value).map_err(|error| wrong(error.into()))?;
    let new = beside(path, ".new");
    // One that is there is of a process that was killed, or a link.
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&new).map_err(wrong)?;
    file.write_all(&text).map_err(wrong)?;
    drop(file);
    fs::rename(&new, path).map_err(wrong)
}
