//! Products of few rows with an f32 operand whose rows are contiguous:
//! `out[m, n] = x[m, k] * b[k, n]`.
//!
//! Nothing is packed but the few elements of `x`. Eight rows of `b` are read from left to right, and
//! their products added to sums in a first-level cache, while the next eight rows are fetched. A
//! tile of the output in registers instead would read a column of `b` at a time, and rows that lie a
//! power of two apart share few sets of a cache.
//!
//! Threads are the caller's business.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use zerocopy::IntoBytes;

use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// Most of `k` whose products are added before they are added to the output.
const DEPTH: usize = 256;

/// Most rows that are multiplied with a register of `b` at a time.
const MOST_ROWS: usize = 8;

/// Rows of `b` that are read side by side.
const STRIP: usize = 8;

/// Floats of a cache line, and of the widest register.
const LINE: usize = 16;

/// Elements of scratch memory that [`multiply_wide`] needs for `m` rows and `n` columns.
///
/// # Panics
///
/// Panics if the size does not fit `usize`.
pub fn wide_scratch_len(m: usize, n: usize) -> usize {
    let sums = n.checked_add(LINE).and_then(|n| n.checked_mul(m));
    let all = sums.and_then(|sums| sums.checked_add(STRIP * (MOST_ROWS + LINE)));
    all.expect("a product fits the address space")
}

/// An operand `[k, n]` with contiguous rows. Element `[i, j]` is `data[i * row_stride + j]`.
#[derive(Debug, Clone, Copy)]
pub struct Wide<'a> {
    /// At least all rows.
    pub data: &'a [f32],
    /// From row to row, at least `n`.
    pub row_stride: usize,
}

/// The operand from some row and column on.
#[derive(Clone, Copy)]
struct Part<'a> {
    data: &'a [f32],
    stride: usize,
}

impl<'a> Part<'a> {
    /// Some columns of a row.
    #[inline(always)]
    fn row(&self, row: usize, cols: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..cols]
    }

    /// What follows some rows.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn below(self, rows: usize) -> Self {
        Self { data: self.data.get(rows * self.stride..).unwrap_or_default(), ..self }
    }

    /// Asks for the line of a column of a row, which may not exist.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "sse")]
    #[inline]
    fn prefetch(&self, row: usize, col: usize) {
        crate::isa::x86::prefetch_line(self.data.as_bytes(), 4 * (row * self.stride + col));
    }
}

/// Few rows, `x: [m, k]`, times an operand `[k, n]`. `out`, `[m, n]`, is overwritten; `scratch` has
/// [`wide_scratch_len`] elements of any value.
///
/// The additions of a dot product may be reordered. NaN and infinities behave as in f32.
///
/// # Panics
///
/// Panics if a slice does not have its size, or if `isa` has no such kernel: see
/// [`Route::wide`](super::Route::wide).
pub fn multiply_wide(
    isa: Isa,
    (x, m): (&[f32], usize),
    b: Wide<'_>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    assert!(m > 0 && x.len().is_multiple_of(m), "x is whole rows");
    assert!(out.len().is_multiple_of(m), "out is whole rows");
    let (k, n) = (x.len() / m, out.len() / m);
    if n == 0 || k == 0 {
        out.fill(0.0);
        return;
    }
    let last = (k - 1).checked_mul(b.row_stride).and_then(|last| last.checked_add(n));
    assert!(last.is_some_and(|end| end <= b.data.len()), "b: [{k}, {n}] is not inside its data");
    assert!(b.row_stride >= n || k == 1, "rows of b overlap");
    let lanes =
        lanes(isa).unwrap_or_else(|| panic!("{} has no kernel for wide operands", isa.name()));
    let whole = n / lanes * lanes;
    let (x_strip, scratch) = scratch.split_at_mut(STRIP * MOST_ROWS);
    let (rest, scratch) = scratch.split_at_mut(STRIP * LINE);
    let (sums, scratch) = scratch.split_at_mut(m * whole);
    let mut strips = Strips { isa, m, x: x_strip, sums, rest_sums: &mut scratch[..m * lanes] };
    for first in (0..k).step_by(DEPTH) {
        strips.clear();
        let end = k.min(first + DEPTH);
        for at in (first..end).step_by(STRIP) {
            let depth = STRIP.min(end - at);
            let part = Part { data: &b.data[at * b.row_stride..], stride: b.row_stride };
            for (i, to) in rest.chunks_exact_mut(lanes).take(depth).enumerate() {
                let (values, missing) = to.split_at_mut(n - whole);
                values.copy_from_slice(&part.row(i, n)[whole..]);
                missing.fill(0.0);
            }
            strips.add((x, k, at..at + depth), part, Part { data: rest, stride: lanes });
        }
        strips.write(out, n, first > 0);
    }
}

/// Lanes of a register. `None` if there is no kernel.
#[cfg(target_arch = "x86_64")]
const fn lanes(isa: Isa) -> Option<usize> {
    match isa {
        Isa::Avx2(_) => Some(avx2::LANES),
        Isa::Avx512Vnni(_) => Some(avx512::LANES),
        Isa::Scalar => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
const fn lanes(_: Isa) -> Option<usize> {
    None
}

/// Sums of a block of `k`.
struct Strips<'a> {
    isa: Isa,
    m: usize,
    /// Elements of `x` of a strip and a group of rows.
    x: &'a mut [f32],
    /// Whole registers of columns, `[m, n]`.
    sums: &'a mut [f32],
    /// The columns that are left, as one register, `[m, lanes]`.
    rest_sums: &'a mut [f32],
}

impl Strips<'_> {
    fn clear(&mut self) {
        self.sums.fill(0.0);
        self.rest_sums.fill(0.0);
    }

    /// Adds the products of some elements of `k`.
    fn add(&mut self, (x, k, at): (&[f32], usize, Range<usize>), b: Part<'_>, rest: Part<'_>) {
        let (whole, lanes) = (self.sums.len() / self.m, self.rest_sums.len() / self.m);
        // Groups of about the same height.
        let height = self.m.div_ceil(self.m.div_ceil(MOST_ROWS));
        for first in (0..self.m).step_by(height) {
            let rows = height.min(self.m - first);
            let strip = &mut self.x[..rows * at.len()];
            for (r, x) in x[first * k..].chunks_exact(k).take(rows).enumerate() {
                let to = strip[r..].iter_mut().step_by(rows);
                to.zip(&x[at.clone()]).for_each(|(to, x)| *to = *x);
            }
            let strip = &*strip;
            add(self.isa, (rows, strip), b, &mut self.sums[first * whole..][..rows * whole]);
            add(
                self.isa,
                (rows, strip),
                rest,
                &mut self.rest_sums[first * lanes..][..rows * lanes],
            );
        }
    }

    /// Brings the sums where they belong.
    fn write(&self, out: &mut [f32], n: usize, add: bool) {
        let (whole, lanes) = (self.sums.len() / self.m, self.rest_sums.len() / self.m);
        for (r, out) in out.chunks_exact_mut(n).enumerate() {
            let sums = &self.sums[r * whole..][..whole];
            let rest = &self.rest_sums[r * lanes..][..n - whole];
            for (to, sum) in out.iter_mut().zip(sums.iter().chain(rest)) {
                *to = if add { *to + sum } else { *sum };
            }
        }
    }
}

/// A group of rows and a strip. See the kernels.
#[cfg(target_arch = "x86_64")]
fn add(isa: Isa, (rows, x): (usize, &[f32]), b: Part<'_>, sums: &mut [f32]) {
    match isa {
        // SAFETY: the token proves that this CPU has AVX2 and FMA.
        Isa::Avx2(_) => unsafe { avx2::add(rows, x, b, sums) },
        // SAFETY: the token proves that this CPU has AVX-512 F.
        Isa::Avx512Vnni(_) => unsafe { avx512::add(rows, x, b, sums) },
        Isa::Scalar => unreachable!("there is no scalar kernel"),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn add(isa: Isa, _: (usize, &[f32]), _: Part<'_>, _: &mut [f32]) {
    unreachable!("{} has no kernel", isa.name())
}

#[cfg(test)]
mod tests;
