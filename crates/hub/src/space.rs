//! Room on the disk.

use std::path::Path;

/// Bytes that this user may still write to the file system of `path`, or `None` if the system does
/// not say.
#[cfg(unix)]
#[must_use]
pub fn free_bytes(path: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    #[expect(clippy::useless_conversion, reason = "the types differ from system to system")]
    let (blocks, size) = (u64::from(stat.blocks_available()), u64::from(stat.fragment_size()));
    Some(blocks.saturating_mul(size))
}

/// Not known here.
#[cfg(not(unix))]
#[must_use]
pub fn free_bytes(_: &Path) -> Option<u64> {
    None
}
