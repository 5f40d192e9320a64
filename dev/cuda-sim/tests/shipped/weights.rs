//! Random matrices of every format, and what they decode to.

use fucina_dtype::DType;
use fucina_testkit::Rng;

/// Formats of tiled products.
pub(crate) const GEMM_FORMATS: &[DType] = &[
    DType::Q4_0,
    DType::Q5_0,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::TQ2_0,
    DType::F16,
    DType::BF16,
];

/// Rows of weights, stored and decoded.
pub(crate) struct Weights {
    pub(crate) dtype: DType,
    pub(crate) bytes: Vec<u8>,
    pub(crate) values: Vec<f32>,
    pub(crate) k: usize,
}

impl Weights {
    /// Every bit pattern of the quants and small scales, moderate large scales.
    pub(crate) fn random(dtype: DType, rows: usize, k: usize, rng: &mut Rng) -> Self {
        let row_bytes = dtype.row_bytes(k).expect("whole blocks");
        let mut bytes: Vec<u8> =
            (0..rows * row_bytes).map(|_| rng.next_i8().to_le_bytes()[0]).collect();
        let (_, unit) = dtype.unit();
        for block in bytes.chunks_exact_mut(unit) {
            let mut scale = |at: usize, size: f32| {
                let value = half::f16::from_f32(rng.uniform(-size, size));
                block[at..at + 2].copy_from_slice(&value.to_le_bytes());
            };
            match dtype {
                DType::Q4_0 | DType::Q5_0 | DType::Q8_0 => scale(0, 0.05),
                DType::Q4_K | DType::Q5_K => {
                    scale(0, 0.01);
                    scale(2, 0.01);
                }
                DType::Q6_K => scale(208, 0.002),
                DType::TQ2_0 => scale(64, 1.0),
                DType::F16 => scale(0, 1.0),
                DType::BF16 => block
                    .copy_from_slice(&half::bf16::from_f32(rng.uniform(-1.0, 1.0)).to_le_bytes()),
                DType::F32 => block.copy_from_slice(&rng.uniform(-1.0, 1.0).to_le_bytes()),
                _ => panic!("{dtype} has no scales here"),
            }
        }
        Self::stored(dtype, bytes, rows, k)
    }

    pub(crate) fn stored(dtype: DType, bytes: Vec<u8>, rows: usize, k: usize) -> Self {
        let mut values = vec![0.0; rows * k];
        dtype.decode(&bytes, &mut values).unwrap();
        Self { dtype, bytes, values, k }
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.k).unwrap()
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.k..][..self.k]
    }

    pub(crate) fn largest(&self) -> f64 {
        self.values.iter().fold(0.0, |max, v| f64::from(v.abs()).max(max))
    }

    /// The name in kernels and modules.
    pub(crate) fn name(&self) -> String {
        self.dtype.name().to_lowercase()
    }
}

/// Lengths of rows: whole blocks of the format, with and without an end inside a slab of 64.
pub(crate) fn lengths(dtype: DType) -> &'static [usize] {
    match dtype.unit().0 {
        256 => &[256, 768],
        32 => &[32, 96, 320],
        _ => &[1, 33, 64, 255],
    }
}

/// A sum of products and the sum of their magnitudes, in f64.
pub(crate) fn dot(x: &[f32], w: &[f32]) -> (f64, f64) {
    x.iter().zip(w).fold((0.0, 0.0), |(sum, size), (&x, &w)| {
        let term = f64::from(x) * f64::from(w);
        (sum + term, size + term.abs())
    })
}

/// Rows in f64, so that the oracles of large products convert each element once.
pub(crate) struct Wide {
    values: Vec<f64>,
    k: usize,
}

impl Wide {
    pub(crate) fn new(values: &[f32], k: usize) -> Self {
        Self { values: values.iter().map(|&v| f64::from(v)).collect(), k }
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.k..][..self.k]
    }

    pub(crate) fn largest(&self, row: usize) -> f64 {
        self.row(row).iter().fold(0.0, |max, v| v.abs().max(max))
    }

    /// As [`dot`].
    pub(crate) fn dot(&self, row: usize, other: &Self, other_row: usize) -> (f64, f64) {
        let (a, b) = (self.row(row), other.row(other_row));
        let (mut sum, mut size) = (0.0, 0.0);
        for i in 0..a.len() {
            let term = a[i] * b[i];
            sum += term;
            size += term.abs();
        }
        (sum, size)
    }
}
