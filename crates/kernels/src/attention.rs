//! Attention of one query head over the keys and values of its KV head.
//!
//! Online softmax over blocks of keys, so the scratch does not grow with the context. Scores,
//! weights and sums are f32, whatever the cache holds. Keys that no row of a tile can see are
//! neither read nor computed.
//!
//! A row depends on the keys that it sees and on nothing else: neither memory beyond
//! [`KvView::len`] nor a NaN in a key or value that is masked for this row can change it.

use std::ops::Range;

use crate::isa::Isa;

mod blocks;
mod leaf;
mod merge;
mod online;
mod view;

pub use blocks::TILE_ROWS;
pub use merge::{Partial, RowStats, merge, normalize};
pub use view::{Kv, KvData, KvView, Queries};

/// What is computed from the scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Params {
    /// Factor of the dot products, such as `1 / sqrt(d)`.
    pub scale: f32,
    /// Whether a query sees only keys at its own position and before.
    pub causal: bool,
    /// Position of query row 0.
    pub q_offset: usize,
    /// How many positions a query sees, counted back from its own (itself included): the query at
    /// `p` sees keys after `p - window`. `None` is all of them.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` is applied to scaled scores.
    pub soft_cap: Option<f32>,
}

/// Attention of one query head: `out = softmax(scale * q kᵀ) v`, `[q.rows.len(), v.dim]`.
///
/// Several query heads that share a KV head may be passed as rows of one call when no mask is
/// needed (decode of one token: not causal, and the views narrowed to the window).
///
/// A row that sees no key becomes zeros. So does a row whose scores are all minus infinity. A NaN
/// or plus infinity among the visible scores makes the row NaN. `scratch` needs
/// [`scratch_len`] elements, whose contents do not matter.
///
/// # Panics
///
/// Panics if `out` or `scratch` has the wrong length, if `k` and `v` differ in length or
/// have no elements, or if a view or the queries reach beyond their data.
pub fn attend(
    isa: Isa,
    params: &Params,
    q: &Queries<'_>,
    kv: &Kv<'_>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let dim = kv.v.dim;
    assert_eq!(out.len(), q.rows.len() * dim, "size of out");
    blocks::run(isa, params, q, kv, scratch, |row, weighted, stats| {
        merge::normalize_row(weighted, stats, &mut out[row * dim..][..dim]);
    });
}

/// Like [`attend`], but without the division, so that parts of a long context can be computed
/// apart, each with its [`Kv::start`], and put together by [`merge()`] and [`normalize`].
///
/// # Panics
///
/// Panics as [`attend`] does, and if `out.stats` does not have one element for each row.
pub fn attend_partial(
    isa: Isa,
    params: &Params,
    q: &Queries<'_>,
    kv: &Kv<'_>,
    out: Partial<'_>,
    scratch: &mut [f32],
) {
    let dim = kv.v.dim;
    assert_eq!(out.weighted.len(), q.rows.len() * dim, "size of the weighted sums");
    assert_eq!(out.stats.len(), q.rows.len(), "one statistic for each row");
    blocks::run(isa, params, q, kv, scratch, |row, weighted, stats| {
        out.weighted[row * dim..][..dim].copy_from_slice(weighted);
        out.stats[row] = stats;
    });
}

/// Elements of scratch that a call needs, for keys of `k_dim` and values of `v_dim` elements.
/// Independent of the numbers of rows and keys.
pub const fn scratch_len(k_dim: usize, v_dim: usize) -> usize {
    blocks::scratch_len(k_dim, v_dim)
}

/// The keys that query `row` sees, as rows of the views.
fn visible(params: &Params, kv: &Kv<'_>, row: usize) -> Range<usize> {
    let position = params.q_offset + row;
    let end = if params.causal { position + 1 } else { usize::MAX };
    let end = end.saturating_sub(kv.start).min(kv.k.len);
    let start = params.window.map_or(0, |window| (position + 1).saturating_sub(window));
    start.saturating_sub(kv.start).min(end)..end
}

#[cfg(test)]
mod tests;
