//! The blocked product against f64, at every stride, tile and edge.

use fucina_dtype::DType;
use fucina_testkit::{DotOracle, Rng};

use super::*;

/// A strided operand with its element function.
#[derive(Clone, Copy)]
struct Operand<'a> {
    data: &'a [f32],
    strides: (usize, usize),
}

impl Operand<'_> {
    fn at(&self, i: usize, j: usize) -> f32 {
        self.data[i * self.strides.0 + j * self.strides.1]
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.data, self.strides.0, self.strides.1)
    }
}

/// The product on poisoned memory, the left operand packed in uneven parts, the output in
/// rectangles of some rows and columns.
fn product(
    isa: Isa,
    (m, k, n): (usize, usize, usize),
    a: Matrix<'_>,
    b: &dyn Fn(Range<usize>) -> Rhs<'static>,
    (rows, cols): (usize, usize),
) -> Vec<f32> {
    let mut packed = vec![f32::NAN; packed_lhs_len(isa, m, k).unwrap()];
    let cut = m / 3 / row_step(isa) * row_step(isa);
    let (low, high) = packed.split_at_mut(cut * k);
    pack_lhs(isa, (a, m, k), 0..cut, low);
    pack_lhs(isa, (a, m, k), cut..m, high);
    let lhs = Lhs::new(isa, &packed, m, k);
    let mut out = vec![f32::NAN; m * n];
    for row in (0..m).step_by(rows.next_multiple_of(row_step(isa))) {
        let rows = rows.next_multiple_of(row_step(isa));
        for col in (0..n).step_by(cols) {
            let (rows, cols) = (row..m.min(row + rows), col..n.min(col + cols));
            let mut scratch = vec![f32::NAN; multiply_scratch_len(cols.len(), k)];
            let at = out[row * n + col..].as_mut_ptr();
            // SAFETY: the rectangle is inside `out`, to which nothing else refers meanwhile.
            let mut tile = unsafe { MatrixMut::from_raw(at, n, rows.len(), cols.len()) };
            multiply(isa, (lhs, rows), b(cols), &mut tile, &mut scratch);
        }
    }
    out
}

#[track_caller]
fn check(
    (m, k, n): (usize, usize, usize),
    a: Operand<'_>,
    b: Operand<'static>,
    task: (usize, usize),
) {
    let columns = |cols: Range<usize>| {
        Rhs::Matrix(Matrix::new(&b.data[cols.start * b.strides.1..], b.strides.0, b.strides.1))
    };
    for isa in Isa::available() {
        let out = product(isa, (m, k, n), a.matrix(), &columns, task);
        for i in 0..m {
            let row: Vec<f32> = (0..k).map(|l| a.at(i, l)).collect();
            for j in 0..n {
                let col: Vec<f32> = (0..k).map(|l| b.at(l, j)).collect();
                let label = format!(
                    "{} [{m}, {k}, {n}] {:?} {:?} at [{i}, {j}]",
                    isa.name(),
                    a.strides,
                    b.strides
                );
                DotOracle::new(&row, &col).assert_close(out[i * n + j], &label);
            }
        }
    }
}

/// Random elements that live as long as the process: the tests are few.
fn data(len: usize, rng: &mut Rng) -> &'static [f32] {
    rng.normals(len, 1.0).leak()
}

#[test]
fn every_combination_of_strides_is_right() {
    let mut rng = Rng::new(4);
    for (m, k, n) in [(5, 7, 9), (17, 33, 45)] {
        let data = data(4 * (m + k) * (k + n), &mut rng);
        // Contiguous, transposed, with gaps in both directions, and stretched over a row, a column
        // or everything.
        let strides = |rows: usize, cols: usize| {
            let (wide, high) = (cols + 3, rows + 5);
            [
                (cols, 1),
                (1, rows),
                (wide, 1),
                (1, high),
                (2 * cols, 2),
                (3, 3 * rows),
                (0, 1),
                (1, 0),
                (0, 0),
            ]
        };
        for a in strides(m, k) {
            for b in strides(k, n) {
                let (a, b) = (Operand { data, strides: a }, Operand { data, strides: b });
                check((m, k, n), a, b, (m, n));
            }
        }
    }
}

#[test]
fn every_size_around_a_tile_is_right() {
    let mut rng = Rng::new(5);
    let mut run = |m: usize, k: usize, n: usize| {
        let (a, b) = (data(m * k, &mut rng), data(k * n, &mut rng));
        for (sa, sb) in [((k, 1), (n, 1)), ((1, m), (1, k))] {
            check(
                (m, k, n),
                Operand { data: a, strides: sa },
                Operand { data: b, strides: sb },
                (m, n),
            );
        }
    };
    for m in (1..=17).chain([27, 28, 29, 31, 43]) {
        run(m, 11, 7);
    }
    for n in (1..=18).chain([23, 24, 25, 31, 32, 33, 47, 48, 49, 64, 65, 287, 288, 289, 300]) {
        run(3, 9, n);
    }
    for k in (1..=18).chain([511, 512, 513, 520, 1024, 1025, 1100]) {
        run(2, k, 3);
        run(15, k, 34);
    }
}

#[test]
fn tasks_of_any_size_give_the_whole_product() {
    let mut rng = Rng::new(6);
    let (m, k, n) = (29, 601, 70);
    let (a, b) = (data(m * k, &mut rng), data(k * n, &mut rng));
    for task in [(m, n), (8, n), (m, 1), (16, 32), (24, 47), (8, 48)] {
        let (a, b) = (Operand { data: a, strides: (k, 1) }, Operand { data: b, strides: (1, k) });
        check((m, k, n), a, b, task);
    }
}

/// Small integers: every order of additions is exact, so a wrong element cannot hide in a bound.
#[test]
fn products_of_small_integers_are_exact() {
    let mut rng = Rng::new(8);
    let (m, k, n) = (31, 1077, 67);
    let mut small = |len: usize| -> &'static [f32] {
        (0..len).map(|_| f32::from(rng.next_i8() / 16)).collect::<Vec<_>>().leak()
    };
    let (a, b) = (small(m * k), small(k * n));
    let columns = |cols: Range<usize>| Rhs::Matrix(Matrix::new(&b[cols.start..], n, 1));
    for isa in Isa::available() {
        let out = product(isa, (m, k, n), Matrix::new(a, k, 1), &columns, (m, n));
        for (at, &got) in out.iter().enumerate() {
            let (i, j) = (at / n, at % n);
            let want: f32 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
            assert_eq!(got.to_bits(), want.to_bits(), "{} at [{i}, {j}]", isa.name());
        }
    }
}

/// Each height and width of a tile may have code of its own, as have the first and later blocks of
/// `k`. Small integers again.
#[test]
fn every_part_of_a_tile_is_exact() {
    let mut rng = Rng::new(10);
    for isa in Isa::available() {
        let TileSize { rows, cols, .. } = TileSize::of(isa);
        for k in [1, DEPTH + 2] {
            let mut small = |len: usize| -> &'static [f32] {
                (0..len).map(|_| f32::from(rng.next_i8() / 16)).collect::<Vec<_>>().leak()
            };
            let (a, b) = (small(rows * k), small(k * cols));
            let at = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * cols + j]).sum();
            let want: Vec<f32> = (0..rows * cols).map(|x| at(x / cols, x % cols)).collect();
            let columns = |part: Range<usize>| Rhs::Matrix(Matrix::new(&b[part.start..], cols, 1));
            for (m, n) in (1..=rows).flat_map(|m| (1..=cols).map(move |n| (m, n))) {
                let out = product(isa, (m, k, n), Matrix::new(a, k, 1), &columns, (m, n));
                for (out, want) in out.chunks_exact(n).zip(want.chunks_exact(cols)) {
                    assert_eq!(out, &want[..n], "{} [{m}, {k}, {n}]", isa.name());
                }
            }
        }
    }
}

/// Weights of 16 bits at an odd address, within the bound for the decoded values.
#[test]
fn rows_of_every_scalar_format_are_decoded() {
    let mut rng = Rng::new(9);
    let (m, k, n) = (16, 551, 41);
    let x = data(m * k, &mut rng);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let mut bytes = vec![0xff];
        for w in rng.normals(n * k, 1.0) {
            match dtype {
                DType::F16 => bytes.extend(half::f16::from_f32(w).to_le_bytes()),
                DType::BF16 => bytes.extend(half::bf16::from_f32(w).to_le_bytes()),
                _ => bytes.extend(w.to_le_bytes()),
            }
        }
        let bytes: &'static [u8] = &bytes.leak()[1..];
        let mut decoded = vec![f32::NAN; n * k];
        dtype.decode(bytes, &mut decoded).unwrap();
        let row_bytes = dtype.row_bytes(k).unwrap();
        let columns = |cols: Range<usize>| {
            let bytes = &bytes[cols.start * row_bytes..cols.end * row_bytes];
            Rhs::Rows(Rows { dtype, k, bytes })
        };
        for isa in Isa::available() {
            let out = product(isa, (m, k, n), Matrix::new(x, k, 1), &columns, (m, 33));
            for (at, &got) in out.iter().enumerate() {
                let (i, j) = (at / n, at % n);
                let oracle = DotOracle::new(&x[i * k..][..k], &decoded[j * k..][..k]);
                oracle.assert_close(got, &format!("{} {dtype} at [{i}, {j}]", isa.name()));
            }
        }
    }
}

#[test]
fn not_a_number_and_infinity_reach_their_outputs_only() {
    let (m, k, n) = (15, 600, 50);
    for (i, l, j) in [(0, 0, 0), (14, 599, 49), (7, 303, 47), (8, 304, 48)] {
        let (mut a, mut b) = (vec![1.0; m * k], vec![1.0; k * n]);
        a[i * k + l] = f32::NAN;
        b[l * n + j] = f32::INFINITY;
        let b: &'static [f32] = b.leak();
        let columns = |cols: Range<usize>| Rhs::Matrix(Matrix::new(&b[cols.start..], n, 1));
        for isa in Isa::available() {
            let out = product(isa, (m, k, n), Matrix::new(&a, k, 1), &columns, (m, n));
            for (at, &got) in out.iter().enumerate() {
                let (row, col) = (at / n, at % n);
                let label = format!("{} [{row}, {col}] is {got}", isa.name());
                if row == i {
                    assert!(got.is_nan(), "{label}");
                } else if col == j {
                    assert!(got == f32::INFINITY, "{label}");
                } else {
                    assert!(got.to_bits() == 600f32.to_bits(), "{label}");
                }
            }
        }
    }
}

#[test]
fn an_empty_depth_gives_zeros() {
    for isa in Isa::available() {
        let none = |_: Range<usize>| Rhs::Matrix(Matrix::new(&[], 3, 1));
        let out = product(isa, (2, 0, 3), Matrix::new(&[], 0, 1), &none, (2, 3));
        assert_eq!(out.map_bits(), [0; 6]);
        let mut nothing = MatrixMut::new(&mut [], 0, 3);
        multiply(isa, (Lhs::new(isa, &[], 0, 5), 0..0), none(0..0), &mut nothing, &mut []);
    }
}

trait Bits {
    fn map_bits(&self) -> Vec<u32>;
}

impl Bits for Vec<f32> {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|x| x.to_bits()).collect()
    }
}

/// A dimension of one may carry any stride: nothing steps along it.
#[test]
fn the_stride_of_a_dimension_of_one_does_not_matter() {
    let b = |_: Range<usize>| Rhs::Matrix(Matrix::new(&[3.0], 7, usize::MAX));
    for isa in Isa::available() {
        let a = Matrix::new(&[2.0], usize::MAX, usize::MAX);
        assert_eq!(product(isa, (1, 1, 1), a, &b, (1, 1)), [6.0]);
    }
}

#[test]
#[should_panic(expected = "a: [3, 1] is not inside 8 elements")]
fn strides_that_wrap_are_refused() {
    let a = Matrix::new(&[0.0; 8], usize::MAX / 2 + 1, 1);
    pack_lhs(Isa::Scalar, (a, 3, 1), 0..3, &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "b: [4, 3] is not inside 11 elements")]
fn a_matrix_outside_its_data_is_refused() {
    let packed = vec![0.0; row_step(Isa::Scalar) * 4];
    let (mut out, mut scratch) = ([0.0; 6], vec![0.0; multiply_scratch_len(3, 4)]);
    let b = Rhs::Matrix(Matrix::new(&[0.0; 11], 3, 1));
    let mut out = MatrixMut::new(&mut out, 2, 3);
    multiply(Isa::Scalar, (Lhs::new(Isa::Scalar, &packed, 2, 4), 0..2), b, &mut out, &mut scratch);
}

#[test]
fn blocks_cover_any_depth_once_in_order() {
    for k in 0..3000 {
        let mut next = 0;
        for block in blocks(k) {
            assert!(block.start == next && !block.is_empty() && block.len() <= DEPTH, "{k}");
            next = block.end;
        }
        assert_eq!((next, blocks(k).count()), (k, k.div_ceil(DEPTH)), "{k}");
    }
}

#[test]
#[should_panic(expected = "3..8 of 8 are not whole panels")]
fn half_a_panel_is_refused() {
    pack_lhs(Isa::Scalar, (Matrix::new(&[0.0; 8], 1, 1), 8, 1), 3..8, &mut [0.0; 8]);
}

#[test]
fn every_tile_fits_the_memory_of_any() {
    for isa in Isa::available() {
        let TileSize { rows, cols, lanes } = TileSize::of(isa);
        assert!(rows > 0 && WIDEST.is_multiple_of(cols), "{}", isa.name());
        assert!(cols.is_multiple_of(lanes), "{}", isa.name());
        // Pairs of a transposed square are stored together.
        assert!(rows.is_multiple_of(2), "{}", isa.name());
    }
}
