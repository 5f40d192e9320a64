//! Models split over several files: `NAME-00001-of-00003.gguf` and so on.
//!
//! The first part has the metadata. Each part has the keys `split.no` (from 0) and `split.count`
//! and describes its own tensors; `split.tensors.count` is the total.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;
use crate::metadata::Metadata;

/// What a file says about the split it belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    /// From 0.
    no: u64,
    pub(crate) count: u64,
    tensors: Option<u64>,
}

impl Split {
    /// `None` if the model is in one file.
    pub(crate) fn of(metadata: &Metadata) -> Result<Option<Self>, Error> {
        let no = metadata.u64_or("split.no", 0)?;
        let count = metadata.u64_or("split.count", 0)?;
        let tensors = metadata.u64_opt("split.tensors.count")?;
        Ok((count > 1 || no > 0).then_some(Self { no, count, tensors }))
    }

    /// Whether the file at `path` may be opened as the first part.
    pub(crate) fn check_first(self, path: &Path, file: &Arc<str>) -> Result<(), Error> {
        if self.no == 0 {
            return Ok(());
        }
        let first = part_path(path, 0, self.count).map_or_else(
            || format!("the part whose name ends in -00001-of-{:05}.gguf", self.count),
            |path| path.to_string_lossy().into_owned(),
        );
        Err(Error::NotFirstPart {
            file: Arc::clone(file),
            part: self.no.saturating_add(1),
            count: self.count,
            first: first.into(),
        })
    }

    /// Whether a later part belongs to this first one.
    pub(crate) fn check_part(
        self,
        metadata: &Metadata,
        file: &Arc<str>,
        part: u64,
    ) -> Result<(), Error> {
        same(file, "split.no", metadata.u64("split.no")?, part)?;
        same(file, "split.count", metadata.u64("split.count")?, self.count)
    }

    /// Whether all parts together have the tensors that the first one promises.
    pub(crate) fn check_tensors(self, found: usize, file: &Arc<str>) -> Result<(), Error> {
        let found = found as u64;
        same(file, "the number of tensors", found, self.tensors.unwrap_or(found))
    }

    pub(crate) fn bad_name(self, file: &Arc<str>) -> Error {
        Error::SplitName { file: Arc::clone(file), count: self.count }
    }

    pub(crate) fn in_memory(self, file: &Arc<str>) -> Error {
        let part = self.no.saturating_add(1);
        Error::SplitInMemory { file: Arc::clone(file), part, count: self.count }
    }

    /// Turns "no such file" into an error that says which part is missing.
    pub(crate) fn missing_part(self, error: Error, first: &Arc<str>, part: u64) -> Error {
        match error {
            Error::Io { file: part_file, kind: io::ErrorKind::NotFound, .. } => {
                Error::MissingPart {
                    file: Arc::clone(first),
                    part: part + 1,
                    count: self.count,
                    part_file: (&*part_file).into(),
                }
            }
            other => other,
        }
    }
}

fn same(file: &Arc<str>, what: &'static str, found: u64, expected: u64) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::SplitMismatch { file: Arc::clone(file), what, found, expected })
}

/// The path of another part, `part` counted from 0, of the model that `path` is a part of. `None`
/// if `path` is not named like a part of `count`.
pub(crate) fn part_path(path: &Path, part: u64, count: u64) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(".gguf")?.strip_suffix(&format!("-of-{count:05}"))?;
    let (prefix, number) = stem.rsplit_once('-')?;
    if number.len() < 5 || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number = part.checked_add(1)?;
    Some(path.with_file_name(format!("{prefix}-{number:05}-of-{count:05}.gguf")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_path_keeps_folder_and_prefix() {
        let path = Path::new("dir.d/my-model-00001-of-00003.gguf");
        let third = part_path(path, 2, 3).unwrap();
        assert_eq!(third, Path::new("dir.d/my-model-00003-of-00003.gguf"));
    }

    #[test]
    fn a_part_path_needs_the_naming_scheme() {
        for name in ["model.gguf", "m-00001-of-00002.gguf", "m-1-of-00003.gguf", "m-00001-of-00003"]
        {
            assert_eq!(part_path(Path::new(name), 1, 3), None, "{name}");
        }
    }
}
