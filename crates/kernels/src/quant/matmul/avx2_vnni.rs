#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, __m256i, _mm256_dpbusd_avx_epi32, _mm256_set1_epi32, _mm256_setzero_ps,
    _mm256_setzero_si256,
};

use super::avx2::{add_group, bias, headers, scales, store, unpack};
use super::{Out, Records};
use crate::isa::x86::prefetch_ahead;
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::XBlock;

/// As the AVX2 version, with one instruction for the products of a quad.
#[target_feature(enable = "avx2,f16c,fma,avxvnni")]
pub(super) fn matmul<F: Packed>(
    panels: &[u8],
    x: Records<'_>,
    out: &mut Out<'_, '_>,
    scratch: &mut [XBlock],
) {
    let mut row = 0;
    while row < out.rows {
        row += match out.rows - row {
            1 => tiles::<F, 1>(panels, x, row, out, scratch),
            2 => tiles::<F, 2>(panels, x, row, out, scratch),
            3 | 4 => tiles::<F, 4>(panels, x, row, out, scratch),
            5 | 6 => tiles::<F, 6>(panels, x, row, out, scratch),
            7 | 8 => tiles::<F, 8>(panels, x, row, out, scratch),
            _ => tiles::<F, 12>(panels, x, row, out, scratch),
        };
    }
}

/// `MR` rows from `row` on with every panel. Returns `MR`.
#[target_feature(enable = "avx2,f16c,fma,avxvnni")]
fn tiles<F: Packed, const MR: usize>(
    panels: &[u8],
    x: Records<'_>,
    row: usize,
    out: &mut Out<'_, '_>,
    scratch: &mut [XBlock],
) -> usize {
    let x = x.interleaved::<MR>(row, scratch);
    for (p, panel) in panels.chunks_exact(out.panel_bytes).enumerate() {
        let mut results = [[0.0; PANEL_COLS]; MR];
        tile::<F, MR>(panel, 0, x, &mut results);
        tile::<F, MR>(panel, 1, x, &mut results);
        out.put(p, row, &results);
    }
    MR
}

/// Columns `8 * side` to `8 * side + 7` of `MR` rows.
#[target_feature(enable = "avx2,f16c,fma,avxvnni")]
fn tile<F: Packed, const MR: usize>(
    panel: &[u8],
    side: usize,
    x: &[[XBlock; MR]],
    out: &mut [[f32; PANEL_COLS]],
) {
    let mut sums = [_mm256_setzero_ps(); MR];
    for (u, unit) in panel.chunks_exact(F::UNIT_BYTES).enumerate() {
        let (d, m) = headers::<F>(unit, side);
        for b in 0..F::ELEMS / 32 {
            let planes = &unit[F::QUANTS_AT + b * F::QUANT_BYTES + 32 * side..];
            if side == 0 {
                prefetch_ahead(&planes[..F::QUANT_BYTES]);
            }
            let x = &x[u * (F::ELEMS / 32) + b];
            if F::GROUP == 32 {
                group::<F, MR, 0>(planes, x, scales::<F>(unit, b, side, d, m), &mut sums);
            } else {
                let (first, second) = (2 * b, 2 * b + 1);
                group::<F, MR, 0>(planes, x, scales::<F>(unit, first, side, d, m), &mut sums);
                group::<F, MR, 1>(planes, x, scales::<F>(unit, second, side, d, m), &mut sums);
            }
        }
    }
    store(side, sums, out);
}

/// Adds one group: 32 k, or half `H` of them.
#[target_feature(enable = "avx2,fma,avxvnni")]
#[inline]
fn group<F: Packed, const MR: usize, const H: usize>(
    planes: &[u8],
    x: &[XBlock; MR],
    scales: (__m256, __m256),
    sums: &mut [__m256; MR],
) {
    let mut acc = [_mm256_setzero_si256(); MR];
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc = bias::<F>(x, H);
    }
    pair::<F, MR, 0>(planes, x, H, &mut acc);
    pair::<F, MR, 1>(planes, x, H, &mut acc);
    if F::GROUP == 32 {
        pair::<F, MR, 2>(planes, x, H, &mut acc);
        pair::<F, MR, 3>(planes, x, H, &mut acc);
    }
    add_group::<F, MR>(scales, x, H, acc, sums);
}

/// Adds the products of quads `2 * P` and `2 * P + 1` of a group.
#[target_feature(enable = "avx2,avxvnni")]
#[inline]
fn pair<F: Packed, const MR: usize, const P: usize>(
    planes: &[u8],
    x: &[XBlock; MR],
    half: usize,
    acc: &mut [__m256i; MR],
) {
    let (first, second) = unpack::<F, P>(planes, half);
    let at = 4 * half + 2 * P;
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc = _mm256_dpbusd_avx_epi32(*acc, first, _mm256_set1_epi32(x[at].cast_signed()));
    }
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc = _mm256_dpbusd_avx_epi32(*acc, second, _mm256_set1_epi32(x[at + 1].cast_signed()));
    }
}
