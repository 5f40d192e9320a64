//! The entrance to the kernels that a [`Plan`] names.

#[cfg(target_arch = "x86_64")]
use super::super::format::{Packed, with_format};
use super::super::plan::{Kernel, Plan};
use super::super::{PANEL_COLS, PackLayout, activation_len};
use super::{Records, multiply, scratch_words};
#[cfg(target_arch = "x86_64")]
use super::{amx_bf16, amx_int8, avx512_many};
use crate::dense::MatrixMut;
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;

use zerocopy::{FromBytes, IntoBytes};

/// Elements of a cache line, to which scratch memory is aligned.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 16;

/// Consecutive panels.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    pub(super) bytes: &'a [u8],
    /// Bytes of a panel, not zero.
    pub(super) panel_bytes: usize,
    /// Elements of k, whole units.
    pub(super) k: usize,
}

#[cfg(target_arch = "x86_64")]
impl<'a> Panels<'a> {
    pub(super) fn count(&self) -> usize {
        self.bytes.len() / self.panel_bytes
    }

    pub(super) fn panel(&self, p: usize) -> &'a [u8] {
        &self.bytes[p * self.panel_bytes..][..self.panel_bytes]
    }

    /// The units of panel `p` that hold `len` elements of k from `first` on.
    pub(super) fn units<F: Packed>(&self, p: usize, first: usize, len: usize) -> &'a [u8] {
        let unit = |k: usize| k / F::ELEMS * F::UNIT_BYTES;
        &self.panel(p)[unit(first)..unit(first + len)]
    }
}

/// Rows of activations, with more rows behind them.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Tall<'a> {
    pub(super) words: &'a [u32],
    /// Rows that count, not zero.
    pub(super) rows: usize,
}

/// Elements of scratch memory that [`matmul_planned`] needs for rows of `k` elements and a number of
/// `(panels, rows)`.
pub fn planned_scratch_len(plan: Plan, k: usize, (panels, rows): (usize, usize)) -> usize {
    match plan.kernel() {
        #[cfg(target_arch = "x86_64")]
        Kernel::Vector => scratch_words(k).max(avx512_many::scratch_words(rows)),
        #[cfg(not(target_arch = "x86_64"))]
        Kernel::Vector => scratch_words(k),
        #[cfg(target_arch = "x86_64")]
        Kernel::Int8Tiles => LINE + amx_int8::scratch_len(k, rows),
        #[cfg(target_arch = "x86_64")]
        Kernel::Bf16Tiles => LINE + amx_bf16::scratch_len(panels, rows),
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("only a plan for AMX has tiles: {panels} panels, {rows} rows"),
    }
}

/// Consecutive panels times rows of activations, by the kernel of a plan. `out`, `[rows, n]` as
/// [`matmul_panels`](super::matmul_panels) has it, is overwritten.
///
/// `x` begins with what [`Plan::write`] writes for `rows` rows, with [`Plan::rows_behind`] more behind
/// them.
/// `scratch` has at least [`planned_scratch_len`] elements of any value. `panels` and `x` may have
/// any alignment.
///
/// An activation that is NaN or infinite makes each output of its row NaN or infinite, and those of
/// no other row. bf16 has no value above `3.39e38`: what is larger counts as infinite there.
///
/// # Panics
///
/// Panics if `panels` is not whole panels, or if another slice does not have its size.
pub fn matmul_planned(
    plan: Plan,
    (layout, panels): (&PackLayout, &[u8]),
    (words, rows): (&[u32], usize),
    out: &mut MatrixMut<'_>,
    scratch: &mut [f32],
) {
    let (k, len) = (layout.k(), activation_len(layout.k()));
    assert_eq!(rows, out.rows(), "rows of out");
    if k == 0 || rows == 0 || out.cols() == 0 {
        return out.zero();
    }
    let panel_bytes = layout.panel_bytes();
    assert!(panels.len().is_multiple_of(panel_bytes), "panels are whole");
    let count = panels.len() / panel_bytes;
    let room = plan.room(rows);
    let all = room.checked_add(plan.rows_behind()).and_then(|rows| rows.checked_mul(len));
    assert!(all.is_some_and(|all| all <= words.len()), "words of x");
    assert_eq!(out.cols().div_ceil(PANEL_COLS), count, "columns of out");
    assert!(scratch.len() >= planned_scratch_len(plan, k, (count, rows)), "elements of scratch");
    if plan.kernel() == Kernel::Vector {
        let scratch = <[u32]>::mut_from_bytes(scratch.as_mut_bytes()).unwrap_or_default();
        let blocks = words[..room * len].as_chunks().0;
        let x = Records { blocks, rows, in_tiles: plan.in_tiles() };
        multiply(plan.isa(), layout, panels, x, out, scratch);
        return;
    }
    #[cfg(target_arch = "x86_64")]
    {
        let offset = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let scratch = &mut scratch[offset..];
        let (panels, x) = (Panels { bytes: panels, panel_bytes, k }, Tall { words, rows });
        with_format!(layout.dtype(), F => tiles::<F>(plan, panels, x, out, scratch), _ => ());
    }
}

#[cfg(target_arch = "x86_64")]
fn tiles<F: Packed>(
    plan: Plan,
    panels: Panels<'_>,
    x: Tall<'_>,
    out: &mut MatrixMut<'_>,
    scratch: &mut [f32],
) {
    let Isa::Avx512Vnni(token) = plan.isa() else { unreachable!("a plan with tiles") };
    let Some(amx) = token.amx() else { unreachable!("a plan with tiles") };
    match plan.kernel() {
        // SAFETY: the token proves that this CPU has AVX-512 F, BW, VL and VNNI, and AVX2's set.
        Kernel::Int8Tiles => unsafe { amx_int8::matmul::<F>(amx, panels, x, out, scratch) },
        // SAFETY: the same, and with AMX also AVX-512 BF16.
        _ => unsafe { amx_bf16::matmul::<F>(amx, panels, x, out, scratch) },
    }
}
