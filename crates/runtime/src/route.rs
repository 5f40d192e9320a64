//! Where a call runs: a pure function of the call, of where its bytes are, and of the gates.
//!
//! A gate compares work with the cost of a trip to the device. A provider may still decline what
//! is offered to it: that is its own decision, and the call then runs on the CPU as well.

use fucina_accel::{CpuReason, OffloadReason};
use fucina_dtype::DType;

use crate::config::Offload;
use crate::gates::{Gates, MIN_FILL, Memory, quant_threshold};

/// What the decision depends on, besides the gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// The call.
    pub kind: Kind,
    /// Memory of the device.
    pub memory: Memory,
    /// The current bytes of an input are on the device and not yet on the host.
    pub pending_input: bool,
}

/// What a gate needs to know of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `out[m, n] = lhs[m, k] * rhs[n, k]ᵀ`.
    MatMul {
        /// Rows of the activations, all batches together.
        m: usize,
        /// Rows of the weights.
        n: usize,
        /// The contracted size.
        k: usize,
        /// Format of the weights.
        rhs: DType,
        /// The device has the current bytes of the weights.
        resident: bool,
    },
    /// `out[rows, n]` with an expert's `[n, k]` for each row: one of the three products of a block.
    GroupedMatMul {
        /// Rows of all experts together.
        rows: usize,
        /// Rows of the weights of one expert.
        n: usize,
        /// The contracted size.
        k: usize,
        /// Tiles of [`TILE_ROWS`] rows, none of which has rows of two experts.
        tiles: usize,
    },
    /// Attention over `work = queries * keys * heads * head_dim`.
    Attention {
        /// See above.
        work: u64,
    },
    /// Anything that reads each element a few times: norms, RoPE, element-wise ops, look-ups.
    Light,
}

/// Rows of a tile of a grouped product, as the gate counts them.
pub const TILE_ROWS: usize = 32;

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Offer the call to the provider.
    Offload,
    /// Run it on the CPU.
    Cpu(CpuReason),
}

/// Decides whether to offer a call to a provider.
pub fn decide(query: &Query, offload: Offload, gates: &Gates) -> Route {
    match decide_why(query, offload, gates) {
        Ok(_) => Route::Offload,
        Err(reason) => Route::Cpu(reason),
    }
}

type Decided = Result<OffloadReason, CpuReason>;

/// As [`decide`], with the reason for either answer.
pub(crate) fn decide_why(query: &Query, offload: Offload, gates: &Gates) -> Decided {
    match offload {
        Offload::Off => return Err(CpuReason::Disabled),
        Offload::Force => return Ok(OffloadReason::Forced),
        Offload::Auto => {}
    }
    match query.kind {
        Kind::MatMul { m, n, k, rhs, resident } => {
            let floor = |name| gates.threshold(name, query.memory);
            matmul(Shape { m, n, k, resident }, rhs, &floor)
        }
        Kind::GroupedMatMul { rows, n, k, tiles } => {
            let floor = |name| gates.threshold(name, query.memory);
            grouped(rows, work_of([rows, n, k]), tiles, &floor)
        }
        Kind::Attention { work } => {
            let name = "FUCINA_GPU_MIN_WORK_ATTN";
            gate(work, &[(name, gates.threshold(name, query.memory))])
        }
        Kind::Light if query.pending_input => Ok(OffloadReason::FollowsOperand),
        Kind::Light => Err(CpuReason::NotResident),
    }
}

struct Shape {
    m: usize,
    n: usize,
    k: usize,
    resident: bool,
}

fn matmul(shape: Shape, rhs: DType, floor: &dyn Fn(&'static str) -> u64) -> Decided {
    let Shape { m, n, k, resident } = shape;
    let work = work_of([m, n, k]);
    let names: &[&'static str] = match rhs {
        DType::F32 if resident && m <= 8 && n >= 256 && k >= 256 => &["FUCINA_GPU_MIN_WORK_GEMV"],
        DType::F32 if resident && n >= 32 && k >= 16 => &["FUCINA_GPU_MIN_WORK_RESIDENT"],
        DType::F32 if m >= 32 && n >= 32 && k >= 16 => {
            &["FUCINA_GPU_MIN_WORK", "FUCINA_GPU_MIN_WORK_TRANSIENT"]
        }
        DType::F16 | DType::BF16 if resident && n >= 32 && k >= 16 => {
            &["FUCINA_GPU_MIN_WORK_F16_RESIDENT"]
        }
        DType::F16 | DType::BF16 if m >= 32 && n >= 32 && k >= 16 => &["FUCINA_GPU_MIN_WORK_F16"],
        DType::F32 | DType::F16 | DType::BF16 => return Err(CpuReason::TooNarrow),
        _ if m <= 8 => &["FUCINA_GPU_MIN_WORK_DECODE"],
        block => return gate(work, &[named(quant_threshold(block), floor)]),
    };
    let mut floors = [("", 0); 2];
    for (at, &name) in floors.iter_mut().zip(names) {
        *at = named(name, floor);
    }
    gate(work, &floors[..names.len()])
}

/// Half-empty tiles waste the device; the threshold of the work is that of a block, which has
/// three products of the same size (gate, up and down), so that all three decide alike.
fn grouped(rows: usize, work: u64, tiles: usize, floor: &dyn Fn(&'static str) -> u64) -> Decided {
    let slots = (tiles as u128) * (TILE_ROWS as u128);
    if (rows as u128) * 100 < slots * u128::from(floor(MIN_FILL)) {
        return Err(CpuReason::BelowGate { threshold: MIN_FILL });
    }
    gate(work.saturating_mul(3), &[named("FUCINA_GPU_MIN_WORK_QMOE", floor)])
}

/// Multiply-adds. An overflow is more than any threshold but the one that means "never".
fn work_of(sizes: [usize; 3]) -> u64 {
    sizes.iter().fold(1u64, |work, &size| work.saturating_mul(size as u64))
}

fn named(name: &'static str, floor: &dyn Fn(&'static str) -> u64) -> (&'static str, u64) {
    (name, floor(name))
}

fn gate(work: u64, floors: &[(&'static str, u64)]) -> Decided {
    if let Some(&(threshold, _)) = floors.iter().find(|&&(_, n)| work < n || n == u64::MAX) {
        return Err(CpuReason::BelowGate { threshold });
    }
    let threshold = floors.last().map_or("no threshold", |&(name, _)| name);
    Ok(OffloadReason::AboveGate { threshold })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matmul(m: usize, n: usize, k: usize, rhs: DType, resident: bool) -> Kind {
        Kind::MatMul { m, n, k, rhs, resident }
    }

    fn auto(kind: Kind, memory: Memory) -> Route {
        let query = Query { kind, memory, pending_input: false };
        decide(&query, Offload::Auto, &Gates::default())
    }

    const fn below(name: &'static str) -> Route {
        Route::Cpu(CpuReason::BelowGate { threshold: name })
    }

    /// The source document's table, no device present.
    #[test]
    fn the_built_in_gates_decide_as_tabulated() {
        use Memory::{Discrete, Unified};
        let (f32, f16, q4, q6) = (DType::F32, DType::F16, DType::Q4_K, DType::Q6_K);
        let rows = [
            (matmul(1, 4096, 4096, f32, true), Discrete, Route::Offload),
            (matmul(1, 255, 65536, f32, true), Discrete, below("FUCINA_GPU_MIN_WORK_RESIDENT")),
            (matmul(1, 4096, 4096, f32, false), Discrete, Route::Cpu(CpuReason::TooNarrow)),
            (matmul(512, 512, 512, f32, true), Discrete, Route::Offload),
            (matmul(511, 512, 512, f32, true), Discrete, below("FUCINA_GPU_MIN_WORK_RESIDENT")),
            (
                matmul(1024, 1024, 1024, f32, false),
                Discrete,
                below("FUCINA_GPU_MIN_WORK_TRANSIENT"),
            ),
            (matmul(2048, 2048, 2048, f32, false), Discrete, Route::Offload),
            (matmul(2048, 2048, 1024, f32, false), Unified, Route::Offload),
            (matmul(2048, 1024, 1024, f32, false), Unified, below("FUCINA_GPU_MIN_WORK")),
            (matmul(1, 4096, 1024, f16, true), Discrete, Route::Offload),
            (matmul(1, 4096, 1024, f16, false), Discrete, Route::Cpu(CpuReason::TooNarrow)),
            (matmul(32, 4096, 1024, f16, false), Discrete, Route::Offload),
            (matmul(32, 4096, 1024, q4, true), Discrete, Route::Offload),
            (matmul(9, 4096, 4096, q4, true), Discrete, Route::Offload),
            (matmul(8, 4096, 4096, q4, true), Discrete, below("FUCINA_GPU_MIN_WORK_DECODE")),
            (matmul(64, 4096, 4096, q4, true), Unified, Route::Offload),
            (matmul(63, 4096, 4096, q4, true), Unified, below("FUCINA_GPU_MIN_WORK_DENSE_Q4")),
            (matmul(64, 4096, 4096, q6, true), Unified, below("FUCINA_GPU_MIN_WORK_DENSE_Q6")),
            (Kind::Attention { work: 1 << 28 }, Discrete, Route::Offload),
            (Kind::Attention { work: 1 << 28 }, Unified, below("FUCINA_GPU_MIN_WORK_ATTN")),
            (Kind::Light, Discrete, Route::Cpu(CpuReason::NotResident)),
        ];
        for (kind, memory, want) in rows {
            assert_eq!(auto(kind, memory), want, "{kind:?} {memory:?}");
        }
    }

    /// A block of 128 experts of 768 by 2048, of which each token uses 8.
    #[test]
    fn grouped_products_need_full_tiles_and_enough_work() {
        let of = |rows, tiles, n, k| Kind::GroupedMatMul { rows, n, k, tiles };
        let (fill, work) = ("FUCINA_GPU_QMOE_MIN_FILL", "FUCINA_GPU_MIN_WORK_QMOE");
        let rows = [
            // One token: eight tiles with a row each.
            (of(8, 8, 768, 2048), below(fill)),
            // 16 rows of 32 are the half; one less is not.
            (of(128 * 16, 128, 768, 2048), Route::Offload),
            (of(128 * 16 - 1, 128, 768, 2048), below(fill)),
            // 3 * 1024 * 683 * 512 is just above 2^30, and with 682 just below.
            (of(1024, 32, 683, 512), Route::Offload),
            (of(1024, 32, 682, 512), below(work)),
            (of(0, 0, 768, 2048), below(work)),
            (of(usize::MAX, usize::MAX, usize::MAX, 2), below(fill)),
            (of(usize::MAX, usize::MAX / 32, usize::MAX, 2), Route::Offload),
        ];
        for (kind, want) in rows {
            assert_eq!(auto(kind, Memory::Discrete), want, "{kind:?}");
            assert_eq!(auto(kind, Memory::Unified), want, "{kind:?}");
        }
        let gates = Gates::new([(fill, 0), (work, 1)].into());
        let query = |kind| Query { kind, memory: Memory::Discrete, pending_input: false };
        let one = query(of(8, 8, 768, 2048));
        assert_eq!(decide(&one, Offload::Auto, &gates), Route::Offload);
        // `u64::MAX` means never, whatever the work.
        let gates = Gates::new([(work, u64::MAX)].into());
        let huge = query(of(usize::MAX, usize::MAX / 32, usize::MAX, 2));
        assert_eq!(decide(&huge, Offload::Auto, &gates), below(work));
    }

    #[test]
    fn the_switch_beats_the_gates_even_when_the_work_overflows() {
        let kind = matmul(usize::MAX, usize::MAX, usize::MAX, DType::F32, true);
        let query = Query { kind, memory: Memory::Unified, pending_input: true };
        let gates = Gates::default();
        assert_eq!(decide(&query, Offload::Off, &gates), Route::Cpu(CpuReason::Disabled));
        assert_eq!(decide(&query, Offload::Auto, &gates), Route::Offload);
        let light = Query { kind: Kind::Light, ..query };
        assert_eq!(decide(&light, Offload::Force, &gates), Route::Offload);
    }

    #[test]
    fn an_offer_says_why_it_is_made() {
        let kind = matmul(2048, 2048, 2048, DType::F32, false);
        let query = Query { kind, memory: Memory::Discrete, pending_input: false };
        let why = |query: &Query, offload| decide_why(query, offload, &Gates::default());
        let threshold = "FUCINA_GPU_MIN_WORK_TRANSIENT";
        assert_eq!(why(&query, Offload::Auto), Ok(OffloadReason::AboveGate { threshold }));
        assert_eq!(why(&query, Offload::Force), Ok(OffloadReason::Forced));
        let light = Query { kind: Kind::Light, pending_input: true, ..query };
        assert_eq!(why(&light, Offload::Auto), Ok(OffloadReason::FollowsOperand));
    }

    #[test]
    fn a_light_op_follows_bytes_that_only_the_device_has() {
        let query = Query { kind: Kind::Light, memory: Memory::Discrete, pending_input: true };
        assert_eq!(decide(&query, Offload::Auto, &Gates::default()), Route::Offload);
    }

    #[test]
    fn a_variable_overrides_its_threshold() {
        let gates = Gates::new([("FUCINA_GPU_MIN_WORK_DECODE", 1)].into());
        let kind = matmul(1, 64, 256, DType::Q4_K, false);
        let query = Query { kind, memory: Memory::Discrete, pending_input: false };
        assert_eq!(decide(&query, Offload::Auto, &gates), Route::Offload);
    }
}
