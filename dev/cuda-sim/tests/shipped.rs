//! The PTX that the CUDA provider ships, executed and compared with references in f64.
//!
//! The references decode weights with the registry's own decoder, which is checked bit by bit against
//! another implementation, and add in f64. Bounds are derived beside the kernels (their README) and here.
//! The simulator stops a launch at the first byte that is out of bounds, misaligned or not yet written,
//! at a race on shared memory and at a barrier that not all threads reach.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::too_many_arguments,
    clippy::too_many_lines,
    reason = "tests panic when something is wrong, and sizes are small"
)]

#[path = "shipped/attention.rs"]
mod attention;
#[path = "shipped/dense.rs"]
mod dense;
#[path = "shipped/elements.rs"]
mod elements;
#[path = "shipped/gpu.rs"]
mod gpu;
#[path = "shipped/int8.rs"]
mod int8;
#[path = "shipped/quant.rs"]
mod quant;
#[path = "shipped/rows.rs"]
mod rows;
#[path = "shipped/weights.rs"]
mod weights;

/// Numbers of rows around every tile.
const ROWS: &[usize] =
    &[1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129];
