//! Ops on whole rows.

use fucina_dtype::DType;

use super::{Check, Inputs};
use crate::error::CallError;
use crate::operand::Operand;
use crate::shape::Shape;

/// `out[r, i] = x[r, i] / sqrt(mean_i(x[r, i]^2) + eps) * weight[i]`.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm<'a> {
    /// Activations, `[rows, d]`, f32.
    pub x: Operand<'a>,
    /// Scale of each column, `[d]`, f32; one if absent.
    pub weight: Option<Operand<'a>>,
    /// Added to the mean square. Not negative.
    pub eps: f32,
}

impl<'a> RmsNorm<'a> {
    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.x), self.weight.as_ref(), None]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        const NEED: &str = "[rows, d] x [d] give [rows, d]";
        let [rows, d] = check.axes(&self.x, NEED)?;
        check.f32(0, &self.x)?;
        if let Some(weight) = &self.weight {
            let [weight_d] = check.axes(weight, NEED)?;
            check.shapes(weight_d == d, NEED)?;
            check.f32(1, weight)?;
        }
        check.argument(
            self.eps >= 0.0 && self.eps.is_finite(),
            "eps",
            "it is finite and not negative",
        )?;
        Ok(Shape::of([rows, d]))
    }
}

/// `out[r, i] = exp(scale * x[r, i]) / sum_j exp(scale * x[r, j])`, computed without overflow.
#[derive(Debug, Clone, Copy)]
pub struct Softmax<'a> {
    /// Scores, `[rows, d]`, f32.
    pub x: Operand<'a>,
    /// Multiplies the scores. Finite.
    pub scale: f32,
}

impl<'a> Softmax<'a> {
    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.x), None, None]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        let [rows, d] = check.axes(&self.x, "[rows, d] give [rows, d]")?;
        check.f32(0, &self.x)?;
        check.argument(self.scale.is_finite(), "scale", "it is finite")?;
        Ok(Shape::of([rows, d]))
    }
}

/// `out[t, i] = table[ids[t], i]`, decoded to f32.
///
/// The caller checks the ids on the host. A provider does not trust them: an id outside the table
/// makes the command fault.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Rows to choose from, `[v, d]`: any float type or block format.
    pub table: Operand<'a>,
    /// Numbers of rows, `[t]`, i32.
    pub ids: Operand<'a>,
}

impl<'a> Rows<'a> {
    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.table), Some(&self.ids), None]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        const NEED: &str = "[v, d] x [t] give [t, d]";
        let [_, d] = check.axes(&self.table, NEED)?;
        let [t] = check.axes(&self.ids, NEED)?;
        check.dtype(1, &self.ids, &[DType::I32], "it is i32")?;
        if !self.table.dtype().is_block() {
            let floats = [DType::F32, DType::F16, DType::BF16];
            check.dtype(0, &self.table, &floats, "it is f32, f16, bf16 or a block format")?;
        }
        Ok(Shape::of([t, d]))
    }
}
