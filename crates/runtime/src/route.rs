//! Where a call runs: a pure function of the call, of where its bytes are, and of the gates.
//!
//! A gate compares work with the cost of a trip to the device. A provider may still decline what
//! is offered to it: that is its own decision, and the call then runs on the CPU as well.

use fucina_accel::CpuReason;
use fucina_dtype::DType;

use crate::config::Offload;
use crate::gates::{Gates, Memory, quant_threshold};

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
    /// Attention over `work = queries * keys * heads * head_dim`.
    Attention {
        /// See above.
        work: u64,
    },
    /// Anything that reads each element a few times: norms, RoPE, element-wise ops, look-ups.
    Light,
}

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
    match offload {
        Offload::Off => return Route::Cpu(CpuReason::Disabled),
        Offload::Force => return Route::Offload,
        Offload::Auto => {}
    }
    match query.kind {
        Kind::MatMul { m, n, k, rhs, resident } => {
            let floor = |name| gates.threshold(name, query.memory);
            matmul(Shape { m, n, k, resident }, rhs, &floor)
        }
        Kind::Attention { work } => {
            let name = "FUCINA_GPU_MIN_WORK_ATTN";
            gate(work, &[(name, gates.threshold(name, query.memory))])
        }
        Kind::Light if query.pending_input => Route::Offload,
        Kind::Light => Route::Cpu(CpuReason::NotResident),
    }
}

struct Shape {
    m: usize,
    n: usize,
    k: usize,
    resident: bool,
}

fn matmul(shape: Shape, rhs: DType, floor: &dyn Fn(&'static str) -> u64) -> Route {
    let Shape { m, n, k, resident } = shape;
    // An overflow is more work than any threshold but the one that means "never".
    let work = [m, n, k].iter().fold(1u64, |work, &size| work.saturating_mul(size as u64));
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
        DType::F32 | DType::F16 | DType::BF16 => return Route::Cpu(CpuReason::TooNarrow),
        _ if m <= 8 => &["FUCINA_GPU_MIN_WORK_DECODE"],
        block => return gate(work, &[named(quant_threshold(block), floor)]),
    };
    let mut floors = [("", 0); 2];
    for (at, &name) in floors.iter_mut().zip(names) {
        *at = named(name, floor);
    }
    gate(work, &floors[..names.len()])
}

fn named(name: &'static str, floor: &dyn Fn(&'static str) -> u64) -> (&'static str, u64) {
    (name, floor(name))
}

fn gate(work: u64, floors: &[(&'static str, u64)]) -> Route {
    let below = floors.iter().find(|&&(_, floor)| work < floor || floor == u64::MAX);
    below.map_or(Route::Offload, |&(name, _)| Route::Cpu(CpuReason::BelowGate { threshold: name }))
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
