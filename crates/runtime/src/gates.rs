//! The built-in thresholds, in multiply-adds (`m * n * k`), and their overrides.
//!
//! They hold where this machine has no measured profile. The figures come from the design's source
//! document: "discrete" was measured on a laptop GPU behind a `PCIe` bus, "unified" on a laptop with one
//! memory for both sides. Every one is overridable by the variable of its name.

use std::collections::BTreeMap;

use fucina_dtype::DType;

/// How the memory of a device relates to the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// Bytes cross a bus.
    #[default]
    Discrete,
    /// Host and device see the same bytes.
    Unified,
}

/// The one threshold that is no work: percent of the tiles of a grouped product.
pub(crate) const MIN_FILL: &str = "FUCINA_GPU_QMOE_MIN_FILL";

const NEVER: u64 = u64::MAX;

/// `(variable, (discrete, unified))`.
pub const THRESHOLDS: &[(&str, (u64, u64))] = &[
    // f32 with weights that are streamed: a floor for the kernel, and one for the transfer.
    ("FUCINA_GPU_MIN_WORK", (1 << 30, 1 << 32)),
    ("FUCINA_GPU_MIN_WORK_TRANSIENT", (1 << 33, 0)),
    // f32 with resident weights: any rows, and up to eight rows.
    ("FUCINA_GPU_MIN_WORK_RESIDENT", (1 << 27, 1 << 32)),
    ("FUCINA_GPU_MIN_WORK_GEMV", (1 << 24, 1 << 24)),
    // 16-bit weights: streamed or many rows, resident, and resident with fewer than 32 rows.
    ("FUCINA_GPU_MIN_WORK_F16", (1 << 27, 1 << 27)),
    ("FUCINA_GPU_MIN_WORK_F16_RESIDENT", (1 << 20, 1 << 27)),
    // Quantized weights against the packed CPU kernels.
    ("FUCINA_GPU_MIN_WORK_DENSE_Q4", (1 << 27, 1 << 30)),
    ("FUCINA_GPU_MIN_WORK_DENSE_Q5", (1 << 24, 1 << 30)),
    ("FUCINA_GPU_MIN_WORK_DENSE_Q6", (1 << 24, 1 << 31)),
    ("FUCINA_GPU_MIN_WORK_DENSE_Q8", (1 << 24, 1 << 29)),
    ("FUCINA_GPU_MIN_WORK_DENSE_TQ2", (1 << 27, 1 << 25)),
    // Quantized weights, up to eight rows. Off until a machine shows that it pays.
    ("FUCINA_GPU_MIN_WORK_DECODE", (NEVER, NEVER)),
    // Weights of experts, whatever their format: the three products of a block together, and how
    // much of the tiles of rows has to be filled, in percent.
    ("FUCINA_GPU_MIN_WORK_QMOE", (1 << 30, 1 << 30)),
    (MIN_FILL, (50, 50)),
    // Queries * keys * heads * head size.
    ("FUCINA_GPU_MIN_WORK_ATTN", (1 << 28, 1 << 29)),
];

/// The thresholds in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gates {
    overrides: BTreeMap<&'static str, u64>,
}

impl Gates {
    /// The built-in thresholds under `overrides`.
    pub const fn new(overrides: BTreeMap<&'static str, u64>) -> Self {
        Self { overrides }
    }

    /// The threshold of a variable of [`THRESHOLDS`].
    ///
    /// # Panics
    ///
    /// Panics if there is no such variable.
    pub fn threshold(&self, name: &str, memory: Memory) -> u64 {
        if let Some(&value) = self.overrides.get(name) {
            return value;
        }
        let row = THRESHOLDS.iter().find(|(known, _)| *known == name);
        let &(_, (discrete, unified)) = row.expect("the name is one of THRESHOLDS");
        match memory {
            Memory::Discrete => discrete,
            Memory::Unified => unified,
        }
    }
}

/// The variable that guards a product with weights of a block format.
pub(crate) fn quant_threshold(dtype: DType) -> &'static str {
    match dtype {
        DType::Q2_K | DType::Q3_K | DType::Q4_0 | DType::Q4_1 | DType::Q4_K => {
            "FUCINA_GPU_MIN_WORK_DENSE_Q4"
        }
        DType::Q5_0 | DType::Q5_1 | DType::Q5_K => "FUCINA_GPU_MIN_WORK_DENSE_Q5",
        DType::Q6_K => "FUCINA_GPU_MIN_WORK_DENSE_Q6",
        DType::TQ2_0 => "FUCINA_GPU_MIN_WORK_DENSE_TQ2",
        _ => "FUCINA_GPU_MIN_WORK_DENSE_Q8",
    }
}
