#![deny(unsafe_code)]

use super::{BLOCK, XBlock, finish, scale_and_factor};

pub(super) fn quantize<'a>(x: &[[f32; BLOCK]], out: impl Iterator<Item = &'a mut XBlock>) {
    for (x, out) in x.iter().zip(out) {
        let max_bits = x.iter().map(|x| x.abs().to_bits()).fold(0, u32::max);
        let (scale, factor) = scale_and_factor(max_bits);
        let mut sums = [0; 2];
        for (j, quad) in x.as_chunks::<4>().0.iter().enumerate() {
            let quad = quad.map(|x| quant(x, factor));
            sums[j / 4] += quad.iter().map(|&q| i32::from(q)).sum::<i32>();
            out[j] = u32::from_le_bytes(quad.map(i8::cast_unsigned));
        }
        finish(out, scale, sums);
    }
}

/// Nearest integer, ties to even. A factor of 0 marks a block without quants: its elements may be
/// NaN.
fn quant(x: f32, factor: f32) -> i8 {
    if factor == 0.0 {
        return 0;
    }
    #[expect(clippy::cast_possible_truncation, reason = "|x * factor| rounds to at most 127")]
    let quant = (x * factor).round_ties_even() as i8;
    quant
}
