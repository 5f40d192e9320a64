//! Products with weights whose rows are read in whole slabs: few rows of activations by vectors, more
//! by tiles on tensor cores.

use std::sync::Arc;

use fucina_accel::Decline;
use fucina_dtype::DType;

use super::{Kernel, Site, block_name, int, int8, long, scalar_name};
use crate::driver::Arguments;
use crate::memory::WeightKey;
use crate::modules::{self, PACK, ROWS};
use crate::sys::DevicePtr;

/// Up to so many rows each weight is decoded once for each group of rows, without tiles.
pub(super) const MAX_VECTOR_ROWS: usize = 8;

/// Elements of k that a tile takes at a time.
pub(super) const SLAB: usize = 64;

/// Columns of a tile.
const TILE_COLS: usize = 64;

/// Weights of one matrix, or of one matrix for each expert.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Which operand of the call it is.
    pub(super) operand: usize,
    pub(super) dtype: DType,
    pub(super) address: DevicePtr,
    pub(super) row_bytes: usize,
    pub(super) expert_bytes: usize,
    /// Rows of all experts together.
    pub(super) rows: usize,
    pub(super) k: usize,
}

impl Weights {
    /// Kernels read rows of the formats with whole 16-byte blocks in 16-byte words.
    pub(super) fn check(&self) -> Result<(), Decline> {
        let unit = match self.dtype {
            DType::Q4_K | DType::Q5_K => 16,
            DType::F32 => 4,
            _ => 2,
        };
        let places = [self.address, self.row_bytes as u64, self.expert_bytes as u64];
        if places.iter().all(|place| place.is_multiple_of(unit)) {
            Ok(())
        } else {
            Err(Decline::UnsupportedShape)
        }
    }

    fn name(&self) -> Result<&'static str, Decline> {
        let name = block_name(self.dtype).or_else(|| scalar_name(self.dtype));
        name.ok_or(Decline::UnsupportedFormat)
    }
}

/// `out[rows, n] = x[rows, k] * weights[n, k]ᵀ`, everything dense.
pub(super) struct Product {
    pub(super) x: DevicePtr,
    pub(super) rows: usize,
    pub(super) out: DevicePtr,
    pub(super) weights: Weights,
}

/// A dense product with one matrix.
pub(super) fn product(site: &mut Site<'_, '_>, product: &Product) -> Result<(), Decline> {
    let Product { x, rows, out, weights } = product;
    weights.check()?;
    if site.planner.config.quant_int8 && weights.dtype.is_block() {
        return int8::product(site, product);
    }
    if *rows <= MAX_VECTOR_ROWS {
        return vectors(site, product, None);
    }
    let tiles = Tiles { table: None, row_ids: 0, out: *out, rows: *rows, n: weights.rows };
    if !site.planner.config.quant_mma {
        return scalar(site, *x, weights, &tiles);
    }
    let packed = pack(site, *x, *rows, weights.k)?;
    tensor(site, &packed, weights, &tiles)
}

/// Tables of a product in which each row names its expert.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub(super) experts: DevicePtr,
    pub(super) row_ids: DevicePtr,
    /// Rows of each expert's matrix.
    pub(super) n: usize,
}

/// Few rows: block formats only.
pub(super) fn vectors(
    site: &mut Site<'_, '_>,
    product: &Product,
    named: Option<Named>,
) -> Result<(), Decline> {
    let Product { x, rows, out, weights } = product;
    let format = block_name(weights.dtype).ok_or(Decline::UnsupportedFormat)?;
    let (together, grid) = vector_shape(*rows, weights, named);
    let n = named.map_or(weights.rows, |named| named.n);
    let (experts, row_ids) = named.map_or((0, 0), |named| (named.experts, named.row_ids));
    let arguments = Arguments::new()
        .ptr(*x)
        .ptr(weights.address)
        .ptr(*out)
        .ptr(experts)
        .ptr(row_ids)
        .long(long(weights.k))
        .long(long(weights.row_bytes))
        .long(long(weights.expert_bytes))
        .int(int(*rows))
        .int(int(n))
        .int(int(weights.k));
    let image = modules::gemv(weights.dtype)?;
    let kernel = Kernel::new(image, format!("gemv_{format}_r{together}"));
    site.launch(kernel, grid, 128, arguments)
}

/// Rows that a kernel for few rows takes together, and its grid.
pub(super) fn vector_shape(
    rows: usize,
    weights: &Weights,
    named: Option<Named>,
) -> (usize, [usize; 3]) {
    let together = match (named, rows) {
        (Some(_), _) | (None, 1) => 1,
        (None, 2) => 2,
        (None, 3 | 4) => 4,
        (None, _) => 8,
    };
    let n = named.map_or(weights.rows, |named| named.n);
    let columns = if together <= 2 { 8 } else { 4 };
    (together, [n.div_ceil(columns), rows.div_ceil(together), 1])
}

/// Activations in f16, each row scaled by a power of two.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    x: DevicePtr,
    scale: DevicePtr,
    /// Elements of a row, whole slabs.
    stride: usize,
}

/// Packs dense f32 rows.
pub(super) fn pack(
    site: &mut Site<'_, '_>,
    x: DevicePtr,
    rows: usize,
    k: usize,
) -> Result<Packed, Decline> {
    let stride = k.next_multiple_of(SLAB);
    let packed =
        Packed { x: site.scratch(2 * rows * stride)?, scale: site.scratch(4 * rows)?, stride };
    let arguments = Arguments::new()
        .ptr(x)
        .ptr(0)
        .ptr(packed.x)
        .ptr(packed.scale)
        .long(long(k))
        .int(int(k))
        .int(int(stride));
    site.launch(Kernel::new(PACK, "pack_f16_f32"), [rows, 1, 1], 256, arguments)?;
    Ok(packed)
}

/// Where a tiled product goes, and which rows meet which weights.
pub(super) struct Tiles<'t> {
    /// Rows of the output of each expert; `None`: all go to one matrix.
    pub(super) table: Option<&'t [std::ops::Range<usize>]>,
    /// Table of packed rows, or null: the same as the output's.
    pub(super) row_ids: DevicePtr,
    pub(super) out: DevicePtr,
    pub(super) rows: usize,
    pub(super) n: usize,
}

impl Tiles<'_> {
    /// Number of tiles of `height` rows.
    pub(super) fn count(&self, height: usize) -> usize {
        match self.table {
            None => self.rows.div_ceil(height),
            Some(groups) => groups.iter().map(|group| group.len().div_ceil(height)).sum(),
        }
    }

    /// The records of the tiles, for the device. Null without a table.
    pub(super) fn upload(
        &self,
        site: &mut Site<'_, '_>,
        height: usize,
    ) -> Result<DevicePtr, Decline> {
        let Some(groups) = self.table else { return Ok(0) };
        let mut records = Vec::with_capacity(4 * self.count(height));
        for (expert, group) in groups.iter().enumerate() {
            for tile in 0..group.len().div_ceil(height) {
                records.extend([int(expert), int(group.start), int(group.len()), int(tile)]);
            }
        }
        site.table(&records)
    }
}

/// Rows of a tile: the tallest that still gives every multiprocessor a tile, and not taller than
/// the rows ask for.
fn height(tiles: &Tiles<'_>, is_sm80: bool, multiprocessors: usize) -> usize {
    let heights: &[usize] = if is_sm80 { &[128, 64, 32, 16] } else { &[64, 32] };
    let columns = tiles.n.div_ceil(TILE_COLS);
    let longest = tiles
        .table
        .map_or(tiles.rows, |groups| groups.iter().map(std::ops::Range::len).max().unwrap_or(0));
    let least = heights[heights.len() - 1];
    let fits = |&&height: &&usize| {
        height < 2 * longest.max(least / 2 + 1)
            && (height <= 64 || tiles.count(height) * columns >= multiprocessors)
    };
    *heights.iter().find(fits).unwrap_or(&least)
}

/// Blocks that share the contracted size, by the rule of the design's source: where tiles leave
/// multiprocessors idle, two, or three for `Q6_K`.
fn splits(blocks: usize, k: usize, dtype: DType, multiprocessors: usize) -> usize {
    let ceiling = multiprocessors - multiprocessors / 8;
    if blocks >= ceiling {
        return 1;
    }
    let cap = if dtype == DType::Q6_K { 3 } else { 2 };
    multiprocessors.div_ceil(blocks).min(cap).min((k / 128).max(1))
}

/// A tiled product on tensor cores.
pub(super) fn tensor(
    site: &mut Site<'_, '_>,
    x: &Packed,
    weights: &Weights,
    tiles: &Tiles<'_>,
) -> Result<(), Decline> {
    let planner = site.planner;
    let format = weights.name()?;
    let height = height(tiles, planner.is_sm80, planner.multiprocessors);
    let (row_tiles, column_tiles) = (tiles.count(height), tiles.n.div_ceil(TILE_COLS));
    let splits = splits_of(site, weights, tiles, row_tiles * column_tiles);
    let plane = tiles.rows * tiles.n;
    let out = if splits > 1 { site.scratch(4 * splits * plane)? } else { tiles.out };
    let largest = largest(site, weights)?;
    let table = tiles.upload(site, height)?;
    let arguments = Arguments::new()
        .ptr(x.x)
        .ptr(x.scale)
        .ptr(weights.address)
        .ptr(largest)
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
    let mut kernel = Kernel::new(
        modules::gemm(weights.dtype, planner.is_sm80)?,
        format!("gemm_{format}_m{height}"),
    );
    if planner.is_sm80 {
        kernel.shared_bytes = match height {
            16 => 24_576,
            32 => 32_768,
            64 => 40_960,
            _ => 65_536,
        };
    }
    site.launch(kernel, [row_tiles, column_tiles, splits], 128, arguments)?;
    reduce(site, out, tiles.out, plane, splits)
}

/// Splits of a product, if it may be split.
pub(super) fn splits_of(
    site: &Site<'_, '_>,
    weights: &Weights,
    tiles: &Tiles<'_>,
    blocks: usize,
) -> usize {
    let planner = site.planner;
    if tiles.table.is_some() || !planner.config.quant_split_k {
        return 1;
    }
    splits(blocks, weights.k, weights.dtype, planner.multiprocessors)
}

/// Adds the planes of a product that was split.
pub(super) fn reduce(
    site: &mut Site<'_, '_>,
    planes: DevicePtr,
    out: DevicePtr,
    plane: usize,
    splits: usize,
) -> Result<(), Decline> {
    if splits == 1 {
        return Ok(());
    }
    let arguments = Arguments::new().ptr(planes).ptr(out).long(long(plane)).int(int(splits));
    site.launch(Kernel::new(PACK, "reduce_splits"), [plane.div_ceil(1024), 1, 1], 256, arguments)
}

/// The same without tensor cores, on f32 activations.
pub(super) fn scalar(
    site: &mut Site<'_, '_>,
    x: DevicePtr,
    weights: &Weights,
    tiles: &Tiles<'_>,
) -> Result<(), Decline> {
    const HEIGHT: usize = 64;
    let format = weights.name()?;
    let table = tiles.upload(site, HEIGHT)?;
    let arguments = Arguments::new()
        .ptr(x)
        .ptr(0)
        .ptr(weights.address)
        .ptr(0)
        .ptr(tiles.out)
        .ptr(table)
        .ptr(tiles.row_ids)
        .long(long(weights.row_bytes))
        .long(long(weights.expert_bytes))
        .long(long(tiles.rows * tiles.n))
        .int(int(tiles.rows))
        .int(int(tiles.n))
        .int(int(weights.k))
        .int(int(weights.k));
    let kernel = Kernel::new(modules::gemm(weights.dtype, false)?, format!("gemm_{format}_scalar"));
    let grid = [tiles.count(HEIGHT), tiles.n.div_ceil(TILE_COLS), 1];
    site.launch(kernel, grid, 256, arguments)
}

/// Address of the largest magnitude of the weights. It is found once for each device copy of them.
/// f16 weights need none: they are in range as they are.
fn largest(site: &mut Site<'_, '_>, weights: &Weights) -> Result<DevicePtr, Decline> {
    if weights.dtype == DType::F16 {
        return Ok(0);
    }
    let buffer = Arc::clone(&site.inputs.buffers[weights.operand]);
    let key = WeightKey {
        offset: weights.address - buffer.address(),
        rows: weights.rows,
        row_bytes: weights.row_bytes,
        k: weights.k,
        dtype: weights.dtype,
    };
    if let Some(known) = buffer.recall(&key) {
        let address = known.address();
        site.inputs.buffers.push(known);
        return Ok(address);
    }
    let format = weights.name()?;
    let word = site.device.memory.take(4).map(Arc::new).ok_or(Decline::OutOfDeviceMemory)?;
    let address = word.address();
    let zero = Arguments::new().ptr(address).long(1).int(0);
    site.launch(Kernel::new(PACK, "fill_u32"), [1, 1, 1], 256, zero)?;
    let arguments = Arguments::new()
        .ptr(weights.address)
        .ptr(address)
        .long(long(weights.row_bytes))
        .long(long(weights.rows))
        .int(int(weights.k));
    // Each unit is 32 elements.
    let units = weights.rows * weights.k.div_ceil(32);
    let grid = [units.div_ceil(256).clamp(1, 8 * site.planner.multiprocessors), 1, 1];
    let kernel = Kernel::new(ROWS, format!("weight_max_{format}"));
    site.launch(kernel, grid, 256, arguments)?;
    site.plan.buffers.push(Arc::clone(&word));
    site.plan.largest.push((buffer, key, word));
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(rows: usize, n: usize) -> Tiles<'static> {
        Tiles { table: None, row_ids: 0, out: 0, rows, n }
    }

    #[test]
    fn tiles_are_as_tall_as_rows_and_blocks_allow() {
        for (rows, n, want) in [(9, 4096, 16), (16, 4096, 16), (17, 4096, 32), (33, 4096, 64)] {
            assert_eq!(height(&dense(rows, n), true, 132), want, "{rows}");
        }
        assert_eq!(height(&dense(128, 4096), true, 132), 64, "64 blocks of 128 rows are too few");
        assert_eq!(height(&dense(512, 4096), true, 132), 128);
        assert_eq!(height(&dense(9, 4096), false, 80), 32);
        assert_eq!(height(&dense(33, 64), false, 80), 64);
    }

    /// The rule as tabulated for 76 and 132 multiprocessors.
    #[test]
    fn idle_multiprocessors_split_k() {
        assert_eq!(splits(64, 4096, DType::Q4_K, 76), 2);
        assert_eq!(splits(67, 4096, DType::Q4_K, 76), 1);
        assert_eq!(splits(30, 4096, DType::Q6_K, 76), 3);
        assert_eq!(splits(30, 4096, DType::Q4_K, 76), 2);
        assert_eq!(splits(30, 255, DType::Q6_K, 76), 1);
        assert_eq!(splits(115, 4096, DType::Q8_0, 132), 2);
        assert_eq!(splits(117, 4096, DType::Q8_0, 132), 1);
    }
}
