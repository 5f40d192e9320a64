//! Where the lines of former chats are kept.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Entries that are kept.
pub(super) const ENTRIES: usize = 1000;

/// A larger file is not ours, or was filled by accident.
const LIMIT_BYTES: u64 = 16 << 20;

/// The file of the history: what `FUCINA_HISTORY` names, or one in the folder for state. `None` if
/// the variable is empty or no folder is known.
pub(super) fn path(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(path) = variable("FUCINA_HISTORY") {
        return Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
    }
    // A relative path there is to be ignored, by the convention of these variables.
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = match folder("XDG_STATE_HOME") {
        Some(state) => state,
        None if cfg!(windows) => folder("LOCALAPPDATA")?,
        None => folder("HOME")?.join(".local/state"),
    };
    Some(state.join("fucina").join("chat_history"))
}

/// Makes the folder of the file, and says whether there is a file to read.
///
/// # Errors
///
/// Fails if the folder cannot be made, or what is there is no file of reasonable size.
pub(super) fn prepare(path: &Path) -> io::Result<bool> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_private_folder(folder)?;
    }
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(io::Error::other("it is not a file")),
        Ok(found) if found.len() > LIMIT_BYTES => Err(io::Error::other("it is too large")),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes a folder that only its owner can look into. One that is there stays as it is.
fn make_private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_variables_say_where_the_history_is() {
        let of = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, v)| *v);
            path(&|name| value(name).map(OsString::from))
        };
        let home = ("HOME", "/home/a");
        let state = Path::new("/home/a/.local/state/fucina/chat_history");
        assert_eq!(of(&[home]).as_deref(), Some(state));
        assert_eq!(of(&[home, ("XDG_STATE_HOME", "not/absolute")]).as_deref(), Some(state));
        let there = Path::new("/s/fucina/chat_history");
        assert_eq!(of(&[home, ("XDG_STATE_HOME", "/s")]).as_deref(), Some(there));
        assert_eq!(of(&[home, ("FUCINA_HISTORY", "h")]).as_deref(), Some(Path::new("h")));
        assert_eq!(of(&[home, ("FUCINA_HISTORY", "")]), None);
        assert_eq!(of(&[]), None);
    }
}
