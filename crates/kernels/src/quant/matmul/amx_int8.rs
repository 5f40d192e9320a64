#![deny(unsafe_code)]
//! A middling number of rows: exact sums of each group in tiles of integers, scaled to f32 one group
//! after the other.
//!
//! The additions are those of the AVX-512 version in the same order, so both return the same bits.
//! A tile has as many k as share a scale, 32 or 16. Up to eight rows that fill no tile go through
//! the AVX-512 version.

use std::arch::x86_64::{__m512, _mm512_setzero_ps};

use zerocopy::{FromBytes, IntoBytes};

use super::avx512_vnni::{self, add_halves, add_whole};
use super::chunk::{CHUNK_K, CHUNK_WORDS, Chunk, Row, load};
use super::tiles::{Panels, Tall};
use super::{Out, Records, scratch_words};
use crate::dense::MatrixMut;
use crate::isa::Amx;
use crate::isa::amx_ops::{Int8Tiles, TILE};
use crate::isa::x86::{load_f32x16, load_i32x16, store_f32x16};
use crate::quant::format::Packed;
use crate::quant::quantize::XBlock;
use crate::quant::{PANEL_COLS, activation_len};

/// Rows that are left over for the AVX-512 version.
const FEW_ROWS: usize = 8;

/// Words of two pairs of tiles of sums, used in turn: one is scaled while the other is multiplied.
const SUM_WORDS: usize = 4 * 256;

/// Words of scratch memory.
pub(super) fn scratch_len(k: usize, rows: usize) -> usize {
    CHUNK_WORDS + SUM_WORDS + scratch_words(k) + rows.next_multiple_of(TILE) * PANEL_COLS
}

/// See [`super::tiles::matmul_planned`]. `scratch` is aligned to cache lines.
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn matmul<F: Packed>(
    proof: Amx,
    panels: Panels<'_>,
    x: Tall<'_>,
    out: &mut MatrixMut<'_>,
    scratch: &mut [f32],
) {
    if F::GROUP == 32 {
        let tiles = Int8Tiles::<32>::configure(proof);
        multiply::<F, 32>(&tiles, panels, x, out, scratch);
    } else {
        let tiles = Int8Tiles::<16>::configure(proof);
        multiply::<F, 16>(&tiles, panels, x, out, scratch);
    }
}

#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn multiply<F: Packed, const K: usize>(
    tiles: &Int8Tiles<K>,
    panels: Panels<'_>,
    x: Tall<'_>,
    out: &mut MatrixMut<'_>,
    scratch: &mut [f32],
) {
    let (words, rest) = scratch.split_at_mut(CHUNK_WORDS);
    let (sums, rest) = rest.split_at_mut(SUM_WORDS);
    let (few, results) = rest.split_at_mut(scratch_words(panels.k));
    let few = <[u32]>::mut_from_bytes(few.as_mut_bytes()).unwrap_or_default();
    let sums = <[i32]>::mut_from_bytes(sums.as_mut_bytes()).unwrap_or_default();
    let (sums, _) = sums.as_chunks_mut::<256>();
    let (results, _) = results.as_chunks_mut::<PANEL_COLS>();
    let mut chunk = Chunk::new(words);
    let left = x.rows % TILE;
    let in_tiles = if left <= FEW_ROWS { x.rows - left } else { x.rows };
    let record = activation_len(panels.k) / 16;
    let (blocks, _) = x.words.as_chunks();
    for p in 0..panels.count() {
        let panel_bytes = panels.panel_bytes;
        let mut at = Out { matrix: out, first: (0, p * PANEL_COLS), rows: in_tiles, panel_bytes };
        for first in (0..panels.k).step_by(CHUNK_K) {
            let len = CHUNK_K.min(panels.k - first);
            chunk.unpack::<F, true>(panels.units::<F>(p, first, len));
            for row in (0..in_tiles).step_by(TILE) {
                let x = TileRows { blocks: &blocks[row * record + first / 32..], record };
                let Some(results) = results[row..].first_chunk_mut() else { break };
                if first == 0 {
                    *results = [[0.0; PANEL_COLS]; TILE];
                }
                add_chunk::<F, K>(tiles, (&chunk, len), &x, results, sums);
            }
        }
        at.put(0, 0, &results[..in_tiles]);
        if in_tiles < x.rows {
            let few_rows = &blocks[in_tiles * record..x.rows * record];
            let x = Records { blocks: few_rows, rows: left, in_tiles: false };
            (at.first.0, at.rows) = (in_tiles, left);
            avx512_vnni::matmul::<F>(panels.panel(p), x, &mut at, few.as_chunks_mut().0);
        }
    }
}

/// The records of 16 rows, from some block on.
struct TileRows<'a> {
    blocks: &'a [XBlock],
    /// Blocks from row to row.
    record: usize,
}

/// Adds the products of `len` elements of k of 16 rows.
#[target_feature(enable = "avx512f")]
fn add_chunk<F: Packed, const K: usize>(
    tiles: &Int8Tiles<K>,
    (chunk, len): (&Chunk<'_>, usize),
    x: &TileRows<'_>,
    results: &mut [Row; TILE],
    sums: &mut [[i32; 256]],
) {
    let mut acc = [_mm512_setzero_ps(); TILE];
    for (acc, result) in acc.iter_mut().zip(&*results) {
        *acc = load_f32x16(result);
    }
    let stride = x.record * 16;
    for step in 0..len / 32 {
        let at = &x.blocks[step..];
        let sums = &mut sums[2 * (step % 2)..][..32 / K];
        for (half, sums) in sums.iter_mut().enumerate() {
            let quads = &chunk.quads[(32 * step + half * K) / 4..];
            tiles.multiply(&at.as_flattened()[half * 4..], stride, quads, sums);
        }
        let scales = &chunk.scales[step * 32 / K..][..32 / K];
        add_step::<F>(scales, (at, x.record), sums, &mut acc);
    }
    for (result, acc) in results.iter_mut().zip(acc) {
        store_f32x16(result, acc);
    }
}

/// Adds exact sums of 32 k, one tile of them or two of halves. `x` are the blocks of these k.
#[target_feature(enable = "avx512f")]
#[inline]
fn add_step<F: Packed>(
    scales: &[[Row; 2]],
    (x, record): (&[XBlock], usize),
    sums: &[[i32; 256]],
    acc: &mut [__m512; TILE],
) {
    let x = x.chunks(record).filter_map(|x| x.first());
    let rows = acc.iter_mut().zip(x);
    match (scales, sums) {
        ([scales], [sums]) => {
            let scales = load(scales);
            for ((acc, x), sums) in rows.zip(sums.as_chunks().0) {
                *acc = add_whole::<F>(*acc, x, scales, load_i32x16(sums));
            }
        }
        ([low_scales, high_scales], [low, high]) => {
            let (low_scales, high_scales) = (load(low_scales), load(high_scales));
            let sums = low.as_chunks().0.iter().zip(high.as_chunks().0);
            for ((acc, x), (low, high)) in rows.zip(sums) {
                let (low, high) = (load_i32x16(low), load_i32x16(high));
                *acc = add_halves::<F>(*acc, x, (low_scales, low), (high_scales, high));
            }
        }
        _ => {}
    }
}
