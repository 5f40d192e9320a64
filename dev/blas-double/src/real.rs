//! Real libraries, for the tests that also run with them.

use std::path::{Path, PathBuf};

/// Folders in folders that are looked into.
const DEPTH: usize = 5;

/// Files of a folder and of those in it that have the name of a library that is supported.
pub fn libraries(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(folder, DEPTH, &mut found);
    found
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let starts = ["libmkl_rt", "libopenblas", "libscipy_openblas"];
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, found);
        } else if starts.iter().any(|start| name.starts_with(start)) && name.contains(".so") {
            found.push(path);
        }
    }
}
