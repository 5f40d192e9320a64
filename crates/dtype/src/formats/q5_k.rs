//! `Q5_K`: super-blocks of 256 five-bit quants in 8 groups of 32.
//!
//! ```text
//! offset  bytes  field
//!      0      2  d       f16, scale of the group scales
//!      2      2  dmin    f16, scale of the group minimums
//!      4     12  scales  8 six-bit scales and 8 six-bit minimums, packed as in Q4_K
//!     16     32  qh      byte i, bit g is bit 4 of element i of group g
//!     48    128  qs      byte 32*p + i: low nibble is element i of group 2p,
//!                        high nibble is element i of group 2p + 1
//! ```
//!
//! Element `i` of group `g` is `d * scale(g) * q - dmin * min(g)`.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BlockFormat, q4_k};
use crate::encode::search::{Candidates, Score};
use crate::scalar::f16_to_f32;

/// One super-block of 256 elements. See the module for the layout.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scale of the group scales, as f16 bits.
    pub d: U16,
    /// Scale of the group minimums, as f16 bits.
    pub dmin: U16,
    /// Packed six-bit scales and minimums.
    pub scales: [u8; 12],
    /// Bit 4 of each quant.
    pub qh: [u8; 32],
    /// Low nibbles.
    pub qs: [u8; 128],
}

impl BlockQ5K {
    /// Returns the six-bit `(scale, minimum)` of group `g`, which must be below 8.
    #[inline]
    pub fn scale_min(&self, g: usize) -> (u8, u8) {
        q4_k::scale_min(&self.scales, g)
    }

    /// The quant of element `n`, from 0 to 31. `n` must be below 256.
    #[inline]
    pub fn quant(&self, n: usize) -> u8 {
        let low = self.qs[32 * (n / 64) + n % 32] >> (4 * (n / 32 % 2)) & 0x0f;
        low | (self.qh[n % 32] >> (n / 32) & 1) << 4
    }
}

/// The `Q5_K` format.
#[derive(Debug)]
pub enum Q5K {}

impl BlockFormat for Q5K {
    type Block = BlockQ5K;
    const ELEMS: usize = 256;

    fn decode(block: &BlockQ5K, out: &mut [f32]) {
        let (d, dmin) = (f16_to_f32(block.d.get()), f16_to_f32(block.dmin.get()));
        for (n, out) in out.iter_mut().enumerate() {
            let (scale, min) = block.scale_min(n / 32);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            *out = scale * f32::from(block.quant(n)) - min;
        }
    }

    fn encode(src: &[f32]) -> Option<BlockQ5K> {
        let candidates = Candidates { most: 31, first: -0.5, steps: 15, score: Score::Squared };
        let (d, dmin, scales, quants) = q4_k::encode_groups(src, candidates)?;
        let qh = std::array::from_fn(|i| {
            (0..8).fold(0, |byte, g| byte | (quants[32 * g + i] >> 4) << g)
        });
        Some(BlockQ5K { d, dmin, scales, qh, qs: q4_k::pack_pairs_of_groups(&quants) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_matches_hand_computed_values() {
        // d = 0.5, dmin = 0.25
        let (d, dmin) = (U16::new(0x3800), U16::new(0x3400));
        let mut block = BlockQ5K { d, dmin, scales: [0; 12], qh: [0; 32], qs: [0; 128] };
        block.scales[3] = 2; // group 3: scale 2
        block.scales[7] = 4; // group 3: minimum 4
        block.qs[32 + 5] = 0x70; // group 3 element 5 has low nibble 7,
        block.qh[5] = 0b0000_1000; // and bit 4 set
        let mut out = [f32::NAN; 256];
        Q5K::decode(&block, &mut out);
        assert_eq!((out[96], out[96 + 5]), (-1.0, 22.0));
        assert_eq!(out.iter().filter(|&&x| x == -1.0).count(), 31);
        assert_eq!(out.iter().filter(|&&x| x == 0.0).count(), 224);
    }
}
