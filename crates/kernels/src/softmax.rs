//! Softmax of one row.

use crate::dispatch::recompile;
use crate::isa::Isa;

mod scalar;

/// Softmax in place: `x[i] = e^(scale * x[i] - m) / sum`, with `m` the largest scaled value.
///
/// The sum is kept in f64 and each element is divided by it. An empty row stays empty. A row that
/// is minus infinity throughout becomes zeros: nothing was visible. A NaN or a plus infinity
/// (after scaling) makes the whole row NaN. Every instruction set returns the same bits.
pub fn softmax(isa: Isa, x: &mut [f32], scale: f32) {
    recompile!(isa => scalar::softmax, (x: &mut [f32], scale: f32));
}

#[cfg(test)]
mod tests;
