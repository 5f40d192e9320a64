//! Where the golden files are: `golden/` in the repository, and the large rest outside it.

use std::io::Write;
use std::path::{Path, PathBuf};

/// The variable that names the folder of large golden files.
const ORACLES: &str = "FUCINA_ORACLES";
/// Set to 1, it turns the skip of a test that needs them into a failure.
const REQUIRE_ORACLES: &str = "FUCINA_REQUIRE_ORACLES";

/// The variable that names the folder of published model files.
const MODELS: &str = "FUCINA_MODELS";
/// Set to 1, it turns the skip of a test that needs them into a failure.
const REQUIRE_MODELS: &str = "FUCINA_REQUIRE_MODELS";

/// The folder that holds the workspace.
///
/// # Panics
///
/// Panics if this crate was moved out of the workspace.
pub fn repository_root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = crate_dir.ancestors().nth(2).expect("the test kit sits two folders below the root");
    root.to_path_buf()
}

/// The path of `golden/<rel>`.
///
/// # Panics
///
/// Panics if there is no such file: a golden file belongs to the repository.
#[track_caller]
pub fn golden_path(rel: &str) -> PathBuf {
    let path = repository_root().join("golden").join(rel);
    assert!(path.exists(), "no golden file {}", path.display());
    path
}

/// The folder of large golden files, or `None` (said aloud) if this machine has none.
///
/// `test` is the name that the skip message gives. A relative `FUCINA_ORACLES` counts from the
/// root of the repository, wherever the test runs.
///
/// # Panics
///
/// Panics instead of skipping under `FUCINA_REQUIRE_ORACLES=1`, and if `FUCINA_ORACLES` names a
/// folder that does not exist.
#[track_caller]
pub fn oracles_dir(test: &str) -> Option<PathBuf> {
    resolve(test, &LARGE_GOLDENS, variable(ORACLES), required(REQUIRE_ORACLES))
}

/// The path of a published model file, or `None` (said aloud) if this machine has none.
///
/// `test` is the name that the skip message gives. A relative `FUCINA_MODELS` counts from the root
/// of the repository, wherever the test runs.
///
/// # Panics
///
/// Panics instead of skipping under `FUCINA_REQUIRE_MODELS=1`, if `FUCINA_MODELS` names a folder
/// that does not exist, and if the folder lacks the file and that is required.
#[track_caller]
pub fn model_path(test: &str, file: &str) -> Option<PathBuf> {
    let required = required(REQUIRE_MODELS);
    let path = resolve(test, &PUBLISHED_MODELS, variable(MODELS), required)?.join(file);
    if path.is_file() {
        return Some(path);
    }
    assert!(!required, "{test}: {REQUIRE_MODELS}=1 but there is no {}", path.display());
    let name = file.trim_end_matches(".gguf");
    skip(test, &format!("put {file} into the folder of {MODELS} (try `fucina pull {name}`)"));
    None
}

/// A folder that a variable names.
struct Folder {
    variable: &'static str,
    require: &'static str,
    holds: &'static str,
}

const LARGE_GOLDENS: Folder =
    Folder { variable: ORACLES, require: REQUIRE_ORACLES, holds: "large golden files" };
const PUBLISHED_MODELS: Folder =
    Folder { variable: MODELS, require: REQUIRE_MODELS, holds: "published model files" };

fn required(name: &str) -> bool {
    variable(name).as_deref() == Some("1")
}

fn skip(test: &str, how: &str) {
    // Not `eprintln!`: the test harness would swallow it, and a skip must be heard.
    let message = format!("SKIPPED {test}: {how} to run it\n");
    std::io::stderr().write_all(message.as_bytes()).expect("stderr takes a line");
}

#[track_caller]
fn resolve(test: &str, of: &Folder, folder: Option<String>, required: bool) -> Option<PathBuf> {
    let Folder { variable, require, holds } = of;
    let Some(folder) = folder.filter(|folder| !folder.is_empty()) else {
        assert!(!required, "{test}: {require}=1 but {variable} names no folder");
        skip(test, &format!("set {variable} to the folder of {holds}"));
        return None;
    };
    let folder = repository_root().join(folder);
    assert!(folder.is_dir(), "{test}: {variable} names {}, not a folder", folder.display());
    Some(folder)
}

/// Reads a file of little-endian f32.
///
/// # Panics
///
/// Panics if the file cannot be read or its length is not a multiple of four.
#[track_caller]
pub fn read_f32(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path)
        .unwrap_or_else(|error| panic!("cannot read golden file {}: {error}", path.display()));
    let (chunks, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty(), "{} is not a whole number of f32", path.display());
    chunks.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect()
}

#[expect(clippy::disallowed_methods, reason = "knobs of the tests, not of the library")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_files_are_found_from_anywhere() {
        assert!(golden_path("tokens.json").is_file());
    }

    #[test]
    #[should_panic(expected = "no golden file")]
    fn a_missing_golden_file_is_a_failure() {
        golden_path("no-such-file");
    }

    #[test]
    fn without_a_folder_the_test_is_skipped() {
        assert_eq!(resolve("t", &LARGE_GOLDENS, None, false), None);
        assert_eq!(resolve("t", &PUBLISHED_MODELS, Some(String::new()), false), None);
    }

    #[test]
    #[should_panic(expected = "t: FUCINA_REQUIRE_ORACLES=1")]
    fn a_required_folder_cannot_be_skipped() {
        resolve("t", &LARGE_GOLDENS, None, true);
    }

    #[test]
    #[should_panic(expected = "not a folder")]
    fn a_wrong_folder_is_a_failure_not_a_skip() {
        resolve("t", &PUBLISHED_MODELS, Some("no-such-folder".to_owned()), false);
    }

    #[test]
    fn a_relative_folder_counts_from_the_root() {
        assert_eq!(
            resolve("t", &LARGE_GOLDENS, Some("golden".to_owned()), false),
            Some(repository_root().join("golden"))
        );
    }
}
