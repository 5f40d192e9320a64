//! `Q4_0`: blocks of 32 nibbles around 8.
//!
//! ```text
//! offset  bytes  field
//!      0      2  d   f16, scale
//!      2     16  qs  byte i: low nibble is element i, high nibble is element 16 + i
//! ```
//!
//! An element is `d * (q - 8)`.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BlockFormat;
use crate::encode;
use crate::scalar::f16_to_f32;

/// One block of 32 elements. See the module for the layout.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale, as f16 bits.
    pub d: U16,
    /// Nibbles.
    pub qs: [u8; 16],
}

/// The `Q4_0` format.
#[derive(Debug)]
pub enum Q4_0 {}

impl BlockFormat for Q4_0 {
    type Block = BlockQ4_0;
    const ELEMS: usize = 32;

    fn decode(block: &BlockQ4_0, out: &mut [f32]) {
        let d = f16_to_f32(block.d.get());
        let (low, high) = out.split_at_mut(16);
        for (i, &q) in block.qs.iter().enumerate() {
            low[i] = d * (f32::from(q & 0x0f) - 8.0);
            high[i] = d * (f32::from(q >> 4) - 8.0);
        }
    }

    fn encode(src: &[f32]) -> Option<BlockQ4_0> {
        // The extreme becomes -8, which has no positive counterpart.
        let d = encode::extreme(src) / -8.0;
        let inverse = encode::inverse(d);
        let quants = std::array::from_fn(|i| encode::truncated(src[i] * inverse + 8.5, 15));
        Some(BlockQ4_0 { d: encode::scale_bits(d)?, qs: encode::pack_nibbles(&quants) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_matches_hand_computed_values() {
        let mut block = BlockQ4_0 { d: U16::new(0x3800), qs: [0x88; 16] }; // d = 0.5
        block.qs[0] = 0xf0; // element 0 is 0 - 8, element 16 is 15 - 8
        block.qs[15] = 0x19; // element 15 is 9 - 8, element 31 is 1 - 8
        let mut out = [f32::NAN; 32];
        Q4_0::decode(&block, &mut out);
        assert_eq!((out[0], out[16], out[15], out[31]), (-4.0, 3.5, 0.5, -3.5));
        assert_eq!(out.iter().filter(|&&x| x == 0.0).count(), 28);
    }
}
