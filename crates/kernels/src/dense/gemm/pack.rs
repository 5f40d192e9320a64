//! Packing the operands of a product. Plain copies where rows lie as the kernel reads them,
//! transposed squares where they do not, single elements where nothing is contiguous.

use std::ops::Range;

use fucina_dtype::DType;
use zerocopy::IntoBytes;

use super::super::Rows;
use super::super::dot::{Bf16, Elem, F16, F32};
use super::{Matrix, Rhs, scalar};
use crate::dispatch::recompile;
use crate::isa::Isa;

/// Rows of elements of one type, at a stride in bytes.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    bytes: &'a [u8],
    stride: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl<'a> Source<'a> {
    /// `len` elements of a row from column `col`. Nothing if there is no such row.
    #[inline(always)]
    pub(super) fn part<E: Elem>(&self, row: usize, col: usize, len: usize) -> Option<&'a [u8]> {
        (row < self.rows)
            .then(|| &self.bytes[row * self.stride + col * E::BYTES..][..len * E::BYTES])
    }

    /// Some of the rows, as many as there are.
    fn skip(self, first: usize, rows: usize) -> Self {
        let bytes = &self.bytes[first * self.stride..];
        Self { bytes, rows: rows.min(self.rows - first), ..self }
    }

    /// The block `rows, cols` of a weight.
    fn rows<E: Elem>(w: Rows<'a>, (rows, cols): (Range<usize>, Range<usize>)) -> Self {
        let stride = w.k * E::BYTES;
        let bytes = &w.bytes[rows.start * stride + cols.start * E::BYTES..];
        Self { bytes, stride, rows: rows.len(), cols: cols.len() }
    }

    /// The block `rows, cols` of a matrix with contiguous rows.
    fn of(matrix: Matrix<'a>, rows: &Range<usize>, cols: &Range<usize>) -> Self {
        let first = rows.start * matrix.row_stride + cols.start;
        let bytes = matrix.data[first..].as_bytes();
        Self { bytes, stride: matrix.row_stride * 4, rows: rows.len(), cols: cols.len() }
    }
}

/// Packs `depth` and `cols` of an operand `[k, n]` into panels of `width` columns.
/// Missing columns are zero.
pub(super) fn panels(
    isa: Isa,
    b: Rhs<'_>,
    (depth, cols): (Range<usize>, Range<usize>),
    (out, width): (&mut [f32], usize),
) {
    match b {
        Rhs::Matrix(b) if b.row_stride == 1 => {
            let source = Source::of(b.transposed(), &cols, &depth);
            from_rows::<F32>(isa, source, (out, width));
        }
        Rhs::Matrix(b) if b.col_stride == 1 => {
            let data = &b.data[depth.start * b.row_stride + cols.start..];
            copy(isa, (data, b.row_stride), (depth.len(), cols.len()), (out, width));
        }
        Rhs::Matrix(b) => {
            let firsts = cols.clone().step_by(width);
            for (panel, first) in out.chunks_exact_mut(width * depth.len()).zip(firsts) {
                for (l, out) in depth.clone().zip(panel.chunks_exact_mut(width)) {
                    for (col, to) in (first..).zip(out) {
                        *to = if col < cols.end { b.at(l, col) } else { 0.0 };
                    }
                }
            }
        }
        Rhs::Rows(w) => {
            let (block, to) = ((cols, depth), (out, width));
            match w.dtype {
                DType::F32 => from_rows::<F32>(isa, Source::rows::<F32>(w, block), to),
                DType::F16 => from_rows::<F16>(isa, Source::rows::<F16>(w, block), to),
                DType::BF16 => from_rows::<Bf16>(isa, Source::rows::<Bf16>(w, block), to),
                dtype => unreachable!("{dtype} is not a scalar float"),
            }
        }
    }
}

/// Expands to a match over the widths of all panels.
macro_rules! of_width {
    ($width:expr, $W:ident => $body:expr) => {
        of_width!($width, $W => $body, 4 6 8 12 16 48)
    };
    ($width:expr, $W:ident => $body:expr, $($of:literal)*) => {
        match $width {
            $($of => {
                const $W: usize = $of;
                $body
            })*
            width => unreachable!("no panel has {width} columns"),
        }
    };
}

/// Panels from rows of columns, at a stride.
fn copy(
    isa: Isa,
    (data, stride): (&[f32], usize),
    size: (usize, usize),
    (out, width): (&mut [f32], usize),
) {
    of_width!(width, W => recompile!(isa => scalar::copy::<W>, (
        data: &[f32],
        stride: usize,
        size: (usize, usize),
        out: &mut [f32],
    )));
}

/// Panels from rows, which become their columns.
fn from_rows<E: Elem>(isa: Isa, source: Source<'_>, (out, width): (&mut [f32], usize)) {
    of_width!(width, W => {
        let firsts = (0..source.rows).step_by(W);
        let panels = out.as_chunks_mut::<W>().0.chunks_exact_mut(source.cols);
        for (panel, first) in panels.zip(firsts) {
            transpose::<E, W>(isa, source.skip(first, W), panel);
        }
    });
}

fn transpose<E: Elem, const W: usize>(isa: Isa, rows: Source<'_>, panel: &mut [[f32; W]]) {
    match isa {
        Isa::Scalar => scalar::transpose::<E, W>(rows, panel),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: both tokens prove that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(_) | Isa::Avx512Vnni(_) => unsafe {
            super::avx2::transpose::<E, W>(rows, panel);
        },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { super::neon::transpose::<E, W>(rows, panel) },
    }
}
