//! Products of activations in 8 bits with block formats, where the configuration chooses them.

use fucina_accel::Decline;

use super::gemm::{self, Named, Product, Tiles, Weights};
use super::{Kernel, Site, block_name, int, long};
use crate::driver::Arguments;
use crate::modules::{self, QUANTIZE};
use crate::sys::DevicePtr;

/// Rows and columns of a tile.
const TILE: usize = 64;

/// Activations in 8 bits, with a scale and a sum for each 32.
#[derive(Clone, Copy)]
pub(super) struct Quantized {
    x: DevicePtr,
    scale: DevicePtr,
    /// Bytes of a row, whole slabs.
    stride: usize,
}

/// Quantizes dense f32 rows.
pub(super) fn quantize(
    site: &mut Site<'_, '_>,
    x: DevicePtr,
    rows: usize,
    k: usize,
) -> Result<Quantized, Decline> {
    let stride = k.next_multiple_of(gemm::SLAB);
    let to = Quantized {
        x: site.scratch(rows * stride)?,
        scale: site.scratch(8 * rows * (stride / 32))?,
        stride,
    };
    let arguments = Arguments::new()
        .ptr(x)
        .ptr(0)
        .ptr(to.x)
        .ptr(to.scale)
        .long(long(k))
        .int(int(k))
        .int(int(stride));
    site.launch(Kernel::new(QUANTIZE, "quantize_i8"), [rows, 1, 1], 256, arguments)?;
    Ok(to)
}

/// A dense product with one matrix.
pub(super) fn product(site: &mut Site<'_, '_>, product: &Product) -> Result<(), Decline> {
    let Product { x, rows, out, weights } = product;
    let x = quantize(site, *x, *rows, weights.k)?;
    if *rows <= gemm::MAX_VECTOR_ROWS {
        return vectors(site, &x, product, None);
    }
    let tiles = Tiles { table: None, row_ids: 0, out: *out, rows: *rows, n: weights.rows };
    tiled(site, &x, weights, &tiles)
}

/// Few rows. The activations of `product` are those that `x` was made of.
pub(super) fn vectors(
    site: &mut Site<'_, '_>,
    x: &Quantized,
    product: &Product,
    named: Option<Named>,
) -> Result<(), Decline> {
    let Product { rows, out, weights, .. } = product;
    let format = block_name(weights.dtype).ok_or(Decline::UnsupportedFormat)?;
    let (together, grid) = gemm::vector_shape(*rows, weights, named);
    let n = named.map_or(weights.rows, |named| named.n);
    let (experts, row_ids) = named.map_or((0, 0), |named| (named.experts, named.row_ids));
    let arguments = Arguments::new()
        .ptr(x.x)
        .ptr(x.scale)
        .ptr(weights.address)
        .ptr(*out)
        .ptr(experts)
        .ptr(row_ids)
        .long(long(weights.row_bytes))
        .long(long(weights.expert_bytes))
        .int(int(*rows))
        .int(int(n))
        .int(int(weights.k))
        .int(int(x.stride));
    let kernel =
        Kernel::new(modules::gemv_i8(weights.dtype)?, format!("gemv_i8_{format}_r{together}"));
    site.launch(kernel, grid, 128, arguments)
}

/// More rows, or tiles of several experts.
pub(super) fn tiled(
    site: &mut Site<'_, '_>,
    x: &Quantized,
    weights: &Weights,
    tiles: &Tiles<'_>,
) -> Result<(), Decline> {
    let planner = site.planner;
    let format = block_name(weights.dtype).ok_or(Decline::UnsupportedFormat)?;
    let tensor_cores = planner.is_sm80 && planner.config.quant_mma;
    let (row_tiles, column_tiles) = (tiles.count(TILE), tiles.n.div_ceil(TILE));
    let splits = gemm::splits_of(site, weights, tiles, row_tiles * column_tiles);
    let plane = tiles.rows * tiles.n;
    let out = if splits > 1 { site.scratch(4 * splits * plane)? } else { tiles.out };
    let table = tiles.upload(site, TILE)?;
    let arguments = Arguments::new()
        .ptr(x.x)
        .ptr(x.scale)
        .ptr(weights.address)
        .ptr(out)
        .ptr(table)
        .ptr(tiles.row_ids)
        .long(long(weights.row_bytes))
        .long(long(weights.expert_bytes))
        .long(long(plane))
        .int(int(tiles.rows))
        .int(int(tiles.n))
        .int(int(weights.k))
        .int(int(x.stride));
    let (kind, threads) = if tensor_cores { ("mma", 128) } else { ("dp4a", 256) };
    let image = modules::gemm_i8(weights.dtype, tensor_cores)?;
    let kernel = Kernel::new(image, format!("gemm_i8_{format}_{kind}"));
    site.launch(kernel, [row_tiles, column_tiles, splits], threads, arguments)?;
    gemm::reduce(site, out, tiles.out, plane, splits)
}
