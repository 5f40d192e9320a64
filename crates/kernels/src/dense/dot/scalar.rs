#![deny(unsafe_code)]

use super::{Elem, Product};

/// Lanes of a sum: what a baseline CPU keeps in registers.
const LANES: usize = 8;

pub(super) fn matmul<E: Elem>(product: Product<'_>, out: &mut [f32]) {
    let Product { w, k, x } = product;
    let rows = w.chunks_exact(k * E::BYTES);
    for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(rows.len())) {
        for (w, out) in rows.clone().zip(out) {
            *out = dot::<E>(w, x);
        }
    }
}

fn dot<E: Elem>(w: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let mut add = |w: &[u8], x: &[f32]| {
        for (lane, (w, x)) in lanes.iter_mut().zip(w.chunks_exact(E::BYTES).zip(x)) {
            *lane += E::decode(w) * x;
        }
    };
    for (w, x) in w.chunks(LANES * E::BYTES).zip(x.chunks(LANES)) {
        add(w, x);
    }
    lanes.iter().sum()
}

pub(super) fn decode<E: Elem>(raw: &[u8], out: &mut [f32]) {
    for (raw, out) in raw.chunks_exact(E::BYTES).zip(out) {
        *out = E::decode(raw);
    }
}
