#![deny(unsafe_code)]
//! A middling number of rows: exact sums of each group in tiles of integers, scaled to f32 one group
//! after the other.
//!
//! The additions are those of the AVX-512 version in the same order, so both return the same bits.
//! A tile has as many k as share a scale, 32 or 16. Up to eight rows that fill no tile go through
//! the AVX-512 version.

use std::arch::x86_64::{
    __m512, _mm512_cvtepi32_ps, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_mul_ps, _mm512_set1_epi8,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_sub_epi8,
};

use zerocopy::{FromBytes, IntoBytes};

use super::avx512_vnni::{self, load_f16, scales, unpack};
use super::tiles::{Panels, Tall};
use super::{Out, Records, scratch_words};
use crate::dense::MatrixMut;
use crate::isa::Amx;
use crate::isa::amx_ops::{Int8Tiles, TILE};
use crate::isa::x86::{load_f32x16, load_i32x16, store_f32x16, store_u8x64};
use crate::quant::format::Packed;
use crate::quant::quantize::{XBlock, word};
use crate::quant::{PANEL_COLS, activation_len};

/// Elements of k that are unpacked at a time.
const CHUNK_K: usize = 256;
/// Rows that are left over for the AVX-512 version.
const FEW_ROWS: usize = 8;

/// A row of results.
type Row = [f32; PANEL_COLS];

/// A chunk of a panel: signed quants in quads of k, and the scales and minimums of each group.
struct Chunk<'a> {
    quads: &'a mut [[u8; 64]],
    scales: &'a mut [[Row; 2]],
}

/// Words of a [`Chunk`], the quads first.
const QUAD_WORDS: usize = CHUNK_K / 4 * 16;
const SCALE_WORDS: usize = CHUNK_K / 16 * 2 * PANEL_COLS;
/// Words of two tiles of sums, used in turn: one is scaled while the other is multiplied.
const SUM_WORDS: usize = 2 * 256;

/// Words of scratch memory.
pub(super) fn scratch_len(k: usize, rows: usize) -> usize {
    let chunk = QUAD_WORDS + SCALE_WORDS + SUM_WORDS;
    chunk + scratch_words(k) + rows.next_multiple_of(TILE) * PANEL_COLS
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
    let (quads, rest) = scratch.split_at_mut(QUAD_WORDS);
    let (scales, rest) = rest.split_at_mut(SCALE_WORDS);
    let (sums, rest) = rest.split_at_mut(SUM_WORDS);
    let (few, results) = rest.split_at_mut(scratch_words(panels.k));
    let few = <[u32]>::mut_from_bytes(few.as_mut_bytes()).unwrap_or_default();
    let sums = <[i32]>::mut_from_bytes(sums.as_mut_bytes()).unwrap_or_default();
    let (sums, _) = sums.as_chunks_mut::<256>();
    let (results, _) = results.as_chunks_mut::<PANEL_COLS>();
    let (scales, _) = scales.as_chunks_mut::<PANEL_COLS>();
    let mut chunk =
        Chunk { quads: quads.as_mut_bytes().as_chunks_mut().0, scales: scales.as_chunks_mut().0 };
    let left = x.rows % TILE;
    let in_tiles = if left <= FEW_ROWS { x.rows - left } else { x.rows };
    let record = activation_len(panels.k) / 16;
    let (blocks, _) = x.words.as_chunks();
    for p in 0..panels.count() {
        let panel_bytes = panels.panel_bytes;
        let mut at = Out { matrix: out, first: (0, p * PANEL_COLS), rows: in_tiles, panel_bytes };
        for first in (0..panels.k).step_by(CHUNK_K) {
            let len = CHUNK_K.min(panels.k - first);
            unpack_chunk::<F>(panels.units::<F>(p, first, len), &mut chunk);
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

/// Takes units of a panel apart.
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl")]
fn unpack_chunk<F: Packed>(units: &[u8], to: &mut Chunk<'_>) {
    let (per_unit, groups) = (F::ELEMS / 32, F::ELEMS / F::GROUP);
    let scales_of = to.scales.chunks_mut(groups);
    let quads_of = to.quads.chunks_mut(8 * per_unit);
    for ((unit, to), scales_to) in units.chunks_exact(F::UNIT_BYTES).zip(quads_of).zip(scales_of) {
        let d = load_f16(unit, 0);
        let m = if F::MIN { load_f16(unit, 2 * PANEL_COLS) } else { _mm512_setzero_ps() };
        for (g, [scale_to, min_to]) in scales_to.iter_mut().enumerate() {
            let (scale, min) = scales::<F>(unit, g, d, m);
            store_f32x16(scale_to, scale);
            store_f32x16(min_to, min);
        }
        let planes = unit[F::QUANTS_AT..].chunks_exact(F::QUANT_BYTES);
        for (planes, to) in planes.zip(to.chunks_exact_mut(8)) {
            pair::<F, 0>(planes, to);
            pair::<F, 1>(planes, &mut to[2..]);
            pair::<F, 2>(planes, &mut to[4..]);
            pair::<F, 3>(planes, &mut to[6..]);
        }
    }
}

/// Quads `2 * P` and `2 * P + 1`, without the offset.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn pair<F: Packed, const P: usize>(planes: &[u8], to: &mut [[u8; 64]]) {
    let (first, second) = unpack::<F, P>(planes, 0);
    let offset = _mm512_set1_epi8(F::OFFSET.cast_signed());
    for (to, quad) in to.iter_mut().zip([first, second]) {
        let quad = if F::OFFSET > 0 { _mm512_sub_epi8(quad, offset) } else { quad };
        store_u8x64(to, quad);
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
    for g in 0..len / K {
        let (block, half) = (g * K / 32, g % (32 / K));
        let a = &x.blocks[block..].as_flattened()[half * 4..];
        let sums = &mut sums[g % 2];
        tiles.multiply(a, stride, &chunk.quads[g * K / 4..], sums);
        let part = if K == 32 { 0 } else { 1 + half };
        scale::<F>(&chunk.scales[g], (x, block, part), sums, &mut acc);
    }
    for (result, acc) in results.iter_mut().zip(acc) {
        store_f32x16(result, acc);
    }
}

/// Adds the exact sums of a group, scaled, and takes its minimums off.
#[target_feature(enable = "avx512f")]
#[inline]
fn scale<F: Packed>(
    [scales, mins]: &[Row; 2],
    (x, block, part): (&TileRows<'_>, usize, usize),
    sums: &[i32; 256],
    acc: &mut [__m512; TILE],
) {
    let (scale, min) = (load_f32x16(scales), load_f32x16(mins));
    let (sums, _) = sums.as_chunks::<16>();
    for (r, (acc, sums)) in acc.iter_mut().zip(sums).enumerate() {
        let x = &x.blocks[r * x.record + block];
        let factor = _mm512_mul_ps(scale, _mm512_set1_ps(f32::from_bits(x[word::SCALE])));
        *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(load_i32x16(sums)), factor, *acc);
        if F::MIN {
            let scaled_sum = f32::from_bits(x[word::SCALED_SUMS[part]]);
            *acc = _mm512_fnmadd_ps(min, _mm512_set1_ps(scaled_sum), *acc);
        }
    }
}
