//! The largest `k` elements, without a sort of all of them.
//!
//! The key of a float is an integer of the same order. Three counting passes over its digits (11,
//! 11 and 10 bits) find the key of the `k`-th largest; a last pass collects. Most elements never
//! get that far: the maxima of many lanes give a lower bound of the answer first.

#![deny(unsafe_code)]

use super::scalar::{BLOCK, larger};

/// Lanes whose maxima bound the `k`-th largest element from below.
const LANES: usize = 4096;
/// Widths of the digits, most significant first.
const DIGITS: [u32; 3] = [11, 11, 10];

#[inline(always)]
pub(super) fn top_k(x: &[f32], out: &mut [(usize, f32)]) -> usize {
    if out.is_empty() {
        return 0;
    }
    let floor = lower_bound(x, out.len());
    let Cut { key: cut, mut ties } = find_cut(x, floor, out.len());
    let mut len = 0;
    for_each_from(x, floor, |index, value| {
        let key = key(value);
        let take = key > cut || (key == cut && ties > 0);
        if take {
            ties -= usize::from(key == cut);
            out[len] = (index, value);
            len += 1;
        }
    });
    out[..len].sort_unstable_by_key(|&(index, value)| (!key(value), index));
    len
}

/// An integer that orders like the float. Both zeros have the key of +0.
#[inline(always)]
fn key(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

/// Calls `f` with every element that is at least `floor`, in order. NaN is none.
#[inline(always)]
fn for_each_from(x: &[f32], floor: f32, mut f: impl FnMut(usize, f32)) {
    for (block, xs) in x.chunks(BLOCK).enumerate() {
        if xs.iter().fold(false, |found, &x| found | (x >= floor)) {
            for (i, &x) in xs.iter().enumerate() {
                if x >= floor {
                    f(block * BLOCK + i, x);
                }
            }
        }
    }
}

/// A value that at least `k` elements reach, or minus infinity.
///
/// Each lane maximum is an element, so the `k`-th largest maximum is reached by `k` elements.
#[inline(always)]
fn lower_bound(x: &[f32], k: usize) -> f32 {
    if k > LANES || x.len() < 4 * LANES {
        return f32::NEG_INFINITY;
    }
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for xs in x.chunks(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(xs) {
            *lane = larger(*lane, x);
        }
    }
    // No lane is NaN, so the order is total up to the sign of zero, which does not matter here.
    *lanes.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
}

/// The smallest key to take, and how many elements with exactly that key.
struct Cut {
    key: u32,
    ties: usize,
}

/// Finds the key of the `k`-th largest element digit by digit.
#[inline(always)]
fn find_cut(x: &[f32], floor: f32, k: usize) -> Cut {
    let mut prefix = 0_u32;
    let mut wanted = k;
    let mut shift = u32::BITS;
    for width in DIGITS {
        let mut counts = [0_usize; 1 << 11];
        let known = shift;
        shift -= width;
        let mask = (1 << width) - 1;
        for_each_from(x, floor, |_, value| {
            let key = key(value);
            // The digits above this one are those of the cut (none yet, in the first pass).
            if u64::from(key) >> known == u64::from(prefix) {
                counts[(key >> shift & mask) as usize] += 1;
            }
        });
        let Some(digit) = digit_of(&counts, &mut wanted) else {
            // Fewer numbers than places: take them all. No float has the key zero.
            return Cut { key: 0, ties: 0 };
        };
        prefix = prefix << width | digit;
    }
    Cut { key: prefix, ties: wanted }
}

/// The largest digit at which the elements from above reach `wanted`; takes off those above it.
#[inline(always)]
fn digit_of(counts: &[usize], wanted: &mut usize) -> Option<u32> {
    for (digit, &count) in counts.iter().enumerate().rev() {
        if count >= *wanted {
            return u32::try_from(digit).ok();
        }
        *wanted -= count;
    }
    None
}
