use fucina_testkit::Rng;

use super::{Merges, SCAN_LIMIT, Word};

/// The definition: join the leftmost pair of the best rank until no pair has one.
fn naive(table: &[(u32, u32, u32)], ids: &[u32]) -> Vec<u32> {
    let mut ids = ids.to_vec();
    loop {
        let best = (1..ids.len())
            .filter_map(|at| {
                let pair = (ids[at - 1], ids[at]);
                let rank = table.iter().position(|&(left, right, _)| (left, right) == pair)?;
                Some((rank, at))
            })
            .min();
        let Some((rank, at)) = best else { return ids };
        ids[at - 1] = table[rank].2;
        ids.remove(at);
    }
}

fn build(table: &[(u32, u32, u32)]) -> Merges {
    let mut merges = Merges::with_capacity(table.len());
    for (&(left, right, merged), rank) in table.iter().zip(0..) {
        merges.push(rank, left, right, merged);
    }
    merges
}

fn both_ways(merges: &Merges, ids: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut word = Word::default();
    let (mut scanned, mut queued) = (Vec::new(), Vec::new());
    word.ids.extend_from_slice(ids);
    merges.apply_by_scan(&mut word, &mut scanned);
    word.ids.clear();
    word.ids.extend_from_slice(ids);
    merges.apply_by_queue(&mut word, &mut queued);
    (scanned, queued)
}

#[test]
fn scan_and_queue_agree_with_the_definition_on_random_tables() {
    let mut rng = Rng::new(1);
    let mut draw = |n: usize| u32::try_from(rng.below(n)).unwrap();
    for round in 0..400 {
        let n_ids = 2 + draw(6);
        // Results may be any id, so that cycles, repeats and self-merges occur; and new ids too.
        let table: Vec<(u32, u32, u32)> = (0..1 + draw(12))
            .map(|_| (draw(n_ids as usize), draw(n_ids as usize), draw(n_ids as usize + 4)))
            .collect();
        let mut seen = std::collections::HashSet::new();
        let table: Vec<_> = table.into_iter().filter(|&(l, r, _)| seen.insert((l, r))).collect();
        let merges = build(&table);
        let len = 1 + draw(2 * SCAN_LIMIT);
        let ids: Vec<u32> = (0..len).map(|_| draw(n_ids as usize)).collect();
        let want = naive(&table, &ids);
        let (scanned, queued) = both_ways(&merges, &ids);
        assert_eq!(scanned, want, "scan, round {round}: {table:?} on {ids:?}");
        assert_eq!(queued, want, "queue, round {round}: {table:?} on {ids:?}");
    }
}

#[test]
fn equal_ranks_merge_from_left_to_right() {
    let merges = build(&[(0, 0, 1)]);
    for (len, want) in [(2, vec![1]), (3, vec![1, 0]), (4, vec![1, 1]), (5, vec![1, 1, 0])] {
        let (scanned, queued) = both_ways(&merges, &vec![0; len]);
        assert_eq!((&scanned, &queued), (&want, &want), "{len} symbols");
    }
}

#[test]
fn a_repeated_pair_keeps_its_better_rank() {
    let merges = build(&[(0, 1, 7), (1, 0, 8), (0, 1, 9)]);
    assert_eq!(both_ways(&merges, &[0, 1, 0]).0, [7, 0]);
}

#[test]
fn working_memory_is_reused_without_a_trace() {
    let merges = build(&[(0, 0, 1), (1, 1, 2)]);
    let mut word = Word::default();
    for len in [100, 3, 70, 1, 64] {
        let mut out = Vec::new();
        word.ids.clear();
        word.ids.resize(len, 0);
        merges.apply(&mut word, &mut out);
        assert_eq!(out, naive(&[(0, 0, 1), (1, 1, 2)], &vec![0; len]), "{len} symbols");
    }
}
