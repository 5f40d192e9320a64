//! Operands with known values, and sums in f64 with the bound of what a device may do.

use bytes::Bytes;
use fucina_accel::Storage;
use fucina_dtype::DType;
use fucina_testkit::Rng;

/// Unit roundoff of f32, and of f16.
pub(crate) const U: f64 = 1.0 / 16_777_216.0;
const U16: f64 = 1.0 / 2048.0;

/// Bytes before and after an operand: NaN in every float type, so that a kernel that reads beyond
/// shows.
const PAD_BYTES: usize = 64;

/// Rows of numbers, as a device sees them.
pub(crate) struct Rows {
    pub(crate) dtype: DType,
    pub(crate) k: usize,
    /// What the bytes mean.
    pub(crate) values: Vec<f32>,
    pub(crate) storage: Storage,
}

impl Rows {
    /// Where the operand starts in its storage.
    pub(crate) const OFFSET: usize = PAD_BYTES;

    /// Encodes the values.
    pub(crate) fn new(dtype: DType, k: usize, values: &[f32]) -> Self {
        let len = dtype.row_bytes(values.len()).expect("whole blocks");
        let mut bytes = vec![0xff; PAD_BYTES + len + PAD_BYTES];
        let inner = &mut bytes[PAD_BYTES..PAD_BYTES + len];
        dtype.encode(values, inner).expect("the values fit the format");
        let mut stored = vec![0.0; values.len()];
        dtype.decode(inner, &mut stored).expect("they were just encoded");
        Self { dtype, k, values: stored, storage: Storage::from_bytes(Bytes::from(bytes)) }
    }

    pub(crate) fn normal(dtype: DType, rows: usize, k: usize, rng: &mut Rng) -> Self {
        Self::new(dtype, k, &rng.normals(rows * k, 1.0))
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.k..][..self.k]
    }

    pub(crate) fn largest(&self) -> f64 {
        self.values.iter().fold(0.0, |most, value| most.max(f64::from(value.abs())))
    }
}

/// A value and the largest error that is not a mistake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want {
    pub(crate) value: f64,
    pub(crate) bound: f64,
}

/// How the operands of a product may be rounded, besides to f16.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rounding {
    /// Weights are blocks that are decoded.
    pub(crate) is_block: bool,
    /// Activations are rounded to 8 bits.
    pub(crate) eight_bits: bool,
}

/// A dot product whose operands may be rounded to f16.
///
/// Any order of f32 additions errs by `(k + 1) u` times the sum of magnitudes, and rounded operands
/// add twice 2^-11 of it, and a little for the square. Decoding a block may take three operations of
/// another order than the codec's. Elements that are tiny beside the largest of their row, or of
/// their matrix, leave the range of f16 once it is scaled: `kernels/README.md` promises 2^-38 of the
/// products of the largest. Activations in 8 bits are off by up to half a step, 1/254 of the largest of
/// their 32, and a little for the rounding of the step.
pub(crate) fn dot(x: &[f32], weights: &[f32], rounding: Rounding, largest: f64) -> Want {
    let products = x.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
    let magnitude: f64 = products.clone().map(f64::abs).sum();
    let sum: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
    let most = |values: &[f32]| values.iter().fold(0f64, |m, v| m.max(f64::from(v.abs())));
    let steps = if rounding.eight_bits { steps(x, weights) / 253.0 } else { 0.0 };
    let decode = if rounding.is_block { 3.0 * U * most(weights) * sum } else { 0.0 };
    let tiny = real(x.len()) * most(x) * largest * 2f64.powi(-38);
    let relative = real(x.len() + 1) * U + 2.1 * U16;
    let bound = relative * magnitude + decode + steps + tiny + f64::from(f32::MIN_POSITIVE);
    Want { value: products.sum(), bound }
}

/// Sum of the magnitudes of the weights, each times the largest activation of its 32.
fn steps(x: &[f32], weights: &[f32]) -> f64 {
    let block = |(x, weights): (&[f32], &[f32])| {
        let largest = x.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
        weights.iter().map(|w| f64::from(w.abs()) * largest).sum::<f64>()
    };
    x.chunks(32).zip(weights.chunks(32)).map(block).sum()
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
pub(crate) fn real(x: usize) -> f64 {
    x as f64
}

/// The largest error as a part of its bound.
pub(crate) fn compare(out: &Storage, want: &[Want]) -> Result<f64, String> {
    let bytes = out.host().map_err(|error| error.to_string())?;
    let (chunks, _) = bytes.as_chunks::<4>();
    if chunks.len() < want.len() {
        return Err(format!("{} elements instead of {}", chunks.len(), want.len()));
    }
    let mut worst = 0f64;
    for (at, (&chunk, want)) in chunks.iter().zip(want).enumerate() {
        let got = f64::from(f32::from_le_bytes(chunk));
        let error = (got - want.value).abs();
        // A NaN is on neither side of the bound.
        if error.is_nan() || error > want.bound {
            return Err(format!("element {at} is {got}, not {} ± {:e}", want.value, want.bound));
        }
        worst = worst.max(error / want.bound);
    }
    Ok(worst)
}
