//! `Q3_K`: super-blocks of 256 three-bit quants in 16 groups of 16.
//!
//! ```text
//! offset  bytes  field
//!      0     32  hmask   byte n%32, bit n/32 is bit 2 of element n
//!     32     64  qs      byte 32*(n/128) + n%32 holds the low bits of element n at 2*(n%128/32)
//!     96     12  scales  16 six-bit scales, packed:
//!                        byte g%8, nibble g/8 holds the low four bits of group g,
//!                        byte 8 + g%4, bits 2*(g/4) hold its high two bits
//!    108      2  d       f16, scale of the group scales
//! ```
//!
//! Element `n`, of group `g = n / 16`, is `d * (scale(g) - 32) * (q - 4)`.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BlockFormat;
use crate::encode;
use crate::encode::search;
use crate::scalar::f16_to_f32;

/// One super-block of 256 elements. See the module for the layout.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockQ3K {
    /// Bit 2 of each quant.
    pub hmask: [u8; 32],
    /// Low two bits of each quant.
    pub qs: [u8; 64],
    /// Packed six-bit scales.
    pub scales: [u8; 12],
    /// Scale of the group scales, as f16 bits.
    pub d: U16,
}

impl BlockQ3K {
    /// The scale of group `g`, from -32 to 31. `g` must be below 16.
    #[inline]
    pub fn scale(&self, g: usize) -> i8 {
        let low = self.scales[g % 8] >> (4 * (g / 8)) & 0x0f;
        let high = self.scales[8 + g % 4] >> (2 * (g / 4)) & 3;
        (low | (high << 4)).cast_signed() - 32
    }

    /// The quant of element `n`, from 0 to 7. `n` must be below 256.
    #[inline]
    pub fn quant(&self, n: usize) -> u8 {
        let low = self.qs[32 * (n / 128) + n % 32] >> (2 * (n % 128 / 32)) & 3;
        low | (self.hmask[n % 32] >> (n / 32) & 1) << 2
    }
}

/// Inverts [`BlockQ3K::scale`].
fn pack_scales(scales: &[i8; 16]) -> [u8; 12] {
    let biased = scales.map(|scale| (scale + 32).cast_unsigned());
    std::array::from_fn(|at| match at {
        0..8 => biased[at] & 0x0f | (biased[at + 8] & 0x0f) << 4,
        _ => (0..4).fold(0, |byte, k| byte | biased[at - 8 + 4 * k] >> 4 << (2 * k)),
    })
}

/// The `Q3_K` format.
#[derive(Debug)]
pub enum Q3K {}

impl BlockFormat for Q3K {
    type Block = BlockQ3K;
    const ELEMS: usize = 256;

    fn decode(block: &BlockQ3K, out: &mut [f32]) {
        let d = f16_to_f32(block.d.get());
        for (n, out) in out.iter_mut().enumerate() {
            let scale = d * f32::from(block.scale(n / 16));
            *out = scale * (f32::from(block.quant(n)) - 4.0);
        }
    }

    fn encode(src: &[f32]) -> Option<BlockQ3K> {
        let groups = src.as_chunks::<16>().0;
        let (mut reals, mut quants) = ([0.0; 16], [0; 256]);
        for (g, x) in groups.iter().enumerate() {
            let found = search::symmetric_descent(x, 4);
            reals[g] = found.scale;
            quants[16 * g..][..16].copy_from_slice(&found.quants);
        }
        let (d, scales) = encode::signed_scales(&reals, 32, 31)?;
        for (g, x) in groups.iter().enumerate() {
            let scale = f16_to_f32(d.get()) * f32::from(scales[g]);
            search::requantize(x, scale, 0.0, (-4, 3), &mut quants[16 * g..][..16]);
        }
        let hmask = std::array::from_fn(|i| {
            (0..8).fold(0, |byte, k| byte | (quants[32 * k + i] >> 2) << k)
        });
        let (qs, scales) = (encode::pack_pairs_of_bits(&quants), pack_scales(&scales));
        Some(BlockQ3K { hmask, qs, scales, d })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> BlockQ3K {
        BlockQ3K { hmask: [0; 32], qs: [0; 64], scales: [0; 12], d: U16::new(0x3800) }
    }

    /// Packs by the documented layout, then checks that `scale` inverts it.
    #[test]
    fn scale_unpacks_every_group() {
        let mut block = empty();
        let scale = |g: usize| u8::try_from((g * 23 + 5) % 64).unwrap();
        for g in 0..16 {
            block.scales[g % 8] |= (scale(g) & 15) << (4 * (g / 8));
            block.scales[8 + g % 4] |= scale(g) >> 4 << (2 * (g / 4));
        }
        for g in 0..16 {
            assert_eq!(block.scale(g), scale(g).cast_signed() - 32, "group {g}");
        }
    }

    #[test]
    fn decode_matches_hand_computed_values() {
        let mut block = empty(); // d = 0.5, every scale is -32, every quant is -4
        let mut out = [f32::NAN; 256];
        Q3K::decode(&block, &mut out);
        assert!(out.iter().all(|&x| x == 64.0));

        block.scales[1] = 0x30; // group 9 is 3 + 16*2 - 32 = 3
        block.scales[9] = 0b0010_0000;
        block.qs[32 + 16] = 0b0000_0001; // element 128 + 16 (group 9) has low bits 1,
        block.hmask[16] = 0b0001_0000; // and its high bit set: 1 + 4 - 4
        Q3K::decode(&block, &mut out);
        assert_eq!((out[144], out[145], out[159]), (1.5, -6.0, -6.0));
        assert_eq!(out.iter().filter(|&&x| x == 64.0).count(), 240);
    }
}
