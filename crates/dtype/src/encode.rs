//! Reference encoders: f32 to stored bytes.
//!
//! For finite values that fit a format, the bytes are those of ggml's reference quantizers without
//! importance weights: the algorithms are published there, and the golden blocks come from there.
//! Therefore the order of f32 operations is part of the specification, also where another order
//! would be faster or more exact. What does not fit is an error and never a silent NaN.

use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use crate::formats::{BlockFormat, DType};

pub(crate) mod search;

/// Values could not be encoded.
///
/// ```
/// use fucina_dtype::{DType, EncodeError};
///
/// let mut values = [0.5_f32; 32];
/// values[3] = f32::NAN;
/// let error = DType::Q8_0.encode(&values, &mut [0; 34]).unwrap_err();
/// assert_eq!(error, EncodeError::NotFinite { dtype: DType::Q8_0, element: 3, what: "NaN" });
/// assert_eq!(error.to_string(), "Q8_0: element 3 is NaN, which no block can hold");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The input is not whole units, or the output does not have their size.
    #[error("{dtype}: {elems} elements do not encode to {bytes} bytes")]
    Length {
        /// Format of the bytes.
        dtype: DType,
        /// Length of the input in elements.
        elems: usize,
        /// Length of the output in bytes.
        bytes: usize,
    },
    /// A value is NaN or infinite.
    #[error("{dtype}: element {element} is {what}, which no block can hold")]
    NotFinite {
        /// Format of the bytes.
        dtype: DType,
        /// Index of the first such element.
        element: usize,
        /// `NaN` or `infinite`.
        what: &'static str,
    },
    /// A value, or the scale that its block would need, is too large for the format.
    #[error("{dtype}: the values at element {element} are too large; use a wider format")]
    TooLarge {
        /// Format of the bytes.
        dtype: DType,
        /// Index of the element, or of the first element of its block.
        element: usize,
    },
    /// Weights are not stored in this type.
    #[error("{dtype} is no format for weights; encode as F32, F16, BF16 or a block format")]
    NotAWeightType {
        /// The type.
        dtype: DType,
    },
}

impl EncodeError {
    /// The same error, of values that start at element `first` of a longer input.
    #[must_use]
    pub fn offset_by(self, first: usize) -> Self {
        match self {
            Self::NotFinite { dtype, element, what } => {
                Self::NotFinite { dtype, element: element.saturating_add(first), what }
            }
            Self::TooLarge { dtype, element } => {
                Self::TooLarge { dtype, element: element.saturating_add(first) }
            }
            other => other,
        }
    }
}

impl DType {
    /// Encodes whole units, as ggml's reference quantizers do without importance weights.
    ///
    /// ```
    /// use fucina_dtype::DType;
    ///
    /// let values: [f32; 32] = std::array::from_fn(|i| i as f32);
    /// let (mut bytes, mut back) = ([0; 34], [0.0; 32]);
    /// DType::Q8_0.encode(&values, &mut bytes)?;
    /// DType::Q8_0.decode(&bytes, &mut back).unwrap();
    /// assert!((back[31] - 31.0).abs() < 0.01);
    /// # Ok::<(), fucina_dtype::EncodeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails as [`EncodeError`] says. What `out` holds then is unspecified.
    pub fn encode(self, src: &[f32], out: &mut [u8]) -> Result<(), EncodeError> {
        if self.row_bytes(src.len()) != Some(out.len()) {
            return Err(EncodeError::Length { dtype: self, elems: src.len(), bytes: out.len() });
        }
        if let Some(element) = src.iter().position(|value| !value.is_finite()) {
            let what = if src[element].is_nan() { "NaN" } else { "infinite" };
            return Err(EncodeError::NotFinite { dtype: self, element, what });
        }
        self.encode_checked(src, out)
    }
}

/// Encodes scalars of `N` bytes. The lengths match. `None` of `encode` means too large.
pub(crate) fn encode_units<const N: usize>(
    dtype: DType,
    src: &[f32],
    out: &mut [u8],
    encode: impl Fn(f32) -> Option<[u8; N]>,
) -> Result<(), EncodeError> {
    for (element, (&value, unit)) in src.iter().zip(out.as_chunks_mut::<N>().0).enumerate() {
        *unit = encode(value).ok_or(EncodeError::TooLarge { dtype, element })?;
    }
    Ok(())
}

/// Encodes block by block. The lengths match.
pub(crate) fn encode_blocks<F: BlockFormat>(
    dtype: DType,
    src: &[f32],
    out: &mut [u8],
) -> Result<(), EncodeError> {
    let blocks = src.chunks_exact(F::ELEMS).zip(out.chunks_exact_mut(size_of::<F::Block>()));
    for (index, (values, bytes)) in blocks.enumerate() {
        let element = index * F::ELEMS;
        let block = F::encode(values).ok_or(EncodeError::TooLarge { dtype, element })?;
        bytes.copy_from_slice(block.as_bytes());
    }
    Ok(())
}

/// The nearest binary16, ties to even. `None` if it is not finite.
pub(crate) fn f32_to_f16(value: f32) -> Option<[u8; 2]> {
    let half = half::f16::from_f32(value);
    half.is_finite().then(|| half.to_bits().to_le_bytes())
}

/// The nearest bfloat16, ties to even. `None` if it is not finite.
pub(crate) fn f32_to_bf16(value: f32) -> Option<[u8; 2]> {
    let half = half::bf16::from_f32(value);
    half.is_finite().then(|| half.to_bits().to_le_bytes())
}

/// A scale as it is stored. `None` if it is not finite.
pub(crate) fn scale_bits(scale: f32) -> Option<U16> {
    f32_to_f16(scale).map(U16::from_bytes)
}

/// `1 / scale`, or 0 for a scale of 0: a block of zeros has quants of zero.
pub(crate) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Rounds the scales of a super-block to `0..=most`, and says what they are multiplied with.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a byte")]
pub(crate) fn scales<const N: usize>(reals: &[f32; N], most: u8) -> Option<(U16, [u8; N])> {
    let largest = reals.iter().fold(0.0, |most: f32, &scale| most.max(scale));
    let inverse = if largest > 0.0 { f32::from(most) / largest } else { 0.0 };
    let rounded = |scale| search::nearest_int(inverse * scale).clamp(0, i32::from(most)) as u8;
    Some((scale_bits(largest / f32::from(most))?, reals.map(rounded)))
}

/// Rounds the scales of a super-block to `-half..=most`, the extreme one to `-half`, and says what
/// they are multiplied with. If all are zero, they are multiplied with zero and are `-half`, which
/// is stored as zero bits where scales are stored without a sign.
#[expect(clippy::cast_possible_truncation, reason = "clamped to a signed byte")]
pub(crate) fn signed_scales<const N: usize>(
    reals: &[f32; N],
    half: u8,
    most: i8,
) -> Option<(U16, [i8; N])> {
    if reals.iter().any(|scale| !scale.is_finite()) {
        return None;
    }
    let limits = (-i32::from(half), i32::from(most));
    let extreme = extreme(reals);
    if extreme == 0.0 {
        return Some((U16::ZERO, [limits.0 as i8; N]));
    }
    let inverse = -f32::from(half) / extreme;
    let rounded = |scale| search::nearest_int(inverse * scale).clamp(limits.0, limits.1) as i8;
    Some((scale_bits(1.0 / inverse)?, reals.map(rounded)))
}

/// Largest magnitude.
pub(crate) fn largest_magnitude(src: &[f32]) -> f32 {
    src.iter().fold(0.0, |most: f32, value| most.max(value.abs()))
}

/// The first value of the largest magnitude, with its sign.
pub(crate) fn extreme(src: &[f32]) -> f32 {
    src.iter().fold(0.0_f32, |most, &value| if value.abs() > most.abs() { value } else { most })
}

/// Smallest and largest value. `src` is not empty.
pub(crate) fn range(src: &[f32]) -> (f32, f32) {
    src.iter().fold((src[0], src[0]), |(min, max), &value| {
        (if value < min { value } else { min }, if value > max { value } else { max })
    })
}

/// Cuts off the fraction and keeps the quant within `0..=most`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, then cut")]
pub(crate) fn truncated(value: f32, most: u8) -> u8 {
    (value as u8).min(most)
}

/// Two nibbles a byte: element `i` low, element `16 + i` high.
pub(crate) fn pack_nibbles(quants: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| quants[i] & 0x0f | quants[16 + i] << 4)
}

/// Bit 4 of each quant, that of element `i` at bit `i`.
pub(crate) fn pack_fifth_bits(quants: &[u8; 32]) -> u32 {
    quants.iter().rev().fold(0, |bits, q| bits << 1 | u32::from(q >> 4 & 1))
}

/// Four two-bit quants a byte: byte `32 * (n / 128) + n % 32` holds the low bits of element `n` at
/// bit `2 * (n % 128 / 32)`.
pub(crate) fn pack_pairs_of_bits(quants: &[u8; 256]) -> [u8; 64] {
    std::array::from_fn(|at| {
        let first = 128 * (at / 32) + at % 32;
        (0..4).fold(0, |byte, k| byte | (quants[first + 32 * k] & 3) << (2 * k))
    })
}

#[cfg(test)]
mod tests;
