//! Small integers, so that every sum is exact and the answer does not depend on its order.

use fucina_testkit::Rng;
use half::f16;

use super::*;

/// A matrix with gaps of NaN between its rows.
struct Matrix {
    data: Vec<f32>,
    stride: usize,
    count: usize,
    width: usize,
}

impl Matrix {
    fn new(rng: &mut Rng, count: usize, width: usize, gap: usize) -> Self {
        let stride = width + gap;
        let mut data = vec![f32::NAN; count * stride];
        for row in data.chunks_exact_mut(stride.max(1)) {
            row[..width].fill_with(|| f32::from(rng.next_i8() / 16));
        }
        Self { data, stride, count, width }
    }

    fn rows(&self) -> Rows<'_> {
        Rows { data: &self.data, stride: self.stride, count: self.count, width: self.width }
    }

    fn bits(&self) -> Vec<u16> {
        self.data.iter().map(|&x| f16::from_f32(x).to_bits()).collect()
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.data[row * self.stride + column]
    }
}

#[test]
fn matmul_add_adds_the_product() {
    let mut rng = Rng::new(1);
    for (m, k) in [(1, 1), (2, 3), (3, 64), (4, 5), (5, 17), (8, 33), (32, 64), (9, 0)] {
        for n in [16, 32, 48, 64, 80, 96, 112, 128, 144, 192] {
            let (lhs, rhs) = (Matrix::new(&mut rng, m, k, 3), Matrix::new(&mut rng, k, n, 0));
            for isa in Isa::available() {
                let mut out = vec![0.5; m * n];
                matmul_add(isa, lhs.rows(), &rhs.data, n, &mut out);
                for (i, &got) in out.iter().enumerate() {
                    let product = |p| lhs.at(i / n, p) * rhs.at(p, i % n);
                    let want = 0.5 + (0..k).map(product).sum::<f32>();
                    assert_eq!(got, want, "{} {m}x{k}x{n} at {i}", isa.name());
                }
            }
        }
    }
}

#[test]
fn transpose_moves_every_element_and_pads_with_zeros() {
    let mut rng = Rng::new(2);
    for count in [0, 1, 7, 8, 9, 15, 16, 17, 31, 64] {
        for width in [1, 7, 8, 9, 15, 16, 17, 33, 128, 131] {
            let rows = Matrix::new(&mut rng, count, width, 2);
            let n = count.next_multiple_of(16).max(16);
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; width * n];
                transpose(isa, rows.rows(), n, &mut out);
                for (i, &got) in out.iter().enumerate() {
                    let (column, row) = (i / n, i % n);
                    let want = if row < count { rows.at(row, column) } else { 0.0 };
                    assert_eq!(got, want, "{} [{row}, {column}]", isa.name());
                }
            }
        }
    }
}

#[test]
fn dots_are_exact_in_both_formats() {
    let mut rng = Rng::new(3);
    for count in [0, 1, 2, 3, 4, 5, 7, 8, 13] {
        for width in (1..=40).chain([63, 64, 65, 128, 130]) {
            let (q, rows) =
                (Matrix::new(&mut rng, 1, width, 0), Matrix::new(&mut rng, count, width, 3));
            let bits = rows.bits();
            let half = Rows { data: &bits[..], stride: width + 3, count, width };
            let dot = |i| (0..width).map(|p| q.at(0, p) * rows.at(i, p)).sum::<f32>();
            let want: Vec<f32> = (0..count).map(dot).collect();
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; count];
                dots(isa, &q.data, rows.rows(), &mut out);
                assert_eq!(out, want, "{} {count}x{width}", isa.name());
                out.fill(f32::NAN);
                dots_f16(isa, &q.data, half, &mut out);
                assert_eq!(out, want, "{} f16 {count}x{width}", isa.name());
            }
        }
    }
}

#[test]
fn mixes_are_exact_in_both_formats() {
    let mut rng = Rng::new(4);
    for count in [0, 1, 2, 5, 64] {
        for width in (1..=40).chain([63, 64, 65, 127, 128, 130, 192, 256]) {
            let (p, rows) =
                (Matrix::new(&mut rng, 1, count, 0), Matrix::new(&mut rng, count, width, 3));
            let bits = rows.bits();
            let half = Rows { data: &bits[..], stride: width + 3, count, width };
            let sum = |c| 0.5 + (0..count).map(|i| p.at(0, i) * rows.at(i, c)).sum::<f32>();
            let want: Vec<f32> = (0..width).map(sum).collect();
            for isa in Isa::available() {
                let mut out = vec![0.5; width];
                mix(isa, &p.data, rows.rows(), &mut out);
                assert_eq!(out, want, "{} {count}x{width}", isa.name());
                out.fill(0.5);
                mix_f16(isa, &p.data, half, &mut out);
                assert_eq!(out, want, "{} f16 {count}x{width}", isa.name());
            }
        }
    }
}
