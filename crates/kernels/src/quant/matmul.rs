//! `out[rows, 16] = x[rows, k] * panel[16, k]ᵀ`.
//!
//! The sum of products inside a group is an exact i32, at most `32 * 255 * 127 < 2^24`, so its
//! conversion to f32 is exact as well. For each group a kernel adds
//! `(d * sub_scale) * scale(x) * sum` and, with minimums, `-(m * sub_min) * scale(x) * sum(x)`.

use super::format::{Packed, with_format};
use super::quantize::{XBlock, activation_len};
use super::{PANEL_COLS, PackLayout};
use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_vnni;
#[cfg(target_arch = "x86_64")]
mod avx512_vnni;
mod scalar;

/// One panel times a batch of quantized rows. `out` is overwritten.
///
/// `panel` may have any alignment. `x` is `rows` records of
/// [`quantize_row`](super::quantize_row), `out` is `[rows, 16]`.
///
/// # Panics
///
/// Panics if a slice does not have the size that the layout and `rows` give it.
pub fn matmul_panel(
    isa: Isa,
    layout: &PackLayout,
    panel: &[u8],
    x: &[u32],
    rows: usize,
    out: &mut [f32],
) {
    assert_eq!(panel.len(), layout.panel_bytes(), "size of the panel");
    assert_eq!(Some(x.len()), rows.checked_mul(activation_len(layout.k())), "words of x");
    assert_eq!(Some(out.len()), rows.checked_mul(PANEL_COLS), "elements of out");
    if layout.k() == 0 || rows == 0 {
        out.fill(0.0);
        return;
    }
    let x = x.as_chunks().0;
    let out = out.as_chunks_mut().0;
    with_format!(layout.dtype(), F => dispatch::<F>(isa, panel, x, out), _ => ());
}

fn dispatch<F: Packed>(isa: Isa, panel: &[u8], x: &[XBlock], out: &mut [[f32; PANEL_COLS]]) {
    match isa {
        Isa::Scalar => scalar::matmul::<F>(panel, x, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA and F16C.
        Isa::Avx2(token) if token.vnni().is_none() => unsafe { avx2::matmul::<F>(panel, x, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2, FMA, F16C and AVX-VNNI.
        Isa::Avx2(_) => unsafe { avx2_vnni::matmul::<F>(panel, x, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F, BW, VL and VNNI, and AVX2's set.
        Isa::Avx512Vnni(_) => unsafe { avx512_vnni::matmul::<F>(panel, x, out) },
    }
}

/// The record of each of `N` rows that start at row `first` of `rows`.
#[inline]
fn records<const N: usize>(x: &[XBlock], first: usize, rows: usize) -> [&[XBlock]; N] {
    let len = x.len() / rows;
    std::array::from_fn(|r| &x[(first + r) * len..][..len])
}
