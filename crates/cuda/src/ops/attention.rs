//! Attention. Keys and values are f32 or f16.

use fucina_accel::{Attention, Decline};
use fucina_dtype::DType;

use super::{Kernel, Site, fits, int, long};
use crate::driver::Arguments;
use crate::modules::{ATTENTION, ATTENTION_SM80};

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
    if !q.shape()[0].checked_mul(q.shape()[1]).is_some_and(fits) {
        return Err(Decline::UnsupportedShape);
    }
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
    let Chosen { kernel, tiles, threads } = choose(site, op, rows)?;
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
    arguments = arguments.long(long(op.q_offset.min(1 << 62))).long(op.window.map_or(0, long));
    for size in [t, s, heads, group, d, dv] {
        arguments = arguments.int(int(size));
    }
    arguments = arguments.float(op.scale).float(op.soft_cap.unwrap_or(0.0));
    arguments = arguments.int(i32::from(op.causal));
    let grid = [tiles, kv_heads, splits];
    site.launch(kernel, grid, threads, arguments)?;
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

/// A kernel, and how it covers the rows of one head of keys.
struct Chosen {
    kernel: Kernel,
    tiles: usize,
    threads: u32,
}

fn choose(site: &Site<'_, '_>, op: &Attention<'_>, rows: usize) -> Result<Chosen, Decline> {
    let (d, dv) = (op.q.shape()[2], op.v.shape()[2]);
    let kv = if op.k.dtype() == DType::F16 { "f16" } else { "f32" };
    let width = [64, 128, 256].into_iter().find(|&width| d.max(dv) <= width);
    let width = width.ok_or(Decline::UnsupportedShape)?;
    // All kernels but the plain one read 16 bytes at a time.
    let unit = if op.k.dtype() == DType::F16 { 8 } else { 4 };
    let whole = [&op.q, &op.k, &op.v].iter().enumerate().all(|(index, operand)| {
        let bytes = operand.dtype().unit().1;
        let strides = operand.strides();
        site.input(index).is_multiple_of(16)
            && strides[..2].iter().all(|stride| stride.wrapping_mul(bytes).is_multiple_of(16))
    });
    let vectors = whole && d.is_multiple_of(unit) && dv.is_multiple_of(unit);
    let planner = site.planner;
    let tensor_cores = planner.is_sm80 && planner.config.quant_mma && kv == "f16";
    let chosen = |image, name: String, tile: usize, threads| {
        let kernel = Kernel::new(image, name);
        Ok(Chosen { kernel, tiles: rows.div_ceil(tile), threads })
    };
    if vectors && rows <= 8 {
        let tile = if rows == 1 { 1 } else { 4 };
        return chosen(ATTENTION, format!("attention_decode_{kv}_d{width}_r{tile}"), tile, 128);
    }
    if vectors && tensor_cores {
        let name = format!("attention_mma_{kv}_d{width}");
        let mut chosen = chosen(ATTENTION_SM80, name, 64, 128)?;
        chosen.kernel.shared_bytes = match width {
            64 => 24_576,
            128 => 49_152,
            _ => 65_536,
        };
        return Ok(chosen);
    }
    let tile = if width == 256 { 16 } else { 32 };
    chosen(ATTENTION, format!("attention_{kv}_d{width}"), tile, 256)
}
