//! A folder for the files of one test, removed with everything in it.

use std::path::{Path, PathBuf};

pub(crate) struct Folder(PathBuf);

impl Folder {
    /// `test` keeps tests that run at the same time apart.
    pub(crate) fn new(test: &str) -> Self {
        let name = format!("fucina-gguf-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the folder for temporary files is writable");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is the system's to clean up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
