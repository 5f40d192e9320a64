//! What a core can do at most, as a scale for kernels: arithmetic that stays in registers, and
//! reads that use nothing but loads.
//!
//! Each function does as many steps as it is asked for and says how many operations that were. The
//! caller takes the time. Multiplication and addition count as two.

use crate::dispatch::recompile;
use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_vnni;
#[cfg(target_arch = "x86_64")]
mod avx512_vnni;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dotprod;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;
pub(crate) mod scalar;

/// Independent chains of each step: enough to hide the latency of an instruction on two ports, and
/// few enough for 16 registers.
const CHAINS: usize = 12;

/// Multiplies and adds f32 in registers. Returns the number of operations.
pub fn multiply_add_f32(isa: Isa, rounds: usize) -> u64 {
    match isa {
        Isa::Scalar => scalar::multiply_add_f32(rounds),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX2 and FMA.
        Isa::Avx2(_) => unsafe { avx2::multiply_add_f32(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F.
        Isa::Avx512Vnni(_) => unsafe { avx512_vnni::multiply_add_f32(rounds) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token proves that this CPU has NEON.
        Isa::Neon(_) => unsafe { neon::multiply_add_f32(rounds) },
    }
}

/// Multiplies bytes and adds the products to 32-bit sums in registers. Returns the number of
/// operations.
pub fn dot_i8(isa: Isa, rounds: usize) -> u64 {
    match isa {
        Isa::Scalar => scalar::dot_i8(rounds),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => match token.vnni() {
            // SAFETY: the token proves that this CPU has AVX2 and AVX-VNNI.
            Some(_) => unsafe { avx2_vnni::dot_i8(rounds) },
            // SAFETY: the token proves that this CPU has AVX2.
            None => unsafe { avx2::dot_i8(rounds) },
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that this CPU has AVX-512 F and VNNI.
        Isa::Avx512Vnni(_) => unsafe { avx512_vnni::dot_i8(rounds) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(token) => match token.dotprod() {
            // SAFETY: the token proves that this CPU has NEON.
            None => unsafe { neon::dot_i8(rounds) },
            // SAFETY: the token proves that this CPU has NEON and dotprod.
            Some(token) if token.i8mm().is_none() => unsafe { neon_dotprod::dot_i8(rounds) },
            // SAFETY: the token proves that this CPU has NEON and i8mm.
            Some(_) => unsafe { neon_i8mm::dot_i8(rounds) },
        },
    }
}

/// Reads every word once. The result depends on all of them, so that none can be left out.
pub fn read(isa: Isa, words: &[u64]) -> u64 {
    recompile!(isa => scalar::read, (words: &[u64]) -> u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        for isa in Isa::available() {
            for len in [0, 1, 63, 64, 129] {
                let mut words: Vec<u64> = (0..len).map(|word| word * word + 1).collect();
                let all = read(isa, &words);
                assert_eq!(all, words.iter().fold(0, |all, word| all ^ word), "{isa:?}");
                if let Some(last) = words.last_mut() {
                    *last += 1;
                    assert_ne!(read(isa, &words), all, "{isa:?} misses the last of {len}");
                }
            }
        }
    }

    #[test]
    fn operations_grow_with_the_rounds_and_the_width() {
        for isa in Isa::available() {
            for steps in [multiply_add_f32, dot_i8] {
                assert_eq!(steps(isa, 0), 0, "{isa:?}");
                assert_eq!(steps(isa, 6), 3 * steps(isa, 2), "{isa:?}");
            }
        }
        let widest = Isa::best();
        assert!(multiply_add_f32(widest, 1) >= multiply_add_f32(Isa::Scalar, 1));
    }

    /// A step that the compiler removed, or took out of the loop, would be faster than any core.
    #[test]
    fn steps_take_time() {
        for isa in Isa::available() {
            for steps in [multiply_add_f32, dot_i8] {
                let start = std::time::Instant::now();
                let operations = steps(isa, 200_000);
                let ns = start.elapsed().as_nanos();
                // Two ports with 64 bytes each, twice for a product and a sum, at 8 GHz.
                assert!(u128::from(operations) < ns * 2048, "{isa:?}: {operations} in {ns} ns");
            }
        }
    }
}
