//! Which kernel multiplies how many rows, and in what form it reads them.
//!
//! The crossovers of the tile kernels are **modelled, not measured on a CPU that has AMX**: the model
//! is in docs/perf/0005, and `cargo bench -p fucina-kernels --bench tiles` measures, on such a CPU,
//! what would replace it. They are all in [`CROSSOVERS`].

use fucina_dtype::DType;

use super::arrange::{padded_rows, quantize_steps};
use super::quantize::quantize_row;
use super::{PackLayout, TILE_ROWS, activation_len};
use crate::isa::Isa;

/// Rows from which a kernel is the fastest, by how many k share a scale.
struct Crossovers {
    group: usize,
    /// From here on tiles of 8-bit integers. Below, a core spends most of its time waiting for
    /// weights.
    int8: usize,
    /// From here on tiles of bf16: decoding the weights costs as much as scaling the sums of about
    /// five tiles of integers, or of two if each 32 k have two scales.
    bf16: usize,
}

/// Modelled, not measured: see the module.
const CROSSOVERS: [Crossovers; 2] =
    [Crossovers { group: 32, int8: 9, bf16: 65 }, Crossovers { group: 16, int8: 9, bf16: 25 }];

/// Activations of one call of a bf16 kernel that stay in a second-level cache beside its weights.
const CACHED_BYTES: usize = 1 << 20;

/// A family of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kernel {
    /// The vector kernel of the instruction set, on 8-bit activations.
    Vector,
    /// Tiles of 8-bit integers, on 8-bit activations.
    Int8Tiles,
    /// Tiles of bf16, on activations in bf16.
    Bf16Tiles,
}

/// The kernel for a product, chosen by the format of the weights and the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    isa: Isa,
    kernel: Kernel,
    group: usize,
    /// Records of rows lie side by side.
    in_tiles: bool,
}

impl Plan {
    /// The fastest kernel for `rows` rows of activations. The number of rows also decides the form
    /// of the activations, [`Plan::write`].
    pub fn new(isa: Isa, layout: &PackLayout, rows: usize) -> Self {
        let plan = Self { isa, kernel: Kernel::Vector, group: layout.group(), in_tiles: false };
        plan.arranged(plan.fastest(rows))
    }

    /// The same with another kernel, for benchmarks and tests. `None` if the CPU does not have it.
    pub fn with_kernel(self, kernel: Kernel) -> Option<Self> {
        (kernel == Kernel::Vector || has_tiles(self.isa)).then(|| self.arranged(kernel))
    }

    /// With the order of records that the kernel reads fastest.
    fn arranged(self, kernel: Kernel) -> Self {
        let in_tiles = match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) | Isa::Avx512Vnni(_) => kernel == Kernel::Vector,
            _ => false,
        };
        Self { kernel, in_tiles, ..self }
    }

    /// The same with record after record, so that rows can be picked out.
    #[must_use]
    pub fn by_rows(self) -> Self {
        Self { in_tiles: false, ..self }
    }

    /// The fastest kernel for `rows` rows of activations that already have the form of this plan.
    #[must_use]
    pub fn with_rows(self, rows: usize) -> Self {
        let kernel = match (self.kernel, self.fastest(rows)) {
            (Kernel::Bf16Tiles, _) => Kernel::Bf16Tiles,
            (_, Kernel::Bf16Tiles) => Kernel::Int8Tiles,
            (_, kernel) => kernel,
        };
        Self { kernel, ..self }
    }

    fn fastest(&self, rows: usize) -> Kernel {
        if !has_tiles(self.isa) {
            return Kernel::Vector;
        }
        let [first, second] = CROSSOVERS;
        let crossovers = if self.group == first.group { first } else { second };
        match rows {
            _ if rows >= crossovers.bf16 => Kernel::Bf16Tiles,
            _ if rows >= crossovers.int8 => Kernel::Int8Tiles,
            _ => Kernel::Vector,
        }
    }

    /// The instruction set.
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel.
    pub const fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// The kernel, for people.
    pub fn name(&self) -> &'static str {
        match self.kernel {
            Kernel::Vector => vector_name(self.isa),
            Kernel::Int8Tiles => "avx512-amx int8",
            Kernel::Bf16Tiles => "avx512-amx bf16",
        }
    }

    /// Rows that are written together: rows from a multiple of this on, that many or those that are
    /// left. Each takes [`activation_len`] words, but for [`room`](Self::room) at the end.
    pub const fn rows_together(&self) -> usize {
        if self.in_tiles { TILE_ROWS } else { 1 }
    }

    /// Rows that the activations of a product have room for: `rows` and what fills the last tile.
    pub const fn room(&self, rows: usize) -> usize {
        if self.in_tiles { padded_rows(rows) } else { rows }
    }

    /// Writes activations in the form that the kernel reads: [`rows_together`](Self::rows_together)
    /// rows of `k` elements, or fewer at the end. `out` is their [`room`](Self::room).
    ///
    /// If rows are written together, `out` may also be a part of that: the words of whole steps
    /// from `first` on, a step being 16 words for each row of the room.
    ///
    /// # Panics
    ///
    /// Panics if there are no rows or too many, or if `out` does not have the size that they need.
    pub fn write(&self, (x, k): (&[f32], usize), first: usize, out: &mut [u32]) {
        if self.in_tiles {
            return quantize_steps(self.isa, (x, k), first, out);
        }
        assert!(x.len() == k && first == 0, "one row is written at a time");
        match self.kernel {
            Kernel::Vector | Kernel::Int8Tiles => quantize_row(self.isa, x, out),
            Kernel::Bf16Tiles => super::bf16::round_row(self.isa, x, out),
        }
    }

    /// Whether the records of rows lie side by side.
    pub(super) const fn in_tiles(&self) -> bool {
        self.in_tiles
    }

    /// Rows that must be in memory behind the rows of a call, whatever they hold: a tile is read
    /// whole, and what it makes of them is dropped.
    pub const fn rows_behind(&self) -> usize {
        match self.kernel {
            Kernel::Vector => 0,
            Kernel::Int8Tiles | Kernel::Bf16Tiles => 15,
        }
    }

    /// Rows of a tile of the kernel: a number of rows that is no multiple wastes part of one.
    pub const fn tile_rows(&self) -> usize {
        match self.kernel {
            Kernel::Vector => TILE_ROWS,
            Kernel::Int8Tiles => 16,
            Kernel::Bf16Tiles => 32,
        }
    }

    /// Most rows that a call should have, whole tiles.
    pub fn row_block(&self, k: usize) -> usize {
        match self.kernel {
            // Each panel is read from the second-level cache for every tile of rows, and from
            // farther away only once.
            Kernel::Vector => 12 * TILE_ROWS,
            // Activations should stay in the second-level cache of a core.
            Kernel::Int8Tiles => {
                ((768 << 10) / (4 * activation_len(k)).max(1)).clamp(16, 512) / 16 * 16
            }
            // They pass the cache in chunks of k.
            Kernel::Bf16Tiles => 512,
        }
    }

    /// Most panels for one call. More of them share the activations that come from farther away
    /// than the second-level cache.
    pub fn panels_at_once(&self, rows: usize, k: usize) -> usize {
        match self.kernel {
            Kernel::Vector => usize::MAX,
            Kernel::Int8Tiles => 2,
            Kernel::Bf16Tiles if rows.saturating_mul(4 * activation_len(k)) <= CACHED_BYTES => 2,
            Kernel::Bf16Tiles => 8,
        }
    }
}

/// Rows, first and last, and the kernel that multiplies them; no last row means any number.
pub type RowRange = (usize, Option<usize>, Plan);

/// The kernels for weights of a format on this instruction set, from one row up. Empty if the
/// format has no panels.
pub fn row_ranges(isa: Isa, dtype: DType) -> Vec<RowRange> {
    let Some(layout) = PackLayout::new(dtype, super::PANEL_COLS, dtype.unit().0) else {
        return Vec::new();
    };
    let mut starts: Vec<usize> = vec![1];
    starts.extend(CROSSOVERS.iter().flat_map(|crossovers| [crossovers.int8, crossovers.bf16]));
    starts.sort_unstable();
    let mut ranges: Vec<RowRange> = Vec::new();
    for first in starts {
        let plan = Plan::new(isa, &layout, first);
        match ranges.last_mut() {
            Some((.., last)) if *last == plan => {}
            previous => {
                if let Some((_, end, _)) = previous {
                    *end = Some(first - 1);
                }
                ranges.push((first, None, plan));
            }
        }
    }
    ranges
}

fn has_tiles(isa: Isa) -> bool {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni(token) => token.amx().is_some(),
        _ => false,
    }
}

const fn vector_name(isa: Isa) -> &'static str {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni(_) => "avx512-vnni",
        isa => isa.name(),
    }
}
