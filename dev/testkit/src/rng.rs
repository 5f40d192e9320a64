//! A small seeded generator.

/// A small seeded generator. The sequence for a seed never changes: golden files depend on it.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Starts the sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits (`SplitMix64`).
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next signed byte.
    pub fn next_i8(&mut self) -> i8 {
        i8::from_le_bytes([self.next_u64().to_le_bytes()[7]])
    }

    /// The next value in `[0, 1)`, a multiple of `2^-53`.
    fn next_unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in f64")]
        let numerator = (self.next_u64() >> 11) as f64;
        numerator / 9_007_199_254_740_992.0
    }

    /// The next value in `[lo, hi]`, uniformly; `hi` itself appears only through rounding to f32.
    pub fn uniform(&mut self, lo: f32, hi: f32) -> f32 {
        let (lo, hi) = (f64::from(lo), f64::from(hi));
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
        let value = (lo + (hi - lo) * self.next_unit()) as f32;
        value
    }

    /// The next standard normal value (Box and Muller, in f64, then rounded to f32).
    pub fn normal(&mut self) -> f32 {
        // 1 - u lies in (0, 1], so the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.next_unit()).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.next_unit();
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
        let value = (radius * angle.cos()) as f32;
        value
    }

    /// `len` standard normal values times `scale`.
    pub fn normals(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.normal() * scale).collect()
    }

    /// The next value in `0..n`. The bias is below `n / 2^64`.
    ///
    /// # Panics
    ///
    /// Panics if `n` is zero.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "there is no number below zero to draw");
        let product = u128::from(self.next_u64()) * (n as u128);
        usize::try_from(product >> 64).expect("the high half is below n, a usize")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_is_the_published_one() {
        // First outputs of SplitMix64 for seed 1234567, as in the generator's reference program.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn uniform_stays_inside_and_reaches_both_quarters() {
        let mut rng = Rng::new(1);
        let draws: Vec<f32> = (0..10_000).map(|_| rng.uniform(-2.0, 6.0)).collect();
        assert!(draws.iter().all(|&v| (-2.0..=6.0).contains(&v)));
        assert!(draws.iter().any(|&v| v < -1.9) && draws.iter().any(|&v| v > 5.9));
    }

    #[test]
    fn normal_has_the_moments_and_tails_of_a_normal() {
        let mut rng = Rng::new(2);
        let n = 100_000_u32;
        let draws: Vec<f64> = (0..n).map(|_| f64::from(rng.normal())).collect();
        let moment = |p: i32| draws.iter().map(|v| v.powi(p)).sum::<f64>() / f64::from(n);
        // Five standard errors: Var(x) = 1, Var(x^2) = 2, Var(x^4) = 96, each over n draws.
        let root = f64::from(n).sqrt();
        assert!(moment(1).abs() < 5.0 / root);
        assert!((moment(2) - 1.0).abs() < 5.0 * 2.0_f64.sqrt() / root);
        assert!((moment(4) - 3.0).abs() < 5.0 * 96.0_f64.sqrt() / root);
    }

    #[test]
    fn below_covers_the_range_and_nothing_else() {
        let mut rng = Rng::new(3);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[rng.below(7)] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(rng.below(1), 0);
    }
}
