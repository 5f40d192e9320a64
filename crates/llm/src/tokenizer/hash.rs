//! A quick hash with a seed that a file cannot know, so that a crafted vocabulary cannot make
//! lookups slow. The default hasher is safe too, but several times the work for keys this short.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Hashes by wide multiplications, eight bytes at a time. Each instance has its own random seed.
#[derive(Debug, Clone)]
pub(super) struct SeededState {
    mix: u64,
    multiplier: u64,
}

impl SeededState {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        Self { mix: random.hash_one(0u8), multiplier: random.hash_one(1u8) | 1 }
    }
}

impl BuildHasher for SeededState {
    type Hasher = SeededHasher;

    fn build_hasher(&self) -> SeededHasher {
        SeededHasher { hash: self.mix, multiplier: self.multiplier }
    }
}

/// The state of a hash: one number, and the seed's multiplier.
#[derive(Debug)]
pub(super) struct SeededHasher {
    hash: u64,
    multiplier: u64,
}

impl Hasher for SeededHasher {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for &word in words {
            self.write_u64(u64::from_le_bytes(word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.write_u64(u64::from_le_bytes(last));
        // Zero bytes at the end are not the same as none.
        self.write_usize(bytes.len());
    }

    #[expect(clippy::cast_possible_truncation, reason = "folds both halves of the product")]
    fn write_u64(&mut self, key: u64) {
        let product = u128::from(key ^ self.hash) * u128::from(self.multiplier);
        self.hash = (product >> 64) as u64 ^ product as u64;
    }

    fn write_usize(&mut self, key: usize) {
        self.write_u64(key as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hasher};

    use super::SeededState;

    fn hash(state: &SeededState, bytes: &[u8]) -> u64 {
        let mut hasher = state.build_hasher();
        hasher.write(bytes);
        hasher.finish()
    }

    #[test]
    fn neighbouring_keys_spread_over_the_low_bits() {
        // 65,536 balls in as many bins leave 1 - 1/e of the bins hit, about 41,427; the standard
        // deviation is about 100. A hash that drops part of the key would hit far fewer.
        let state = SeededState::new();
        let pairs = (0..256u64).flat_map(|left| (0..256).map(move |right| left << 32 | right));
        let hit: HashSet<u64> = pairs.map(|key| state.hash_one(key) & 0xffff).collect();
        assert!(hit.len() > 39_000, "pairs hit {} of 65536", hit.len());
        let texts = (0..65_536).map(|i| format!("token {i}"));
        let hit: HashSet<u64> = texts.map(|text| hash(&state, text.as_bytes()) & 0xffff).collect();
        assert!(hit.len() > 39_000, "texts hit {} of 65536", hit.len());
    }

    #[test]
    fn keys_that_differ_in_length_or_seed_differ() {
        let state = SeededState::new();
        let zeros = [0; 40];
        let hashes: HashSet<u64> = (0..40).map(|len| hash(&state, &zeros[..len])).collect();
        assert_eq!(hashes.len(), 40);
        assert_ne!(hash(&state, b"a"), hash(&SeededState::new(), b"a"));
    }
}
