#![deny(unsafe_code)]

use super::Out;
use crate::quant::format::Packed;
use crate::quant::pack::{load_quad, load_scales};
use crate::quant::quantize::{Bias, XBlock, word};
use crate::quant::{PANEL_COLS, TILE_ROWS};

/// The specification: unpack 32 k at a time, then one row after the other.
pub(super) fn matmul<F: Packed>(panels: &[u8], x: &[XBlock], out: &mut Out<'_, '_>) {
    let record = x.len() / out.rows;
    for (p, panel) in panels.chunks_exact(out.panel_bytes).enumerate() {
        for (tile, x) in x.chunks(TILE_ROWS * record).enumerate() {
            let mut results = [[0.0; PANEL_COLS]; TILE_ROWS];
            let rows = x.len() / record;
            multiply::<F>(panel, x, &mut results[..rows]);
            out.put(p, tile * TILE_ROWS, &results[..rows]);
        }
    }
}

fn multiply<F: Packed>(panel: &[u8], x: &[XBlock], out: &mut [[f32; PANEL_COLS]]) {
    let record = x.len() / out.len();
    for (u, unit) in panel.chunks_exact(F::UNIT_BYTES).enumerate() {
        let planes = unit[F::QUANTS_AT..].chunks_exact(F::QUANT_BYTES);
        for (g, planes) in planes.enumerate() {
            let quads: [[u8; 64]; 8] = std::array::from_fn(|j| load_quad::<F>(planes, j));
            let block = u * (F::ELEMS / 32) + g;
            for half in 0..32 / F::GROUP {
                let scales = load_scales::<F>(unit, g * (32 / F::GROUP) + half);
                let quads = &quads[half * F::GROUP / 4..][..F::GROUP / 4];
                for (row, out) in x.chunks_exact(record).zip(out.iter_mut()) {
                    add_group::<F>(quads, half, scales, &row[block], out);
                }
            }
        }
    }
}

fn add_group<F: Packed>(
    quads: &[[u8; 64]],
    half: usize,
    (scales, mins): ([f32; PANEL_COLS], [f32; PANEL_COLS]),
    x: &XBlock,
    out: &mut [f32; PANEL_COLS],
) {
    let part = if F::GROUP == 32 { 0 } else { 1 + half };
    let first = half * F::GROUP / 4;
    let mut sums = [0; PANEL_COLS];
    if F::OFFSET > 0 {
        let bias = Bias::new(F::OFFSET, part);
        sums.fill(x[bias.word].cast_signed() >> bias.shift);
    }
    for (quad, x) in quads.iter().zip(&x[first..]) {
        let x = x.to_le_bytes().map(|x| i32::from(x.cast_signed()));
        for (sum, w) in sums.iter_mut().zip(quad.as_chunks::<4>().0) {
            *sum += (0..4).map(|i| i32::from(w[i]) * x[i]).sum::<i32>();
        }
    }
    let scale = f32::from_bits(x[word::SCALE]);
    let scaled_sum = f32::from_bits(x[word::SCALED_SUMS[part]]);
    for c in 0..PANEL_COLS {
        #[expect(clippy::cast_precision_loss, reason = "below 2^24: see the module")]
        let sum = sums[c] as f32;
        out[c] += scales[c] * scale * sum;
        if F::MIN {
            out[c] -= mins[c] * scaled_sum;
        }
    }
}
