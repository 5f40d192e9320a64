//! `Q4_1`: blocks of 32 nibbles above a minimum.
//!
//! ```text
//! offset  bytes  field
//!      0      2  d   f16, scale
//!      2      2  m   f16, minimum
//!      4     16  qs  byte i: low nibble is element i, high nibble is element 16 + i
//! ```
//!
//! An element is `d * q + m`.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BlockFormat;
use crate::encode;
use crate::scalar::f16_to_f32;

/// One block of 32 elements. See the module for the layout.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale, as f16 bits.
    pub d: U16,
    /// Minimum, as f16 bits.
    pub m: U16,
    /// Nibbles.
    pub qs: [u8; 16],
}

/// The `Q4_1` format.
#[derive(Debug)]
pub enum Q4_1 {}

impl BlockFormat for Q4_1 {
    type Block = BlockQ4_1;
    const ELEMS: usize = 32;

    fn decode(block: &BlockQ4_1, out: &mut [f32]) {
        let (d, m) = (f16_to_f32(block.d.get()), f16_to_f32(block.m.get()));
        let (low, high) = out.split_at_mut(16);
        for (i, &q) in block.qs.iter().enumerate() {
            low[i] = d * f32::from(q & 0x0f) + m;
            high[i] = d * f32::from(q >> 4) + m;
        }
    }

    fn encode(src: &[f32]) -> Option<BlockQ4_1> {
        let (min, max) = encode::range(src);
        let d = (max - min) / 15.0;
        let inverse = encode::inverse(d);
        let quants = std::array::from_fn(|i| encode::truncated((src[i] - min) * inverse + 0.5, 15));
        Some(BlockQ4_1 {
            d: encode::scale_bits(d)?,
            m: encode::scale_bits(min)?,
            qs: encode::pack_nibbles(&quants),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_matches_hand_computed_values() {
        // d = 0.5, m = -2
        let mut block = BlockQ4_1 { d: U16::new(0x3800), m: U16::new(0xc000), qs: [0; 16] };
        block.qs[3] = 0xf4; // element 3 is 4, element 19 is 15
        let mut out = [f32::NAN; 32];
        Q4_1::decode(&block, &mut out);
        assert_eq!((out[3], out[19]), (0.0, 5.5));
        assert_eq!(out.iter().filter(|&&x| x == -2.0).count(), 30);
    }
}
