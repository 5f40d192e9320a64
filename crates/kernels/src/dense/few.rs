//! Products of few rows, more than [`dot`](super::dot) takes, with weights as they are:
//! `out[m, nr] = x[m, k] * w[nr, k]ᵀ`.
//!
//! The small operand is packed, not the large one. Activations become panels of vector columns, and
//! each weight is read once, from its row, and multiplied with whole registers of activations:
//!
//! ```text
//! packed x:   block of k 0: panel 0, panel 1, ..   block of k 1: panel 0, ..
//! a panel:    k 0: rows 0..width    k 1: rows 0..width    ..     width = registers * lanes
//! ```
//!
//! Missing rows of the last panel are zero, and so is what is missing of `k` to a whole step.
//! f32 weights are used where they lie. A block of 16-bit weights is decoded first, without
//! moving anything: a few rows, so that they stay in the first-level cache.
//!
//! Sums of a block of `k` stay in registers, sums of blocks are added in scratch memory. Threads are
//! the caller's business. So is packing the activations, once for all weights.

use fucina_dtype::DType;
use zerocopy::IntoBytes;

use super::{Rows, decode_row};
use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

/// Most of `k` that is multiplied before sums leave their registers.
const DEPTH: usize = 256;

/// Elements of `k` that a kernel takes at a time.
const STEP: usize = 16;

/// Elements of `k` of a step, as bytes of f32.
type Step = [[u8; 4]; STEP];

/// Most weight rows of a tile, which is what one register of activations goes with.
const MOST_ROWS: usize = 12;

/// A plan for a product of few rows.
#[derive(Debug, Clone, Copy)]
pub struct Few {
    isa: Isa,
    m: usize,
    /// Rows of a panel.
    width: usize,
    /// Registers of a row of a panel.
    regs: usize,
}

/// Some weight rows and some of `k`, in f32.
#[derive(Clone, Copy)]
struct Weights<'a> {
    bytes: &'a [u8],
    /// From row to row, in bytes.
    stride: usize,
    /// Number of steps of `k`.
    steps: usize,
}

impl<'a> Weights<'a> {
    /// The steps of a row.
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [Step] {
        let bytes = &self.bytes[row * self.stride..][..self.steps * 4 * STEP];
        bytes.as_chunks().0.as_chunks().0
    }
}

/// Bytes that are wanted next: as many rows as a tile has, some bytes of each for each step.
#[derive(Clone, Copy)]
struct Ahead<'a> {
    bytes: &'a [u8],
    stride: usize,
    bytes_a_step: usize,
}

impl Few {
    /// `None` if other kernels multiply `m` rows with weights of this type.
    pub fn new(isa: Isa, dtype: DType, m: usize) -> Option<Self> {
        if m == 0 || !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return None;
        }
        let (lanes, most_regs) = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => (avx2::LANES, avx2::MOST_REGS),
            #[cfg(target_arch = "x86_64")]
            // The registers of AVX2 waste less on so few rows.
            Isa::Avx512Vnni(_) if m <= avx2::LANES => (avx2::LANES, 1),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(_) => (avx512::LANES, avx512::MOST_REGS),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(_) => (neon::LANES, neon::MOST_REGS),
            _ => return None,
        };
        let all = m.div_ceil(lanes);
        // As little padding as can be, then as few panels. On x86, three panels of one register take
        // longer than two of two: docs/perf/0010.
        let most = most_regs.min(all);
        let least = if cfg!(target_arch = "x86_64") { most.min(2) } else { 1 };
        let regs = (least..=most).rev().min_by_key(|regs| all.next_multiple_of(*regs))?;
        Some(Self { isa, m, width: regs * lanes, regs })
    }

    /// Rows of the packed activations, missing ones included.
    fn padded_rows(&self) -> usize {
        self.m.next_multiple_of(self.width)
    }

    /// Weight rows of a tile. Tasks are best a multiple of it.
    pub const fn tile_rows(&self) -> usize {
        match (self.isa, self.regs) {
            (_, 1) => MOST_ROWS,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Vnni(_), 2) => 12,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Vnni(_), _) => 8,
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon(_), 2) => 8,
            (..) => 6,
        }
    }

    /// Elements of the packed activations, `[m, k]`. `None` if they do not fit `usize`.
    pub fn packed_len(&self, k: usize) -> Option<usize> {
        self.padded_rows().checked_mul(k.checked_next_multiple_of(STEP)?)
    }

    /// Elements of a packed block. All have this size but the last one, which may be smaller.
    pub fn block_len(&self) -> usize {
        self.padded_rows() * DEPTH
    }

    /// Packs one block of the activations `x`, `[m, k]`, into its part of the packed ones, whose
    /// contents do not matter.
    ///
    /// # Panics
    ///
    /// Panics if `x` has another size, there is no such block, or `out` does not have its size.
    pub fn pack(&self, x: &[f32], k: usize, block: usize, out: &mut [f32]) {
        assert_eq!(Some(x.len()), self.m.checked_mul(k), "elements of x");
        let first = block * DEPTH;
        assert!(first < k, "there is no block {block} of {k} elements");
        let depth = DEPTH.min(k - first);
        let padded = depth.next_multiple_of(STEP);
        assert_eq!(out.len(), self.padded_rows() * padded, "elements of the block");
        let rows = x.chunks(self.width * k);
        for (x, panel) in rows.zip(out.chunks_exact_mut(self.width * padded)) {
            let x = Columns { x, k, cols: first..first + depth };
            match self.isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: both tokens prove that this CPU has AVX2.
                Isa::Avx2(_) | Isa::Avx512Vnni(_) => unsafe {
                    avx2::transpose(x, panel, self.width);
                },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: the token proves that this CPU has NEON.
                Isa::Neon(_) => unsafe { neon::transpose(x, panel, self.width) },
                _ => unreachable!("there is no plan for {}", self.isa.name()),
            }
        }
    }

    /// Elements of scratch memory that [`Few::multiply`] needs.
    pub fn scratch_len(&self) -> usize {
        self.tile_rows() * (DEPTH + self.padded_rows())
    }

    /// Rows of a weight times packed activations, `x`. `out`, `[m, nr]`, is overwritten. The weights
    /// may have any alignment, `scratch` any content.
    ///
    /// The additions of a dot product may be reordered. NaN and infinities behave as in f32.
    ///
    /// # Panics
    ///
    /// Panics if the weight is not whole rows of scalar floats, `k` is zero, `x` is not the blocks of
    /// [`Few::pack`], or another slice has another size.
    pub fn multiply(&self, w: Rows<'_>, x: &[f32], out: &mut [f32], scratch: &mut [f32]) {
        assert!(w.k > 0 && !w.dtype.is_block(), "a weight of scalar floats");
        let row_bytes = w.dtype.row_bytes(w.k).expect("rows of floats have any length");
        let nr = w.bytes.len() / row_bytes;
        assert_eq!(w.bytes.len(), nr * row_bytes, "bytes of the weight rows");
        assert_eq!(Some(x.len()), self.packed_len(w.k), "elements of x");
        assert_eq!(Some(out.len()), self.m.checked_mul(nr), "elements of out");
        let rows = self.tile_rows();
        let (decoded, sums) = scratch[..self.scratch_len()].split_at_mut(rows * DEPTH);
        for col in (0..nr).step_by(rows) {
            // The last tile begins where it is whole, and does some rows once more.
            let first = col.min(nr.saturating_sub(rows));
            let tile = TileRows { isa: self.isa, w, row_bytes, first, count: rows.min(nr - first) };
            let next = first + rows;
            let next = if next >= nr { None } else { Some(next.min(nr - rows.min(nr))) };
            self.tile(&tile, next, x, (decoded, sums));
            self.write(sums, &tile, out, nr);
        }
    }

    /// The sums of a tile: all panels, one after the other. `next` is where the next tile begins.
    fn tile(
        &self,
        tile: &TileRows<'_>,
        next: Option<usize>,
        x: &[f32],
        (decoded, sums): (&mut [f32], &mut [f32]),
    ) {
        let (rows, k) = (self.tile_rows(), tile.w.k);
        for (block, x) in x.chunks(self.block_len()).enumerate() {
            let first = block * DEPTH;
            let depth = DEPTH.min(k - first);
            let steps = depth.div_ceil(STEP);
            let bytes_a_step = STEP * tile.row_bytes / k;
            let ahead = if first + DEPTH < k {
                Some(tile.first * tile.row_bytes + (first + DEPTH) * tile.row_bytes / k)
            } else {
                next.map(|next| next * tile.row_bytes)
            };
            let mut ahead = Ahead {
                bytes: &tile.w.bytes[ahead.unwrap_or(tile.w.bytes.len())..],
                stride: tile.row_bytes,
                bytes_a_step,
            };
            let weights = tile.weights(rows, (first, depth), decoded);
            let panels = x.chunks_exact(self.width * steps * STEP);
            for (x, sums) in panels.zip(sums.chunks_exact_mut(rows * self.width)) {
                self.panel((weights, ahead), x, sums, block > 0);
                // Once is enough.
                ahead.bytes = &[];
            }
        }
    }

    /// Some rows and some of `k` times a panel.
    fn panel(&self, w: (Weights<'_>, Ahead<'_>), x: &[f32], sums: &mut [f32], add: bool) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves that this CPU has AVX2 and FMA.
            Isa::Avx2(_) => unsafe { avx2::panel(self.regs, w, x, (sums, add)) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves that this CPU has AVX2's set.
            Isa::Avx512Vnni(_) if self.width < avx512::LANES => unsafe {
                avx2::panel(self.regs, w, x, (sums, add));
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves that this CPU has AVX-512 F.
            Isa::Avx512Vnni(_) => unsafe { avx512::panel(self.regs, w, x, (sums, add)) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the token proves that this CPU has NEON.
            Isa::Neon(_) => unsafe { neon::panel(self.regs, w, x, (sums, add)) },
            _ => unreachable!("there is no plan for {}: {}", self.isa.name(), x.len() + sums.len()),
        }
    }

    /// Brings the sums of a tile, `[panels][weight rows][width]`, where they belong in `[m, nr]`.
    fn write(&self, sums: &[f32], tile: &TileRows<'_>, out: &mut [f32], nr: usize) {
        let rows = self.tile_rows();
        for (r, out) in out.chunks_exact_mut(nr).enumerate() {
            let sums = &sums[r / self.width * rows * self.width + r % self.width..];
            let out = &mut out[tile.first..][..tile.count];
            for (to, sum) in out.iter_mut().zip(sums.iter().step_by(self.width)) {
                *to = *sum;
            }
        }
    }
}

/// The weight rows of a tile.
struct TileRows<'a> {
    isa: Isa,
    w: Rows<'a>,
    row_bytes: usize,
    first: usize,
    /// Rows that exist.
    count: usize,
}

impl TileRows<'_> {
    /// `depth` elements from `first` on, of `rows` rows, in f32: in place, or in `decoded`.
    fn weights<'a>(
        &'a self,
        rows: usize,
        (first, depth): (usize, usize),
        decoded: &'a mut [f32],
    ) -> Weights<'a> {
        let (elem_bytes, stride) = (self.row_bytes / self.w.k, self.row_bytes);
        let bytes = &self.w.bytes[self.first * stride + first * elem_bytes..];
        let steps = depth.div_ceil(STEP);
        if self.w.dtype == DType::F32 && self.count == rows && depth == steps * STEP {
            return Weights { bytes, stride, steps };
        }
        for (row, out) in decoded.chunks_exact_mut(DEPTH).take(rows).enumerate() {
            let (out, rest) = out[..steps * STEP].split_at_mut(depth);
            rest.fill(0.0);
            if row < self.count {
                let raw = &bytes[row * stride..][..depth * elem_bytes];
                decode_row(self.isa, self.w.dtype, raw, out);
            } else {
                out.fill(0.0);
            }
        }
        Weights { bytes: decoded.as_bytes(), stride: 4 * DEPTH, steps }
    }
}

/// Columns of contiguous rows of activations.
struct Columns<'a> {
    x: &'a [f32],
    k: usize,
    cols: std::ops::Range<usize>,
}

impl<'a> Columns<'a> {
    /// The columns of a row; nothing if there is no such row.
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [f32] {
        let row = self.x.get(row * self.k..).and_then(|x| x.get(self.cols.clone()));
        row.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
