#![deny(unsafe_code)]

use super::super::dot::Elem;
use super::super::{Matrix, sgemm};

/// Decodes all rows, then multiplies.
pub(super) fn matmul<E: Elem>(
    (rows, k): (&[u8], usize),
    x: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let (m, nr) = (x.len() / k, rows.len() / (k * E::BYTES));
    let decoded = &mut scratch[..nr * k];
    for (bytes, to) in rows.chunks_exact(E::BYTES).zip(&mut *decoded) {
        *to = E::decode(bytes);
    }
    sgemm((m, k, nr), Matrix::new(x, k, 1), Matrix::new(decoded, 1, k), out);
}
