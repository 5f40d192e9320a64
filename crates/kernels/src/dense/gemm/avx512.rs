#![deny(unsafe_code)]

use std::arch::x86_64::{_mm512_add_ps, _mm512_fmadd_ps, _mm512_set1_ps, _mm512_setzero_ps};

use super::{LINES, STEPS, Tile};
use crate::isa::x86::{
    load_f32x16, load_part_f32x16, prefetch, prefetch_second, store_f32x16, store_part_f32x16,
};

/// Rows of a panel: a tile is 24 sums, three registers of columns and one of a row.
pub(super) const ROWS: usize = 8;
/// Columns of a panel.
pub(super) const NR: usize = 48;
/// Columns of a register.
pub(super) const LANES: usize = 16;
/// Registers of columns.
const REGISTERS: usize = NR / LANES;

/// A panel of rows times a panel of [`NR`] columns.
#[target_feature(enable = "avx512f")]
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
#[target_feature(enable = "avx512f")]
fn tile_of<const HEIGHT: usize, const COLS: usize>(
    lhs: &[f32],
    panel: &[f32],
    mut to: Tile<'_, '_>,
) {
    let mut sums = [[_mm512_setzero_ps(); COLS]; HEIGHT];
    let (lines, mut ahead) = (to.lines(), to.ahead.as_ptr());
    let (lhs, lhs_rest) = lhs.as_chunks::<{ STEPS * ROWS }>();
    let (panel, panel_rest) = panel.as_chunks::<{ STEPS * NR }>();
    for (at, (x, w)) in lhs.iter().zip(panel).enumerate() {
        prefetch(lines[at % LINES]);
        for line in 0..(STEPS * ROWS).div_ceil(16) {
            prefetch_second(ahead.wrapping_add(line * 16));
        }
        ahead = ahead.wrapping_add(STEPS * ROWS);
        for step in 0..STEPS {
            let (x, w) = (&x.as_chunks::<ROWS>().0[step], &w.as_chunks::<NR>().0[step]);
            let (w, _) = w.as_chunks::<LANES>();
            let mut columns = [_mm512_setzero_ps(); COLS];
            for c in 0..COLS {
                columns[c] = load_f32x16(&w[c]);
            }
            for r in 0..HEIGHT {
                let x = _mm512_set1_ps(x[r]);
                for c in 0..COLS {
                    sums[r][c] = _mm512_fmadd_ps(columns[c], x, sums[r][c]);
                }
            }
        }
    }
    for (x, w) in lhs_rest.as_chunks::<ROWS>().0.iter().zip(panel_rest.as_chunks::<NR>().0) {
        let (w, _) = w.as_chunks::<LANES>();
        let mut columns = [_mm512_setzero_ps(); COLS];
        for c in 0..COLS {
            columns[c] = load_f32x16(&w[c]);
        }
        for r in 0..HEIGHT {
            let x = _mm512_set1_ps(x[r]);
            for c in 0..COLS {
                sums[r][c] = _mm512_fmadd_ps(columns[c], x, sums[r][c]);
            }
        }
    }
    // A copy at fixed places, so that what follows does not keep the sums in memory.
    let mut done = [[_mm512_setzero_ps(); COLS]; HEIGHT];
    for r in 0..HEIGHT {
        for c in 0..COLS {
            done[r][c] = sums[r][c];
        }
    }
    let add = to.add;
    if to.width < COLS * LANES {
        for r in 0..HEIGHT {
            for c in 0..COLS {
                let row = to.row(r);
                let end = row.len().min((c + 1) * LANES);
                let to = &mut row[c * LANES..end];
                let before = if add { load_part_f32x16(to) } else { _mm512_setzero_ps() };
                store_part_f32x16(to, _mm512_add_ps(before, done[r][c]));
            }
        }
        return;
    }
    for r in 0..HEIGHT {
        let (to, _) = to.row(r).as_chunks_mut();
        for c in 0..COLS {
            let before = if add { load_f32x16(&to[c]) } else { _mm512_setzero_ps() };
            store_f32x16(&mut to[c], _mm512_add_ps(before, done[r][c]));
        }
    }
}
