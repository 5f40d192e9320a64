#![deny(unsafe_code)]

use super::super::dot::Elem;
use super::Tile;
use super::pack::Source;

/// Rows of a panel, and of a tile.
pub(super) const ROWS: usize = 4;
/// Columns of a panel.
pub(super) const NR: usize = 8;
/// Columns of a register.
pub(super) const LANES: usize = 8;

/// A panel of rows times a panel of [`NR`] columns.
pub(super) fn tile(lhs: &[f32], panel: &[f32], mut to: Tile<'_, '_>) {
    let mut sums = [[0.0; NR]; ROWS];
    for (x, w) in lhs.as_chunks::<ROWS>().0.iter().zip(panel.as_chunks::<NR>().0) {
        for r in 0..ROWS {
            for c in 0..NR {
                sums[r][c] += x[r] * w[c];
            }
        }
    }
    let add = to.add;
    for (row, sums) in (0..to.height).zip(&sums) {
        for (to, sum) in to.row(row).iter_mut().zip(sums) {
            *to = if add { *to + sum } else { *sum };
        }
    }
}

/// `out[j][i] = source[i, j]`, decoded, for all columns. Rows that are missing to `W` are zero.
pub(super) fn transpose<E: Elem, const W: usize>(source: Source<'_>, out: &mut [[f32; W]]) {
    for (j, out) in out.iter_mut().enumerate() {
        for (i, to) in out.iter_mut().enumerate() {
            *to = source.part::<E>(i, j, 1).map_or(0.0, E::decode);
        }
    }
}

/// Panels that are filled side by side: more would take turns in the sets of a first-level cache.
const SIDE_BY_SIDE: usize = 8;

/// Panels of `W` columns from `depth` rows of f32 at a stride. Missing columns are zero.
#[inline(always)]
pub(super) fn copy<const W: usize>(
    data: &[f32],
    stride: usize,
    (depth, cols): (usize, usize),
    out: &mut [f32],
) {
    let (out, _) = out.as_chunks_mut::<W>();
    let full = cols / W;
    for group in (0..full).step_by(SIDE_BY_SIDE) {
        let panels = SIDE_BY_SIDE.min(full - group);
        for l in 0..depth {
            let row = data[l * stride + group * W..][..panels * W].as_chunks::<W>().0;
            for (panel, from) in row.iter().enumerate() {
                out[(group + panel) * depth + l] = *from;
            }
        }
    }
    let rest = cols % W;
    if rest > 0 {
        for (l, to) in out[full * depth..][..depth].iter_mut().enumerate() {
            to[..rest].copy_from_slice(&data[l * stride + full * W..][..rest]);
            to[rest..].fill(0.0);
        }
    }
}
