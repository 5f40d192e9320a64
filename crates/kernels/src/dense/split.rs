//! Weights of 16 bits times many rows, in tiles of bf16: `out[m, nr] = x[m, k] * w[nr, k]ᵀ`.
//!
//! One bf16 has 8 bits of precision, too few for an f16 or f32 value. So a value is split into the
//! nearest bf16 and the nearest bf16 to the rest, and products of parts are added:
//!
//! ```text
//! weight   parts              products             left out, relative to |w * x|
//! bf16     itself             w*xh + w*xl          2^-16: what two parts miss of an activation
//! f16      wh + wl, exactly   wl*xh + wh*xl + wh*xh   2^-16 twice: the same, and wl*xl
//! ```
//!
//! So the error stays near that of sums in f32. docs/perf/0005 has the error of fewer products.
//!
//! An activation or weight that is NaN or infinite makes the outputs that it reaches NaN, also where
//! f32 arithmetic would give an infinity: the rest of an infinity is NaN. A finite activation
//! beyond `3.39e38`, the largest bf16, counts as infinite.
//!
//! Threads are the caller's business. So is packing the activations, once for all weights.

use fucina_dtype::DType;

use super::Rows;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::{Amx, amx_ops::TILE};

#[cfg(target_arch = "x86_64")]
mod multiply;
#[cfg(target_arch = "x86_64")]
mod pack;

/// Rows of activations from which tiles are used: below, a core waits for weights either way.
/// **Modelled, not measured on a CPU that has AMX**: docs/perf/0005.
pub const SPLIT_ROWS: usize = 9;

/// Rows of activations that are packed together.
pub const SPLIT_BLOCK: usize = 16;

/// Products of split values, for weights of one type. Made where the CPU has the tiles for it.
#[derive(Debug, Clone, Copy)]
pub struct Split {
    dtype: DType,
    #[cfg(target_arch = "x86_64")]
    amx: Amx,
}

impl Split {
    /// `None` if other kernels multiply `m` rows with weights of this type.
    pub fn new(isa: Isa, dtype: DType, m: usize) -> Option<Self> {
        if m < SPLIT_ROWS || !matches!(dtype, DType::F16 | DType::BF16) {
            return None;
        }
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(token) => Some(Self { dtype, amx: token.amx()? }),
            _ => None,
        }
    }

    /// The kernel, for people.
    pub const fn name(&self) -> &'static str {
        match self.dtype {
            DType::F16 => "avx512-amx bf16, 3 products",
            _ => "avx512-amx bf16, 2 products",
        }
    }

    /// Words of up to [`SPLIT_BLOCK`] packed rows of `k` elements.
    ///
    /// # Panics
    ///
    /// Panics if the size does not fit `usize`.
    pub const fn block_words(k: usize) -> usize {
        k.div_ceil(32).checked_mul(512).expect("activations fit the address space")
    }

    /// Packs 1 to [`SPLIT_BLOCK`] rows of `k` elements, not zero.
    ///
    /// # Panics
    ///
    /// Panics if `x` is not so many rows, or if `out` does not have [`Split::block_words`].
    pub fn pack(&self, x: &[f32], k: usize, out: &mut [u32]) {
        assert!(k > 0 && x.len().is_multiple_of(k), "rows are whole");
        assert!((1..=SPLIT_BLOCK).contains(&(x.len() / k)), "rows of a block");
        assert_eq!(out.len(), Self::block_words(k), "words of a block");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves AMX, with it AVX-512 BF16, and that AVX-512's basic set.
        unsafe {
            pack::pack(x, k, out);
        }
    }

    /// Elements of scratch memory for `m` rows and `nr` weights.
    pub fn scratch_len(&self, m: usize, nr: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        return TILE + multiply::scratch_len(self.dtype, m, nr);
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("without AMX nothing is split: {m}, {nr}")
    }

    /// Rows of a weight times `m` packed rows of activations. `out`, `[m, nr]`, is overwritten. The
    /// weights may have any alignment, `scratch` any content.
    ///
    /// # Panics
    ///
    /// Panics if the weight is not whole rows of this plan's type, if `x` is not the blocks of `m`
    /// rows, or if another slice is too small.
    pub fn multiply(
        &self,
        w: Rows<'_>,
        (x, m): (&[u32], usize),
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        assert_eq!(w.dtype, self.dtype, "type of the weight");
        assert!(w.k > 0 && w.bytes.len().is_multiple_of(2 * w.k), "bytes of the weight rows");
        let nr = w.bytes.len() / (2 * w.k);
        let words = m.div_ceil(SPLIT_BLOCK).checked_mul(Self::block_words(w.k));
        assert_eq!(Some(x.len()), words, "words of x");
        assert_eq!(Some(out.len()), m.checked_mul(nr), "elements of out");
        assert!(scratch.len() >= self.scratch_len(m, nr), "elements of scratch");
        if out.is_empty() {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        {
            let offset = scratch.as_ptr().align_offset(4 * TILE).min(TILE);
            let scratch = &mut scratch[offset..];
            // SAFETY: the token proves AMX, with it AVX-512 BF16, and that AVX-512's basic set.
            unsafe { multiply::multiply(self.amx, w, (x, m), out, scratch) }
        }
    }
}

#[cfg(test)]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tests;
