//! Blocked f32 GEMM: `out[m, n] = a[m, k] * b[k, n]`, at any strides, and over decoded weights.
//!
//! Both operands are packed into panels: some rows of the left one, some columns of the right one,
//! as many as a register tile of the instruction set has ([`TileSize`]), element after element of
//! `k`:
//!
//! ```text
//! panel of the lhs:   k 0: ROWS rows     k 1: ROWS rows     ..   all of k
//! panel of the rhs:   k 0: NR columns    k 1: NR columns    ..   of one block of k
//! ```
//!
//! The left operand is packed once for the whole product. A task owns a rectangle of the output. For
//! each block of `k` it packs its columns of the right operand, decoding them if they are weights,
//! and passes all its rows over them: a panel of rows stays in the first-level cache while the
//! panels of columns come from the second. Sums of a block stay in registers and go to the output
//! once. Missing rows and columns are zero in a panel, and are not computed.
//!
//! Not here: threads, and who packs what. A caller packs the left operand with [`pack_lhs`], in any
//! number of parts, and multiplies rectangles with [`multiply`].

use std::ops::Range;

use super::Rows;
use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod scalar;

pub use matrix::{Matrix, MatrixMut};

/// Most of `k` that is multiplied before sums leave their registers. See docs/perf/0006.
const DEPTH: usize = 512;

/// Most columns that a task packs at a time, so that they stay in a second-level cache.
const PACKED_COLS: usize = 288;

/// The size of a register tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TileSize {
    /// Rows of a tile, and of a panel of the left operand.
    rows: usize,
    /// Columns of a tile, and of a panel of the right operand.
    cols: usize,
    /// Columns of a register.
    lanes: usize,
}

impl TileSize {
    const fn of(isa: Isa) -> Self {
        macro_rules! of {
            ($module:ident) => {
                Self { rows: $module::ROWS, cols: $module::NR, lanes: $module::LANES }
            };
        }
        match isa {
            Isa::Scalar => of!(scalar),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => of!(avx2),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(_) => of!(avx512),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(_) => of!(neon),
        }
    }
}

/// The columns of every tile divide it.
const WIDEST: usize = 48;

/// Rows of a panel of the left operand. Tasks begin at a multiple of it.
pub const fn row_step(isa: Isa) -> usize {
    TileSize::of(isa).rows
}

/// Columns of a task are best a multiple of it.
pub const fn column_step(isa: Isa) -> usize {
    TileSize::of(isa).lanes
}

/// The blocks of `k`, of about the same depth.
fn blocks(k: usize) -> impl Iterator<Item = Range<usize>> {
    let depth = k.div_ceil(k.div_ceil(DEPTH).max(1)).next_multiple_of(16).min(DEPTH);
    (0..k).step_by(depth.max(1)).map(move |first| first..k.min(first + depth))
}

/// Elements of a packed left operand, `[m, k]`. `None` if they do not fit `usize`.
pub fn packed_lhs_len(isa: Isa, m: usize, k: usize) -> Option<usize> {
    m.checked_next_multiple_of(row_step(isa))?.checked_mul(k)
}

/// Packs some rows of the left operand, `a: [m, k]`. Rows begin at a multiple of [`row_step`] and
/// end at one or at `m`. `out`, whose contents do not matter, takes [`packed_lhs_len`] of them: parts
/// that follow each other make a whole.
///
/// # Panics
///
/// Panics if `a` does not lie in its data, there are no such rows, or `out` has another size.
pub fn pack_lhs(
    isa: Isa,
    (a, m, k): (Matrix<'_>, usize, usize),
    rows: Range<usize>,
    out: &mut [f32],
) {
    assert!(rows.start <= rows.end && rows.end <= m, "{rows:?} are not rows of {m}");
    assert_whole_panels(isa, &rows, m);
    assert_eq!(Some(out.len()), packed_lhs_len(isa, rows.len(), k), "elements of the packed rows");
    if !out.is_empty() {
        a.assert_inside(m, k, "a");
        pack::panels(isa, Rhs::Matrix(a.transposed()), (0..k, rows), (out, row_step(isa)));
    }
}

fn assert_whole_panels(isa: Isa, rows: &Range<usize>, m: usize) {
    let whole = |at: usize| at.is_multiple_of(row_step(isa)) || at == m;
    assert!(whole(rows.start) && whole(rows.end), "{rows:?} of {m} are not whole panels");
}

/// A packed left operand.
#[derive(Debug, Clone, Copy)]
pub struct Lhs<'a> {
    packed: &'a [f32],
    m: usize,
    k: usize,
    /// Rows of a panel.
    panel_rows: usize,
}

impl<'a> Lhs<'a> {
    /// What calls of [`pack_lhs`] for this instruction set made of `[m, k]`.
    ///
    /// # Panics
    ///
    /// Panics if `packed` does not have [`packed_lhs_len`] elements.
    pub fn new(isa: Isa, packed: &'a [f32], m: usize, k: usize) -> Self {
        assert_eq!(Some(packed.len()), packed_lhs_len(isa, m, k), "elements of the packed operand");
        Self { packed, m, k, panel_rows: row_step(isa) }
    }

    /// The panel that begins at a row, in a block of `k`.
    fn panel(&self, row: usize, depth: &Range<usize>) -> &'a [f32] {
        let panel = &self.packed[row * self.k..];
        &panel[depth.start * self.panel_rows..depth.end * self.panel_rows]
    }
}

/// The right operand, `[k, n]`.
#[derive(Debug, Clone, Copy)]
pub enum Rhs<'a> {
    /// f32 at any strides.
    Matrix(Matrix<'a>),
    /// The transposed rows of a weight, `[n, k]`, in a scalar format.
    Rows(Rows<'a>),
}

/// Elements of scratch memory that [`multiply`] needs for `n` columns.
pub fn multiply_scratch_len(n: usize, k: usize) -> usize {
    // Fewer than 16 elements are lost to alignment.
    n.min(PACKED_COLS).next_multiple_of(WIDEST) * k.min(DEPTH) + 16
}

/// Rows of `lhs` times all columns of `rhs`. `out: [rows, n]` is overwritten and may hold anything,
/// as may `scratch`, which has at least [`multiply_scratch_len`] elements.
///
/// The additions of a dot product may be reordered. NaN and infinities behave as in f32.
///
/// # Panics
///
/// Panics if `lhs` has no such rows or they are not whole panels, if `rhs` does not lie in its data or is a block format, or if
/// `out` or `scratch` have another size.
pub fn multiply(
    isa: Isa,
    (lhs, rows): (Lhs<'_>, Range<usize>),
    rhs: Rhs<'_>,
    out: &mut MatrixMut<'_>,
    scratch: &mut [f32],
) {
    let (k, n) = (lhs.k, out.cols());
    assert!(rows.start <= rows.end && rows.end <= lhs.m, "{rows:?} are not rows of {}", lhs.m);
    assert_eq!(lhs.panel_rows, row_step(isa), "rows of a panel of this instruction set");
    assert_whole_panels(isa, &rows, lhs.m);
    assert_eq!(rows.len(), out.rows(), "rows of out");
    if rows.is_empty() || n == 0 {
        return;
    }
    if k == 0 {
        out.zero();
        return;
    }
    match rhs {
        Rhs::Matrix(b) => b.assert_inside(k, n, "b"),
        Rhs::Rows(w) => {
            let row_bytes = w.dtype.row_bytes(k).filter(|_| !w.dtype.is_block() && w.k == k);
            let bytes = row_bytes.and_then(|row| row.checked_mul(n));
            assert_eq!(bytes, Some(w.bytes.len()), "bytes of the weight rows");
        }
    }
    let (nr, scratch) = (TileSize::of(isa).cols, aligned(scratch));
    for first in (0..n).step_by(PACKED_COLS) {
        let cols = first..n.min(first + PACKED_COLS);
        for depth in blocks(k) {
            let packed = &mut scratch[..cols.len().next_multiple_of(nr) * depth.len()];
            pack::panels(isa, rhs, (depth.clone(), cols.clone()), (packed, nr));
            block(isa, (lhs, &rows), packed, (depth, cols.clone()), out);
        }
    }
}

/// All rows times the packed columns of one block of `k`.
fn block(
    isa: Isa,
    (lhs, rows): (Lhs<'_>, &Range<usize>),
    packed: &[f32],
    (depth, cols): (Range<usize>, Range<usize>),
    out: &mut MatrixMut<'_>,
) {
    let size = TileSize::of(isa);
    for row in rows.clone().step_by(size.rows) {
        let next = row + size.rows;
        let next = lhs.panel(if next < rows.end { next } else { row }, &depth);
        let lhs = lhs.panel(row, &depth);
        let panels = packed.chunks_exact(size.cols * depth.len());
        for (panel, col) in panels.zip(cols.clone().step_by(size.cols)) {
            let height = size.rows.min(rows.end - row);
            let width = size.cols.min(cols.end - col);
            let ahead = if col + width == cols.end { next } else { lhs };
            let add = depth.start > 0;
            let row = row - rows.start;
            tile(isa, lhs, panel, Tile { out, row, height, col, width, add, ahead });
        }
    }
}

/// Where the sums of a register tile go, and what is next.
struct Tile<'a, 'b> {
    out: &'a mut MatrixMut<'b>,
    row: usize,
    /// Rows of the tile that exist.
    height: usize,
    col: usize,
    /// Columns of the tile that exist.
    width: usize,
    /// Whether to add to what is there.
    add: bool,
    /// What to bring nearer meanwhile: the next panel of rows, or this one.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86 asks for it"))]
    ahead: &'a [f32],
}

impl Tile<'_, '_> {
    /// The part of a row of the output that the tile covers.
    #[inline(always)]
    fn row(&mut self, row: usize) -> &mut [f32] {
        self.out.part(self.row + row, self.col, self.width)
    }

    /// Where lines of the output begin or end, four for each row. The rest repeats them.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn lines(&mut self) -> [*const f32; LINES] {
        let mut lines = [self.row(0).as_ptr(); LINES];
        for (row, lines) in (0..self.height).zip(lines.as_chunks_mut::<4>().0) {
            let row = self.row(row);
            let (first, third) = (row.as_ptr(), row.len() / 3);
            let last = first.wrapping_add(row.len() - 1);
            *lines = [first, first.wrapping_add(third), first.wrapping_add(2 * third), last];
        }
        lines
    }
}

/// Most lines of the output that a tile asks for, a power of two.
#[cfg(target_arch = "x86_64")]
const LINES: usize = 32;

/// Steps of `k` that are written out, and between requests for memory. All requests at once would
/// wait for each other, and the tile for them.
#[cfg(target_arch = "x86_64")]
const STEPS: usize = 4;

/// A panel of rows times a panel of columns.
fn tile(isa: Isa, lhs: &[f32], panel: &[f32], to: Tile<'_, '_>) {
    match isa {
        Isa::Scalar => scalar::tile(lhs, panel, to),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2 and FMA.
        Isa::Avx2(_) => unsafe { avx2::tile(lhs, panel, to) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F.
        Isa::Avx512Vnni(_) => unsafe { avx512::tile(lhs, panel, to) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::tile(lhs, panel, to) },
    }
}

/// The part of `memory` that begins at a cache line, so that no register of a panel straddles two.
fn aligned(memory: &mut [f32]) -> &mut [f32] {
    let skip = memory.as_ptr().align_offset(64).min(memory.len());
    &mut memory[skip..]
}

#[cfg(test)]
mod tests;
