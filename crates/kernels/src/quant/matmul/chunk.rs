#![deny(unsafe_code)]
//! A chunk of a panel taken apart: quants as bytes in quads of k, scales and minimums as f32.

use std::arch::x86_64::{_mm512_add_epi8, _mm512_set1_epi8, _mm512_setzero_ps};

use zerocopy::IntoBytes;

use super::avx512_vnni::{Scales, load_f16, scales, unpack};
use super::part;
use crate::isa::x86::{load_f32x16, store_f32x16, store_u8x64};
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::Bias;

/// Elements of k of a chunk, at most.
pub(super) const CHUNK_K: usize = 256;

/// A value for each column.
pub(super) type Row = [f32; PANEL_COLS];

const QUAD_WORDS: usize = CHUNK_K / 4 * 16;
const SCALE_WORDS: usize = CHUNK_K / 16 * 2 * PANEL_COLS;
/// Words of memory of a chunk.
pub(super) const CHUNK_WORDS: usize = QUAD_WORDS + SCALE_WORDS;

/// See the module.
pub(super) struct Chunk<'a> {
    /// Four k of 16 columns, eight of these for 32 k.
    pub(super) quads: &'a mut [[u8; 64]],
    /// Scales and minimums of each group.
    pub(super) scales: &'a mut [[Row; 2]],
}

impl<'a> Chunk<'a> {
    /// A chunk in [`CHUNK_WORDS`] words of any content, which start on a cache line.
    pub(super) fn new(words: &'a mut [f32]) -> Self {
        let (quads, scales) = words.split_at_mut(QUAD_WORDS);
        let scales = scales.as_chunks_mut::<PANEL_COLS>().0.as_chunks_mut().0;
        Self { quads: quads.as_mut_bytes().as_chunks_mut().0, scales }
    }

    /// Takes units of a panel apart, [`CHUNK_K`] elements at most. Quants are `SIGNED`, without an
    /// offset, or have the one for which [`Bias`] needs no shift.
    #[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl")]
    pub(super) fn unpack<F: Packed, const SIGNED: bool>(&mut self, units: &[u8]) {
        let (per_unit, groups) = (F::ELEMS / 32, F::ELEMS / F::GROUP);
        let scales_of = self.scales.chunks_mut(groups);
        let quads_of = self.quads.chunks_mut(8 * per_unit);
        let units = units.chunks_exact(F::UNIT_BYTES);
        for ((unit, quads_to), scales_to) in units.zip(quads_of).zip(scales_of) {
            let d = load_f16(unit, 0);
            let m = if F::MIN { load_f16(unit, 2 * PANEL_COLS) } else { _mm512_setzero_ps() };
            for (g, [scale_to, min_to]) in scales_to.iter_mut().enumerate() {
                let (scale, min) = scales::<F>(unit, g, d, m);
                store_f32x16(scale_to, scale);
                store_f32x16(min_to, min);
            }
            let planes = unit[F::QUANTS_AT..].chunks_exact(F::QUANT_BYTES);
            for (planes, to) in planes.zip(quads_to.chunks_exact_mut(8)) {
                pair::<F, SIGNED, 0>(planes, to);
                pair::<F, SIGNED, 1>(planes, &mut to[2..]);
                pair::<F, SIGNED, 2>(planes, &mut to[4..]);
                pair::<F, SIGNED, 3>(planes, &mut to[6..]);
            }
        }
    }
}

/// Quads `2 * P` and `2 * P + 1`.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn pair<F: Packed, const SIGNED: bool, const P: usize>(planes: &[u8], to: &mut [[u8; 64]]) {
    let (first, second) = unpack::<F, P>(planes, 0);
    let wanted = match F::OFFSET {
        0 => 0,
        _ if SIGNED => 0,
        offset => Bias::kept_offset(offset, part::<F>(0)),
    };
    let more = wanted.wrapping_sub(F::OFFSET);
    for (to, quad) in to.iter_mut().zip([first, second]) {
        let quad = match more {
            0 => quad,
            _ => _mm512_add_epi8(quad, _mm512_set1_epi8(more.cast_signed())),
        };
        store_u8x64(to, quad);
    }
}

/// The scales and minimums of a group.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load([scales, mins]: &[Row; 2]) -> Scales {
    (load_f32x16(scales), load_f32x16(mins))
}
