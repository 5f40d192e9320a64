#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm256_cvtepi32_ps, _mm256_dpbusd_avx_epi32,
    _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sra_epi32,
};

use super::avx2::{HALF, load_f16, scales, unpack};
use super::records;
use crate::isa::x86::{prefetch_ahead, store_f32x8};
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::{Bias, XBlock, word};

/// As the AVX2 version, with one instruction for the products of a quad.
#[target_feature(enable = "avx2,f16c,fma,avxvnni")]
pub(super) fn matmul<F: Packed>(panel: &[u8], x: &[XBlock], out: &mut [[f32; PANEL_COLS]]) {
    let rows = out.len();
    let mut row = 0;
    while rows - row >= 6 {
        halves::<F, 6>(panel, records(x, row, rows), &mut out[row..]);
        row += 6;
    }
    if rows - row >= 4 {
        halves::<F, 4>(panel, records(x, row, rows), &mut out[row..]);
        row += 4;
    }
    if rows - row >= 2 {
        halves::<F, 2>(panel, records(x, row, rows), &mut out[row..]);
        row += 2;
    }
    if rows - row >= 1 {
        halves::<F, 1>(panel, records(x, row, rows), &mut out[row..]);
    }
}

/// Both halves of a panel, one after the other: the sums of one fill the registers.
#[target_feature(enable = "avx2,f16c,fma,avxvnni")]
fn halves<F: Packed, const MR: usize>(
    panel: &[u8],
    x: [&[XBlock]; MR],
    out: &mut [[f32; PANEL_COLS]],
) {
    tile::<F, MR>(panel, 0, x, out);
    tile::<F, MR>(panel, 1, x, out);
}

/// Columns `8 * half` to `8 * half + 7` of `MR` rows.
#[target_feature(enable = "avx2,f16c,fma,avxvnni")]
fn tile<F: Packed, const MR: usize>(
    panel: &[u8],
    half: usize,
    x: [&[XBlock]; MR],
    out: &mut [[f32; PANEL_COLS]],
) {
    let mut sums = [_mm256_setzero_ps(); MR];
    for (u, unit) in panel.chunks_exact(F::UNIT_BYTES).enumerate() {
        let d = load_f16(unit, 2 * HALF * half);
        let m = if F::MIN {
            load_f16(unit, 2 * (PANEL_COLS + HALF * half))
        } else {
            _mm256_setzero_ps()
        };
        for g in 0..F::ELEMS / 32 {
            let planes = &unit[F::QUANTS_AT + g * F::QUANT_BYTES + 32 * half..];
            if MR < 4 && half == 0 {
                prefetch_ahead(&planes[..F::QUANT_BYTES]);
            }
            let block = u * (F::ELEMS / 32) + g;
            let x: [&XBlock; MR] = x.map(|x| &x[block]);
            let at = F::SUB_AT + g * (32 / F::GROUP) * F::SUB_BYTES + HALF * half;
            if F::GROUP == 32 {
                let mut acc = Acc::<MR>::start::<F>(&x, 0);
                acc.pair::<F, 0>(planes, &x);
                acc.pair::<F, 1>(planes, &x);
                acc.pair::<F, 2>(planes, &x);
                acc.pair::<F, 3>(planes, &x);
                acc.finish::<F>(scales::<F>(unit, at, d, m), &x, 0, &mut sums);
            } else {
                let mut acc = Acc::<MR>::start::<F>(&x, 1);
                acc.pair::<F, 0>(planes, &x);
                acc.pair::<F, 1>(planes, &x);
                acc.finish::<F>(scales::<F>(unit, at, d, m), &x, 1, &mut sums);
                let mut acc = Acc::<MR>::start::<F>(&x, 2);
                acc.pair::<F, 2>(planes, &x);
                acc.pair::<F, 3>(planes, &x);
                acc.finish::<F>(scales::<F>(unit, at + F::SUB_BYTES, d, m), &x, 2, &mut sums);
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        if let Some(out) = out[HALF * half..].first_chunk_mut() {
            store_f32x8(out, sum);
        }
    }
}

/// Exact sums of products of one group.
struct Acc<const MR: usize>([__m256i; MR]);

impl<const MR: usize> Acc<MR> {
    /// Takes the offset off in advance.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn start<F: Packed>(x: &[&XBlock; MR], part: usize) -> Self {
        let mut acc = [_mm256_setzero_si256(); MR];
        if F::OFFSET > 0 {
            let bias = Bias::new(F::OFFSET, part);
            let shift = _mm_cvtsi32_si128(bias.shift.cast_signed());
            for (acc, x) in acc.iter_mut().zip(x) {
                let start = _mm256_set1_epi32(x[bias.word].cast_signed());
                *acc = _mm256_sra_epi32(start, shift);
            }
        }
        Self(acc)
    }

    /// Adds the products of quads `2 * P` and `2 * P + 1`.
    #[target_feature(enable = "avx2,avxvnni")]
    #[inline]
    fn pair<F: Packed, const P: usize>(&mut self, planes: &[u8], x: &[&XBlock; MR]) {
        let (first, second) = unpack::<F, P>(planes);
        for (acc, x) in self.0.iter_mut().zip(x) {
            let x = _mm256_set1_epi32(x[2 * P].cast_signed());
            *acc = _mm256_dpbusd_avx_epi32(*acc, first, x);
        }
        for (acc, x) in self.0.iter_mut().zip(x) {
            let x = _mm256_set1_epi32(x[2 * P + 1].cast_signed());
            *acc = _mm256_dpbusd_avx_epi32(*acc, second, x);
        }
    }

    /// Adds the group to the sums.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn finish<F: Packed>(
        self,
        (scale, min): (__m256, __m256),
        x: &[&XBlock; MR],
        part: usize,
        sums: &mut [__m256; MR],
    ) {
        for ((sum, x), acc) in sums.iter_mut().zip(x).zip(self.0) {
            let scale = _mm256_mul_ps(scale, _mm256_set1_ps(f32::from_bits(x[word::SCALE])));
            *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc), scale, *sum);
            if F::MIN {
                let scaled_sum = f32::from_bits(x[word::SCALED_SUMS[part]]);
                *sum = _mm256_fnmadd_ps(min, _mm256_set1_ps(scaled_sum), *sum);
            }
        }
    }
}
