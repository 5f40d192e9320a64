//! Dense products of any strides.

use fucina_dtype::DType;
use fucina_testkit::Rng;

use crate::gpu::{Gpu, Kernels, Params, Shape, read_f32};

/// A strided operand `[batch, rows, k]` on the host.
struct Operand {
    bytes: Vec<u8>,
    values: Vec<f32>,
    strides: [usize; 3],
}

impl Operand {
    /// `along_k`: k is the dense axis; otherwise the rows are. Rows are `gap` elements further apart
    /// than they need be. A batch of stride 0 has one matrix.
    fn random(
        dtype: DType,
        [batch, rows, k]: [usize; 3],
        along_k: bool,
        gap: usize,
        rng: &mut Rng,
    ) -> Self {
        let (inner, outer) = if along_k { (k, rows) } else { (rows, k) };
        let matrix = (inner + gap) * outer;
        let len = (matrix * batch).max(1);
        let mut bytes = Vec::new();
        for _ in 0..len {
            let value = rng.uniform(-1.0, 1.0);
            match dtype {
                DType::F16 => bytes.extend(half::f16::from_f32(value).to_le_bytes()),
                DType::BF16 => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
                _ => bytes.extend(value.to_le_bytes()),
            }
        }
        let mut values = vec![0.0; len];
        dtype.decode(&bytes, &mut values).unwrap();
        let strides = if along_k { [matrix, inner + gap, 1] } else { [matrix, 1, inner + gap] };
        Self { bytes, values, strides }
    }

    fn at(&self, index: [usize; 3]) -> f64 {
        let at: usize = index.iter().zip(self.strides).map(|(i, stride)| i * stride).sum();
        f64::from(self.values[at])
    }
}

struct Case {
    dims: [usize; 4],
    lhs_along_k: bool,
    rhs_along_k: bool,
    gap: usize,
    shared_rhs: bool,
}

fn check(kernels: &Kernels, name: &str, dtype: DType, shape: Shape, case: &Case, rng: &mut Rng) {
    let [batch, m, n, k] = case.dims;
    let lhs = Operand::random(DType::F32, [batch, m, k], case.lhs_along_k, case.gap, rng);
    let matrices = if case.shared_rhs { 1 } else { batch };
    let mut rhs = Operand::random(dtype, [matrices, n, k], case.rhs_along_k, case.gap, rng);
    if case.shared_rhs {
        rhs.strides[0] = 0;
    }
    let gpu = Gpu::new(m as u64);
    let (a, b) = (gpu.upload(&lhs.bytes), gpu.upload(&rhs.bytes));
    let out = gpu.floats(batch * m * n);
    let params = Params::new().buffer(&a).buffer(&b).buffer(&out);
    let params = params.longs(&lhs.strides).longs(&rhs.strides).ints(&case.dims);
    gpu.launch(kernels, name, shape, &params);
    let out = read_f32(&out, batch * m * n);
    for (at, &got) in out.iter().enumerate() {
        let (b, row, col) = (at / n / m, at / n % m, at % n);
        let (mut want, mut size) = (0.0, 0.0);
        for i in 0..k {
            let term = lhs.at([b, row, i]) * rhs.at([b, col, i]);
            want += term;
            size += term.abs();
        }
        // k fused products and sums in f32, in any order.
        let bound = (k + 8) as f64 * 2f64.powi(-24) * size;
        let error = (f64::from(got) - want).abs();
        assert!(error <= bound, "{name} {:?}[{at}]: {got}, not {want}", case.dims);
    }
}

const TYPES: [(DType, &str); 3] = [(DType::F32, "f32"), (DType::F16, "f16"), (DType::BF16, "bf16")];

#[test]
fn tiles_are_right_in_every_orientation() {
    let kernels = Kernels::load("matmul.sm70");
    let mut rng = Rng::new(1);
    for (dtype, name) in TYPES {
        for (tile, dims) in [
            (64, [1, 1, 1, 1]),
            (64, [3, 33, 65, 17]),
            (64, [2, 64, 63, 40]),
            (64, [1, 255, 5, 7]),
            (64, [2, 3, 5, 0]),
            (128, [1, 129, 130, 19]),
            (128, [2, 127, 7, 8]),
        ] {
            for orientation in 0..4 {
                let [batch, m, n, _] = dims;
                let case = Case {
                    dims,
                    lhs_along_k: orientation % 2 == 0,
                    rhs_along_k: orientation / 2 == 0,
                    gap: orientation,
                    shared_rhs: orientation == 3,
                };
                let tiles = usize::div_ceil(m, tile) * usize::div_ceil(n, tile);
                // One block for two matrices of the batch: the last axis of the grid shares it.
                let shape = ([tiles, 1, usize::div_ceil(batch, 2)], 256, 0);
                let kernel = format!("matmul_{name}_t{tile}");
                check(&kernels, &kernel, dtype, shape, &case, &mut rng);
            }
        }
    }
}

#[test]
fn few_rows_are_right_in_every_orientation() {
    let kernels = Kernels::load("matmul.sm70");
    let mut rng = Rng::new(2);
    for (dtype, name) in TYPES {
        for (at, m) in [1, 2, 3, 4, 5, 8, 9].into_iter().enumerate() {
            // Lengths around the vector loads; a gap makes rows unaligned.
            let k = [0, 1, 31, 128, 255, 256, 520][at];
            let n = [1, 4, 5, 31, 32, 33, 7][at];
            for (gap, lhs_along_k) in [(0, true), (1, true), (8, true), (3, false)] {
                let dims = [2, m, n, k];
                let case = Case { dims, lhs_along_k, rhs_along_k: true, gap, shared_rhs: gap == 1 };
                for rows in [1, 4, 8] {
                    let shape = ([n.div_ceil(4), m.div_ceil(rows), 1], 128, 0);
                    let kernel = format!("matvec_nt_{name}_r{rows}");
                    check(&kernels, &kernel, dtype, shape, &case, &mut rng);
                }
                let case = Case { rhs_along_k: false, ..case };
                for rows in [1, 8] {
                    let shape = ([n.div_ceil(32), m.div_ceil(rows), 2], 256, 0);
                    let kernel = format!("matvec_nn_{name}_r{rows}");
                    check(&kernels, &kernel, dtype, shape, &case, &mut rng);
                }
            }
        }
    }
}

#[test]
fn copies_of_16_bit_floats_are_exact() {
    let kernels = Kernels::load("matmul.sm70");
    let mut rng = Rng::new(3);
    for (dtype, name) in [(DType::F16, "f16"), (DType::BF16, "bf16")] {
        let (sizes, strides) = ([2, 3, 5, 7], [300, 2, 0, 31]);
        let operand = Operand::random(dtype, [1, 1, 1000], true, 0, &mut rng);
        let gpu = Gpu::new(1);
        let (x, out) = (gpu.upload(&operand.bytes), gpu.floats(210));
        let params = Params::new().buffer(&x).buffer(&out).long(210);
        let params = params.longs(&strides).ints(&sizes);
        gpu.launch(&kernels, &format!("copy_{name}"), ([2, 1, 1], 256, 0), &params);
        for (at, got) in read_f32(&out, 210).into_iter().enumerate() {
            let index = [at / 105, at / 35 % 3, at / 7 % 5, at % 7];
            let from: usize = index.iter().zip(strides).map(|(i, stride)| i * stride).sum();
            assert_eq!(got.to_bits(), operand.values[from].to_bits(), "{name} {index:?}");
        }
    }
}
