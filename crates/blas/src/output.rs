//! Where a product goes: a rectangle of a row-major matrix.

use std::marker::PhantomData;

/// A rectangle of a row-major matrix, exclusively borrowed. Between its rows may lie what belongs to
/// others.
#[derive(Debug)]
pub struct Output<'a> {
    base: *mut f32,
    row_stride: usize,
    rows: usize,
    cols: usize,
    _data: PhantomData<&'a mut [f32]>,
}

impl<'a> Output<'a> {
    /// All of a dense matrix.
    ///
    /// # Panics
    ///
    /// Panics if the data are not `rows * cols` elements, or if a size does not fit 31 bits.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(cols), "elements of the output");
        // SAFETY: the elements are those of `data`, which is borrowed mutably for `'a`.
        unsafe { Self::from_raw(data.as_mut_ptr(), cols, rows, cols) }
    }

    /// A rectangle of a larger matrix.
    ///
    /// # Safety
    ///
    /// For `'a`, the elements `base + i * row_stride + j` with `i < rows` and `j < cols` are inside
    /// one allocation, are valid for reads and writes, and nothing else refers to them.
    ///
    /// # Panics
    ///
    /// Panics if rows overlap, or if a size does not fit 31 bits.
    pub unsafe fn from_raw(base: *mut f32, row_stride: usize, rows: usize, cols: usize) -> Self {
        assert!(rows < 2 || row_stride >= cols, "rows of the output overlap");
        let fits = |size: usize| i32::try_from(size).is_ok();
        assert!(fits(rows) && fits(cols) && fits(row_stride), "a size of the output is too large");
        Self { base, row_stride: row_stride.max(cols), rows, cols, _data: PhantomData }
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) const fn as_mut_ptr(&mut self) -> *mut f32 {
        self.base
    }

    pub(crate) const fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Writes zeros.
    pub(crate) fn zero(&mut self) {
        for row in 0..self.rows {
            // SAFETY: the row is inside the rectangle.
            let at = unsafe { self.base.add(row * self.row_stride) };
            // SAFETY: the elements are inside the rectangle, which `self` borrows exclusively.
            unsafe { std::slice::from_raw_parts_mut(at, self.cols) }.fill(0.0);
        }
    }
}
