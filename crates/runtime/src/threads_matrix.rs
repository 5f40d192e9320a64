//! A tile of the team as an operand of the matrix kernels, and of a BLAS library.

use fucina_blas::Output;
use fucina_kernels::dense::MatrixMut;

use crate::threads::TileMut;

/// All of a tile.
pub(crate) fn matrix<'a>(tile: &'a mut TileMut<'_, f32>) -> MatrixMut<'a> {
    let (rows, cols) = (tile.rows.len(), tile.cols.len());
    let (base, row_stride) = tile.as_raw();
    // SAFETY: the tile is inside one slice, and its elements belong to this task alone: tiles are
    // disjoint, and the result borrows the tile mutably.
    unsafe { MatrixMut::from_raw(base, row_stride, rows, cols) }
}

/// All of a tile.
///
/// # Panics
///
/// Panics if a size does not fit 31 bits.
pub(crate) fn blas_output<'a>(tile: &'a mut TileMut<'_, f32>) -> Output<'a> {
    let (rows, cols) = (tile.rows.len(), tile.cols.len());
    let (base, row_stride) = tile.as_raw();
    // SAFETY: as in `matrix`.
    unsafe { Output::from_raw(base, row_stride, rows, cols) }
}
