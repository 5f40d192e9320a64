//! Where a written file goes: padding, the count of a tensor's bytes, and the temporary file.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Zeros from `position` to the next multiple of `alignment`.
pub(crate) fn padding(position: u64, alignment: u64) -> u64 {
    (alignment - position % alignment) % alignment
}

pub(crate) fn write_zeros(out: &mut dyn Write, mut count: u64) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    while count > ZEROS.len() as u64 {
        out.write_all(&ZEROS)?;
        count -= ZEROS.len() as u64;
    }
    // Fits: at most 4096.
    out.write_all(&ZEROS[..usize::try_from(count).unwrap_or(0)])
}

/// Passes on at most as many bytes as a tensor has.
pub(crate) struct Counted<'a> {
    pub(crate) out: &'a mut dyn Write,
    pub(crate) left: u64,
    pub(crate) overrun: bool,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            self.overrun = true;
            return Err(io::Error::other("more data than the tensor has"));
        }
        let written = self.out.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A file that is removed unless it is renamed.
pub(crate) struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// Creates a new file in the folder of `path`, so that renaming it is one step.
    pub(crate) fn beside(path: &Path) -> io::Result<(fs::File, Self)> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary = format!(".{}-{number}.gguf.tmp", std::process::id());
        let path = path.with_file_name(temporary);
        // Only a file that this call created is ever removed.
        let file = fs::File::create_new(&path)?;
        Ok((file, Self { path, renamed: false }))
    }

    pub(crate) fn rename(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // Nobody can act on a failure here.
            let _ = fs::remove_file(&self.path);
        }
    }
}
