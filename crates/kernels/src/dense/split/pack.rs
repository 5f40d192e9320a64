#![deny(unsafe_code)]
//! Values to parts, activations to tiles.
//!
//! ```text
//! block of 16 rows = steps of 32 k: a tile of high parts, a tile of low parts
//! tile             = 16 lines of 2 consecutive k; word c of a line holds those of row c
//! ```

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_castsi512_ps, _mm512_permutex2var_ps,
    _mm512_set_epi32, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_shuffle_i32x4,
    _mm512_slli_epi32, _mm512_sub_ps, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use crate::isa::amx_ops::{B_STEP, B_TILE, TILE};
use crate::isa::x86::{load_f32x16, store_u32x16};
use crate::isa::x86_bf16::to_bf16;

/// Packs up to 16 rows.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512bf16")]
pub(super) fn pack(x: &[f32], k: usize, out: &mut [u32]) {
    for (step, out) in out.chunks_exact_mut(B_STEP).enumerate() {
        let (mut high, mut low) = ([_mm512_setzero_si512(); TILE], [_mm512_setzero_si512(); TILE]);
        for (r, x) in x.chunks_exact(k).enumerate().take(TILE) {
            let [first, second] = load(&x[32 * step..]);
            high[r] = to_bf16(second, first);
            let [first_high, second_high] = in_order(high[r]);
            low[r] = to_bf16(_mm512_sub_ps(second, second_high), _mm512_sub_ps(first, first_high));
        }
        let (high_out, low_out) = out.split_at_mut(B_TILE);
        store(transpose(high), high_out);
        store(transpose(low), low_out);
    }
}

/// Up to 32 values; what is missing is zero.
#[target_feature(enable = "avx512f")]
#[inline]
fn load(x: &[f32]) -> [__m512; 2] {
    let mut padded = [0.0; 32];
    let x: &[f32; 32] = match x.first_chunk() {
        Some(x) => x,
        None => {
            padded[..x.len()].copy_from_slice(x);
            &padded
        }
    };
    let (halves, _) = x.as_chunks();
    [load_f32x16(&halves[0]), load_f32x16(&halves[1])]
}

/// 32 bf16 as f32, in their order.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn in_order(pairs: __m512i) -> [__m512; 2] {
    let high_halves = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
    let odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, high_halves));
    // Even and odd ones in turn; 16 and more are of the second operand.
    let first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    let second = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    [_mm512_permutex2var_ps(even, first, odd), _mm512_permutex2var_ps(even, second, odd)]
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(rows: [__m512i; TILE], out: &mut [u32]) {
    for (row, out) in rows.into_iter().zip(out.as_chunks_mut::<TILE>().0) {
        store_u32x16(out, row);
    }
}

/// Rows of words become columns.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transpose(rows: [__m512i; TILE]) -> [__m512i; TILE] {
    let zero = _mm512_setzero_si512();
    let mut pairs = [zero; TILE];
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // Of each quarter of a register, word `i` of four rows.
    let mut fours = [zero; TILE];
    for i in 0..4 {
        let [a, b, c, d] = [pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]];
        fours[4 * i] = _mm512_unpacklo_epi64(a, c);
        fours[4 * i + 1] = _mm512_unpackhi_epi64(a, c);
        fours[4 * i + 2] = _mm512_unpacklo_epi64(b, d);
        fours[4 * i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    let mut columns = [zero; TILE];
    for i in 0..4 {
        let even_low = _mm512_shuffle_i32x4::<0x88>(fours[i], fours[4 + i]);
        let odd_low = _mm512_shuffle_i32x4::<0xdd>(fours[i], fours[4 + i]);
        let even_high = _mm512_shuffle_i32x4::<0x88>(fours[8 + i], fours[12 + i]);
        let odd_high = _mm512_shuffle_i32x4::<0xdd>(fours[8 + i], fours[12 + i]);
        columns[i] = _mm512_shuffle_i32x4::<0x88>(even_low, even_high);
        columns[8 + i] = _mm512_shuffle_i32x4::<0xdd>(even_low, even_high);
        columns[4 + i] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
        columns[12 + i] = _mm512_shuffle_i32x4::<0xdd>(odd_low, odd_high);
    }
    columns
}
