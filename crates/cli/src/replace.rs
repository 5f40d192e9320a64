//! Files that are written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Most names that are tried for the new file. Runs that were killed may have left some, and in
/// containers many processes have the same number.
const NAMES: u32 = 1000;

/// Writes a file beside the one that is meant, and then puts it in its place. Only its owner can
/// read it. What was there stays after an error. A link stays one.
///
/// # Errors
///
/// Fails if `write` does, or the file system.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut File) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (part, mut file) = create(path)?;
    let written = write(&mut file)
        .and_then(|()| Ok(file.sync_all()?))
        .and_then(|()| Ok(fs::rename(&part, path)?));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&part);
    }
    written
}

/// A new file in the same folder.
fn create(path: &Path) -> anyhow::Result<(PathBuf, File)> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    for number in 0..NAMES {
        let part = temporary(path, number);
        match options.open(&part) {
            Ok(file) => return Ok((part, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    let last = temporary(path, NAMES - 1);
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
        .with_context(|| format!("remove what killed runs left, such as `{}`", last.display()))
}

/// The name does not grow with that of the file, which may have the longest that there is.
fn temporary(path: &Path, number: u32) -> PathBuf {
    path.with_file_name(format!(".fucina-{}-{number}.tmp", std::process::id()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// An empty folder of the test's own.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("fucina-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn put(path: &Path, text: &str) -> anyhow::Result<()> {
        replace(path, |file| Ok(file.write_all(text.as_bytes())?))
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn what_a_killed_run_left_is_neither_in_the_way_nor_touched() {
        let folder = folder("stale");
        let path = folder.join("a");
        for number in 0..3 {
            fs::write(temporary(&path, number), "stale").unwrap();
        }
        put(&path, "new").unwrap();
        put(&path, "newer").unwrap();
        replace(&path, |_| anyhow::bail!("no")).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
        for number in 0..3 {
            assert_eq!(fs::read_to_string(temporary(&path, number)).unwrap(), "stale");
        }
        assert_eq!(files(&folder), 4);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_error_leaves_what_was_there_and_nothing_else() {
        let folder = folder("failed");
        let path = folder.join("a".repeat(255));
        put(&path, "old").unwrap();
        let error = replace(&path, |file| {
            file.write_all(b"half")?;
            anyhow::bail!("the disk is full")
        });
        assert_eq!(error.unwrap_err().to_string(), "the disk is full");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(files(&folder), 1);
        put(&folder, "x").unwrap_err();
        assert!(put(&folder.join("no/a"), "x").is_err());
        assert!(!temporary(&folder, 0).exists(), "nothing is left beside a folder");
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_one_and_only_the_owner_can_read() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = folder("linked");
        let (path, link) = (folder.join("a"), folder.join("b"));
        fs::write(&path, "old").unwrap();
        symlink(&path, &link).unwrap();
        put(&link, "new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_dir_all(folder).unwrap();
    }
}
