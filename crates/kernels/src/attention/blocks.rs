//! The loop over tiles of query rows and blocks of keys.

#![deny(unsafe_code)]

use std::ops::Range;

use fucina_dtype::BlockQ8_0;

use super::leaf::{self, Rows};
use super::merge::RowStats;
use super::online::{self, GROUP, Logits};
use super::{Kv, KvData, KvView, Params, Queries, visible};
use crate::convert::Q8_0_ELEMS;
use crate::isa::Isa;
use crate::{convert, elementwise, reduce};

/// Query rows that share the conversion and transposition of a block of keys, at most.
pub const TILE_ROWS: usize = 64;
/// Rows of a tile whose first row sees fewer keys than [`LONG`]: in front of the last key that a row
/// sees, a tile computes half of its own size in vain.
const SHORT_ROWS: usize = 32;
const LONG: usize = 4 * KEYS;
/// Keys in one block.
const KEYS: usize = 64;
/// Up to this many rows, dot products with rows of keys beat a transposition.
const FEW: usize = 5;

pub(super) const fn scratch_len(k_dim: usize, v_dim: usize) -> usize {
    let v_width = v_dim.next_multiple_of(GROUP);
    let wide = if k_dim > v_width { k_dim } else { v_width };
    GROUP + KEYS * k_dim + KEYS * wide + TILE_ROWS * KEYS + TILE_ROWS * v_width
}

/// What one call works on.
#[derive(Clone, Copy)]
struct Job<'a> {
    isa: Isa,
    params: &'a Params,
    q: &'a Queries<'a>,
    kv: &'a Kv<'a>,
    /// Columns of the sums: the width of a value, rounded up to whole vectors.
    width: usize,
}

/// The parts of the scratch.
struct Buffers<'a> {
    /// Keys of a block as columns.
    columns: &'a mut [f32],
    /// Keys, then values, of a block as f32 rows.
    rows: &'a mut [f32],
    /// Dot products, then weights, `[TILE_ROWS, KEYS]`.
    scores: &'a mut [f32],
    /// Weighted sums of values, `[TILE_ROWS, width]`.
    sums: &'a mut [f32],
}

/// Consecutive query rows with their state.
struct Tile {
    rows: Range<usize>,
    stats: [RowStats; TILE_ROWS],
}

/// Computes each row of `q` and hands `(index in q.rows, weighted sum, stats)` to `sink`.
pub(super) fn run(
    isa: Isa,
    params: &Params,
    q: &Queries<'_>,
    kv: &Kv<'_>,
    scratch: &mut [f32],
    mut sink: impl FnMut(usize, &[f32], RowStats),
) {
    kv.k.assert_valid();
    kv.v.assert_valid();
    q.assert_valid(kv.k.dim);
    assert_eq!(kv.k.len, kv.v.len, "keys and values differ in number");
    assert!(kv.k.dim > 0 && kv.v.dim > 0, "keys and values have elements");
    let width = kv.v.dim.next_multiple_of(GROUP);
    let job = Job { isa, params, q, kv, width };
    let mut buffers = split(scratch, kv);
    let mut first = q.rows.start;
    while first < q.rows.end {
        let tile = if visible(params, kv, first).len() < LONG { SHORT_ROWS } else { TILE_ROWS };
        let rows = first..q.rows.end.min(first + tile);
        first = rows.end;
        let mut tile = Tile { rows, stats: [RowStats::EMPTY; TILE_ROWS] };
        job.tile(&mut tile, &mut buffers);
        for (i, row) in tile.rows.clone().enumerate() {
            let sums = &buffers.sums[i * width..][..kv.v.dim];
            sink(row - q.rows.start, sums, tile.stats[i]);
        }
    }
}

/// Cuts the scratch up, beginning at a cache line.
fn split<'a>(scratch: &'a mut [f32], kv: &Kv<'_>) -> Buffers<'a> {
    let needed = scratch_len(kv.k.dim, kv.v.dim);
    assert!(scratch.len() >= needed, "scratch of {}, needs {needed}", scratch.len());
    let skip = scratch.as_ptr().align_offset(64).min(GROUP);
    let width = kv.v.dim.next_multiple_of(GROUP);
    let (columns, rest) = scratch[skip..].split_at_mut(KEYS * kv.k.dim);
    let (rows, rest) = rest.split_at_mut(KEYS * kv.k.dim.max(width));
    let (scores, rest) = rest.split_at_mut(TILE_ROWS * KEYS);
    Buffers { columns, rows, scores, sums: &mut rest[..TILE_ROWS * width] }
}

impl Job<'_> {
    fn tile(&self, tile: &mut Tile, buffers: &mut Buffers<'_>) {
        buffers.sums[..tile.rows.len() * self.width].fill(0.0);
        // Both ends of what a row sees grow with the row.
        let start = visible(self.params, self.kv, tile.rows.start).start;
        let end = visible(self.params, self.kv, tile.rows.end - 1).end;
        for first in (start..end).step_by(KEYS) {
            let block = first..end.min(first + KEYS);
            if tile.rows.len() <= FEW {
                self.block_by_rows(tile, &block, buffers);
            } else {
                self.block_by_tile(tile, &block, buffers);
            }
        }
    }

    /// What query `row` sees of a block, counted from its first key.
    fn seen(&self, row: usize, block: &Range<usize>) -> Range<usize> {
        let seen = visible(self.params, self.kv, row);
        let start = seen.start.clamp(block.start, block.end);
        let end = seen.end.clamp(start, block.end);
        start - block.start..end - block.start
    }

    const fn logits(&self) -> Logits {
        Logits { scale: self.params.scale, soft_cap: self.params.soft_cap }
    }

    fn query(&self, row: usize) -> &[f32] {
        &self.q.data[row * self.q.row_stride..][..self.kv.k.dim]
    }

    /// A few query rows: each reads only the keys and values that it sees, as they are stored.
    fn block_by_rows(&self, tile: &mut Tile, block: &Range<usize>, buffers: &mut Buffers<'_>) {
        let states = tile.stats.iter_mut().zip(buffers.sums.chunks_exact_mut(self.width));
        for (row, (stats, sums)) in tile.rows.clone().zip(states) {
            let seen = self.seen(row, block);
            let count = seen.len();
            let range = block.start + seen.start..block.start + seen.end;
            let scores = &mut buffers.scores[..count.next_multiple_of(GROUP)];
            self.dots(row, range.clone(), &mut scores[..count]);
            let mut factor = [1.0];
            let (seen, stats) = ([(0, count)], std::slice::from_mut(stats));
            online::steps(self.isa, scores, &seen, self.logits(), stats, &mut factor);
            let sums = &mut sums[..self.kv.v.dim];
            rescale(self.isa, sums, factor[0]);
            self.mix(&scores[..count], range, sums);
        }
    }

    fn dots(&self, row: usize, keys: Range<usize>, out: &mut [f32]) {
        let q = self.query(row);
        match self.kv.k.data {
            KvData::F32(data) => leaf::dots(self.isa, q, stored(&self.kv.k, data, keys), out),
            KvData::F16(data) => leaf::dots_f16(self.isa, q, stored(&self.kv.k, data, keys), out),
            KvData::Q8_0(data) => {
                leaf::dots_q8_0(self.isa, q, stored_blocks(&self.kv.k, data, keys), out);
            }
        }
    }

    fn mix(&self, weights: &[f32], keys: Range<usize>, out: &mut [f32]) {
        match self.kv.v.data {
            KvData::F32(data) => leaf::mix(self.isa, weights, stored(&self.kv.v, data, keys), out),
            KvData::F16(data) => {
                leaf::mix_f16(self.isa, weights, stored(&self.kv.v, data, keys), out);
            }
            KvData::Q8_0(data) => {
                leaf::mix_q8_0(self.isa, weights, stored_blocks(&self.kv.v, data, keys), out);
            }
        }
    }

    /// Many query rows: two small matrix products.
    fn block_by_tile(&self, tile: &mut Tile, block: &Range<usize>, buffers: &mut Buffers<'_>) {
        let (count, n) = (tile.rows.len(), block.len().next_multiple_of(GROUP));
        let Buffers { columns, rows, scores, sums } = buffers;
        let keys = as_f32_rows(self.isa, &self.kv.k, block.clone(), rows);
        let columns = &mut columns[..keys.width * n];
        leaf::transpose(self.isa, keys, n, columns);
        let scores = &mut scores[..count * n];
        scores.fill(0.0);
        let queries = Rows {
            data: &self.q.data[tile.rows.start * self.q.row_stride..],
            stride: self.q.row_stride,
            count,
            width: self.kv.k.dim,
        };
        leaf::matmul_add(self.isa, queries, columns, n, scores);

        let mut seen = [(0, 0); TILE_ROWS];
        for (row, seen) in tile.rows.clone().zip(&mut seen) {
            let keys = self.seen(row, block);
            *seen = (keys.start, keys.end);
        }
        let seen = &seen[..count];
        let masked = seen.iter().any(|(start, end)| end - start != block.len());
        let mut factors = [1.0; TILE_ROWS];
        let (stats, factors) = (&mut tile.stats[..count], &mut factors[..count]);
        online::steps(self.isa, scores, seen, self.logits(), stats, factors);
        for (&factor, sums) in factors.iter().zip(sums.chunks_exact_mut(self.width)) {
            rescale(self.isa, sums, factor);
        }

        let values = padded_rows(self.isa, &self.kv.v, block.clone(), self.width, rows);
        let sums = &mut sums[..count * self.width];
        // A weight of zero does not hide a value that is not finite: 0 * inf is NaN.
        if masked && reduce::has_non_finite(self.isa, values.data) {
            let outputs = scores.chunks_exact(n).zip(sums.chunks_exact_mut(self.width));
            for (row, (weights, sums)) in tile.rows.clone().zip(outputs) {
                let seen = self.seen(row, block);
                let range = block.start + seen.start..block.start + seen.end;
                self.mix(&weights[seen], range, &mut sums[..self.kv.v.dim]);
            }
        } else {
            let weights = Rows { data: scores, stride: n, count, width: block.len() };
            leaf::matmul_add(self.isa, weights, values.data, self.width, sums);
        }
    }
}

fn rescale(isa: Isa, sums: &mut [f32], factor: f32) {
    if factor != 1.0 {
        elementwise::scale_in_place(isa, factor, sums);
    }
}

/// Rows `range` of a view, as they lie in its `data`.
fn stored<'a, T>(view: &KvView<'_>, data: &'a [T], range: Range<usize>) -> Rows<'a, T> {
    let from = if range.is_empty() { 0 } else { range.start * view.row_stride };
    Rows { data: &data[from..], stride: view.row_stride, count: range.len(), width: view.dim }
}

/// As [`stored`]; strides and widths of the rows are in blocks.
fn stored_blocks<'a>(
    view: &KvView<'_>,
    data: &'a [BlockQ8_0],
    range: Range<usize>,
) -> Rows<'a, BlockQ8_0> {
    let stride = view.row_stride / Q8_0_ELEMS;
    let from = if range.is_empty() { 0 } else { range.start * stride };
    Rows { data: &data[from..], stride, count: range.len(), width: view.dim / Q8_0_ELEMS }
}

/// Rows `block` of `view`: in place if they are f32, else converted into `buffer`.
fn as_f32_rows<'a>(
    isa: Isa,
    view: &KvView<'a>,
    block: Range<usize>,
    buffer: &'a mut [f32],
) -> Rows<'a> {
    match view.data {
        KvData::F32(data) => stored(view, data, block),
        KvData::F16(_) | KvData::Q8_0(_) => padded_rows(isa, view, block, view.dim, buffer),
    }
}

/// Rows `block` of `view` as f32 in `buffer`, each followed by zeros up to `width`.
fn padded_rows<'a>(
    isa: Isa,
    view: &KvView<'_>,
    block: Range<usize>,
    width: usize,
    buffer: &'a mut [f32],
) -> Rows<'a> {
    let buffer = &mut buffer[..block.len() * width];
    if width > 0 {
        for (row, out) in block.clone().zip(buffer.chunks_exact_mut(width)) {
            let (out, pad) = out.split_at_mut(view.dim);
            let from = row * view.row_stride;
            match view.data {
                KvData::F32(data) => out.copy_from_slice(&data[from..][..view.dim]),
                KvData::F16(data) => convert::f16_to_f32(isa, &data[from..][..view.dim], out),
                KvData::Q8_0(data) => {
                    let blocks = &data[from / Q8_0_ELEMS..][..view.dim / Q8_0_ELEMS];
                    convert::q8_0_to_f32(isa, blocks, out);
                }
            }
            pad.fill(0.0);
        }
    }
    Rows { data: buffer, stride: width, count: block.len(), width }
}
