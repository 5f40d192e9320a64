//! Views of f32 matrices.

use std::marker::PhantomData;
use std::ops::Range;

/// A matrix in a slice, at any strides, zero included.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) row_stride: usize,
    pub(super) col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Element `[i, j]` is `data[i * row_stride + j * col_stride]`.
    pub const fn new(data: &'a [f32], row_stride: usize, col_stride: usize) -> Self {
        Self { data, row_stride, col_stride }
    }

    /// Rows become columns.
    pub(super) const fn transposed(self) -> Self {
        Self { data: self.data, row_stride: self.col_stride, col_stride: self.row_stride }
    }

    /// Element `[i, j]`.
    pub(super) fn at(&self, i: usize, j: usize) -> f32 {
        self.data[i * self.row_stride + j * self.col_stride]
    }

    /// Checks that a matrix that is not empty is in its data.
    pub(super) fn assert_inside(&self, rows: usize, cols: usize, name: &str) {
        let end = |len: usize, stride: usize| (len - 1).checked_mul(stride);
        let last = end(rows, self.row_stride)
            .zip(end(cols, self.col_stride))
            .and_then(|(row, col)| row.checked_add(col));
        let inside = last.is_some_and(|last| last < self.data.len());
        assert!(inside, "{name}: [{rows}, {cols}] is not inside {} elements", self.data.len());
    }
}

/// A rectangle of a row-major matrix, exclusively borrowed. Between its rows may lie what belongs
/// to others.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    base: *mut f32,
    row_stride: usize,
    rows: usize,
    cols: usize,
    _data: PhantomData<&'a mut [f32]>,
}

impl<'a> MatrixMut<'a> {
    /// All of a contiguous matrix.
    ///
    /// # Panics
    ///
    /// Panics if the data are not `rows * cols` elements.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(cols), "elements of out");
        Self { base: data.as_mut_ptr(), row_stride: cols, rows, cols, _data: PhantomData }
    }

    /// A rectangle of a larger matrix.
    ///
    /// # Safety
    ///
    /// For `'a`, the elements `base + i * row_stride + j` with `i < rows` and `j < cols` are inside
    /// one allocation, are valid for reads and writes, and nothing else refers to them.
    pub unsafe fn from_raw(base: *mut f32, row_stride: usize, rows: usize, cols: usize) -> Self {
        Self { base, row_stride, rows, cols, _data: PhantomData }
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Some columns, exclusively borrowed.
    ///
    /// # Panics
    ///
    /// Panics if the matrix does not have them.
    pub fn columns(&mut self, cols: Range<usize>) -> MatrixMut<'_> {
        assert!(cols.start <= cols.end && cols.end <= self.cols, "columns of the matrix");
        // No further than one past the end of the first row, and not used if there is none.
        let base = self.base.wrapping_add(cols.start);
        MatrixMut { base, cols: cols.len(), _data: PhantomData, ..*self }
    }

    /// Elements `col..col + len` of a row.
    #[inline(always)]
    pub(crate) fn part(&mut self, row: usize, col: usize, len: usize) -> &mut [f32] {
        assert!(row < self.rows && col <= self.cols && len <= self.cols - col, "inside the matrix");
        // SAFETY: the element is inside the rectangle, whose address range fits `isize`.
        let at = unsafe { self.base.add(row * self.row_stride + col) };
        // SAFETY: the elements are inside the rectangle, which is borrowed exclusively, here
        // through `self`.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }

    /// Writes zeros.
    pub(crate) fn zero(&mut self) {
        for row in 0..self.rows {
            self.part(row, 0, self.cols).fill(0.0);
        }
    }
}
