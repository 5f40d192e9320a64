#![deny(unsafe_code)]
//! Many rows: a chunk of a panel is taken apart once, and stays in the first-level cache while all
//! rows pass.
//!
//! The additions are those of the version for few rows in the same order, so both return the same
//! bits.

use std::arch::x86_64::{
    __m512i, _mm512_dpbusd_epi32, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_setzero_si512,
};
use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::avx512_vnni::{add_halves, add_whole};
use super::chunk::{CHUNK_K, CHUNK_WORDS, Chunk, Row, load};
use super::{Out, Records, TILE_ROWS, part};
use crate::isa::x86::{load_f32x16, load_u8x64, prefetch_line, store_f32x16};
use crate::quant::PANEL_COLS;
use crate::quant::arrange::padded_rows;
use crate::quant::format::Packed;
use crate::quant::quantize::{Bias, XBlock};

/// Whether it is worth taking weights apart first. Up to two tiles do it in registers, and bytes are
/// apart already.
pub(super) const fn worth_it<F: Packed>(rows: usize) -> bool {
    F::BITS < 8 && rows > TILE_ROWS + 4
}

/// Steps of a chunk.
const CHUNK_STEPS: usize = CHUNK_K / 32;
/// Activations that stay in a second-level cache while all panels of a call pass.
const CACHED_BYTES: usize = 5 << 18;

/// The results of a tile of rows.
type Results = [Row; TILE_ROWS];

/// Words of scratch memory.
pub(super) const fn scratch_words(rows: usize) -> usize {
    CHUNK_WORDS + rows.next_multiple_of(TILE_ROWS) * PANEL_COLS
}

/// As the version for few rows. `x` is in tiles, and `scratch` has [`scratch_words`].
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn matmul<F: Packed>(
    panels: &[u8],
    x: Records<'_>,
    out: &mut Out<'_, '_>,
    scratch: &mut [XBlock],
) {
    let scratch = scratch.as_flattened_mut().as_mut_bytes();
    let (words, results) =
        <[f32]>::mut_from_bytes(scratch).unwrap_or_default().split_at_mut(CHUNK_WORDS);
    let mut chunk = Chunk::new(words);
    let results = results.as_chunks_mut().0.as_chunks_mut().0;
    let results: &mut [Results] = &mut results[..x.rows.div_ceil(TILE_ROWS)];
    // All tiles but the last are whole.
    let rows = padded_rows(x.rows);
    let tile_blocks = x.blocks.len() / rows * TILE_ROWS;
    let chunk_bytes = CHUNK_K / F::ELEMS * F::UNIT_BYTES;
    let chunks = out.panel_bytes.div_ceil(chunk_bytes);
    // About equal parts of k, whole chunks.
    let most = (CACHED_BYTES / (rows * size_of::<XBlock>() * CHUNK_STEPS)).max(1);
    let part = chunks.div_ceil(chunks.div_ceil(most));
    for start in (0..chunks).step_by(part) {
        let end = chunks.min(start + part);
        for (p, panel) in panels.chunks_exact(out.panel_bytes).enumerate() {
            let units = panel.chunks(chunk_bytes).enumerate().take(end).skip(start);
            for (c, units) in units {
                chunk.unpack::<F, false>(units);
                let first = c * CHUNK_STEPS;
                let steps = first..first + units.len() / F::UNIT_BYTES * (F::ELEMS / 32);
                // What follows is asked for little by little: not all requests find room at once.
                let lines = units.len().div_ceil(64).div_ceil(results.len());
                let share = |c: usize| TILE_ROWS * (c - start) / (end - start);
                let asked = share(c)..share(c + 1);
                for (t, results) in results.iter_mut().enumerate() {
                    for line in t * lines..(t + 1) * lines {
                        prefetch_line(units, units.len() + 64 * line);
                    }
                    let row = t * TILE_ROWS;
                    out.ask(p, row + asked.start, asked.len());
                    if c == 0 {
                        *results = [[0.0; PANEL_COLS]; TILE_ROWS];
                    } else if c == start {
                        out.get(p, row, results);
                    }
                    let blocks = x.blocks[t * tile_blocks..].chunks(tile_blocks).next();
                    let blocks = blocks.unwrap_or_default();
                    tile_of::<F>(&chunk, blocks, (x.rows - row, steps.clone()), results);
                    // Not all tiles at once: the next one hides what these stores wait for.
                    if c + 1 == end {
                        out.put(p, row, results);
                    }
                }
            }
        }
    }
}

/// Adds the products of some steps, `(rows that are left, steps)`, to the results of a tile.
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn tile_of<F: Packed>(
    chunk: &Chunk<'_>,
    blocks: &[XBlock],
    (rows, steps): (usize, Range<usize>),
    results: &mut Results,
) {
    match rows {
        1 => tile::<F, 1, 1>(chunk, blocks, steps, results),
        2 => tile::<F, 2, 2>(chunk, blocks, steps, results),
        3 | 4 => tile::<F, 4, 4>(chunk, blocks, steps, results),
        5 | 6 => tile::<F, 6, 6>(chunk, blocks, steps, results),
        7 | 8 if F::GROUP == 32 => tile::<F, 8, 8>(chunk, blocks, steps, results),
        7 | 8 => tile::<F, 8, 4>(chunk, blocks, steps, results),
        _ if F::GROUP == 32 => tile::<F, 12, 12>(chunk, blocks, steps, results),
        _ => tile::<F, 12, 6>(chunk, blocks, steps, results),
    }
}

/// A tile that has room for `W` rows, `MR` of them at a time.
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn tile<F: Packed, const W: usize, const MR: usize>(
    chunk: &Chunk<'_>,
    blocks: &[XBlock],
    steps: Range<usize>,
    results: &mut Results,
) {
    let x = &blocks.as_chunks::<W>().0[steps];
    for (part, results) in results[..W].as_chunks_mut::<MR>().0.iter_mut().enumerate() {
        let mut sums = [_mm512_setzero_ps(); MR];
        for (sum, result) in sums.iter_mut().zip(&*results) {
            *sum = load_f32x16(result);
        }
        let quads = chunk.quads.as_chunks::<8>().0;
        let scales = chunk.scales.chunks_exact(32 / F::GROUP);
        // All in one function: of calls that are this long the compiler inlines some and not others.
        for ((x, quads), scales) in x.iter().zip(quads).zip(scales) {
            let Some(x) = x[part * MR..].first_chunk() else { break };
            if let [scales] = scales {
                let acc = products::<F, MR, 0>(quads, x);
                let scales = load(scales);
                for ((sum, x), acc) in sums.iter_mut().zip(x).zip(acc) {
                    *sum = add_whole::<F>(*sum, x, scales, acc);
                }
            } else if let [low_scales, high_scales] = scales {
                let (low, high) = quads.split_at(4);
                let (low, high) = (products::<F, MR, 0>(low, x), products::<F, MR, 1>(high, x));
                let (low_scales, high_scales) = (load(low_scales), load(high_scales));
                for (((sum, x), low), high) in sums.iter_mut().zip(x).zip(low).zip(high) {
                    *sum = add_halves::<F>(*sum, x, (low_scales, low), (high_scales, high));
                }
            }
        }
        for (result, sum) in results.iter_mut().zip(sums) {
            store_f32x16(result, sum);
        }
    }
}

/// Exact sums of the products of a group with each row.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn products<F: Packed, const MR: usize, const HALF: usize>(
    quads: &[[u8; 64]],
    x: &[XBlock; MR],
) -> [__m512i; MR] {
    let mut acc = [_mm512_setzero_si512(); MR];
    if F::OFFSET > 0 {
        // For the offset that the chunk has, no shift is needed.
        let word = Bias::new(F::OFFSET, part::<F>(HALF)).word;
        for (acc, x) in acc.iter_mut().zip(x) {
            *acc = _mm512_set1_epi32(x[word].cast_signed());
        }
    }
    for (quad, at) in quads.iter().zip(4 * HALF..) {
        let quad = load_u8x64(quad);
        for (acc, x) in acc.iter_mut().zip(x) {
            *acc = _mm512_dpbusd_epi32(*acc, quad, _mm512_set1_epi32(x[at].cast_signed()));
        }
    }
    acc
}
