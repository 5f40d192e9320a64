//! Activations to bf16: pairs in the order of k, one cache line for each 32, as many as
//! [`super::activation_len`] says. What is left of the last line is zero.

use super::activation_len;
use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

/// Rounds one row to nearest, ties to even. Subnormal values become zero. All versions give the
/// same bits, but for the bits of a NaN.
///
/// # Panics
///
/// Panics if `out` does not have [`activation_len`] words.
pub(super) fn round_row(isa: Isa, x: &[f32], out: &mut [u32]) {
    assert_eq!(out.len(), activation_len(x.len()), "words of a row");
    let (whole, rest) = x.as_chunks::<32>();
    let (lines, _) = out.as_chunks_mut::<16>();
    let (lines, padding) = lines.split_at_mut(whole.len());
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F and, with AMX, AVX-512 BF16.
        Isa::Avx512Vnni(token) if token.amx().is_some() => unsafe { avx512::round(whole, lines) },
        _ => scalar::round(whole, lines),
    }
    padding.as_flattened_mut().fill(0);
    if let (Some(last), false) = (padding.first_mut(), rest.is_empty()) {
        let mut padded = [0.0; 32];
        padded[..rest.len()].copy_from_slice(rest);
        scalar::round(&[padded], std::slice::from_mut(last));
    }
}
