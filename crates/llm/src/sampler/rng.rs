//! The random sequence of a sampler: `SplitMix64`, 64 bits of state, one 64-bit number at a time.
//!
//! The sequence of a seed never changes, so that a run can be repeated. Not for secrets.

/// The generator of Steele, Lea and Flood (2014).
#[derive(Debug, Clone)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to but not including 1: the upper 53 bits as a fraction.
    pub(super) const fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    #[test]
    fn the_sequence_is_the_published_one() {
        // The reference values for seed 1234567.
        let mut rng = SplitMix64::new(1_234_567);
        let got = [(); 5].map(|()| rng.next_u64());
        let want = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn fractions_are_below_one() {
        let mut rng = SplitMix64::new(0);
        let numbers = [(); 10_000].map(|()| rng.next_f64());
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.iter().any(|&number| number > 0.999));
        assert!(numbers.iter().any(|&number| number < 0.001));
    }
}
