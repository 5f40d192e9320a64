#![deny(unsafe_code)]

use std::arch::aarch64::{vaddq_f32, vdupq_n_f32};

use super::super::dot::Elem;
use super::super::dot::neon::load;
use super::Tile;
use super::pack::Source;
use crate::isa::aarch64::{load_f32x4, mul_add_lane, store_f32x4, transpose_4x4};

/// Rows of a panel: a tile is 24 sums, three registers of columns and two of rows.
pub(super) const ROWS: usize = 8;
/// Columns of a panel.
pub(super) const NR: usize = 12;
/// Columns of a register.
pub(super) const LANES: usize = 4;
/// Registers of columns.
const REGISTERS: usize = NR / LANES;

/// A panel of rows times a panel of [`NR`] columns.
#[target_feature(enable = "neon")]
pub(super) fn tile(lhs: &[f32], panel: &[f32], to: Tile<'_, '_>) {
    macro_rules! by_height {
        ($($rows:literal)*) => {
            match (to.height, to.width.div_ceil(LANES)) {
                $(
                    ($rows, 1) => tile_of::<$rows, 1>(lhs, panel, to),
                    ($rows, 2) => tile_of::<$rows, 2>(lhs, panel, to),
                    ($rows, _) => tile_of::<$rows, REGISTERS>(lhs, panel, to),
                )*
                (rows, _) => unreachable!("{rows} rows are not a panel"),
            }
        };
    }
    by_height!(1 2 3 4 5 6 7 8);
}

/// `HEIGHT` rows times `COLS` registers of columns. All in one function, and without references to
/// the sums, so that nothing keeps them out of registers.
#[expect(clippy::needless_range_loop, reason = "an iterator over sums is a reference to them")]
#[target_feature(enable = "neon")]
fn tile_of<const HEIGHT: usize, const COLS: usize>(
    lhs: &[f32],
    panel: &[f32],
    mut to: Tile<'_, '_>,
) {
    let mut sums = [[vdupq_n_f32(0.0); COLS]; HEIGHT];
    for (x, w) in lhs.as_chunks::<ROWS>().0.iter().zip(panel.as_chunks::<NR>().0) {
        let (w, _) = w.as_chunks::<LANES>();
        let mut columns = [vdupq_n_f32(0.0); COLS];
        for c in 0..COLS {
            columns[c] = load_f32x4(&w[c]);
        }
        let (x, _) = x.as_chunks::<LANES>();
        let x = [load_f32x4(&x[0]), load_f32x4(&x[1])];
        for r in 0..HEIGHT {
            for c in 0..COLS {
                sums[r][c] = mul_add_lane(sums[r][c], columns[c], x[r / LANES], r % LANES);
            }
        }
    }
    let add = to.add;
    for r in 0..HEIGHT {
        let row = to.row(r);
        if row.len() < COLS * LANES {
            let mut values = [[0.0; LANES]; COLS];
            if add {
                values.as_flattened_mut()[..row.len()].copy_from_slice(row);
            }
            for c in 0..COLS {
                let sum = vaddq_f32(load_f32x4(&values[c]), sums[r][c]);
                store_f32x4(&mut values[c], sum);
            }
            row.copy_from_slice(&values.as_flattened()[..row.len()]);
            continue;
        }
        let (to, _) = row.as_chunks_mut();
        for c in 0..COLS {
            let before = if add { load_f32x4(&to[c]) } else { vdupq_n_f32(0.0) };
            store_f32x4(&mut to[c], vaddq_f32(before, sums[r][c]));
        }
    }
}

/// `out[j][i] = source[i, j]`, decoded, for all columns and a width of whole registers. Rows that are
/// missing to `W` are zero.
#[target_feature(enable = "neon")]
pub(super) fn transpose<E: Elem, const W: usize>(source: Source<'_>, out: &mut [[f32; W]]) {
    let whole = source.cols / LANES * LANES;
    let (squares, rest) = out[..source.cols].split_at_mut(whole);
    for i in (0..W).step_by(LANES) {
        for (out, j) in squares.chunks_exact_mut(LANES).zip((0..).step_by(LANES)) {
            let mut square = [vdupq_n_f32(0.0); LANES];
            for (at, v) in square.iter_mut().enumerate() {
                if let Some(row) = source.part::<E>(i + at, j, LANES) {
                    *v = load::<E>(row);
                }
            }
            for (to, v) in out.iter_mut().zip(transpose_4x4(square)) {
                store_f32x4(&mut to.as_chunks_mut().0[i / LANES], v);
            }
        }
    }
    for (out, j) in rest.iter_mut().zip(whole..) {
        for (i, to) in out.iter_mut().enumerate() {
            *to = source.part::<E>(i, j, 1).map_or(0.0, E::decode);
        }
    }
}
