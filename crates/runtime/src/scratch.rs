//! Scratch memory of one thread, kept from call to call.

use std::cell::RefCell;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Floats of a cache line.
const LINE: usize = 16;

/// Lends `len` floats that start on a cache line. Their values are unspecified; in debug builds
/// they are NaN, so that a kernel that reads before it writes is found out.
pub(crate) fn with<R>(len: usize, use_it: impl FnOnce(&mut [f32]) -> R) -> R {
    // Taken out while in use: a nested call gets memory of its own.
    let mut scratch = SCRATCH.take();
    if scratch.len() < len + LINE {
        scratch.resize(len + LINE, f32::NAN);
    }
    let start = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
    let lent = &mut scratch[start..start + len];
    if cfg!(debug_assertions) {
        lent.fill(f32::NAN);
    }
    let result = use_it(lent);
    SCRATCH.replace(scratch);
    result
}
