//! Activations to 8 bits, in blocks of 32.
//!
//! ```text
//! word   content of a block (one cache line)
//! 0..8   quants, four i8 in each word, -127 to 127
//!    8   f32  scale: largest magnitude / 127
//!    9   f32  scale * (sum of the quants)
//!   10   f32  scale * (sum of quants 0 to 15)
//!   11   f32  scale * (sum of quants 16 to 31)
//!   12   i32  -16 * (sum of the quants)
//!   13   i32  -32 * (sum of quants 0 to 15)
//!   14   i32  -32 * (sum of quants 16 to 31)
//!   15   i32  -128 * (sum of the quants)
//! ```
//!
//! Sums are exact integers and f32, never f16. The factors of the last four are the offsets of
//! the formats that a kernel meets most: a sum of products starts there ([`Bias`]). A block with a NaN or an infinity has a NaN scale,
//! so every output that it reaches is NaN. A block whose scale would be subnormal is zero: no
//! element is larger than `127 * f32::MIN_POSITIVE`, about 1.5e-36.

use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

/// Elements of a block.
const BLOCK: usize = 32;

/// Words of a block.
const WORDS: usize = 16;

/// One block of quantized activations. See the module for the words.
pub(super) type XBlock = [u32; WORDS];

/// Indices of the words of an [`XBlock`] after the quants.
pub(super) mod word {
    /// The scale.
    pub(in super::super) const SCALE: usize = 8;
    /// Scale times sum: of the block, of its first and of its second half.
    pub(in super::super) const SCALED_SUMS: [usize; 3] = [9, 10, 11];
    /// Minus 16 times the sum of the block, 32 times that of its first and of its second half.
    pub(super) const NEG_SUMS: [usize; 3] = [12, 13, 14];
    /// Minus 128 times the sum of the block.
    pub(super) const NEG_SUM_128: usize = 15;
}

/// Where a block keeps `-offset * sum`.
pub(super) struct Bias {
    /// The word.
    pub(super) word: usize,
    /// How far to shift it to the right.
    pub(super) shift: u32,
}

impl Bias {
    /// For an offset, a power of two. `part` is 0 for the whole block (offsets 1 to 16, and 128), 1
    /// and 2 for its halves (offsets 1 to 32).
    #[inline]
    pub(super) const fn new(offset: u8, part: usize) -> Self {
        let word = if offset == 128 { word::NEG_SUM_128 } else { word::NEG_SUMS[part] };
        let kept = Self::kept_offset(offset, part);
        Self { word, shift: kept.trailing_zeros() - offset.trailing_zeros() }
    }

    /// The offset, this one or a larger one, that the word is multiplied by: it needs no shift.
    #[inline]
    pub(super) const fn kept_offset(offset: u8, part: usize) -> u8 {
        match (offset, part) {
            (128, _) => 128,
            (_, 0) => 16,
            _ => 32,
        }
    }
}

/// Length of a quantized row of `k` elements, in words. A row is padded with zeros to an odd number
/// of blocks: equal places of consecutive rows then fall into different sets of a cache.
pub const fn activation_len(k: usize) -> usize {
    if k == 0 { 0 } else { (k.div_ceil(BLOCK) | 1) * WORDS }
}

/// Quantizes one row. All versions give the same bits.
///
/// # Panics
///
/// Panics if `out` does not have [`activation_len`] words.
pub fn quantize_row(isa: Isa, x: &[f32], out: &mut [u32]) {
    assert_eq!(out.len(), activation_len(x.len()), "words of a quantized row");
    quantize_blocks(isa, x, out.as_chunks_mut().0, 1);
}

/// Quantizes a part of a row that begins with a block, into blocks 0, `step`, twice `step` and so
/// on. Blocks among these that nothing is left for are zero.
pub(super) fn quantize_blocks(isa: Isa, x: &[f32], out: &mut [XBlock], step: usize) {
    let (whole, rest) = x.as_chunks::<BLOCK>();
    let (blocks, padding) = out.split_at_mut((whole.len() * step).min(out.len()));
    let blocks = blocks.iter_mut().step_by(step);
    match isa {
        Isa::Scalar => scalar::quantize(whole, blocks),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2.
        Isa::Avx2(_) | Isa::Avx512Vnni(_) => unsafe { avx2::quantize(whole, blocks) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::quantize(whole, blocks) },
    }
    let mut padding = padding.iter_mut().step_by(step);
    if !rest.is_empty() {
        let mut padded = [0.0; BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        scalar::quantize(&[padded], padding.by_ref().take(1));
    }
    padding.for_each(|block| block.fill(0));
}

/// How a block with this largest magnitude is quantized: `(scale, factor to multiply by)`.
/// `max_bits` are the bits of the largest magnitude; ordered as integers, NaN is the largest.
#[inline]
fn scale_and_factor(max_bits: u32) -> (f32, f32) {
    let max = f32::from_bits(max_bits);
    let scale = max / 127.0;
    if !max.is_finite() {
        (f32::NAN, 0.0)
    } else if scale < f32::MIN_POSITIVE {
        (0.0, 0.0)
    } else {
        (scale, 127.0 / max)
    }
}

/// Writes everything but the quants.
#[inline]
fn finish(block: &mut XBlock, scale: f32, sums: [i32; 2]) {
    #[expect(clippy::cast_precision_loss, reason = "a sum is at most 32 * 127 < 2^24")]
    let scaled = |sum: i32| (scale * sum as f32).to_bits();
    let [first, second] = sums;
    let both = first + second;
    let negated = |factor: i32, sum: i32| (-factor * sum).cast_unsigned();
    block[word::SCALE] = scale.to_bits();
    for (i, sum) in [both, first, second].into_iter().enumerate() {
        block[word::SCALED_SUMS[i]] = scaled(sum);
        block[word::NEG_SUMS[i]] = negated(if i == 0 { 16 } else { 32 }, sum);
    }
    block[word::NEG_SUM_128] = negated(128, both);
}
