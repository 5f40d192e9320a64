//! `Q2_K`: super-blocks of 256 two-bit quants in 16 groups of 16.
//!
//! ```text
//! offset  bytes  field
//!      0     16  scales  byte g: low nibble is the scale of group g, high nibble its minimum
//!     16     64  qs      byte 32*(n/128) + n%32 holds element n at bits 2*(n%128/32)
//!     80      2  d       f16, scale of the group scales
//!     82      2  dmin    f16, scale of the group minimums
//! ```
//!
//! Element `n`, of group `g = n / 16`, is `d * scale(g) * q - dmin * min(g)`.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BlockFormat;
use crate::encode;
use crate::encode::search::{self, Candidates, Score};
use crate::scalar::f16_to_f32;

/// One super-block of 256 elements. See the module for the layout.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockQ2K {
    /// Packed four-bit scales and minimums.
    pub scales: [u8; 16],
    /// Two-bit quants.
    pub qs: [u8; 64],
    /// Scale of the group scales, as f16 bits.
    pub d: U16,
    /// Scale of the group minimums, as f16 bits.
    pub dmin: U16,
}

impl BlockQ2K {
    /// The four-bit `(scale, minimum)` of group `g`, which must be below 16.
    #[inline]
    pub fn scale_min(&self, g: usize) -> (u8, u8) {
        (self.scales[g] & 0x0f, self.scales[g] >> 4)
    }

    /// The quant of element `n`, from 0 to 3. `n` must be below 256.
    #[inline]
    pub fn quant(&self, n: usize) -> u8 {
        self.qs[32 * (n / 128) + n % 32] >> (2 * (n % 128 / 32)) & 3
    }
}

/// The `Q2_K` format.
#[derive(Debug)]
pub enum Q2K {}

impl BlockFormat for Q2K {
    type Block = BlockQ2K;
    const ELEMS: usize = 256;

    fn decode(block: &BlockQ2K, out: &mut [f32]) {
        let (d, dmin) = (f16_to_f32(block.d.get()), f16_to_f32(block.dmin.get()));
        for (n, out) in out.iter_mut().enumerate() {
            let (scale, min) = block.scale_min(n / 16);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            *out = scale * f32::from(block.quant(n)) - min;
        }
    }

    fn encode(src: &[f32]) -> Option<BlockQ2K> {
        const CANDIDATES: Candidates =
            Candidates { most: 3, first: -0.5, steps: 15, score: Score::Absolute };
        let groups = src.as_chunks::<16>().0;
        let (mut scales, mut offsets, mut quants) = ([0.0; 16], [0.0; 16], [0; 256]);
        for (g, x) in groups.iter().enumerate() {
            let found = search::affine(x, &x.map(f32::abs), CANDIDATES);
            (scales[g], offsets[g]) = (found.scale, found.offset);
            quants[16 * g..][..16].copy_from_slice(&found.quants);
        }
        let (d, scales) = encode::scales(&scales, 15)?;
        let (dmin, mins) = encode::scales(&offsets, 15)?;
        for (g, x) in groups.iter().enumerate() {
            let scale = f16_to_f32(d.get()) * f32::from(scales[g]);
            let offset = f16_to_f32(dmin.get()) * f32::from(mins[g]);
            search::requantize(x, scale, offset, (0, 3), &mut quants[16 * g..][..16]);
        }
        let scales = std::array::from_fn(|g| scales[g] | mins[g] << 4);
        Some(BlockQ2K { scales, qs: encode::pack_pairs_of_bits(&quants), d, dmin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_matches_hand_computed_values() {
        // d = 0.5, dmin = 0.25
        let (d, dmin) = (U16::new(0x3800), U16::new(0x3400));
        let mut block = BlockQ2K { scales: [0; 16], qs: [0; 64], d, dmin };
        block.scales[3] = 0x42; // elements 48 to 63: scale 2, minimum 4
        block.scales[15] = 0x0f; // elements 240 to 255: scale 15
        block.qs[17] = 0b0000_1100; // element 32 + 17 is 3
        block.qs[63] = 0b1000_0000; // element 255 is 2
        let mut out = [f32::NAN; 256];
        Q2K::decode(&block, &mut out);
        assert_eq!((out[48], out[49], out[255]), (-1.0, 2.0, 15.0));
        assert_eq!(out.iter().filter(|&&x| x == -1.0).count(), 15);
        assert_eq!(out.iter().filter(|&&x| x == 0.0).count(), 239);
    }
}
