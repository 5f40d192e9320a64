//! Opening and looking at what lies in the folder, of which nothing is taken for granted: links are
//! not followed where something is written or deleted, and what is no plain file keeps nobody
//! waiting.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::error::Error;

/// How long to wait for somebody who only looked.
const PAUSE: Duration = Duration::from_millis(100);

/// Keeps other processes from a model until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Option<File>,
}

/// Options that refuse a link, and do not wait for the other end of a pipe.
pub(crate) fn options() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only unix has the flags"))]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use nix::fcntl::OFlag;
        use std::os::unix::fs::OpenOptionsExt as _;
        options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    }
    options
}

/// Takes the lock at `path` for the model `name`. `pause` waits before the one other try: a process
/// that lists the folder holds locks for a moment.
pub(crate) fn lock(path: &Path, name: &str) -> Result<Lock, Error> {
    lock_after(path, name, || std::thread::sleep(PAUSE))
}

pub(crate) fn lock_after(path: &Path, name: &str, pause: impl FnOnce()) -> Result<Lock, Error> {
    // What is in the file stays: it is empty, or it is not ours.
    let file = options().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|error| Error::io("make", path, &error))?;
    let mut taken = file.try_lock();
    if let Err(TryLockError::WouldBlock) = taken {
        pause();
        taken = file.try_lock();
    }
    match taken {
        Ok(()) => Ok(Lock { _file: Some(file) }),
        Err(TryLockError::WouldBlock) => Err(Error::Busy { name: name.to_owned() }),
        // Some network file systems know no locks.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
            Ok(Lock { _file: None })
        }
        Err(TryLockError::Error(error)) => Err(Error::io("lock", path, &error)),
    }
}

/// Whether somebody has the lock at `path`. Those who ask do not disturb each other.
pub(crate) fn is_locked(path: &Path) -> bool {
    let file = options().read(true).open(path);
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// What a folder holds, as far as it can be seen.
pub(crate) struct Walk {
    /// Files and work folders with their sizes, by the path from the folder.
    pub(crate) files: Vec<(String, u64)>,
    /// Folders that were not looked into, and why.
    pub(crate) skipped: Vec<Error>,
}

/// Where to look.
pub(crate) struct Rules<'a> {
    /// The one folder of the top that is looked into.
    pub(crate) inside: &'a str,
    /// The ending of folders that count as files.
    pub(crate) opaque: &'a str,
    pub(crate) max_depth: u32,
    pub(crate) max_files: usize,
}

impl Rules<'_> {
    /// Looks at everything below `folder`.
    pub(crate) fn walk(&self, folder: &Path) -> io::Result<Walk> {
        let mut walk = Walk { files: Vec::new(), skipped: Vec::new() };
        self.look(folder, "", self.max_depth, &mut walk)?;
        walk.files.sort();
        Ok(walk)
    }

    fn look(&self, folder: &Path, prefix: &str, depth: u32, walk: &mut Walk) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let file_name = entry.file_name();
            // Ours have plain names.
            let Some(name) = file_name.to_str().filter(|name| !name.starts_with('.')) else {
                continue;
            };
            let (path, relative) = (entry.path(), format!("{prefix}{name}"));
            // A link to a model counts as the model.
            let (Ok(own), Ok(data)) = (fs::symlink_metadata(&path), fs::metadata(&path)) else {
                continue;
            };
            let wanted = depth > 0 && (!prefix.is_empty() || name == self.inside);
            if data.is_file() || (own.is_dir() && relative.ends_with(self.opaque)) {
                walk.files.push((relative, data.len()));
            } else if wanted && own.is_symlink() && data.is_dir() {
                walk.skipped.push(Error::linked(&path));
            } else if wanted
                && own.is_dir()
                && let Err(error) = self.look(&path, &format!("{relative}/"), depth - 1, walk)
            {
                walk.skipped.push(Error::io("read", &path, &error));
            }
            if walk.files.len() >= self.max_files {
                break;
            }
        }
        Ok(())
    }
}

/// Refuses folders between `top` and `path` that are links, whose files would not be seen later.
pub(crate) fn check_folders(top: &Path, path: &Path) -> Result<(), Error> {
    let inside = path.ancestors().skip(1).take_while(|folder| *folder != top);
    let is_link = |folder: &Path| fs::symlink_metadata(folder).is_ok_and(|data| data.is_symlink());
    match inside.filter(|folder| folder.starts_with(top)).find(|folder| is_link(folder)) {
        Some(folder) => Err(Error::linked(folder)),
        None => Ok(()),
    }
}
