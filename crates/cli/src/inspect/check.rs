//! Values of a tensor, and what cannot be right about them.

use fucina::DType;
use fucina::gguf::TensorInfo;
use serde::Serialize;

/// Elements decoded at a time: whole blocks of every format.
const CHUNK: usize = 1 << 14;

/// Magnitudes beyond this are no trained weights. A weight of a matrix multiplies activations of
/// order one, so its size is that of a scale gone wrong.
const MATRIX_LIMIT: f32 = 1e3;
/// Vectors are norms and biases, which may be large.
const VECTOR_LIMIT: f32 = 1e5;

/// What a tensor holds. Minimum, maximum and mean are of the finite values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Values {
    pub(super) min: f32,
    pub(super) max: f32,
    pub(super) mean: f64,
    pub(super) nan: u64,
    pub(super) infinite: u64,
    pub(super) zeros: u64,
}

/// Decodes a tensor. `None` if its type has no codec.
pub(super) fn values(info: &TensorInfo, bytes: &[u8]) -> Option<Values> {
    let dtype = info.dtype().ok()?;
    let (elems, unit_bytes) = dtype.unit();
    let mut sums = Sums::default();
    let mut decoded = vec![0.0; CHUNK];
    for chunk in bytes.chunks(CHUNK / elems * unit_bytes) {
        let decoded = &mut decoded[..chunk.len() / unit_bytes * elems];
        decode(dtype, chunk, decoded)?;
        decoded.iter().for_each(|&value| sums.add(value));
    }
    Some(sums.values())
}

fn decode(dtype: DType, chunk: &[u8], out: &mut [f32]) -> Option<()> {
    dtype.decode(chunk, out).ok()
}

struct Sums {
    min: f32,
    max: f32,
    sum: f64,
    finite: u64,
    nan: u64,
    infinite: u64,
    zeros: u64,
}

impl Default for Sums {
    fn default() -> Self {
        let (min, max) = (f32::INFINITY, f32::NEG_INFINITY);
        Self { min, max, sum: 0.0, finite: 0, nan: 0, infinite: 0, zeros: 0 }
    }
}

impl Sums {
    fn add(&mut self, value: f32) {
        if value.is_nan() {
            self.nan += 1;
        } else if value.is_infinite() {
            self.infinite += 1;
        } else {
            self.finite += 1;
            self.min = self.min.min(value);
            self.max = self.max.max(value);
            self.sum += f64::from(value);
            self.zeros += u64::from(value == 0.0);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a count of elements is below 2^52")]
    fn values(&self) -> Values {
        let some = self.finite > 0;
        Values {
            min: if some { self.min } else { 0.0 },
            max: if some { self.max } else { 0.0 },
            mean: self.sum / self.finite.max(1) as f64,
            nan: self.nan,
            infinite: self.infinite,
            zeros: self.zeros,
        }
    }
}

impl Values {
    /// What cannot be right, in words.
    pub(super) fn faults(&self, info: &TensorInfo) -> Vec<String> {
        let mut faults = Vec::new();
        for (count, what) in [(self.nan, "NaN"), (self.infinite, "infinite")] {
            if count > 0 {
                faults.push(format!("{what} values: {count}"));
            }
        }
        // A bias may be zero; a weight that is has lost its bytes.
        let bias = info.name().ends_with(".bias");
        if self.zeros == info.len_elems() as u64 && !bias {
            faults.push("all values are zero".to_owned());
        }
        let limit = if info.shape().len() > 1 { MATRIX_LIMIT } else { VECTOR_LIMIT };
        let largest = self.max.max(-self.min);
        if largest > limit {
            faults.push(format!("a magnitude of {largest:e} is beyond {limit:e}"));
        }
        faults
    }
}
