//! `Q5_0`: blocks of 32 five-bit quants around 16.
//!
//! ```text
//! offset  bytes  field
//!      0      2  d   f16, scale
//!      2      4  qh  bit i is bit 4 of element i
//!      6     16  qs  byte i: low nibble is element i, high nibble is element 16 + i
//! ```
//!
//! An element is `d * (q - 16)`.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BlockFormat;
use crate::encode;
use crate::scalar::f16_to_f32;

/// One block of 32 elements. See the module for the layout.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Scale, as f16 bits.
    pub d: U16,
    /// Bit 4 of each quant.
    pub qh: U32,
    /// Low nibbles.
    pub qs: [u8; 16],
}

impl BlockQ5_0 {
    /// The quant of element `i`, from 0 to 31. `i` must be below 32.
    #[inline]
    pub fn quant(&self, i: usize) -> u8 {
        let low = if i < 16 { self.qs[i] & 0x0f } else { self.qs[i - 16] >> 4 };
        low | (u8::from(self.qh.get() >> i & 1 == 1) << 4)
    }
}

/// The `Q5_0` format.
#[derive(Debug)]
pub enum Q5_0 {}

impl BlockFormat for Q5_0 {
    type Block = BlockQ5_0;
    const ELEMS: usize = 32;

    fn decode(block: &BlockQ5_0, out: &mut [f32]) {
        let d = f16_to_f32(block.d.get());
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * (f32::from(block.quant(i)) - 16.0);
        }
    }

    fn encode(src: &[f32]) -> Option<BlockQ5_0> {
        // The extreme becomes -16, which has no positive counterpart.
        let d = encode::extreme(src) / -16.0;
        let inverse = encode::inverse(d);
        let quants = std::array::from_fn(|i| encode::truncated(src[i] * inverse + 16.5, 31));
        Some(BlockQ5_0 {
            d: encode::scale_bits(d)?,
            qh: U32::new(encode::pack_fifth_bits(&quants)),
            qs: encode::pack_nibbles(&quants),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_matches_hand_computed_values() {
        let (d, qh) = (U16::new(0x3800), U32::new(1 << 31 | 1)); // d = 0.5
        let mut block = BlockQ5_0 { d, qh, qs: [0; 16] };
        block.qs[0] = 0x23; // element 0 is 16 + 3, element 16 is 2
        block.qs[15] = 0xf1; // element 15 is 1, element 31 is 16 + 15
        let mut out = [f32::NAN; 32];
        Q5_0::decode(&block, &mut out);
        assert_eq!((out[0], out[16], out[15], out[31]), (1.5, -7.0, -7.5, 7.5));
        assert_eq!(out.iter().filter(|&&x| x == -8.0).count(), 28);
    }

    /// Every quant in every place: no shift, mask or index is off by one.
    #[test]
    fn quant_inverts_the_documented_packing() {
        for q in 0..32u8 {
            for i in 0..32usize {
                let mut qs = [0; 16];
                qs[i % 16] = if i < 16 { q & 15 } else { q << 4 };
                let qh = U32::new(u32::from(q >> 4) << i);
                let block = BlockQ5_0 { d: U16::ZERO, qh, qs };
                for j in 0..32 {
                    assert_eq!(block.quant(j), if i == j { q } else { 0 }, "{q} at {i}, {j}");
                }
            }
        }
    }
}
