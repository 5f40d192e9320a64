//! Quantized activations in the order in which a vector kernel reads them.
//!
//! ```text
//! tile     12 rows; the last tile has room for 1, 2, 4, 6, 8 or 12
//!   step   the blocks of the same 32 k of all rows of the tile, side by side
//! ```
//!
//! So a tile is one stream, and each of its steps can be written on its own. Room for rows that do not
//! exist holds zeros.

use super::quantize::{XBlock, quantize_blocks};
use super::{TILE_ROWS, activation_len};
use crate::isa::Isa;

/// Words of a block.
const WORDS: usize = size_of::<XBlock>() / 4;

/// Rows of the smallest tile for `rows` rows, or of the largest.
pub(super) const fn tile_width(rows: usize) -> usize {
    match rows {
        0..=2 => rows,
        3 | 4 => 4,
        5 | 6 => 6,
        7 | 8 => 8,
        _ => TILE_ROWS,
    }
}

/// Rows that `rows` rows have room for.
pub(super) const fn padded_rows(rows: usize) -> usize {
    rows.saturating_add(tile_width(rows % TILE_ROWS) - rows % TILE_ROWS)
}

/// Quantizes rows of `k` elements, those of one tile: its steps from `first` on, as many as `out`
/// holds.
///
/// # Panics
///
/// Panics if `x` has no rows or more than a tile, or if `out` is not whole steps that are in the tile.
pub(super) fn quantize_steps(isa: Isa, (x, k): (&[f32], usize), first: usize, out: &mut [u32]) {
    let rows = x.len() / k;
    let width = tile_width(rows);
    assert!((1..=TILE_ROWS).contains(&rows) && x.len() == rows * k, "rows of a tile");
    let steps = out.len() / (width * WORDS);
    assert!(
        out.len() == steps * width * WORDS && first + steps <= activation_len(k) / WORDS,
        "steps of a tile"
    );
    let (blocks, _) = out.as_chunks_mut::<WORDS>();
    let from = (first * 32).min(k);
    let to = ((first + steps) * 32).min(k);
    for (row, x) in x.chunks_exact(k).enumerate() {
        quantize_blocks(isa, &x[from..to], &mut blocks[row.min(steps * width)..], width);
    }
    for step in blocks.chunks_exact_mut(width) {
        step[rows..].as_flattened_mut().fill(0);
    }
}
