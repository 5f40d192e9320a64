//! Which calls there are, and which of them were asked for.

use fucina::{CacheType, DType};

use super::args::{OpsArgs, Section};
use crate::bench::gpu::shapes::{DISPATCH, F16, MAX_ELEMS, QUANT, QUANT_FORMATS};
use crate::exit::Failure;

/// A call with its sizes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Case {
    pub(super) section: Section,
    pub(super) name: String,
    pub(super) op: Op,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Op {
    /// `x[m, k]` times `weights[n, k]`.
    Linear {
        dtype: DType,
        m: usize,
        n: usize,
        k: usize,
    },
    /// For each token the matrices `[n, k]` of [`USED`] of [`EXPERTS`] experts.
    Grouped {
        dtype: DType,
        tokens: usize,
        n: usize,
        k: usize,
    },
    /// The last `tokens` of `positions`, causal.
    Attention {
        cache: CacheType,
        tokens: usize,
        positions: usize,
        heads: Heads,
    },
    /// Keys and values of `tokens` into a cache.
    Append {
        cache: CacheType,
        tokens: usize,
        heads: Heads,
    },
    /// Rows that are looked up.
    Embed {
        dtype: DType,
        tokens: usize,
        n: usize,
        k: usize,
    },
    Light {
        what: Light,
        rows: usize,
        cols: usize,
    },
}

/// Heads of queries, heads of keys, and the size of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heads {
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) dim: usize,
}

/// What reads each element a few times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Light {
    RmsNorm,
    /// Of rows that are heads of [`ROPE_DIM`].
    Rope,
    Softmax,
    Add,
    SwiGlu,
    /// One panel of 16 columns: little but the activations' way to 8 bits.
    Quantize,
    TopK(usize),
}

pub(super) const EXPERTS: usize = 128;
pub(super) const USED: usize = 8;
pub(super) const ROPE_DIM: usize = 128;

/// The formats and sizes of the targets for CPU speed.
const FORMATS: [DType; 10] = [
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::Q8_0,
    DType::Q5_0,
    DType::Q4_0,
    DType::TQ2_0,
    DType::F16,
    DType::BF16,
    DType::F32,
];
const LINEAR: [[usize; 3]; 9] = [
    [1, 4096, 4096],
    [2, 4096, 4096],
    [4, 4096, 4096],
    [8, 4096, 4096],
    [32, 4096, 4096],
    [128, 4096, 4096],
    [512, 4096, 4096],
    [32, 4096, 1024],
    [1, 151_936, 1024],
];

/// The heads of Qwen3 0.6B, and of Gemma 3 270M.
const HEADS: [Heads; 2] =
    [Heads { queries: 16, keys: 8, dim: 128 }, Heads { queries: 4, keys: 1, dim: 256 }];
/// Tokens, and positions with them.
const SPANS: [(usize, usize); 4] = [(1, 512), (1, 4096), (128, 128), (512, 512)];

/// The experts of Qwen3 30B-A3B: up, and down.
const GROUPED: [(usize, [usize; 2]); 4] =
    [(1, [768, 2048]), (32, [768, 2048]), (128, [768, 2048]), (32, [2048, 768])];

const LIGHT: [(Light, usize, usize); 18] = [
    (Light::RmsNorm, 1, 4096),
    (Light::RmsNorm, 128, 4096),
    (Light::RmsNorm, 512, 1024),
    (Light::Rope, 1, 16),
    (Light::Rope, 128, 16),
    (Light::Rope, 512, 32),
    (Light::Softmax, 16, 4096),
    (Light::Softmax, 2048, 512),
    (Light::Softmax, 1, 262_144),
    (Light::Add, 1, 4096),
    (Light::Add, 128, 4096),
    (Light::SwiGlu, 1, 12_288),
    (Light::SwiGlu, 128, 12_288),
    (Light::Quantize, 1, 4096),
    (Light::Quantize, 128, 4096),
    (Light::Quantize, 512, 4096),
    (Light::TopK(1), 1, 262_144),
    (Light::TopK(40), 1, 262_144),
];

/// The calls that were asked for.
pub(super) fn chosen(args: &OpsArgs) -> anyhow::Result<Vec<Case>> {
    let formats = formats(args)?;
    let mut cases = match args.dims.as_deref() {
        Some(&[m, n, k]) => {
            let linear = |&dtype: &DType| linear(Section::Linear, dtype, [m, n, k]);
            if formats.is_empty() { FORMATS.iter() } else { formats.iter() }.map(linear).collect()
        }
        _ => all(),
    };
    let wanted = |section| args.section.iter().any(|&of| of == Section::All || of == section);
    cases.retain(|case| wanted(case.section));
    if args.dims.is_none() && !formats.is_empty() {
        cases.retain(|case| case.op.format().is_some_and(|dtype| formats.contains(&dtype)));
    }
    if let Some(text) = &args.shape {
        let names: Vec<_> = cases.iter().map(|case| case.name.clone()).collect();
        cases.retain(|case| case.name.contains(text.as_str()));
        if cases.is_empty() {
            let message =
                format!("no call has {text:?} in its name; there are {}", names.join(", "));
            return Err(Failure::usage(message).into());
        }
    }
    if cases.is_empty() {
        let message = "no call of these sections has weights of these formats; leave one flag out";
        return Err(Failure::usage(message).into());
    }
    for case in &cases {
        check(case)?;
    }
    Ok(cases)
}

fn formats(args: &OpsArgs) -> anyhow::Result<Vec<DType>> {
    let known = |dtype: &DType| !matches!(dtype, DType::I32 | DType::U8);
    let named = |name: &String| {
        DType::from_name(name).filter(known).ok_or_else(|| {
            let names = DType::ALL.iter().copied().filter(known).map(DType::name);
            let names: Vec<_> = names.collect();
            Failure::usage(format!("--format takes {}; {name:?} is none", names.join(", "))).into()
        })
    };
    args.format.iter().map(named).collect()
}

fn check(case: &Case) -> anyhow::Result<()> {
    let Op::Linear { dtype, m, n, k } = case.op else { return Ok(()) };
    let unit = dtype.unit().0;
    if !k.is_multiple_of(unit) {
        let message = format!("{dtype} has blocks of {unit}: K, which is {k}, must be a multiple");
        return Err(Failure::usage(message).into());
    }
    if [m * k, n * k, m * n].into_iter().any(|elems| elems > MAX_ELEMS) {
        let message = format!("{m}x{n}x{k} is too large: no matrix may have over 2^28 elements");
        return Err(Failure::usage(message).into());
    }
    Ok(())
}

impl Op {
    /// Format of the weights, if there are any.
    pub(super) const fn format(&self) -> Option<DType> {
        match *self {
            Self::Linear { dtype, .. }
            | Self::Grouped { dtype, .. }
            | Self::Embed { dtype, .. } => Some(dtype),
            _ => None,
        }
    }

    /// Rows, columns of the result and contracted size, of a product.
    pub(super) const fn sizes(&self) -> Option<[usize; 3]> {
        match *self {
            Self::Linear { m, n, k, .. } => Some([m, n, k]),
            Self::Grouped { tokens, n, k, .. } => Some([tokens * USED, n, k]),
            _ => None,
        }
    }
}

fn case(section: Section, name: String, op: Op) -> Case {
    Case { section, name, op }
}

fn linear(section: Section, dtype: DType, [m, n, k]: [usize; 3]) -> Case {
    case(section, format!("{} {m}x{n}x{k}", dtype.name()), Op::Linear { dtype, m, n, k })
}

/// Every call of the tables. Those with the same weights follow each other.
fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in FORMATS {
        cases.extend(LINEAR.map(|sizes| linear(Section::Linear, dtype, sizes)));
    }
    let source = |dtype, sizes: &[(&str, [usize; 3], usize)]| {
        let cases: Vec<_> =
            sizes.iter().map(|&(_, sizes, _)| linear(Section::Source, dtype, sizes)).collect();
        cases
    };
    cases.extend(source(DType::F32, &DISPATCH));
    cases.extend(source(DType::F16, &F16));
    for dtype in QUANT_FORMATS {
        cases.extend(source(dtype, &QUANT));
    }
    // What a section before has is not run again.
    let mut seen = Vec::new();
    cases.retain(|case| {
        let is_new = !seen.contains(&case.op);
        seen.push(case.op);
        is_new
    });
    attention(&mut cases);
    for dtype in [DType::Q4_K, DType::Q6_K, DType::Q8_0] {
        for (tokens, [n, k]) in GROUPED {
            let name = format!("{} {tokens}x{n}x{k}, {USED} of {EXPERTS}", dtype.name());
            cases.push(case(Section::Moe, name, Op::Grouped { dtype, tokens, n, k }));
        }
    }
    for (dtype, tokens) in [(DType::Q6_K, 1), (DType::Q6_K, 128), (DType::Q8_0, 128)] {
        let name = format!("{} rows {tokens} of 151936x1024", dtype.name());
        let op = Op::Embed { dtype, tokens, n: 151_936, k: 1024 };
        cases.push(case(Section::Light, name, op));
    }
    for (what, rows, cols) in LIGHT {
        let name = format!("{} {rows}x{cols}", what.name());
        cases.push(case(Section::Light, name, Op::Light { what, rows, cols }));
    }
    cases
}

fn attention(cases: &mut Vec<Case>) {
    for heads in HEADS {
        let Heads { queries, keys, dim } = heads;
        let named = |what: &str, cache: CacheType| {
            format!("{what}, heads {queries}/{keys} of {dim}, {}", cache.name())
        };
        for cache in [CacheType::F16, CacheType::Q8_0] {
            for (tokens, positions) in SPANS {
                let name = named(&format!("attention {tokens} over {positions}"), cache);
                let op = Op::Attention { cache, tokens, positions, heads };
                cases.push(case(Section::Attention, name, op));
            }
            for tokens in [1, 512] {
                let name = named(&format!("cache write {tokens}"), cache);
                let op = Op::Append { cache, tokens, heads };
                cases.push(case(Section::Attention, name, op));
            }
        }
    }
}

impl Light {
    fn name(self) -> String {
        match self {
            Self::RmsNorm => "rms norm".to_owned(),
            Self::Rope => format!("rope, heads of {ROPE_DIM}"),
            Self::Softmax => "softmax".to_owned(),
            Self::Add => "add".to_owned(),
            Self::SwiGlu => "swiglu".to_owned(),
            Self::Quantize => "to 8 bits, one panel".to_owned(),
            Self::TopK(k) => format!("top {k}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        ops: OpsArgs,
    }

    fn cases(line: &str) -> anyhow::Result<Vec<Case>> {
        chosen(&Line::try_parse_from(format!("x {line}").trim().split(' '))?.ops)
    }

    fn count(line: &str) -> usize {
        cases(line).unwrap().len()
    }

    #[test]
    fn every_row_of_the_targets_and_of_the_source_is_there_once() {
        let all = cases("").unwrap();
        assert_eq!(count("--section linear"), 10 * 9);
        assert_eq!(count("--section linear,moe"), 10 * 9 + 3 * 4);
        // Of 6, 4 and 4 times 16 shapes, those that the targets have as well are left out.
        assert_eq!(count("--section source"), (6 - 1) + (4 - 2) + 4 * (16 - 8));
        for op in [
            Op::Linear { dtype: DType::Q5_0, m: 512, n: 4096, k: 4096 },
            Op::Linear { dtype: DType::BF16, m: 1, n: 151_936, k: 1024 },
            Op::Linear { dtype: DType::F32, m: 2048, n: 2048, k: 2048 },
            Op::Linear { dtype: DType::Q5_K, m: 1, n: 12_288, k: 4096 },
            Op::Linear { dtype: DType::F16, m: 128, n: 4096, k: 1024 },
            Op::Light { what: Light::TopK(1), rows: 1, cols: 262_144 },
        ] {
            assert_eq!(all.iter().filter(|case| case.op == op).count(), 1, "{op:?}");
        }
        let mut names: Vec<_> = all.iter().map(|case| &case.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len(), "a name stands for one call");
    }

    #[test]
    fn flags_choose() {
        assert_eq!(count("--format q4_k --section linear"), 9);
        assert_eq!(count("--shape 512x4096x4096"), 10);
        assert_eq!(count("--format q4_1,q8_0 --dims 3 32 64"), 2);
        assert_eq!(count("--dims 3 32 256"), 10);
        let one = cases("--format q4_1 --dims 3 32 64").unwrap();
        assert_eq!(one[0].op, Op::Linear { dtype: DType::Q4_1, m: 3, n: 32, k: 64 });
    }

    #[test]
    fn what_cannot_be_is_an_error_that_says_so() {
        for (line, word) in [
            ("--shape nothing", "Q4_K 1x4096x4096"),
            ("--format q9", "Q4_K"),
            ("--format u8", "Q4_K"),
            ("--format q4_k --dims 1 1 32", "blocks of 256"),
            ("--format f32 --dims 1048576 1048576 1", "too large"),
            ("--section attention --format q4_k", "leave one flag out"),
            ("--iters 1001", "from 1 to 1000"),
            ("--dims 0 1 1", "from 1 to"),
        ] {
            let error = cases(line).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
