//! Attention. Keys and values are f32 or f16.

use fucina_accel::{Attention, Decline};
use fucina_dtype::DType;

use super::{Kernel, Site, int, long};
use crate::driver::Arguments;
use crate::modules::ATTENTION;

/// Largest head.
const MAX_DIM: usize = 256;

/// Fewest keys of a part, where the keys are split over blocks.
const MIN_SPLIT_KEYS: usize = 128;

const MAX_SPLITS: usize = 64;

pub(super) fn takes(op: &Attention<'_>) -> Result<(), Decline> {
    let (q, k, v) = (&op.q, &op.k, &op.v);
    if k.dtype() != v.dtype() || !matches!(k.dtype(), DType::F32 | DType::F16) {
        return Err(Decline::UnsupportedFormat);
    }
    let (d, dv) = (q.shape()[2], v.shape()[2]);
    let dense = [q, k, v].into_iter().all(|operand| operand.has_dense_rows());
    if d > MAX_DIM || dv > MAX_DIM || d == 0 || k.shape()[0] == 0 || !dense {
        return Err(Decline::UnsupportedShape);
    }
    Ok(())
}

pub(super) fn plan(site: &mut Site<'_, '_>, op: &Attention<'_>) -> Result<(), Decline> {
    let (q, k, v) = (op.q.shape(), op.k.shape(), op.v.shape());
    let (t, heads, d) = (q[0], q[1], q[2]);
    let (s, kv_heads, dv) = (k[0], k[1], v[2]);
    let group = heads / kv_heads;
    let rows = t * group;
    let kv = if op.k.dtype() == DType::F16 { "f16" } else { "f32" };
    let width = [64, 128, 256].into_iter().find(|&width| d.max(dv) <= width);
    let width = width.ok_or(Decline::UnsupportedShape)?;
    // The kernels for few rows read 16 bytes at a time.
    let unit = if op.k.dtype() == DType::F16 { 8 } else { 4 };
    let whole = [&op.q, &op.k, &op.v].iter().enumerate().all(|(index, operand)| {
        let bytes = operand.dtype().unit().1;
        let strides = operand.strides();
        site.input(index).is_multiple_of(16)
            && strides[..2].iter().all(|stride| (stride * bytes).is_multiple_of(16))
    });
    let vectors = whole && d.is_multiple_of(unit) && dv.is_multiple_of(unit);
    let (name, tiles, threads) = if rows == 1 && vectors {
        (format!("attention_decode_{kv}_d{width}_r1"), 1, 128)
    } else if rows <= 8 && vectors {
        (format!("attention_decode_{kv}_d{width}_r4"), rows.div_ceil(4), 128)
    } else {
        let tile = if width == 256 { 16 } else { 32 };
        (format!("attention_{kv}_d{width}"), rows.div_ceil(tile), 256)
    };
    let wanted = (2 * site.planner.multiprocessors).div_ceil(tiles * kv_heads);
    let splits = wanted.min(s.div_ceil(MIN_SPLIT_KEYS)).clamp(1, MAX_SPLITS);
    let plane = t * heads * dv;
    let (out, max_sum) = if splits > 1 {
        (site.scratch(4 * splits * plane)?, site.scratch(8 * splits * t * heads)?)
    } else {
        (site.out, 0)
    };
    let mut arguments = Arguments::new()
        .ptr(site.input(0))
        .ptr(site.input(1))
        .ptr(site.input(2))
        .ptr(out)
        .ptr(max_sum);
    for operand in [&op.q, &op.k, &op.v] {
        let strides = operand.strides();
        arguments = arguments.long(long(strides[0])).long(long(strides[1]));
    }
    arguments = arguments.long(long(op.q_offset)).long(op.window.map_or(0, long));
    for size in [t, s, heads, group, d, dv] {
        arguments = arguments.int(int(size));
    }
    arguments = arguments.float(op.scale).float(op.soft_cap.unwrap_or(0.0));
    arguments = arguments.int(i32::from(op.causal));
    let grid = [tiles, kv_heads, splits];
    site.launch(Kernel::new(ATTENTION, name), grid, threads, arguments)?;
    if splits == 1 {
        return Ok(());
    }
    let arguments = Arguments::new()
        .ptr(out)
        .ptr(max_sum)
        .ptr(site.out)
        .long(long(t * heads))
        .int(int(splits))
        .int(int(dv));
    site.launch(Kernel::new(ATTENTION, "attention_combine"), [t * heads, 1, 1], 128, arguments)
}
