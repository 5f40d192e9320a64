#![deny(unsafe_code)]

use super::Pairing;

#[inline(always)]
pub(super) fn rotate(x: &[f32], cos: &[f32], sin: &[f32], pairing: Pairing, out: &mut [f32]) {
    let half = cos.len();
    let (x, x_rest) = x.split_at(2 * half);
    let (out, out_rest) = out.split_at_mut(2 * half);
    out_rest.copy_from_slice(x_rest);
    match pairing {
        Pairing::Interleaved => {
            let (x, _) = x.as_chunks::<2>();
            let (out, _) = out.as_chunks_mut::<2>();
            for (((out, x), &cos), &sin) in out.iter_mut().zip(x).zip(cos).zip(sin) {
                *out = turn(x[0], x[1], cos, sin);
            }
        }
        Pairing::Halves => {
            let (xa, xb) = x.split_at(half);
            let (outa, outb) = out.split_at_mut(half);
            let pairs = outa.iter_mut().zip(outb).zip(xa.iter().zip(xb));
            for (((outa, outb), (&a, &b)), (&cos, &sin)) in pairs.zip(cos.iter().zip(sin)) {
                [*outa, *outb] = turn(a, b, cos, sin);
            }
        }
    }
}

#[inline(always)]
fn turn(a: f32, b: f32, cos: f32, sin: f32) -> [f32; 2] {
    [a * cos - b * sin, a * sin + b * cos]
}
