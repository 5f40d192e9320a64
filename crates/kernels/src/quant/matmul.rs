//! `out[rows, n] = x[rows, k] * panels[n, k]ᵀ`, panel by panel.
//!
//! The sum of products inside a group is an exact i32, at most `32 * 255 * 127 < 2^24`, so its
//! conversion to f32 is exact as well. For each group a kernel adds
//! `(d * sub_scale) * scale(x) * sum` and, with minimums, `-(m * sub_min) * scale(x) * sum(x)`.

#[cfg(target_arch = "x86_64")]
use super::arrange;
use super::format::{Packed, with_format};
use super::quantize::{XBlock, activation_len};
use super::{PANEL_COLS, PackLayout};
use crate::dense::MatrixMut;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::x86::prefetch_to_write;

#[cfg(target_arch = "x86_64")]
mod amx_bf16;
#[cfg(target_arch = "x86_64")]
mod amx_int8;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_vnni;
#[cfg(target_arch = "x86_64")]
mod avx512_many;
#[cfg(target_arch = "x86_64")]
mod avx512_vnni;
#[cfg(target_arch = "x86_64")]
mod chunk;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dotprod;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;
mod scalar;
pub(super) mod tiles;

/// Rows of the largest tile of a kernel. Batches that are no multiple end in a slower tile.
pub const TILE_ROWS: usize = 12;

/// Words of scratch that [`matmul_panels`] needs for rows of `k` elements.
pub const fn scratch_words(k: usize) -> usize {
    TILE_ROWS * activation_len(k)
}

/// Consecutive panels times a batch of quantized rows. `out` is overwritten.
///
/// `panels` may have any alignment. `x` is `[rows]` records of
/// [`quantize_row`](super::quantize_row), `out` is `[rows, n]`, with 16 columns for each panel but for
/// the last, which may have fewer. Nothing is kept in `scratch`.
///
/// # Panics
///
/// Panics if `panels` is not whole panels, if `out` or `x` does not have the size that they and the
/// layout give it, or if `scratch` has fewer than [`scratch_words`].
pub fn matmul_panels(
    isa: Isa,
    layout: &PackLayout,
    panels: &[u8],
    x: &[u32],
    out: &mut MatrixMut<'_>,
    scratch: &mut [u32],
) {
    if layout.k() == 0 || out.rows() == 0 || out.cols() == 0 {
        return out.zero();
    }
    let (panel_bytes, rows) = (layout.panel_bytes(), out.rows());
    assert!(panels.len().is_multiple_of(panel_bytes), "size of the panels");
    assert_eq!(out.cols().div_ceil(PANEL_COLS), panels.len() / panel_bytes, "columns of out");
    assert_eq!(Some(x.len()), rows.checked_mul(activation_len(layout.k())), "words of x");
    assert!(scratch.len() >= scratch_words(layout.k()), "words of scratch");
    let x = Records { blocks: x.as_chunks().0, rows, in_tiles: false };
    multiply(isa, layout, panels, x, out, scratch);
}

/// As [`matmul_panels`], with sizes that are checked. None is zero.
fn multiply(
    isa: Isa,
    layout: &PackLayout,
    panels: &[u8],
    x: Records<'_>,
    out: &mut MatrixMut<'_>,
    scratch: &mut [u32],
) {
    let panel_bytes = layout.panel_bytes();
    let mut out = Out { matrix: out, first: (0, 0), rows: x.rows, panel_bytes };
    let scratch = scratch.as_chunks_mut().0;
    with_format!(layout.dtype(), F => dispatch::<F>(isa, panels, x, &mut out, scratch), _ => ());
}

fn dispatch<F: Packed>(
    isa: Isa,
    panels: &[u8],
    x: Records<'_>,
    out: &mut Out<'_, '_>,
    scratch: &mut [XBlock],
) {
    match isa {
        Isa::Scalar => scalar::matmul::<F>(panels, x.blocks, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(token) if token.vnni().is_none() => unsafe {
            avx2::matmul::<F>(panels, x, out, scratch);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA, F16C and AVX-VNNI.
        Isa::Avx2(_) => unsafe { avx2_vnni::matmul::<F>(panels, x, out, scratch) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni(_) if x.in_tiles && avx512_many::worth_it::<F>(x.rows) => {
            // SAFETY: the token proves that this CPU has AVX-512 F, BW, VL and VNNI, and AVX2's set.
            unsafe { avx512_many::matmul::<F>(panels, x, out, scratch) }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F, BW, VL and VNNI, and AVX2's set.
        Isa::Avx512Vnni(_) => unsafe { avx512_vnni::matmul::<F>(panels, x, out, scratch) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(token) => match token.dotprod() {
            // SAFETY: the token proves that this CPU has NEON.
            None => unsafe { neon::matmul::<F>(panels, x.blocks, out) },
            Some(token) if token.i8mm().is_none() => {
                // SAFETY: the token proves that this CPU has NEON and dotprod.
                unsafe { neon_dotprod::matmul::<F>(panels, x.blocks, out) }
            }
            // SAFETY: the token proves that this CPU has NEON, dotprod and i8mm.
            Some(_) => unsafe { neon_i8mm::matmul::<F>(panels, x.blocks, out, scratch) },
        },
    }
}

/// Where results go: at least one row, and 16 columns of the matrix for each panel, fewer for the
/// last. A panel has bytes.
struct Out<'a, 'm> {
    matrix: &'a mut MatrixMut<'m>,
    /// Row and column of the first result.
    first: (usize, usize),
    rows: usize,
    panel_bytes: usize,
}

impl Out<'_, '_> {
    /// Asks for the memory of `rows` rows of results, for [`put`](Self::put) to find it in a cache.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "sse")]
    #[inline]
    fn ask(&mut self, panel: usize, row: usize, rows: usize) {
        let col = self.first.1 + panel * PANEL_COLS;
        for row in row..self.rows.min(row + rows) {
            prefetch_to_write(self.matrix.part(self.first.0 + row, col, 1).as_ptr());
        }
    }

    /// Reads what [`put`](Self::put) wrote. Rows and columns that do not exist stay as they are.
    #[cfg(target_arch = "x86_64")]
    fn get(&mut self, panel: usize, row: usize, results: &mut [[f32; PANEL_COLS]]) {
        let col = self.first.1 + panel * PANEL_COLS;
        let width = PANEL_COLS.min(self.matrix.cols() - col);
        for (row, results) in (row..self.rows).zip(results) {
            results[..width].copy_from_slice(self.matrix.part(self.first.0 + row, col, width));
        }
    }

    /// Writes results of panel `panel` from row `row` on. Rows that do not exist are dropped.
    #[expect(clippy::inline_always, reason = "copies with the registers of the caller")]
    #[inline(always)]
    fn put(&mut self, panel: usize, row: usize, results: &[[f32; PANEL_COLS]]) {
        let col = self.first.1 + panel * PANEL_COLS;
        let width = PANEL_COLS.min(self.matrix.cols() - col);
        for (row, results) in (row..self.rows).zip(results) {
            let to = self.matrix.part(self.first.0 + row, col, width);
            match to.first_chunk_mut() {
                Some(to) => *to = *results,
                None => to.copy_from_slice(&results[..width]),
            }
        }
    }
}

/// Which sums of an activation block a group needs: 0 the whole, 1 and 2 those of its halves.
#[cfg(target_arch = "x86_64")]
#[inline]
const fn part<F: Packed>(half: usize) -> usize {
    if F::GROUP == 32 { 0 } else { 1 + half }
}

/// Rows of activations, at least one: record after record, or in tiles as [`super::arrange`] says.
#[derive(Clone, Copy)]
struct Records<'a> {
    blocks: &'a [XBlock],
    rows: usize,
    /// In tiles a last one may have more rows than there are.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "others read records"))]
    in_tiles: bool,
}

#[cfg(target_arch = "x86_64")]
impl<'a> Records<'a> {
    /// Blocks of the same `k` of `N` rows from `first` on, side by side: a kernel follows one
    /// stream with one pointer. The last row stands in for rows that are missing. `N` is the
    /// [`arrange::tile_width`] of the rows that are left.
    #[expect(clippy::inline_always, reason = "copies with the registers of the caller")]
    #[inline(always)]
    fn interleaved<const N: usize>(
        self,
        first: usize,
        scratch: &'a mut [XBlock],
    ) -> &'a [[XBlock; N]] {
        let x = self.blocks;
        if self.in_tiles {
            // All tiles before this one are whole.
            let len = x.len() / arrange::padded_rows(self.rows);
            return x[first * len..][..N * len].as_chunks().0;
        }
        let len = x.len() / self.rows;
        if N == 1 {
            return x[first * len..][..len].as_chunks().0;
        }
        let rows: [&[XBlock]; N] =
            std::array::from_fn(|r| &x[(first + r).min(self.rows - 1) * len..][..len]);
        let tile = scratch[..N * len].as_chunks_mut().0;
        for (b, blocks) in tile.iter_mut().enumerate() {
            blocks.iter_mut().zip(&rows).for_each(|(block, row)| *block = row[b]);
        }
        tile
    }
}
