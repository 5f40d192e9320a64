//! Many activation rows: weights are decoded once for all of them.
//!
//! The scalar version decodes all rows and calls `matrixmultiply`. With AVX-512, weights are decoded
//! into panels of 32 columns, which stay in cache while all activation rows pass: element
//! `k * 32 + c` of a panel is weight `[c, k]`, and a register holds 16 columns of one `k`. Missing
//! columns of the last panel are zero and their results are dropped. With AVX2, streaming the
//! weights is as fast, so it does not come here.

use fucina_dtype::DType;

use super::Rows;
use super::dot::{Bf16, Elem, F16, F32};
use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

/// Columns of a panel: two registers.
#[cfg(target_arch = "x86_64")]
const COLS: usize = super::PANEL_COLS;

/// See [`matmul_rows`](super::matmul_rows). All sizes are right and none is zero; `scratch` has
/// room for the decoded weights and for a panel.
pub(super) fn matmul(isa: Isa, w: Rows<'_>, x: &[f32], out: &mut [f32], scratch: &mut [f32]) {
    match w.dtype {
        DType::F32 => matmul_as::<F32>(isa, w, x, out, scratch),
        DType::F16 => matmul_as::<F16>(isa, w, x, out, scratch),
        DType::BF16 => matmul_as::<Bf16>(isa, w, x, out, scratch),
        dtype => unreachable!("{dtype} is not a scalar type"),
    }
}

fn matmul_as<E: Elem>(isa: Isa, w: Rows<'_>, x: &[f32], out: &mut [f32], scratch: &mut [f32]) {
    let Rows { k, bytes, .. } = w;
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni(_) => {
            let nr = bytes.len() / (k * E::BYTES);
            let panel = &mut scratch[..k * COLS];
            for (rows, first) in bytes.chunks(COLS * k * E::BYTES).zip((0..).step_by(COLS)) {
                let to = Columns { out, nr, first, width: COLS.min(nr - first) };
                // SAFETY: the token proves that this CPU has AVX-512 F and AVX2's set.
                unsafe { avx512::pack_and_multiply::<E>((rows, k), x, panel, to) }
            }
        }
        _ => scalar::matmul::<E>((bytes, k), x, out, scratch),
    }
}

/// Where the results of a panel go.
#[cfg(target_arch = "x86_64")]
struct Columns<'a> {
    /// `[m, nr]`
    out: &'a mut [f32],
    nr: usize,
    /// First column and number of columns of the panel.
    first: usize,
    width: usize,
}

#[cfg(target_arch = "x86_64")]
impl Columns<'_> {
    /// Copies one row of results; what lies beyond the width is dropped.
    fn write(&mut self, row: usize, values: &[f32]) {
        let at = row * self.nr + self.first;
        self.out[at..at + self.width].copy_from_slice(&values[..self.width]);
    }
}

/// `N` rows of `x: [m, k]` from row `first`.
#[cfg(target_arch = "x86_64")]
#[inline]
fn activations<const N: usize>(x: &[f32], k: usize, first: usize) -> [&[f32]; N] {
    std::array::from_fn(|r| &x[(first + r) * k..][..k])
}
