#![deny(unsafe_code)]
//! Weights as they are, as the left factor: no transposition but that of the results.

use std::arch::x86_64::{__m512i, _mm512_cvtph_ps, _mm512_setzero_si512, _mm512_sub_ps};

use fucina_dtype::DType;
use zerocopy::{FromBytes, IntoBytes};

use super::super::Rows;
use super::pack::transpose;
use super::{SPLIT_BLOCK, Split};
use crate::isa::Amx;
use crate::isa::amx_ops::{B_STEP, B_TILE, BLOCK_COLS, Bf16Tiles, Factors, Shape, TILE};
use crate::isa::x86::{load_u8x32, load_u8x64, load_u32x16, store_u32x16};
use crate::isa::x86_bf16::to_bf16;

/// Elements of k for which weights are brought into their parts at a time.
const CHUNK_K: usize = 256;
/// Words from row to row of the parts of weights: an odd number of cache lines.
const STRIDE: usize = CHUNK_K / 2 + TILE;
/// Words of one part of 32 rows of weights.
const PART: usize = BLOCK_COLS * STRIDE;
/// Elements of a block of results, 32 weights by 32 rows of activations.
const BLOCK: usize = BLOCK_COLS * BLOCK_COLS;

fn parts(dtype: DType) -> usize {
    if dtype == DType::F16 { 2 } else { 1 }
}

/// Words of scratch memory.
pub(super) fn scratch_len(dtype: DType, m: usize, nr: usize) -> usize {
    parts(dtype) * PART + m.div_ceil(BLOCK_COLS) * nr.div_ceil(BLOCK_COLS) * BLOCK
}

/// See [`Split::multiply`]. No size is zero; `scratch` is aligned to cache lines.
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512bf16")]
pub(super) fn multiply(
    proof: Amx,
    w: Rows<'_>,
    (x, m): (&[u32], usize),
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let nr = out.len() / m;
    let (row_blocks, x_pairs) = (nr.div_ceil(BLOCK_COLS), m.div_ceil(BLOCK_COLS));
    let (parts, results) = scratch.split_at_mut(parts(w.dtype) * PART);
    let parts = <[u32]>::mut_from_bytes(parts.as_mut_bytes()).unwrap_or_default();
    let (results, _) = results[..row_blocks * x_pairs * BLOCK].as_chunks_mut::<BLOCK>();
    let tiles = Bf16Tiles::configure(proof);
    for first in (0..w.k).step_by(CHUNK_K) {
        let steps = CHUNK_K.min(w.k - first).div_ceil(32);
        for (block, results) in results.chunks_exact_mut(x_pairs).enumerate() {
            let rows = block * BLOCK_COLS..nr.min((block + 1) * BLOCK_COLS);
            split_rows(w, rows.clone(), (first, steps), parts);
            for (pair, c) in results.iter_mut().enumerate() {
                let block_words = Split::block_words(w.k);
                let of = |block: usize| &x[block * block_words + first / 32 * B_STEP..];
                let two_cols = m > (2 * pair + 1) * SPLIT_BLOCK;
                let b = [of(2 * pair), of(2 * pair + usize::from(two_cols))];
                let two_rows = rows.len() > TILE;
                let shape = Shape { two_rows, two_cols, steps, a_stride: STRIDE };
                add_products(&tiles, shape, (parts, b), first > 0, c);
            }
        }
    }
    drop(tiles);
    for (block, results) in results.chunks_exact(x_pairs).enumerate() {
        for (pair, c) in results.iter().enumerate() {
            write(c, (block, pair), nr, out);
        }
    }
}

/// The products of parts, the smallest first.
fn add_products(
    tiles: &Bf16Tiles,
    shape: Shape,
    (parts, [b, b2]): (&[u32], [&[u32]; 2]),
    add: bool,
    c: &mut [f32; BLOCK],
) {
    let (high, low) = parts.split_at(PART);
    let (x_high, x_low) = ([b, b2], [&b[B_TILE..], &b2[B_TILE..]]);
    let factors = |a, b| Factors { a, b };
    if low.is_empty() {
        tiles.multiply(shape, &[factors(high, x_low), factors(high, x_high)], add, c);
    } else {
        let products = [factors(low, x_high), factors(high, x_low), factors(high, x_high)];
        tiles.multiply(shape, &products, add, c);
    }
}

/// Brings `steps` times 32 elements of some rows, up to 32, from element `first` on, into their parts.
/// What is missing of rows and elements is zero.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512bf16")]
fn split_rows(
    w: Rows<'_>,
    rows: std::ops::Range<usize>,
    (first, steps): (usize, usize),
    parts: &mut [u32],
) {
    let count = rows.len();
    let (high, low) = parts.split_at_mut(PART);
    let used = if count > TILE { BLOCK_COLS } else { TILE };
    for r in 0..used {
        let (at, end) = ((rows.start + r) * w.k + first, (rows.start + r + 1) * w.k);
        let source = if r < count { &w.bytes[2 * at..2 * end] } else { &[] };
        for step in 0..steps {
            let values = line(source.get(64 * step..).unwrap_or_default());
            let to = r * STRIDE + step * TILE;
            if low.is_empty() {
                put(high, to, load_u8x64(&values));
            } else {
                let [h, l] = split_f16(&values);
                put(high, to, h);
                put(low, to, l);
            }
        }
    }
}

/// 32 elements of 16 bits; what is missing is zero.
fn line(bytes: &[u8]) -> [u8; 64] {
    let mut line = [0; 64];
    match bytes.first_chunk() {
        Some(whole) => line = *whole,
        None => line[..bytes.len()].copy_from_slice(bytes),
    }
    line
}

#[target_feature(enable = "avx512f")]
#[inline]
fn put(to: &mut [u32], at: usize, words: __m512i) {
    if let Some(to) = to[at..].first_chunk_mut() {
        store_u32x16(to, words);
    }
}

/// The two parts of 32 f16, exactly: 11 bits are 8 and at most 3.
#[target_feature(enable = "f16c,avx512f,avx512bf16")]
#[inline]
fn split_f16(values: &[u8; 64]) -> [__m512i; 2] {
    let (halves, _) = values.as_chunks();
    let first = _mm512_cvtph_ps(load_u8x32(&halves[0]));
    let second = _mm512_cvtph_ps(load_u8x32(&halves[1]));
    let high = to_bf16(second, first);
    let [first_high, second_high] = super::pack::in_order(high);
    [high, to_bf16(_mm512_sub_ps(second, second_high), _mm512_sub_ps(first, first_high))]
}

/// Writes a block of results, `[32 weights][32 rows of activations]`, where it belongs in `[m, nr]`.
#[target_feature(enable = "avx512f")]
fn write(c: &[f32; BLOCK], (block, pair): (usize, usize), nr: usize, out: &mut [f32]) {
    let c = <[u32]>::ref_from_bytes(c.as_bytes()).unwrap_or_default();
    let (c, _) = c.as_chunks::<TILE>();
    let out = &mut out[pair * BLOCK_COLS * nr..];
    for (row_half, col_half) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let col = block * BLOCK_COLS + row_half * TILE;
        if col >= nr {
            continue;
        }
        let mut words = [_mm512_setzero_si512(); TILE];
        for (i, words) in words.iter_mut().enumerate() {
            *words = load_u32x16(&c[2 * (row_half * TILE + i) + col_half]);
        }
        let rows = out.chunks_exact_mut(nr).skip(col_half * TILE).take(TILE);
        for (to, words) in rows.zip(transpose(words)) {
            let mut values = [0.0; TILE];
            let words_of = <[u32]>::mut_from_bytes(values.as_mut_bytes()).unwrap_or_default();
            put(words_of, 0, words);
            let to = &mut to[col..nr.min(col + TILE)];
            to.copy_from_slice(&values[..to.len()]);
        }
    }
}
