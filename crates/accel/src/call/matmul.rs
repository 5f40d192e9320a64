//! Matrix products.

use fucina_dtype::DType;

use super::{Check, Inputs, product};
use crate::error::CallError;
use crate::operand::Operand;
use crate::shape::Shape;

/// `out[b, m, n] = lhs[b, m, k] * rhs[b or 1, n, k]ᵀ`.
///
/// Transposed operands are expressed by their strides, one matrix for the whole batch by a first
/// axis of size 1 or stride 0. `k` may be 0: the output is then zero.
#[derive(Debug, Clone, Copy)]
pub struct MatMul<'a> {
    /// Activations, `[b, m, k]`: f32, f16 or bf16.
    pub lhs: Operand<'a>,
    /// Weights, `[b, n, k]` or `[1, n, k]`: any float type or block format.
    pub rhs: Operand<'a>,
}

impl<'a> MatMul<'a> {
    /// `[b, m, n, k]`. Meaningful if the call is valid.
    pub fn sizes(&self) -> [usize; 4] {
        let (lhs, rhs) = (self.lhs.shape(), self.rhs.shape());
        let at = |shape: &Shape, axis: usize| shape.get(axis).copied().unwrap_or(0);
        [at(&lhs, 0), at(&lhs, 1), at(&rhs, 1), at(&lhs, 2)]
    }

    pub(super) fn work(&self) -> u64 {
        product(&self.sizes())
    }

    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.lhs), Some(&self.rhs), None]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        const NEED: &str = "[b, m, k] x [b or 1, n, k] give [b, m, n]";
        let [b, m, k] = check.axes(&self.lhs, NEED)?;
        let [rhs_b, n, rhs_k] = check.axes(&self.rhs, NEED)?;
        check.shapes(rhs_k == k && (rhs_b == b || rhs_b == 1), NEED)?;
        let floats = [DType::F32, DType::F16, DType::BF16];
        check.dtype(0, &self.lhs, &floats, "it is f32, f16 or bf16")?;
        if !self.rhs.dtype().is_block() {
            check.dtype(1, &self.rhs, &floats, "it is f32, f16, bf16 or a block format")?;
        }
        Ok(Shape::of([b, m, n]))
    }
}
