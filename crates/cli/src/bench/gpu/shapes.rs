//! What is measured: the shapes of the design's source document, or one that was asked for.

use fucina::DType;

use super::args::{CommonArgs, DispatchArgs, FormatsArgs, Section};
use crate::exit::Failure;

/// Most elements of an operand or a result: a gigabyte of f32.
pub(in crate::bench) const MAX_ELEMS: usize = 1 << 28;

/// `out[m, n] = x[m, k] * weights[n, k]ᵀ`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) iters: usize,
    /// The weights are brought to the device for every call.
    pub(super) transient: bool,
    /// Activations are rounded to 8 bits.
    pub(super) eight_bits: bool,
    /// Largest difference from the CPU's result.
    pub(super) tolerance: f64,
}

impl Case {
    pub(super) fn new(name: &str, dtype: DType, [m, n, k]: [usize; 3], iters: usize) -> Self {
        let tolerance = match dtype {
            DType::F32 => 5e-3,
            DType::F16 | DType::BF16 => 1e-2,
            _ => 5e-2,
        };
        Self {
            name: name.to_owned(),
            dtype,
            m,
            n,
            k,
            iters,
            transient: false,
            eight_bits: false,
            tolerance,
        }
    }

    /// Multiplications and additions.
    #[expect(clippy::cast_precision_loss, reason = "a count below 2^53")]
    pub(super) fn flops(&self) -> f64 {
        2.0 * (self.m * self.n * self.k) as f64
    }
}

pub(in crate::bench) const DISPATCH: [(&str, [usize; 3], usize); 6] = [
    ("gemv 1x4096x4096", [1, 4096, 4096], 15),
    ("gemm 256^3", [256; 3], 15),
    ("gemm 512^3", [512; 3], 10),
    ("gemm 1024^3", [1024; 3], 6),
    ("gemm 2048x1024x1024", [2048, 1024, 1024], 4),
    ("gemm 2048^3", [2048; 3], 3),
];

pub(in crate::bench) const F16: [(&str, [usize; 3], usize); 4] = [
    ("decode-qkv", [1, 4096, 1024], 12),
    ("prefill32-qkv", [32, 4096, 1024], 8),
    ("prefill128-qkv", [128, 4096, 1024], 5),
    ("decode-lmhead", [1, 151_936, 1024], 4),
];

pub(in crate::bench) const QUANT: [(&str, [usize; 3], usize); 16] = [
    ("decode", [1, 4096, 4096], 12),
    ("decode", [2, 4096, 4096], 12),
    ("decode", [3, 4096, 4096], 12),
    ("decode", [4, 4096, 4096], 12),
    ("decode", [5, 4096, 4096], 12),
    ("decode", [6, 4096, 4096], 12),
    ("decode", [8, 4096, 4096], 12),
    ("decode-qkv", [1, 6144, 4096], 12),
    ("decode-ffn", [1, 12_288, 4096], 12),
    ("decode-lmhead", [1, 151_936, 1024], 4),
    ("small32", [32, 1024, 512], 12),
    ("parakeet32", [32, 1536, 512], 12),
    ("qwen32", [32, 4096, 1024], 8),
    ("prefill32", [32, 4096, 4096], 8),
    ("prefill64", [64, 4096, 4096], 5),
    ("prefill128", [128, 4096, 4096], 5),
];

pub(in crate::bench) const QUANT_FORMATS: [DType; 4] =
    [DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::Q8_0];

/// The f32 shapes that were asked for.
pub(super) fn dispatch(args: &DispatchArgs) -> anyhow::Result<Vec<Case>> {
    let shapes = if args.quick { &DISPATCH[..3] } else { &DISPATCH[..] };
    let mut cases = Vec::new();
    for &(name, sizes, iters) in shapes {
        cases.push(Case::new(name, DType::F32, sizes, iters));
    }
    if let Some(sizes) = dims(&args.common) {
        cases = vec![Case::new(&format!("dims {}", sized(sizes)), DType::F32, sizes, 5)];
    }
    chosen(cases, &args.common)
}

/// The shapes of the formats that were asked for.
pub(super) fn formats(args: &FormatsArgs) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for dtype in formats_of(args)? {
        let is_block = dtype.is_block();
        let shapes = if is_block { &QUANT[..] } else { &F16[..] };
        let named = |name: &str, sizes| format!("{} {name} {}", dtype.name(), sized(sizes));
        match dims(&args.common) {
            Some(sizes) => cases.push(Case::new(&named("dims", sizes), dtype, sizes, 5)),
            None => cases.extend(
                shapes
                    .iter()
                    .map(|&(name, sizes, n)| Case::new(&named(name, sizes), dtype, sizes, n)),
            ),
        }
    }
    let eight_bits = std::env::var_os("FUCINA_GPU_QUANT_INT8").is_some_and(|value| value == "1");
    for case in &mut cases {
        case.eight_bits = eight_bits && case.dtype.is_block();
        case.transient = args.transient && !case.dtype.is_block();
    }
    chosen(cases, &args.common)
}

fn formats_of(args: &FormatsArgs) -> anyhow::Result<Vec<DType>> {
    if let Some(name) = &args.format {
        let known = DType::ALL
            .iter()
            .copied()
            .filter(|dtype| dtype.is_block() || matches!(dtype, DType::F16 | DType::BF16));
        let named = known.clone().find(|dtype| dtype.name().eq_ignore_ascii_case(name));
        let Some(dtype) = named else {
            let names: Vec<_> = known.map(DType::name).collect();
            let message = format!("--format takes one of {}", names.join(", "));
            return Err(Failure::usage(message).into());
        };
        return Ok(vec![dtype]);
    }
    let mut formats = Vec::new();
    if args.section != Section::Quant {
        formats.push(DType::F16);
    }
    if args.section != Section::F16 {
        formats.extend(QUANT_FORMATS);
    }
    Ok(formats)
}

fn dims(args: &CommonArgs) -> Option<[usize; 3]> {
    args.dims.as_ref().and_then(|dims| dims[..].try_into().ok())
}

fn sized([m, n, k]: [usize; 3]) -> String {
    format!("{m}x{n}x{k}")
}

/// Those whose name has the text, with the number of samples that was asked for. Sizes that no
/// operand can have are an error.
fn chosen(mut cases: Vec<Case>, args: &CommonArgs) -> anyhow::Result<Vec<Case>> {
    if let Some(text) = &args.shape {
        let names: Vec<_> = cases.iter().map(|case| case.name.clone()).collect();
        cases.retain(|case| case.name.contains(text.as_str()));
        if cases.is_empty() {
            let message =
                format!("no shape has {text:?} in its name; there are {}", names.join(", "));
            return Err(Failure::usage(message).into());
        }
    }
    for case in &mut cases {
        case.iters = args.iters.unwrap_or(case.iters);
        let Case { dtype, m, n, k, .. } = *case;
        let unit = dtype.unit().0;
        if !k.is_multiple_of(unit) {
            let message =
                format!("{dtype} has blocks of {unit}: K, which is {k}, must be a multiple");
            return Err(Failure::usage(message).into());
        }
        if [m * k, n * k, m * n].into_iter().any(|elems| elems > MAX_ELEMS) {
            let message =
                format!("{m}x{n}x{k} is too large: no matrix may have over 2^28 elements");
            return Err(Failure::usage(message).into());
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::args::GpuBench;
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        bench: GpuBench,
    }

    fn cases(line: &str) -> anyhow::Result<Vec<Case>> {
        match Line::try_parse_from(format!("x {line}").split(' '))?.bench {
            GpuBench::GpuDispatch(args) => dispatch(&args),
            GpuBench::GpuFormats(args) => formats(&args),
        }
    }

    #[test]
    fn the_shapes_are_those_of_the_source() {
        let all = cases("gpu-dispatch").unwrap();
        assert_eq!(all.len(), 6);
        assert_eq!((all[5].m, all[5].n, all[5].k, all[5].iters), (2048, 2048, 2048, 3));
        assert_eq!(cases("gpu-dispatch --quick").unwrap().len(), 3);
        assert_eq!(cases("gpu-dispatch --shape 1024 --iters 63").unwrap()[0].iters, 63);
        assert_eq!(cases("gpu-formats").unwrap().len(), 4 + 4 * 16);
        assert_eq!(cases("gpu-formats --section f16").unwrap().len(), 4);
        let one = cases("gpu-formats --format q4_0 --dims 3 5 64").unwrap();
        let sizes = (one[0].dtype, one[0].m, one[0].n, one[0].k, one[0].tolerance);
        assert_eq!((one.len(), sizes), (1, (DType::Q4_0, 3, 5, 64, 5e-2)));
    }

    #[test]
    fn only_16_bit_weights_are_transient() {
        let all = cases("gpu-formats --transient").unwrap();
        assert!(all.iter().all(|case| case.transient != case.dtype.is_block()));
    }

    #[test]
    fn what_cannot_be_is_an_error_that_says_so() {
        for (line, word) in [
            ("gpu-dispatch --shape nothing", "gemm 512^3"),
            ("gpu-formats --format q9", "Q4_K"),
            ("gpu-formats --format q4_k --dims 1 1 32", "blocks of 256"),
            ("gpu-dispatch --dims 1048576 1048576 1", "too large"),
            ("gpu-dispatch --dims 0 1 1", "from 1 to"),
            ("gpu-dispatch --queue 9", "from 1 to 8"),
            ("gpu-dispatch --iters 65", "from 1 to 64"),
        ] {
            let error = cases(line).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
