//! Products with one of several matrices for each row: the experts of a mixture.
//!
//! Which expert a row goes to is known on the host when the call is made, so the table is a part
//! of the call and not an operand: it is checked before anything is submitted, and a provider can
//! size its launch by it. A provider copies what its command needs of it before `submit` returns.

use std::ops::Range;

use fucina_dtype::DType;

use super::{Check, Inputs, product};
use crate::error::CallError;
use crate::operand::Operand;
use crate::shape::Shape;

/// `out[r, n] = x[source(r), k] * weights[e, n, k]ᵀ`, with the expert `e` that row `r` goes to.
///
/// The rows of the output are sorted by expert: expert `e` has `offsets[e]..offsets[e + 1]`, which
/// may be none. `source(r)` is `row_ids[r]` if there are row ids and `r` if not, so that one
/// activation of several experts is there once. `k` may be 0: the output is then zero.
#[derive(Debug, Clone, Copy)]
pub struct GroupedMatMul<'a> {
    /// Activations, `[m, k]`, f32.
    pub x: Operand<'a>,
    /// A matrix for each expert, `[experts, n, k]`: any float type or block format.
    pub weights: Operand<'a>,
    /// Where the rows of each expert begin: `experts + 1` numbers that start at 0, do not decrease,
    /// and end at the number of rows of the output.
    pub offsets: &'a [i32],
    /// For each row of the output, the row of `x` that it reads. Without it `m` is their number.
    pub row_ids: Option<&'a [i32]>,
}

impl<'a> GroupedMatMul<'a> {
    /// `[rows, experts, n, k]`, with the rows of the output. Meaningful if the call is valid.
    pub fn sizes(&self) -> [usize; 4] {
        let shape = self.weights.shape();
        let at = |axis: usize| shape.get(axis).copied().unwrap_or(0);
        [self.offsets.last().map_or(0, |&end| index(end)), at(0), at(1), at(2)]
    }

    /// Rows of the output that go to expert `expert`. Meaningful if the call is valid.
    ///
    /// # Panics
    ///
    /// Panics if there is no such expert.
    pub fn group(&self, expert: usize) -> Range<usize> {
        index(self.offsets[expert])..index(self.offsets[expert + 1])
    }

    /// The row of `x` that row `row` of the output reads. Meaningful if the call is valid.
    ///
    /// # Panics
    ///
    /// Panics if the output has no such row.
    pub fn source(&self, row: usize) -> usize {
        self.row_ids.map_or(row, |ids| index(ids[row]))
    }

    /// Number of tiles of `tile_rows` rows, if none holds rows of two experts. Meaningful if the
    /// call is valid.
    ///
    /// # Panics
    ///
    /// Panics if `tile_rows` is zero.
    pub fn tiles(&self, tile_rows: usize) -> usize {
        let groups = self.offsets.windows(2);
        groups.map(|ends| (index(ends[1]) - index(ends[0])).div_ceil(tile_rows)).sum()
    }

    pub(super) fn work(&self) -> u64 {
        let [rows, _, n, k] = self.sizes();
        product(&[rows, n, k])
    }

    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.x), Some(&self.weights), None]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        const NEED: &str = "[m, k] x [experts, n, k] give [rows, n]";
        let [m, k] = check.axes(&self.x, NEED)?;
        let [experts, n, weights_k] = check.axes(&self.weights, NEED)?;
        check.shapes(weights_k == k, NEED)?;
        check.f32(0, &self.x)?;
        if !self.weights.dtype().is_block() {
            let floats = [DType::F32, DType::F16, DType::BF16];
            check.dtype(1, &self.weights, &floats, "it is f32, f16, bf16 or a block format")?;
        }
        let offsets = self.offsets;
        let starts = experts.checked_add(1) == Some(offsets.len()) && offsets[0] == 0;
        check.argument(
            starts && offsets.is_sorted(),
            "offsets",
            "it holds a number for each expert and one more, from 0 on, that do not decrease",
        )?;
        let [rows, ..] = self.sizes();
        match self.row_ids {
            None => check.shapes(rows == m, "without row ids, offsets end at m")?,
            Some(ids) => ids_below(check, ids, rows, m, "row_ids")?,
        }
        Ok(Shape::of([rows, n]))
    }
}

/// `out[t, i] = Σ_j weights[t, j] * x[ids[t * used + j], i]`, in the order of `j`.
///
/// Brings the results of the experts of each token back together. `used` may be 0: the output is
/// then zero. A result must not depend on which rows are computed together.
#[derive(Debug, Clone, Copy)]
pub struct Combine<'a> {
    /// Results of experts, `[rows, d]`, f32.
    pub x: Operand<'a>,
    /// How much each one counts, `[t, used]`, f32.
    pub weights: Operand<'a>,
    /// Rows of `x`, `t * used` of them.
    pub ids: &'a [i32],
}

impl<'a> Combine<'a> {
    /// `[t, used, d]`. Meaningful if the call is valid.
    pub fn sizes(&self) -> [usize; 3] {
        let (x, weights) = (self.x.shape(), self.weights.shape());
        let at = |shape: &Shape, axis: usize| shape.get(axis).copied().unwrap_or(0);
        [at(&weights, 0), at(&weights, 1), at(&x, 1)]
    }

    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.x), Some(&self.weights), None]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        const NEED: &str = "[rows, d] x [t, used] give [t, d]";
        let [rows, d] = check.axes(&self.x, NEED)?;
        let [t, _] = check.axes(&self.weights, NEED)?;
        check.f32(0, &self.x)?;
        check.f32(1, &self.weights)?;
        ids_below(check, self.ids, self.weights.elems(), rows, "ids")?;
        Ok(Shape::of([t, d]))
    }
}

/// Checks that there are `count` ids of rows, each below `rows`.
fn ids_below(
    check: Check,
    ids: &[i32],
    count: usize,
    rows: usize,
    name: &'static str,
) -> Result<(), CallError> {
    let inside = |&id: &i32| usize::try_from(id).is_ok_and(|id| id < rows);
    let good = ids.len() == count && ids.iter().all(inside);
    check.argument(good, name, "it holds a row of x for each one that is wanted")
}

/// A checked number of a table. A wrong one is beyond everything.
fn index(value: i32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
