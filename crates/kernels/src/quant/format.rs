//! How each block format is stored in a panel.
//!
//! An implementation states the shape of the format and takes a block of the file apart. Packing,
//! unpacking and all matrix kernels are generic over it.

use fucina_dtype::{
    BlockFormat, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0, BlockTq2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K,
    Q8_0, Tq2_0,
};

use super::PANEL_COLS;

/// A block format that has panel kernels. Element `i` of group `g` is
/// `d * sub_scale(g) * (q - OFFSET) - m * sub_min(g)`.
pub(super) trait Packed: BlockFormat {
    /// Elements that share a scale: 32 or 16.
    const GROUP: usize;
    /// Stored bits of a quant: 4, 5, 6 or 8.
    const BITS: usize;
    /// What is added to a quant to make it unsigned: 0 or a power of two.
    const OFFSET: u8 = 0;
    /// True if the format has minimums.
    const MIN: bool = false;
    /// True if groups have scales of their own. If not, `sub_scale` and `sub_min` are 1.
    const SUB: bool = false;

    /// `(d, m)` as f16 bits. `m` is ignored without minimums.
    fn header(block: &Self::Block) -> (u16, u16);

    /// `(sub_scale, sub_min)` of group `g`, as stored in a panel. Called only if [`Self::SUB`].
    fn sub(_block: &Self::Block, _g: usize) -> (i8, u8) {
        (1, 1)
    }

    /// Writes the unsigned quants in the order of the elements. `out.len()` is
    /// [`BlockFormat::ELEMS`].
    fn quants(block: &Self::Block, out: &mut [u8]);

    /// Minimums and scales come in pairs.
    const STREAMS: usize = if Self::MIN { 2 } else { 1 };
    /// Offset of the group scales in a unit.
    const SUB_AT: usize = 2 * PANEL_COLS * Self::STREAMS;
    /// Bytes of the scales of one group.
    const SUB_BYTES: usize = if Self::SUB { PANEL_COLS * Self::STREAMS } else { 0 };
    /// Offset of the quants in a unit.
    const QUANTS_AT: usize = Self::SUB_AT + Self::SUB_BYTES * (Self::ELEMS / Self::GROUP);
    /// Bytes of the quants of 32 consecutive k.
    const QUANT_BYTES: usize = PANEL_COLS * 32 * Self::BITS / 8;
    /// Bytes of a unit.
    const UNIT_BYTES: usize = Self::QUANTS_AT + Self::QUANT_BYTES * (Self::ELEMS / 32);
}

/// Splits bytes of two nibbles: low nibbles first, then high nibbles.
fn nibbles(qs: &[u8; 16], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(16);
    for (i, q) in qs.iter().enumerate() {
        low[i] = q & 0x0f;
        high[i] = q >> 4;
    }
}

/// As [`nibbles`], with bit 4 from `qh`: bit `i` belongs to element `i`.
fn nibbles_and_bits(qs: &[u8; 16], qh: u32, out: &mut [u8]) {
    nibbles(qs, out);
    for (i, out) in out.iter_mut().enumerate() {
        *out |= u8::from(qh >> i & 1 == 1) << 4;
    }
}

/// Unpacks planes of 32 bytes that hold four elements of two bits, 128 elements for each plane.
fn crumbs(qs: &[u8; 64], out: &mut [u8]) {
    for (qs, out) in qs.chunks_exact(32).zip(out.chunks_exact_mut(128)) {
        for (j, out) in out.chunks_exact_mut(32).enumerate() {
            for (out, q) in out.iter_mut().zip(qs) {
                *out = q >> (2 * j) & 3;
            }
        }
    }
}

impl Packed for Q4_0 {
    const GROUP: usize = 32;
    const BITS: usize = 4;
    const OFFSET: u8 = 8;

    fn header(block: &BlockQ4_0) -> (u16, u16) {
        (block.d.get(), 0)
    }

    fn quants(block: &BlockQ4_0, out: &mut [u8]) {
        nibbles(&block.qs, out);
    }
}

/// The sign bit of an f16: [`Packed`] subtracts the minimum, `Q4_1` and `Q5_1` add it.
const SIGN: u16 = 0x8000;

impl Packed for Q4_1 {
    const GROUP: usize = 32;
    const BITS: usize = 4;
    const MIN: bool = true;

    fn header(block: &BlockQ4_1) -> (u16, u16) {
        (block.d.get(), block.m.get() ^ SIGN)
    }

    fn quants(block: &BlockQ4_1, out: &mut [u8]) {
        nibbles(&block.qs, out);
    }
}

impl Packed for Q5_0 {
    const GROUP: usize = 32;
    const BITS: usize = 5;
    const OFFSET: u8 = 16;

    fn header(block: &BlockQ5_0) -> (u16, u16) {
        (block.d.get(), 0)
    }

    fn quants(block: &BlockQ5_0, out: &mut [u8]) {
        nibbles_and_bits(&block.qs, block.qh.get(), out);
    }
}

impl Packed for Q5_1 {
    const GROUP: usize = 32;
    const BITS: usize = 5;
    const MIN: bool = true;

    fn header(block: &BlockQ5_1) -> (u16, u16) {
        (block.d.get(), block.m.get() ^ SIGN)
    }

    fn quants(block: &BlockQ5_1, out: &mut [u8]) {
        nibbles_and_bits(&block.qs, block.qh.get(), out);
    }
}

impl Packed for Q8_0 {
    const GROUP: usize = 32;
    const BITS: usize = 8;
    const OFFSET: u8 = 128;

    fn header(block: &BlockQ8_0) -> (u16, u16) {
        (block.d.get(), 0)
    }

    fn quants(block: &BlockQ8_0, out: &mut [u8]) {
        for (out, q) in out.iter_mut().zip(block.qs) {
            *out = q.cast_unsigned() ^ Self::OFFSET;
        }
    }
}

impl Packed for Q2K {
    const GROUP: usize = 16;
    const BITS: usize = 4;
    const MIN: bool = true;
    const SUB: bool = true;

    fn header(block: &BlockQ2K) -> (u16, u16) {
        (block.d.get(), block.dmin.get())
    }

    fn sub(block: &BlockQ2K, g: usize) -> (i8, u8) {
        let (scale, min) = block.scale_min(g);
        (scale.cast_signed(), min)
    }

    fn quants(block: &BlockQ2K, out: &mut [u8]) {
        crumbs(&block.qs, out);
    }
}

impl Packed for Q3K {
    const GROUP: usize = 16;
    const BITS: usize = 4;
    const OFFSET: u8 = 4;
    const SUB: bool = true;

    fn header(block: &BlockQ3K) -> (u16, u16) {
        (block.d.get(), 0)
    }

    fn sub(block: &BlockQ3K, g: usize) -> (i8, u8) {
        (block.scale(g), 0)
    }

    fn quants(block: &BlockQ3K, out: &mut [u8]) {
        crumbs(&block.qs, out);
        for (j, out) in out.chunks_exact_mut(32).enumerate() {
            for (out, high) in out.iter_mut().zip(&block.hmask) {
                *out |= (high >> j & 1) << 2;
            }
        }
    }
}

/// The nibbles of `Q4_K` and `Q5_K`: 32 bytes hold two groups of 32.
fn paired_nibbles(qs: &[u8; 128], out: &mut [u8]) {
    for (qs, out) in qs.chunks_exact(32).zip(out.chunks_exact_mut(64)) {
        let (low, high) = out.split_at_mut(32);
        for (i, q) in qs.iter().enumerate() {
            low[i] = q & 0x0f;
            high[i] = q >> 4;
        }
    }
}

impl Packed for Q4K {
    const GROUP: usize = 32;
    const BITS: usize = 4;
    const MIN: bool = true;
    const SUB: bool = true;

    fn header(block: &BlockQ4K) -> (u16, u16) {
        (block.d.get(), block.dmin.get())
    }

    fn sub(block: &BlockQ4K, g: usize) -> (i8, u8) {
        let (scale, min) = block.scale_min(g);
        (scale.cast_signed(), min)
    }

    fn quants(block: &BlockQ4K, out: &mut [u8]) {
        paired_nibbles(&block.qs, out);
    }
}

impl Packed for Q5K {
    const GROUP: usize = 32;
    const BITS: usize = 5;
    const MIN: bool = true;
    const SUB: bool = true;

    fn header(block: &BlockQ5K) -> (u16, u16) {
        (block.d.get(), block.dmin.get())
    }

    fn sub(block: &BlockQ5K, g: usize) -> (i8, u8) {
        let (scale, min) = block.scale_min(g);
        (scale.cast_signed(), min)
    }

    fn quants(block: &BlockQ5K, out: &mut [u8]) {
        paired_nibbles(&block.qs, out);
        for (g, out) in out.chunks_exact_mut(32).enumerate() {
            for (out, high) in out.iter_mut().zip(&block.qh) {
                *out |= (high >> g & 1) << 4;
            }
        }
    }
}

impl Packed for Q6K {
    const GROUP: usize = 16;
    const BITS: usize = 6;
    const OFFSET: u8 = 32;
    const SUB: bool = true;

    fn header(block: &BlockQ6K) -> (u16, u16) {
        (block.d.get(), 0)
    }

    fn sub(block: &BlockQ6K, g: usize) -> (i8, u8) {
        (block.scales[g], 0)
    }

    fn quants(block: &BlockQ6K, out: &mut [u8]) {
        crumbs(&block.qh, out);
        for (ql, out) in block.ql.chunks_exact(64).zip(out.chunks_exact_mut(128)) {
            let (low, high) = out.split_at_mut(64);
            for (i, q) in ql.iter().enumerate() {
                low[i] = low[i] << 4 | q & 0x0f;
                high[i] = high[i] << 4 | q >> 4;
            }
        }
    }
}

impl Packed for Tq2_0 {
    const GROUP: usize = 32;
    const BITS: usize = 4;
    const OFFSET: u8 = 1;

    fn header(block: &BlockTq2_0) -> (u16, u16) {
        (block.d.get(), 0)
    }

    fn quants(block: &BlockTq2_0, out: &mut [u8]) {
        crumbs(&block.qs, out);
    }
}

/// Runs `$body` with `$format` as the [`Packed`] type of `$dtype`, or `$otherwise`.
macro_rules! with_format {
    ($dtype:expr, $format:ident => $body:expr, _ => $otherwise:expr $(,)?) => {
        with_format!(@arms $dtype, $format, $body, $otherwise;
            Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1, Q8_0 Q8_0, Q2_K Q2K, Q3_K Q3K,
            Q4_K Q4K, Q5_K Q5K, Q6_K Q6K, TQ2_0 Tq2_0)
    };
    (@arms $dtype:expr, $format:ident, $body:expr, $otherwise:expr; $($name:ident $type:ident),+) => {
        match $dtype {
            $(fucina_dtype::DType::$name => {
                type $format = fucina_dtype::$type;
                $body
            })+
            _ => $otherwise,
        }
    };
}
pub(super) use with_format;
