//! Which kernel multiplies how many rows. The only place that decides it for scalar weights; the
//! numbers are measured in docs/perf/0010.

use fucina_dtype::DType;

use super::{Few, Split};
use crate::isa::Isa;

/// A kernel for weights of scalar floats, `[n, k]`.
#[derive(Debug, Clone, Copy)]
pub enum Route {
    /// Dot products with weights that stream by.
    Stream,
    /// Activations packed, weights as they are.
    Few(Few),
    /// Tiles of bf16.
    Split(Split),
    /// Both operands packed.
    Blocked,
}

/// Rows from which activations are packed, and from which weights are.
struct Limits {
    few: usize,
    blocked: usize,
}

impl Limits {
    const fn new(isa: Isa, dtype: DType) -> Self {
        let wide = matches!(dtype, DType::F32);
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(_) => Self { few: if wide { 6 } else { 9 }, blocked: 65 },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => Self { few: if wide { 4 } else { 7 }, blocked: 65 },
            // Predicted: docs/perf/0009.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(_) => Self { few: 5, blocked: 33 },
            _ => Self { few: usize::MAX, blocked: if wide { 12 } else { 16 } },
        }
    }
}

impl Route {
    /// The kernel for `m` rows. Block formats are decoded while they stream by.
    pub fn new(isa: Isa, dtype: DType, m: usize) -> Self {
        Split::new(isa, dtype, m).map_or_else(|| Self::vectors(isa, dtype, m), Self::Split)
    }

    /// Whether `m` rows are multiplied with an f32 operand of contiguous rows, `[k, n]`, by
    /// [`multiply_wide`](super::multiply_wide). If not, both operands are packed.
    pub const fn wide(isa: Isa, m: usize) -> bool {
        cfg!(target_arch = "x86_64") && !matches!(isa, Isa::Scalar) && m <= 24
    }

    /// [`Route::new`] without tiles.
    fn vectors(isa: Isa, dtype: DType, m: usize) -> Self {
        if dtype.is_block() || !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Self::Stream;
        }
        let limits = Limits::new(isa, dtype);
        if m >= limits.blocked {
            return Self::Blocked;
        }
        let few = Few::new(isa, dtype, m).filter(|_| m >= limits.few);
        few.map_or(Self::Stream, Self::Few)
    }
}
