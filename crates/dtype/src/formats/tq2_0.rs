//! `TQ2_0`: super-blocks of 256 ternary quants.
//!
//! ```text
//! offset  bytes  field
//!      0     64  qs  byte 32*(n/128) + n%32 holds element n at bits 2*(n%128/32)
//!     64      2  d   f16, scale
//! ```
//!
//! An element is `d * (q - 1)`. An encoder writes `q` from 0 to 2; 3 decodes as `2 * d`.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BlockFormat;
use crate::encode;
use crate::scalar::f16_to_f32;

/// One super-block of 256 elements. See the module for the layout.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockTq2_0 {
    /// Two-bit quants.
    pub qs: [u8; 64],
    /// Scale, as f16 bits.
    pub d: U16,
}

impl BlockTq2_0 {
    /// The quant of element `n`, from 0 to 3. `n` must be below 256.
    #[inline]
    pub fn quant(&self, n: usize) -> u8 {
        self.qs[32 * (n / 128) + n % 32] >> (2 * (n % 128 / 32)) & 3
    }
}

/// The `TQ2_0` format.
#[derive(Debug)]
pub enum Tq2_0 {}

impl BlockFormat for Tq2_0 {
    type Block = BlockTq2_0;
    const ELEMS: usize = 256;

    fn decode(block: &BlockTq2_0, out: &mut [f32]) {
        let d = f16_to_f32(block.d.get());
        for (n, out) in out.iter_mut().enumerate() {
            *out = d * (f32::from(block.quant(n)) - 1.0);
        }
    }

    fn encode(src: &[f32]) -> Option<BlockTq2_0> {
        let d = encode::largest_magnitude(src);
        let inverse = encode::inverse(d);
        // At least half of the largest magnitude is not zero.
        let quants = std::array::from_fn(|n| match src[n] * inverse {
            x if x >= 0.5 => 2,
            x if x <= -0.5 => 0,
            _ => 1,
        });
        Some(BlockTq2_0 { qs: encode::pack_pairs_of_bits(&quants), d: encode::scale_bits(d)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_matches_hand_computed_values() {
        let mut block = BlockTq2_0 { qs: [0b0101_0101; 64], d: U16::new(0x3800) }; // d = 0.5
        block.qs[1] = 0b1101_0100; // element 1 is 0 - 1, element 97 is 3 - 1
        block.qs[63] = 0b0110_0101; // element 128 + 64 + 31 = 223 is 2 - 1
        let mut out = [f32::NAN; 256];
        Tq2_0::decode(&block, &mut out);
        assert_eq!((out[1], out[97], out[223]), (-0.5, 1.0, 0.5));
        assert_eq!(out.iter().filter(|&&x| x == 0.0).count(), 253);
    }
}
