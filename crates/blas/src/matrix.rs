//! Operands as the C interface of BLAS can name them.

use std::ffi::c_int;
use std::ops::Range;

/// A matrix in a slice whose rows or whose columns are dense.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// Begins with the first element.
    data: &'a [f32],
    rows: usize,
    cols: usize,
    /// Elements from one dense line to the next.
    leading: usize,
    /// Dense are the columns, not the rows.
    transposed: bool,
}

/// Why a matrix cannot be an operand of a BLAS library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// Neither rows nor columns are dense, or lines overlap.
    #[error("neither rows nor columns are dense")]
    Strides,
    /// A size is beyond what the interface counts.
    #[error("a size does not fit 32 bits")]
    Size,
}

/// Whether the interface can say it.
fn fits(size: usize) -> bool {
    c_int::try_from(size).is_ok()
}

impl<'a> Matrix<'a> {
    /// Element `[i, j]` is `data[i * row_stride + j * col_stride]`.
    ///
    /// # Errors
    ///
    /// Says why the interface cannot name such a matrix.
    ///
    /// # Panics
    ///
    /// Panics if the matrix is not inside `data`.
    pub fn new(
        data: &'a [f32],
        [rows, cols]: [usize; 2],
        [row_stride, col_stride]: [usize; 2],
    ) -> Result<Self, Misfit> {
        if !(fits(rows) && fits(cols)) {
            return Err(Misfit::Size);
        }
        // The stride of an axis of one element, or of none, does not matter.
        let row_stride = if rows > 1 { row_stride } else { row_stride.max(cols) };
        let col_stride = if cols > 1 { col_stride } else { 1 };
        let (leading, transposed) = if col_stride == 1 && row_stride >= cols {
            (row_stride, false)
        } else if (row_stride == 1 || rows < 2) && col_stride >= rows {
            (col_stride, true)
        } else {
            return Err(Misfit::Strides);
        };
        let leading = leading.max(1);
        if !fits(leading) {
            return Err(Misfit::Size);
        }
        let matrix = Self { data, rows, cols, leading, transposed };
        let span = matrix.span();
        assert!(span <= data.len(), "[{rows}, {cols}] is not inside {} elements", data.len());
        Ok(Self { data: &data[..span], ..matrix })
    }

    /// Elements from the first to behind the last. Does not overflow: both factors fit 31 bits.
    fn span(&self) -> usize {
        let (lines, dense) =
            if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) };
        if lines == 0 || dense == 0 { 0 } else { (lines - 1) * self.leading + dense }
    }

    /// Some of its rows.
    ///
    /// # Panics
    ///
    /// Panics if there are no such rows.
    #[must_use]
    pub fn narrow_rows(self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "{rows:?} of {}", self.rows);
        let step = if self.transposed { 1 } else { self.leading };
        self.part(rows.start * step, rows.len(), self.cols)
    }

    /// Some of its columns.
    ///
    /// # Panics
    ///
    /// Panics if there are no such columns.
    #[must_use]
    pub fn narrow_cols(self, cols: Range<usize>) -> Self {
        assert!(cols.start <= cols.end && cols.end <= self.cols, "{cols:?} of {}", self.cols);
        let step = if self.transposed { self.leading } else { 1 };
        self.part(cols.start * step, self.rows, cols.len())
    }

    fn part(self, first: usize, rows: usize, cols: usize) -> Self {
        let part = Self { rows, cols, ..self };
        let span = part.span();
        Self { data: if span == 0 { &[] } else { &self.data[first..][..span] }, ..part }
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) const fn as_ptr(&self) -> *const f32 {
        self.data.as_ptr()
    }

    pub(crate) const fn leading(&self) -> usize {
        self.leading
    }

    pub(crate) const fn is_transposed(&self) -> bool {
        self.transposed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(matrix: &Matrix<'_>, i: usize, j: usize) -> f32 {
        let (i, j) = if matrix.transposed { (j, i) } else { (i, j) };
        matrix.data[i * matrix.leading + j]
    }

    /// Every element of every part is where the strides say, and no part reaches outside the data.
    #[test]
    fn parts_are_the_same_elements() {
        let data: Vec<f32> = (0u8..200).map(f32::from).collect();
        let cases = [
            ([5, 7], [7, 1]),
            ([5, 7], [9, 1]),
            ([5, 7], [1, 5]),
            ([5, 7], [1, 11]),
            ([1, 7], [0, 1]),
            ([1, 7], [3, 2]),
            ([5, 1], [2, 77]),
            ([5, 1], [1, 0]),
            ([1, 1], [0, 0]),
        ];
        for ([rows, cols], strides) in cases {
            let all = Matrix::new(&data, [rows, cols], strides).unwrap();
            for first in 0..rows {
                for left in 0..cols {
                    let part = all.narrow_rows(first..rows).narrow_cols(left..cols);
                    assert!(part.leading >= if part.transposed { part.rows } else { part.cols });
                    for i in 0..part.rows {
                        for j in 0..part.cols {
                            let index = (first + i) * strides[0] + (left + j) * strides[1];
                            assert_eq!(at(&part, i, j), data[index], "{rows} {cols} {strides:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_the_interface_cannot_say_is_a_misfit() {
        let data = [0.0; 100];
        let misfit = |sizes, strides| Matrix::new(&data, sizes, strides).unwrap_err();
        for strides in [[14, 2], [0, 1], [6, 1], [1, 4], [1, 0], [0, 0], [2, 10]] {
            assert_eq!(misfit([5, 7], strides), Misfit::Strides, "{strides:?}");
        }
        assert_eq!(misfit([1 << 31, 1], [0, 1]), Misfit::Size);
        assert_eq!(misfit([1, 1 << 31], [1, 1]), Misfit::Size);
        assert_eq!(misfit([2, 2], [1 << 31, 1]), Misfit::Size);
        assert_eq!(misfit([usize::MAX, usize::MAX], [1, 1]), Misfit::Size);
    }

    #[test]
    fn an_empty_part_has_no_elements() {
        let data = [0.0; 6];
        let all = Matrix::new(&data, [2, 3], [3, 1]).unwrap();
        assert!(all.narrow_rows(2..2).data.is_empty());
        assert!(all.narrow_cols(3..3).data.is_empty());
        assert!(Matrix::new(&[], [0, 3], [3, 1]).unwrap().data.is_empty());
    }

    #[test]
    #[should_panic(expected = "is not inside 9 elements")]
    fn a_matrix_outside_its_data_panics() {
        let _ = Matrix::new(&[0.0; 9], [2, 5], [5, 1]);
    }

    #[test]
    #[should_panic(expected = "1..4 of 3")]
    fn rows_that_do_not_exist_panic() {
        let _ = Matrix::new(&[0.0; 6], [3, 2], [2, 1]).unwrap().narrow_rows(1..4);
    }
}
