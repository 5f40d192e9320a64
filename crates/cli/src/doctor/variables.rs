//! The variables that are set, and what each does.

use fucina::{ConfigError, THRESHOLDS};
use serde::Serialize;

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) effect: String,
}

/// Knobs besides the thresholds.
const KNOWN: &[(&str, &str)] = &[
    ("FUCINA_THREADS", "number of threads"),
    ("FUCINA_CPU_ISA", "instruction set of the CPU kernels"),
    ("FUCINA_CPU_BLAS", "BLAS library for large f32 products; off: own kernels"),
    ("FUCINA_BLAS_LIBRARY", "path of the BLAS library"),
    ("FUCINA_CPU_F32_SHADOW", "whether 16-bit weights get an f32 copy for many rows"),
    ("FUCINA_CPU_F32_SHADOW_MIN_M", "rows from which they do"),
    ("FUCINA_GPU", "whether calls are offered to providers"),
    ("FUCINA_GPU_TRACE", "says where every op ran, and why"),
    ("FUCINA_GPU_QMOE_MIN_FILL", "how full the tiles of experts are that are offered, in percent"),
    ("FUCINA_GPU_DEVICE", "number of the CUDA device"),
    ("FUCINA_GPU_IN_FLIGHT", "most commands in flight on a CUDA device"),
    ("FUCINA_GPU_VRAM_BUDGET", "bytes of device memory to use"),
    ("FUCINA_GPU_QUANT_MMA", "whether quantized products use tensor cores"),
    ("FUCINA_GPU_QUANT_INT8", "whether activations of quantized products go to 8 bits"),
    ("FUCINA_GPU_QUANT_SPLIT_K", "whether quantized products share k among blocks"),
    ("FUCINA_CUDA_LIBRARY", "path of the CUDA driver"),
    ("FUCINA_CUBLAS_LIBRARY", "path of cuBLAS; 0 or off: do without"),
    ("FUCINA_GPU_TF32", "whether cuBLAS may round operands to TF32"),
    ("FUCINA_GPU_KERNELS", "whether kernels are compiled at run time"),
    ("FUCINA_NVRTC_LIBRARY", "path of the run-time compiler; 0 or off: do without"),
    ("FUCINA_POOL_MB", "free memory that the pool keeps"),
    ("FUCINA_HISTORY", "file with the lines of former chats; empty for none"),
    ("FUCINA_BLAS_FOLDER", "BLAS libraries for the tests; no effect here"),
    ("FUCINA_ORACLES", "golden files of the tests; no effect here"),
    ("FUCINA_REQUIRE_ORACLES", "tests without golden files fail; no effect here"),
    ("FUCINA_MODELS", "folder of models"),
    ("FUCINA_REQUIRE_MODELS", "tests without model files fail; no effect here"),
    ("FUCINA_REQUIRE_ISA", "instruction sets that the tests require; no effect here"),
];

/// Every variable of ours that is set.
pub(super) fn set(wrong: Option<&ConfigError>) -> Vec<Variable> {
    let all = std::env::vars_os().map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    });
    let mut ours: Vec<_> = all.filter(|(name, _)| name.starts_with("FUCINA_")).collect();
    ours.sort();
    ours.into_iter().map(|(name, value)| describe(name, value, wrong)).collect()
}

fn describe(name: String, value: String, wrong: Option<&ConfigError>) -> Variable {
    let known = KNOWN.iter().find(|(known, _)| *known == name).map(|&(_, effect)| effect);
    let threshold = THRESHOLDS.iter().any(|&(known, _)| known == name);
    let effect = match wrong.filter(|error| error.name == name) {
        Some(error) => format!("WRONG: it takes {}", error.expected),
        None => match known.or(threshold.then_some("work from which a call is offered")) {
            Some(effect) => effect.to_owned(),
            None => "UNKNOWN: no such variable; is it misspelt?".to_owned(),
        },
    };
    Variable { name, value, effect }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_known_unknown_or_wrong() {
        let of = |name: &str, wrong: Option<&ConfigError>| {
            describe(name.to_owned(), "x".to_owned(), wrong).effect
        };
        assert_eq!(of("FUCINA_THREADS", None), "number of threads");
        assert_eq!(of("FUCINA_GPU_MIN_WORK", None), "work from which a call is offered");
        let misspelt = ["FUCINA", "THREAD"].join("_");
        assert!(of(&misspelt, None).starts_with("UNKNOWN"));
        let wrong = ConfigError { name: "FUCINA_THREADS", value: "x".into(), expected: "y" };
        assert_eq!(of("FUCINA_THREADS", Some(&wrong)), "WRONG: it takes y");
        assert_eq!(of("FUCINA_GPU", Some(&wrong)), "whether calls are offered to providers");
    }
}
