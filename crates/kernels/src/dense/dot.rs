//! Dot products of streamed weights with a few activation rows, and decoding.

use fucina_dtype::{DType, bf16_to_f32, f16_to_f32};

use super::Rows;
use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
mod scalar;

/// A scalar type that weights may have.
pub(super) trait Elem {
    const DTYPE: DType;
    const BYTES: usize = Self::DTYPE.unit().1;

    /// The value of [`Self::BYTES`] bytes.
    fn decode(bytes: &[u8]) -> f32;
}

pub(super) enum F32 {}
pub(super) enum F16 {}
pub(super) enum Bf16 {}

impl Elem for F32 {
    const DTYPE: DType = DType::F32;

    fn decode(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Elem for F16 {
    const DTYPE: DType = DType::F16;

    fn decode(bytes: &[u8]) -> f32 {
        f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

impl Elem for Bf16 {
    const DTYPE: DType = DType::BF16;

    fn decode(bytes: &[u8]) -> f32 {
        bf16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

/// The operands of a product whose sizes were checked. The result is `[m, nr]`.
#[derive(Clone, Copy)]
struct Product<'a> {
    /// `[nr, k]`
    w: &'a [u8],
    k: usize,
    /// `[m, k]`
    x: &'a [f32],
}

impl<'a> Product<'a> {
    fn weight_rows<E: Elem>(self) -> usize {
        self.w.len() / (self.k * E::BYTES)
    }

    fn activation_rows(self) -> usize {
        self.x.len() / self.k
    }

    /// How far ahead of its use a tile of `rows` weight rows from row `first` fetches weights, in
    /// bytes: the next tile, or a page. The hardware neither fetches across pages nor from row to
    /// row by itself. Nothing beyond the weights is fetched: it may be the work of another thread.
    #[cfg(target_arch = "x86_64")]
    fn ahead<E: Elem>(self, first: usize, rows: usize) -> usize {
        let row_bytes = self.k * E::BYTES;
        let ahead = (rows * row_bytes).max(4096);
        if (first + rows) * row_bytes + ahead > self.w.len() { 0 } else { ahead }
    }

    /// `N` weight rows from row `first`.
    fn weights<E: Elem, const N: usize>(self, first: usize) -> [&'a [u8]; N] {
        let len = self.k * E::BYTES;
        std::array::from_fn(|i| &self.w[(first + i) * len..][..len])
    }

    /// `N` activation rows from row `first`.
    fn activations<const N: usize>(self, first: usize) -> [&'a [f32]; N] {
        std::array::from_fn(|i| &self.x[(first + i) * self.k..][..self.k])
    }
}

/// See [`matmul_rows`](super::matmul_rows). All sizes are right, and `k` is not zero.
pub(super) fn matmul(isa: Isa, w: Rows<'_>, x: &[f32], out: &mut [f32]) {
    let Rows { dtype, k, bytes } = w;
    let product = Product { w: bytes, k, x };
    match dtype {
        DType::F32 => matmul_as::<F32>(isa, product, out),
        DType::F16 => matmul_as::<F16>(isa, product, out),
        DType::BF16 => matmul_as::<Bf16>(isa, product, out),
        _ => unreachable!("{dtype} is not streamed"),
    }
}

fn matmul_as<E: Elem>(isa: Isa, product: Product<'_>, out: &mut [f32]) {
    match isa {
        Isa::Scalar => scalar::matmul::<E>(product, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(_) => unsafe { avx2::matmul::<E>(product, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F and AVX2's set.
        Isa::Avx512Vnni(_) => unsafe { avx512::matmul::<E>(product, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::matmul::<E>(product, out) },
    }
}

/// Decodes `out.len()` elements. `raw` has their bytes.
pub(super) fn decode(isa: Isa, dtype: DType, raw: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => decode_as::<F32>(isa, raw, out),
        DType::F16 => decode_as::<F16>(isa, raw, out),
        DType::BF16 => decode_as::<Bf16>(isa, raw, out),
        _ => unreachable!("{dtype} is not streamed"),
    }
}

fn decode_as<E: Elem>(isa: Isa, raw: &[u8], out: &mut [f32]) {
    match isa {
        Isa::Scalar => scalar::decode::<E>(raw, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2 and F16C.
        Isa::Avx2(_) => unsafe { avx2::decode::<E>(raw, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F and AVX2's set.
        Isa::Avx512Vnni(_) => unsafe { avx512::decode::<E>(raw, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::decode::<E>(raw, out) },
    }
}
