//! Conversion to bf16.

use std::arch::x86_64::{__m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh};
use std::mem::transmute;

/// Rounds to nearest, ties to even: `low` becomes the lower half of the result. Subnormal values
/// become zero, a NaN stays one, and what is too large becomes an infinity.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
pub(crate) fn to_bf16(high: __m512, low: __m512) -> __m512i {
    let rounded = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: both types are 64 bytes without invalid values.
    #[expect(clippy::disallowed_methods, reason = "no intrinsic casts this type")]
    let words = unsafe { transmute::<__m512bh, __m512i>(rounded) };
    words
}
