//! `Q6_K`: super-blocks of 256 six-bit quants in 16 groups of 16.
//!
//! ```text
//! offset  bytes  field
//!      0    128  ql      byte 64*(n/128) + n%64: low nibble of element n where n%128 < 64,
//!                        high nibble where n%128 >= 64
//!    128     64  qh      byte 32*(n/128) + n%32 holds bits 4 and 5 of element n
//!                        at bits 2*(n%128/32)
//!    192     16  scales  signed byte g is the scale of group g
//!    208      2  d       f16, scale of the group scales
//! ```
//!
//! Element `n`, of group `g = n / 16`, is `d * scale(g) * (q - 32)`.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BlockFormat;
use crate::encode;
use crate::encode::search;
use crate::scalar::f16_to_f32;

/// One super-block of 256 elements. See the module for the layout.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockQ6K {
    /// Low four bits of each quant.
    pub ql: [u8; 128],
    /// High two bits of each quant.
    pub qh: [u8; 64],
    /// Group scales.
    pub scales: [i8; 16],
    /// Scale of the group scales, as f16 bits.
    pub d: U16,
}

impl BlockQ6K {
    /// The quant of element `n`, from 0 to 63. `n` must be below 256.
    #[inline]
    pub fn quant(&self, n: usize) -> u8 {
        let low = self.ql[64 * (n / 128) + n % 64] >> (4 * (n % 128 / 64)) & 0x0f;
        let high = self.qh[32 * (n / 128) + n % 32] >> (2 * (n % 128 / 32)) & 3;
        low | high << 4
    }
}

/// The `Q6_K` format.
#[derive(Debug)]
pub enum Q6K {}

impl BlockFormat for Q6K {
    type Block = BlockQ6K;
    const ELEMS: usize = 256;

    fn decode(block: &BlockQ6K, out: &mut [f32]) {
        let d = f16_to_f32(block.d.get());
        for (n, out) in out.iter_mut().enumerate() {
            let scale = d * f32::from(block.scales[n / 16]);
            *out = scale * (f32::from(block.quant(n)) - 32.0);
        }
    }

    fn encode(src: &[f32]) -> Option<BlockQ6K> {
        let groups = src.as_chunks::<16>().0;
        let (mut reals, mut quants) = ([0.0; 16], [0; 256]);
        for (g, x) in groups.iter().enumerate() {
            let found = search::symmetric_grid(x, 32);
            reals[g] = found.scale;
            quants[16 * g..][..16].copy_from_slice(&found.quants);
        }
        let (d, scales) = encode::signed_scales(&reals, 128, 127)?;
        if encode::largest_magnitude(&reals) < search::ZERO_GROUP {
            return Some(BlockQ6K { ql: [0; 128], qh: [0; 64], scales: [0; 16], d: U16::ZERO });
        }
        for (g, x) in groups.iter().enumerate() {
            let scale = f16_to_f32(d.get()) * f32::from(scales[g]);
            search::requantize(x, scale, 0.0, (-32, 31), &mut quants[16 * g..][..16]);
        }
        let ql = std::array::from_fn(|at| {
            let first = 128 * (at / 64) + at % 64;
            quants[first] & 0x0f | quants[first + 64] << 4
        });
        let qh = encode::pack_pairs_of_bits(&quants.map(|q| q >> 4));
        Some(BlockQ6K { ql, qh, scales, d })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_matches_hand_computed_values() {
        let d = U16::new(0x3800); // 0.5
        let mut block = BlockQ6K { ql: [0; 128], qh: [0; 64], scales: [0; 16], d };
        block.scales[0] = -128; // elements 0 to 15
        block.scales[13] = 3; // elements 208 to 223
        block.ql[0] = 0x01; // element 0 has low nibble 1,
        block.qh[0] = 0b0000_0011; // and high bits 3: 49 - 32
        block.ql[64 + 16] = 0xf0; // element 128 + 64 + 16 = 208 has low nibble 15,
        block.qh[32 + 16] = 0b0010_0000; // and high bits 2: 47 - 32
        let mut out = [f32::NAN; 256];
        Q6K::decode(&block, &mut out);
        assert_eq!((out[0], out[1], out[208], out[209]), (-1088.0, 2048.0, 22.5, -48.0));
        assert_eq!(out.iter().filter(|&&x| x == 2048.0).count(), 15);
        assert_eq!(out.iter().filter(|&&x| x == -48.0).count(), 15);
        assert_eq!(out.iter().filter(|&&x| x == 0.0).count(), 224);
    }
}
