//! The ops that a provider may take, as checked values.
//!
//! A call borrows its operands, and the tables of some ops, and lives on the caller's stack: no description of an op outlives
//! it. Every op has one f32 output, dense and row-major.

mod attention;
mod elementwise;
mod grouped;
mod matmul;
mod rows;

use fucina_dtype::DType;

pub use attention::{Attention, Pairing, Rope};
pub use elementwise::{Activation, Binary, BinaryOp, Glu, Unary, UnaryOp};
pub use grouped::{Combine, GroupedMatMul};
pub use matmul::MatMul;
pub use rows::{RmsNorm, Rows, Softmax};

use crate::error::CallError;
use crate::operand::Operand;
use crate::shape::{Shape, Shapes};

/// One call of an op.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Call<'a> {
    /// Matrix product.
    MatMul(MatMul<'a>),
    /// Root-mean-square normalization of rows.
    RmsNorm(RmsNorm<'a>),
    /// Rotary position embedding.
    Rope(Rope<'a>),
    /// Softmax attention.
    Attention(Attention<'a>),
    /// Gated linear unit.
    Glu(Glu<'a>),
    /// Elementwise op of two operands.
    Binary(Binary<'a>),
    /// Elementwise op of one operand.
    Unary(Unary<'a>),
    /// Softmax of rows.
    Softmax(Softmax<'a>),
    /// Rows of a table by number.
    Rows(Rows<'a>),
    /// Matrix product with one of several matrices for each row.
    GroupedMatMul(GroupedMatMul<'a>),
    /// Weighted sums of rows.
    Combine(Combine<'a>),
}

/// Runs an expression on the op inside a call.
macro_rules! each {
    ($call:expr, $op:ident => $value:expr) => {
        match $call {
            Call::MatMul($op) => $value,
            Call::RmsNorm($op) => $value,
            Call::Rope($op) => $value,
            Call::Attention($op) => $value,
            Call::Glu($op) => $value,
            Call::Binary($op) => $value,
            Call::Unary($op) => $value,
            Call::Softmax($op) => $value,
            Call::Rows($op) => $value,
            Call::GroupedMatMul($op) => $value,
            Call::Combine($op) => $value,
        }
    };
}

impl<'a> Call<'a> {
    /// Name of the op, as in error messages and the trace.
    pub fn op_name(&self) -> &'static str {
        match self {
            Self::MatMul(_) => "matmul",
            Self::RmsNorm(_) => "rms_norm",
            Self::Rope(_) => "rope",
            Self::Attention(_) => "attention",
            Self::Glu(op) => op.activation.glu_name(),
            Self::Binary(op) => op.op.name(),
            Self::Unary(op) => op.op.name(),
            Self::Softmax(_) => "softmax",
            Self::Rows(_) => "rows",
            Self::GroupedMatMul(_) => "grouped_matmul",
            Self::Combine(_) => "combine",
        }
    }

    /// The operands, in the order of the op's fields.
    pub fn inputs(&self) -> impl Iterator<Item = &Operand<'a>> + use<'_, 'a> {
        each!(self, op => op.inputs()).into_iter().flatten()
    }

    /// Shapes of the operands.
    pub fn shapes(&self) -> Shapes {
        Shapes::new(self.inputs().map(Operand::shape))
    }

    /// Format of the weights of a product or table, and of the first operand otherwise.
    pub fn format(&self) -> DType {
        match self {
            Self::MatMul(op) => op.rhs.dtype(),
            Self::GroupedMatMul(op) => op.weights.dtype(),
            Self::Attention(op) => op.k.dtype(),
            _ => self.inputs().next().map_or(DType::F32, Operand::dtype),
        }
    }

    /// Shape of the output.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the call.
    pub fn out_shape(&self) -> Result<Shape, CallError> {
        let shape =
            each!(self, op => op.check(Check { op: self.op_name(), shapes: self.shapes() }))?;
        shape
            .elems()
            .and_then(|elems| DType::F32.row_bytes(elems))
            .ok_or_else(|| self.too_large())?;
        Ok(shape)
    }

    /// Size of the output.
    ///
    /// # Errors
    ///
    /// As for [`Call::out_shape`].
    pub fn out_bytes(&self) -> Result<usize, CallError> {
        let elems = self.out_shape()?.elems();
        elems.and_then(|elems| DType::F32.row_bytes(elems)).ok_or_else(|| self.too_large())
    }

    fn too_large(&self) -> CallError {
        CallError::TooLarge { op: self.op_name(), shapes: Box::new(self.shapes()) }
    }

    /// Checks that the operands fit the op and each other.
    ///
    /// # Errors
    ///
    /// Names the op and the shapes, and says what would be right.
    pub fn validate(&self) -> Result<(), CallError> {
        self.out_shape().map(|_| ())
    }

    /// Multiply-adds of a product or an attention, and elements of the output otherwise;
    /// saturates.
    pub fn work(&self) -> u64 {
        match self {
            Self::MatMul(op) => op.work(),
            Self::GroupedMatMul(op) => op.work(),
            Self::Attention(op) => op.work(),
            _ => product(&self.out_shape().unwrap_or_default()),
        }
    }
}

/// Multiplies sizes; saturates.
fn product(sizes: &[usize]) -> u64 {
    let widen = |&size: &usize| u64::try_from(size).unwrap_or(u64::MAX);
    sizes.iter().map(widen).fold(1, u64::saturating_mul)
}

/// Up to three operands.
type Inputs<'c, 'a> = [Option<&'c Operand<'a>>; 3];

/// Makes the errors of one call.
#[derive(Clone, Copy)]
struct Check {
    op: &'static str,
    shapes: Shapes,
}

impl Check {
    fn shapes(self, good: bool, need: &'static str) -> Result<(), CallError> {
        let Self { op, shapes } = self;
        if good { Ok(()) } else { Err(CallError::Shapes { op, shapes: Box::new(shapes), need }) }
    }

    fn argument(
        self,
        good: bool,
        argument: &'static str,
        need: &'static str,
    ) -> Result<(), CallError> {
        if good { Ok(()) } else { Err(CallError::Argument { op: self.op, argument, need }) }
    }

    fn dtype(
        self,
        index: usize,
        operand: &Operand<'_>,
        allowed: &[DType],
        need: &'static str,
    ) -> Result<(), CallError> {
        let (op, dtype) = (self.op, operand.dtype());
        if allowed.contains(&dtype) {
            return Ok(());
        }
        Err(CallError::DType { op, shapes: Box::new(self.shapes), index, dtype, need })
    }

    fn f32(self, index: usize, operand: &Operand<'_>) -> Result<(), CallError> {
        self.dtype(index, operand, &[DType::F32], "it is f32")
    }

    /// Returns the sizes of an operand with exactly `N` axes.
    fn axes<const N: usize>(
        self,
        operand: &Operand<'_>,
        need: &'static str,
    ) -> Result<[usize; N], CallError> {
        let error = |_| CallError::Shapes { op: self.op, shapes: Box::new(self.shapes), need };
        <[usize; N]>::try_from(&*operand.shape()).map_err(error)
    }
}
