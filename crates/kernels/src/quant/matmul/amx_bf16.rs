#![deny(unsafe_code)]
//! Many rows: weights are decoded to bf16, once for all rows, and multiplied in tiles.
//!
//! Sums are f32 over all of k. What is lost is the rounding of both factors to bf16; minimums are
//! part of the decoded weight.
//!
//! The weights of 16 columns and 256 k make 8 KiB, decoded where the next instructions read them. A
//! quad of the panel, 4 k of 16 columns, makes two rows of a tile, 2 k of 16 columns each.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_fmsub_ps, _mm512_mul_ps,
    _mm512_permutexvar_epi16, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_srli_epi32,
};

use zerocopy::{FromBytes, IntoBytes};

use super::avx512_vnni::{load_f16, scales, unpack};
use super::tiles::{Panels, Tall};
use crate::dense::MatrixMut;
use crate::isa::Amx;
use crate::isa::amx_ops::{B_STEP, B_TILE, BLOCK_COLS, Bf16Tiles, Factors, Shape, TILE};
use crate::isa::x86::{load_u8x64, store_u32x16};
use crate::isa::x86_bf16::to_bf16;
use crate::quant::format::Packed;
use crate::quant::{PANEL_COLS, activation_len};

/// Elements of k that are decoded at a time.
const CHUNK_K: usize = 256;
/// Words of two decoded panels.
const PAIR: usize = CHUNK_K / 32 * B_STEP;
/// Elements of a block of results.
const BLOCK: usize = BLOCK_COLS * BLOCK_COLS;

/// Words of scratch memory.
pub(super) fn scratch_len(panels: usize, rows: usize) -> usize {
    let pairs = panels.div_ceil(2);
    pairs * (PAIR + rows.div_ceil(BLOCK_COLS) * BLOCK)
}

/// See [`super::tiles::matmul_planned`]. `scratch` is aligned to cache lines.
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn matmul<F: Packed>(
    proof: Amx,
    panels: Panels<'_>,
    x: Tall<'_>,
    out: &mut MatrixMut<'_>,
    scratch: &mut [f32],
) {
    let (count, row_blocks) = (panels.count(), x.rows.div_ceil(BLOCK_COLS));
    let pairs = count.div_ceil(2);
    let (b, c) = scratch.split_at_mut(pairs * PAIR);
    let b = <[u32]>::mut_from_bytes(b.as_mut_bytes()).unwrap_or_default();
    let (c, _) = c[..row_blocks * pairs * BLOCK].as_chunks_mut::<BLOCK>();
    let stride = activation_len(panels.k);
    let tiles = Bf16Tiles::configure(proof);
    for (chunk, first) in (0..panels.k).step_by(CHUNK_K).enumerate() {
        let len = CHUNK_K.min(panels.k - first);
        for p in 0..count {
            let units = panels.units::<F>(p, first, len);
            decode::<F>(units, &mut b[p / 2 * PAIR + p % 2 * B_TILE..]);
        }
        for (block, c) in c.chunks_exact_mut(pairs).enumerate() {
            let row = block * BLOCK_COLS;
            let a = &x.words[row * stride + first / 2..];
            let two_rows = x.rows - row > TILE;
            for (pair, c) in c.iter_mut().enumerate() {
                let b = &b[pair * PAIR..][..PAIR];
                let factors = Factors { a, b: [b, &b[B_TILE..]] };
                let two_cols = 2 * pair + 1 < count;
                let shape = Shape { two_rows, two_cols, steps: len / 32, a_stride: stride };
                tiles.multiply(shape, &[factors], chunk > 0, c);
            }
        }
    }
    drop(tiles);
    let cols = out.cols();
    for row in 0..x.rows {
        let blocks = &c[row / BLOCK_COLS * pairs..][..pairs];
        for (block, first) in blocks.iter().zip((0..cols).step_by(BLOCK_COLS)) {
            let len = BLOCK_COLS.min(cols - first);
            let at = row % BLOCK_COLS * BLOCK_COLS;
            out.part(row, first, len).copy_from_slice(&block[at..][..len]);
        }
    }
}

/// Decodes units of a panel into tiles, [`B_STEP`] words apart.
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512bf16")]
fn decode<F: Packed>(units: &[u8], tiles: &mut [u32]) {
    let per_unit = F::ELEMS / 32;
    for (unit, tiles) in units.chunks_exact(F::UNIT_BYTES).zip(tiles.chunks_mut(per_unit * B_STEP))
    {
        let d = load_f16(unit, 0);
        let m = if F::MIN { load_f16(unit, 2 * PANEL_COLS) } else { _mm512_setzero_ps() };
        let planes = unit[F::QUANTS_AT..].chunks_exact(F::QUANT_BYTES);
        for ((g, planes), tile) in planes.enumerate().zip(tiles.chunks_mut(B_STEP)) {
            let (rows, _) = tile[..B_TILE].as_chunks_mut::<TILE>();
            let (first, second) = rows.split_at_mut(TILE / 2);
            if F::GROUP == 32 {
                let terms = terms::<F>(scales::<F>(unit, g, d, m));
                pair::<F, 0>(planes, terms, first);
                pair::<F, 1>(planes, terms, &mut first[4..]);
                pair::<F, 2>(planes, terms, second);
                pair::<F, 3>(planes, terms, &mut second[4..]);
            } else {
                let low = terms::<F>(scales::<F>(unit, 2 * g, d, m));
                pair::<F, 0>(planes, low, first);
                pair::<F, 1>(planes, low, &mut first[4..]);
                let high = terms::<F>(scales::<F>(unit, 2 * g + 1, d, m));
                pair::<F, 2>(planes, high, second);
                pair::<F, 3>(planes, high, &mut second[4..]);
            }
        }
    }
}

/// What multiplies a stored quant, and what is then subtracted: `scale * (q - OFFSET)` is the same
/// as `scale * q - scale * OFFSET` rounded once, as the offset is a power of two.
#[target_feature(enable = "avx512f")]
#[inline]
fn terms<F: Packed>((scale, min): (__m512, __m512)) -> (__m512, __m512) {
    let subtract =
        if F::MIN { min } else { _mm512_mul_ps(scale, _mm512_set1_ps(f32::from(F::OFFSET))) };
    (scale, subtract)
}

/// Quads `2 * P` and `2 * P + 1`: four rows of a tile.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline]
fn pair<F: Packed, const P: usize>(
    planes: &[u8],
    terms: (__m512, __m512),
    rows: &mut [[u32; TILE]],
) {
    let (first, second) = unpack::<F, P>(planes, 0);
    let [a, b] = quad(first, terms);
    let [c, d] = quad(second, terms);
    for (row, values) in rows.iter_mut().zip([a, b, c, d]) {
        store_u32x16(row, values);
    }
}

/// Four k of 16 columns: two rows of a tile.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline]
fn quad(quad: __m512i, (scale, subtract): (__m512, __m512)) -> [__m512i; 2] {
    let byte = _mm512_set1_epi32(0xff);
    let quants = [
        _mm512_and_si512(quad, byte),
        _mm512_and_si512(_mm512_srli_epi32::<8>(quad), byte),
        _mm512_and_si512(_mm512_srli_epi32::<16>(quad), byte),
        _mm512_srli_epi32::<24>(quad),
    ];
    let mut weights = [_mm512_setzero_ps(); 4];
    for (weight, quants) in weights.iter_mut().zip(quants) {
        *weight = _mm512_fmsub_ps(_mm512_cvtepi32_ps(quants), scale, subtract);
    }
    let [a, b, c, d] = weights;
    let order = load_u8x64(&INTERLEAVE);
    [_mm512_permutexvar_epi16(order, to_bf16(b, a)), _mm512_permutexvar_epi16(order, to_bf16(d, c))]
}

/// Words 0, 16, 1, 17, and so on: pairs out of two halves.
const INTERLEAVE: [u8; 64] = {
    let mut order = [0; 64];
    let mut word: u8 = 0;
    while word < 16 {
        order[4 * word as usize] = word;
        order[4 * word as usize + 2] = 16 + word;
        word += 1;
    }
    order
};
