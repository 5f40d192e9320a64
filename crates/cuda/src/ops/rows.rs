//! Ops on whole rows, and look-ups.

use fucina_accel::{Combine, Decline, Operand, Pairing, RmsNorm, Rope, Rows, Softmax};

use super::{Kernel, Site, block_name, int, long, scalar_name, stride_bytes};
use crate::driver::Arguments;
use crate::modules::{NORM, ROWS};

pub(super) fn rms_norm(site: &mut Site<'_, '_>, op: &RmsNorm<'_>) -> Result<(), Decline> {
    let weight = op.weight.as_ref().map(|weight| (site.input(1), weight.strides()[0]));
    row_op(site, "rms_norm", &op.x, weight, op.eps)
}

pub(super) fn softmax(site: &mut Site<'_, '_>, op: &Softmax<'_>) -> Result<(), Decline> {
    row_op(site, "softmax", &op.x, None, op.scale)
}

fn row_op(
    site: &mut Site<'_, '_>,
    name: &'static str,
    x: &Operand<'_>,
    weight: Option<(u64, usize)>,
    parameter: f32,
) -> Result<(), Decline> {
    let (shape, strides) = (x.shape(), x.strides());
    let (weight, weight_stride) = weight.unwrap_or((0, 0));
    let arguments = Arguments::new()
        .ptr(site.input(0))
        .ptr(weight)
        .ptr(site.out)
        .long(long(strides[0]))
        .long(long(strides[1]))
        .long(long(weight_stride))
        .int(int(shape[1]))
        .float(parameter);
    site.launch(Kernel::new(NORM, name), [shape[0], 1, 1], 256, arguments)
}

pub(super) fn rope(site: &mut Site<'_, '_>, op: &Rope<'_>) -> Result<(), Decline> {
    let name = match op.pairing {
        Pairing::Interleaved => "rope_interleaved",
        Pairing::Halves => "rope_halves",
        _ => return Err(Decline::UnsupportedOp),
    };
    let shape = op.x.shape();
    let &[tokens, heads, d] = &*shape else { return Err(Decline::InvalidCall) };
    let half = op.cos.shape()[1];
    let arguments =
        Arguments::new().ptr(site.input(0)).ptr(site.input(1)).ptr(site.input(2)).ptr(site.out);
    let strides = [&op.x, &op.cos, &op.sin].into_iter().flat_map(|operand| {
        let strides = operand.strides();
        (0..strides.len()).map(move |axis| long(strides[axis]))
    });
    let arguments = strides.fold(arguments, Arguments::long);
    let arguments = arguments.int(int(heads)).int(int(d)).int(int(half));
    let grid = [(heads * (d - half)).div_ceil(256), tokens, 1];
    site.launch(Kernel::new(NORM, name), grid, 256, arguments)
}

/// Tokens or rows that one launch takes: what a grid has in its second axis.
const CHUNK: usize = 65_535;

pub(super) fn combine(site: &mut Site<'_, '_>, op: &Combine<'_>) -> Result<(), Decline> {
    let [tokens, used, d] = op.sizes();
    let ids = if op.ids.is_empty() { 0 } else { site.table(op.ids)? };
    let (x, weights) = (op.x.strides(), op.weights.strides());
    for first in (0..tokens).step_by(CHUNK) {
        let arguments = Arguments::new()
            .ptr(site.input(0))
            .ptr(site.input(1) + (4 * first * weights[0]) as u64)
            .ptr(ids + (4 * first * used) as u64)
            .ptr(site.out + (4 * first * d) as u64)
            .long(long(x[0]))
            .long(long(x[1]))
            .long(long(weights[0]))
            .long(long(weights[1]))
            .int(int(used))
            .int(int(d));
        let grid = [d.div_ceil(256), CHUNK.min(tokens - first), 1];
        site.launch(Kernel::new(NORM, "combine"), grid, 256, arguments)?;
    }
    Ok(())
}

pub(super) fn takes_rows(op: &Rows<'_>) -> Result<(), Decline> {
    let dtype = op.table.dtype();
    block_name(dtype).or_else(|| scalar_name(dtype)).ok_or(Decline::UnsupportedFormat)?;
    // The kernel reads whole rows and numbers side by side.
    if !op.table.has_dense_rows() || !op.ids.is_dense() {
        return Err(Decline::UnsupportedShape);
    }
    // A number outside the table would end the context, and every result that is in it. No op makes
    // numbers, so they are on the host.
    let bytes = op.ids.storage().host().map_err(|_| Decline::Faulted)?;
    let ids = bytes[op.ids.byte_range()].as_chunks::<4>().0;
    let rows = op.table.shape()[0];
    let inside = |&id: &[u8; 4]| usize::try_from(i32::from_le_bytes(id)).is_ok_and(|id| id < rows);
    if ids.iter().all(inside) { Ok(()) } else { Err(Decline::InvalidCall) }
}

pub(super) fn rows(site: &mut Site<'_, '_>, op: &Rows<'_>) -> Result<(), Decline> {
    let dtype = op.table.dtype();
    let format = block_name(dtype).or_else(|| scalar_name(dtype));
    let format = format.ok_or(Decline::UnsupportedFormat)?;
    let (shape, tokens) = (op.table.shape(), op.ids.shape()[0]);
    let (v, d) = (shape[0], shape[1]);
    for first in (0..tokens).step_by(CHUNK) {
        let arguments = Arguments::new()
            .ptr(site.input(0))
            .ptr(site.input(1) + 4 * first as u64)
            .ptr(site.out + (4 * first * d) as u64)
            .long(long(stride_bytes(&op.table, 0)))
            .int(int(v))
            .int(int(d));
        let grid = [d.div_ceil(4096), CHUNK.min(tokens - first), 1];
        let kernel = Kernel::new(ROWS, format!("rows_{format}"));
        site.launch(kernel, grid, 128, arguments)?;
    }
    Ok(())
}
