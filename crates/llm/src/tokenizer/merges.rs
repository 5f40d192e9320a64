//! The table of merges, and their application to one word.
//!
//! Invariant: a rank names exactly one pair of ids and one result. A word of `n` bytes takes
//! O(n log n) time and O(n) memory, whatever its content.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::hash::SeededState;

/// "No rank" and "no neighbour". Real ranks and positions are smaller.
pub(super) const NONE: u32 = u32::MAX;

/// Words up to this many bytes are merged by scanning, longer ones with a queue. Scanning is
/// quadratic but has no queue to maintain, which wins on the few bytes of a usual word.
const SCAN_LIMIT: usize = 32;

/// Which pairs of tokens become one, and which pair goes first.
#[derive(Debug)]
pub(super) struct Merges {
    /// (left, right) to (rank, result).
    pairs: HashMap<u64, (u32, u32), SeededState>,
}

impl Merges {
    /// An empty table with room for `len` merges.
    pub(super) fn with_capacity(len: usize) -> Self {
        Self { pairs: HashMap::with_capacity_and_hasher(len, SeededState::new()) }
    }

    /// Adds the next best merge. A pair that is there already keeps its better rank.
    pub(super) fn push(&mut self, rank: u32, left: u32, right: u32, merged: u32) {
        self.pairs.entry(key(left, right)).or_insert((rank, merged));
    }

    /// Rank and result of a pair, with [`NONE`] as the rank of a pair that stays apart.
    fn get(&self, left: u32, right: u32) -> (u32, u32) {
        self.pairs.get(&key(left, right)).copied().unwrap_or((NONE, NONE))
    }

    /// Merges the ids in `word` until no merge applies and appends the rest to `out`.
    pub(super) fn apply(&self, word: &mut Word, out: &mut Vec<u32>) {
        if word.ids.len() <= SCAN_LIMIT {
            self.apply_by_scan(word, out);
        } else {
            self.apply_by_queue(word, out);
        }
    }

    fn apply_by_scan(&self, word: &mut Word, out: &mut Vec<u32>) {
        let ids = &mut word.ids;
        let pairs = &mut word.pairs;
        pairs.clear();
        pairs.extend(ids.windows(2).map(|pair| self.get(pair[0], pair[1])));
        while let Some((at, &(rank, merged))) =
            pairs.iter().enumerate().min_by_key(|(_, (rank, _))| *rank)
        {
            if rank == NONE {
                break;
            }
            ids[at] = merged;
            ids.remove(at + 1);
            pairs.remove(at);
            if at > 0 {
                pairs[at - 1] = self.get(ids[at - 1], merged);
            }
            if at < pairs.len() {
                pairs[at] = self.get(merged, ids[at + 1]);
            }
        }
        out.extend_from_slice(ids);
    }

    fn apply_by_queue(&self, word: &mut Word, out: &mut Vec<u32>) {
        merge_by_queue(word, |ids, [left, right, _]| {
            self.get(ids[left as usize], ids[right as usize])
        });
        out.extend(word.symbols().map(|(_, _, id)| id));
    }
}

/// Merges neighbours until none can. `pair` gets the ids and the positions of two neighbours and
/// of what comes after them, and returns their rank, or [`NONE`], and what they become.
///
/// The symbols form a linked list; a queue holds (rank, position of the left symbol). An entry is
/// stale when the pair at its position has another rank by now.
pub(super) fn merge_by_queue(word: &mut Word, pair: impl Fn(&[u32], [u32; 3]) -> (u32, u32)) {
    let Word { ids, pairs, next, previous, queue } = word;
    let len = u32::try_from(ids.len()).expect("the length of a text is checked");
    let last = len.saturating_sub(1);
    pairs.clear();
    pairs.extend((0..last).map(|at| pair(ids, [at, at + 1, at + 2])));
    pairs.push((NONE, NONE));
    next.clear();
    next.extend(1..=len);
    previous.clear();
    previous.push(NONE);
    previous.extend(0..last);
    let mut entries = std::mem::take(queue).into_vec();
    entries.clear();
    let ranked = pairs.iter().zip(0u32..).filter(|((rank, _), _)| *rank != NONE);
    entries.extend(ranked.map(|(&(rank, _), at)| Reverse(entry(rank, at))));
    *queue = BinaryHeap::from(entries);

    while let Some(Reverse(best)) = queue.pop() {
        let (rank, at) = split(best);
        let (current, merged) = pairs[at as usize];
        if current != rank {
            continue;
        }
        let right = next[at as usize];
        let after = next[right as usize];
        ids[at as usize] = merged;
        next[at as usize] = after;
        pairs[right as usize] = (NONE, NONE);
        let mut renew = |left: u32, pair: (u32, u32)| {
            pairs[left as usize] = pair;
            if pair.0 != NONE {
                queue.push(Reverse(entry(pair.0, left)));
            }
        };
        if after < len {
            previous[after as usize] = at;
            renew(at, pair(ids, [at, after, next[after as usize]]));
        } else {
            renew(at, (NONE, NONE));
        }
        let before = previous[at as usize];
        if before != NONE {
            renew(before, pair(ids, [before, at, after]));
        }
    }
}

/// The symbols being merged, and working memory that is reused from word to word.
#[derive(Debug, Default)]
pub(super) struct Word {
    /// One id for each symbol, at first one for each byte.
    pub(super) ids: Vec<u32>,
    pairs: Vec<(u32, u32)>,
    next: Vec<u32>,
    previous: Vec<u32>,
    queue: BinaryHeap<Reverse<u64>>,
}

impl Word {
    /// What [`merge_by_queue`] left: position, position of the next symbol, and id.
    pub(super) fn symbols(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (id, after) = (*self.ids.get(at as usize)?, self.next[at as usize]);
            Some((std::mem::replace(&mut at, after), after, id))
        })
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A queue entry: ordered by rank, then from left to right.
fn entry(rank: u32, at: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(at)
}

#[expect(clippy::cast_possible_truncation, reason = "takes an entry apart again")]
fn split(entry: u64) -> (u32, u32) {
    ((entry >> 32) as u32, entry as u32)
}

#[cfg(test)]
mod tests;
