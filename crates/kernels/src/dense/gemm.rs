//! The blocked f32 GEMM: a safe face for the `matrixmultiply` crate, which picks its own
//! instruction set.

/// A matrix in a slice, at any strides, zero included.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Element `[i, j]` is `data[i * row_stride + j * col_stride]`.
    pub const fn new(data: &'a [f32], row_stride: usize, col_stride: usize) -> Self {
        Self { data, row_stride, col_stride }
    }

    /// Strides for a matrix that is not empty, checked against the data.
    fn strides(&self, rows: usize, cols: usize, name: &str) -> (isize, isize) {
        let end = |len: usize, stride: usize| (len - 1).checked_mul(stride);
        let last = end(rows, self.row_stride)
            .zip(end(cols, self.col_stride))
            .and_then(|(row, col)| row.checked_add(col));
        let inside = last.is_some_and(|last| last < self.data.len());
        assert!(inside, "{name}: [{rows}, {cols}] is not inside {} elements", self.data.len());
        // A dimension of one never uses its stride; any other stride is below the length.
        let stride = |len, stride: usize| if len == 1 { 0 } else { stride.cast_signed() };
        (stride(rows, self.row_stride), stride(cols, self.col_stride))
    }
}

/// `out[m, n] = a[m, k] * b[k, n]`. `out` is contiguous and is overwritten; it may hold anything.
///
/// # Panics
///
/// Panics if a matrix does not lie in its data, or if `out` does not have `m * n` elements.
pub fn sgemm((m, k, n): (usize, usize, usize), a: Matrix<'_>, b: Matrix<'_>, out: &mut [f32]) {
    assert_eq!(Some(out.len()), m.checked_mul(n), "elements of out");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        out.fill(0.0);
        return;
    }
    let (rsa, csa) = a.strides(m, k, "a");
    let (rsb, csb) = b.strides(k, n, "b");
    let (a, b, rsc) = (a.data.as_ptr(), b.data.as_ptr(), n.cast_signed());
    // SAFETY: `strides` checked that every element of `a[m, k]` and `b[k, n]` lies in its slice,
    // and `out` has exactly `m * n` elements, borrowed exclusively. With beta = 0, `out` is not
    // read.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            a,
            rsa,
            csa,
            b,
            rsb,
            csb,
            0.0,
            out.as_mut_ptr(),
            rsc,
            1,
        );
    }
}
