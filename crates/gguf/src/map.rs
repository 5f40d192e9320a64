//! File contents as [`Bytes`]: mapped where possible, read otherwise.
//!
//! The crate's only `unsafe` blocks are here. What cannot be prevented: if another process shortens
//! a mapped file, touching the lost pages raises `SIGBUS` and ends this process, and if it rewrites
//! the file, tensor bytes change under the reader. Model files are normally replaced by renaming,
//! which is harmless. Where that cannot be relied on, [`Access::Read`] takes a private copy.
//! Metadata and tensor descriptions are always copied out and checked, so only tensor data is
//! exposed to such a change.

use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::Mmap;

use crate::error::Error;

/// How to get at the bytes of a file.
///
/// ```no_run
/// use fucina_gguf::{Access, File};
///
/// let file = File::open_with("model.gguf", Access::Read)?;
/// println!("{}", file.access()); // read into memory, as asked
/// # Ok::<(), fucina_gguf::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Access {
    /// Map the file; if that fails, read it.
    #[default]
    Auto,
    /// Map the file or fail.
    Mmap,
    /// Read the file into memory. Needs as much memory as the file is long, and is immune to
    /// other processes that shorten or rewrite the file.
    Read,
}

/// How the bytes of a file were got, and why. `Display` gives a phrase for people.
///
/// ```
/// assert_eq!(fucina_gguf::AccessUsed::Mapped.to_string(), "memory-mapped");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessUsed {
    /// Memory-mapped.
    Mapped,
    /// Read into memory because [`Access::Read`] asked for it.
    ReadAsAsked,
    /// Read into memory because mapping failed.
    ReadAsFallback {
        /// Why the map failed.
        reason: Arc<str>,
    },
    /// Bytes given by the caller.
    Given,
}

impl fmt::Display for AccessUsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped => f.write_str("memory-mapped"),
            Self::ReadAsAsked => f.write_str("read into memory, as asked"),
            Self::ReadAsFallback { reason } => {
                write!(f, "read into memory, because mapping failed: {reason}")
            }
            Self::Given => f.write_str("in memory"),
        }
    }
}

/// The bytes of one file, and where they came from.
#[derive(Debug, Clone)]
pub(crate) struct Contents {
    pub(crate) bytes: Bytes,
    pub(crate) used: AccessUsed,
    /// The map under `bytes`, if there is one.
    map: Option<Arc<Mmap>>,
}

/// Lets `Bytes` share a map.
struct Shared(Arc<Mmap>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Contents {
    /// Bytes that the caller has in memory.
    pub(crate) fn given(bytes: Bytes) -> Self {
        Self { bytes, used: AccessUsed::Given, map: None }
    }

    fn read(bytes: Bytes, used: AccessUsed) -> Self {
        Self { bytes, used, map: None }
    }

    fn mapped(map: Mmap) -> Self {
        let map = Arc::new(map);
        let bytes = Bytes::from_owner(Shared(Arc::clone(&map)));
        Self { bytes, used: AccessUsed::Mapped, map: Some(map) }
    }

    /// Takes the pages that overlap `range` out of this process's memory. A later access, also
    /// to what else is on them, reads them from the file again. Does nothing for bytes that are
    /// not mapped.
    pub(crate) fn release(&self, range: Range<usize>) {
        let Some(map) = &self.map else { return };
        // Systems map the neighbours of a page that is touched: Linux those of its 64 KiB. So a
        // release of less would leave a part of that at every edge. No page is larger either.
        const AROUND_BYTES: usize = 64 << 10;
        let len = self.bytes.len();
        let start = range.start / AROUND_BYTES * AROUND_BYTES;
        let end = range.end.min(len).next_multiple_of(AROUND_BYTES).min(len);
        if range.start < range.end && start < end {
            drop_pages(map, start, end - start);
        }
    }
}

#[cfg(unix)]
#[expect(unsafe_code, reason = "advice that drops pages")]
fn drop_pages(map: &Mmap, start: usize, len: usize) {
    // SAFETY: the map is read-only and was never written through, so a dropped page comes back
    // from the file with the bytes it had; that other processes leave the file alone is the
    // condition under which it is mapped at all. The range lies inside the map.
    let advised =
        unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
    // It is advice: if it is refused, the pages stay.
    let _ = advised;
}

#[cfg(not(unix))]
fn drop_pages(_map: &Mmap, _start: usize, _len: usize) {}

/// Opens `path` and gives its contents.
pub(crate) fn contents(path: &Path, name: &Arc<str>, access: Access) -> Result<Contents, Error> {
    // A pipe or device is refused before it is opened, because opening can block for ever.
    let meta = fs::metadata(path).map_err(|e| Error::io(name, "open", &e))?;
    if !meta.is_file() {
        return Err(Error::NotAFile { file: Arc::clone(name) });
    }
    let file = fs::File::open(path).map_err(|e| Error::io(name, "open", &e))?;
    match access {
        Access::Read => Ok(Contents::read(read(file, name)?, AccessUsed::ReadAsAsked)),
        Access::Mmap => {
            let map = map(&file).map_err(|e| Error::io(name, "map", &e))?;
            Ok(Contents::mapped(map))
        }
        Access::Auto => map_or_read(file, name, map),
    }
}

/// The mapping function is a parameter so that a test can make it fail.
fn map_or_read(
    file: fs::File,
    name: &Arc<str>,
    map: fn(&fs::File) -> io::Result<Mmap>,
) -> Result<Contents, Error> {
    match map(&file) {
        Ok(map) => Ok(Contents::mapped(map)),
        Err(e) => {
            let reason = e.to_string().into();
            Ok(Contents::read(read(file, name)?, AccessUsed::ReadAsFallback { reason }))
        }
    }
}

#[expect(unsafe_code, reason = "the crate's one memory map")]
fn map(file: &fs::File) -> io::Result<Mmap> {
    // SAFETY: the map is shared and read-only, and nothing in this process writes to the file.
    // Other processes must leave a mapped model alone; the module comment says what happens
    // otherwise, and `Access::Read` is offered for that case.
    unsafe { Mmap::map(file) }
}

fn read(mut file: fs::File, name: &Arc<str>) -> Result<Bytes, Error> {
    let io = |e: &io::Error| Error::io(name, "read", e);
    let len = file.metadata().map_err(|e| io(&e))?.len();
    let too_big = || io::Error::from(io::ErrorKind::OutOfMemory);
    let capacity = usize::try_from(len).map_err(|_| io(&too_big()))?;
    let mut contents = Vec::new();
    contents.try_reserve_exact(capacity).map_err(|_| io(&too_big()))?;
    // Not past the length just reserved, should the file grow meanwhile.
    (&mut file).take(len).read_to_end(&mut contents).map_err(|e| io(&e))?;
    Ok(Bytes::from(contents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_map_falls_back_to_reading_and_says_why() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let refuse = |_: &fs::File| Err(io::Error::other("no maps today"));
        let file = fs::File::open(path).unwrap();
        let Contents { bytes, used, .. } = map_or_read(file, &path.into(), refuse).unwrap();
        assert_eq!(bytes, fs::read(path).unwrap());
        assert_eq!(used, AccessUsed::ReadAsFallback { reason: "no maps today".into() });
        assert_eq!(used.to_string(), "read into memory, because mapping failed: no maps today");
    }

    /// Resident bytes cannot be asserted on every system; that the data survives can.
    #[test]
    fn released_pages_come_back_with_the_same_bytes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/assets/austen-q8_0.gguf");
        let contents = contents(Path::new(path), &path.into(), Access::Mmap).unwrap();
        let want = fs::read(path).unwrap();
        let len = want.len();
        assert_eq!(contents.bytes, want);
        for range in [0..len, 1..len - 1, 0..0, 5..70_000, len..usize::MAX, 0..usize::MAX] {
            contents.release(range);
            assert_eq!(contents.bytes, want);
        }
        Contents::given(Bytes::from(want)).release(0..len);
    }
}
