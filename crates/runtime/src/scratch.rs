//! Scratch memory of one thread, kept from call to call.

use std::cell::RefCell;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Lends `len` floats whose values are unspecified. In debug builds they are NaN, so that a kernel
/// that reads before it writes is found out.
pub(crate) fn with<R>(len: usize, use_it: impl FnOnce(&mut [f32]) -> R) -> R {
    // Taken out while in use: a nested call gets memory of its own.
    let mut scratch = SCRATCH.take();
    if scratch.len() < len {
        scratch.resize(len, f32::NAN);
    }
    if cfg!(debug_assertions) {
        scratch[..len].fill(f32::NAN);
    }
    let result = use_it(&mut scratch[..len]);
    SCRATCH.replace(scratch);
    result
}
