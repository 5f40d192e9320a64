//! The products that are compared: the rows of the targets for CPU speed, and the f32 shapes of
//! the design's source document.

use super::Args;

/// `x[m, k]` times `weights[n, k]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) format: &'static str,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// Names of formats, as ours and as ggml's.
const FORMATS: [&str; 10] =
    ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q5_0", "Q4_0", "TQ2_0", "F16", "BF16", "F32"];

const SHAPES: [[usize; 3]; 9] = [
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

const F32: [[usize; 3]; 5] =
    [[256; 3], [512; 3], [1024; 3], [2048, 1024, 1024], [2048, 2048, 2048]];

/// Shapes of `--quick`.
const QUICK: [[usize; 3]; 2] = [[1, 256, 256], [32, 256, 256]];

impl Case {
    pub(super) fn name(&self) -> String {
        let Self { format, m, n, k } = self;
        format!("{format} {m}x{n}x{k}")
    }

    /// The name's parts, if it is one.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (format, sizes) = name.split_once(' ')?;
        let format = FORMATS.into_iter().find(|known| *known == format)?;
        let sizes: Vec<usize> = sizes.split('x').filter_map(|size| size.parse().ok()).collect();
        let &[m, n, k] = &sizes[..] else { return None };
        Some(Self { format, m, n, k })
    }

    /// Multiplications and additions.
    pub(super) fn operations(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }
}

/// The cases that were asked for. Those with the same weights follow each other.
pub(super) fn chosen(args: &Args) -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = if args.quick { &QUICK[..] } else { &SHAPES[..] };
    for format in FORMATS {
        cases.extend(shapes.iter().map(|&[m, n, k]| Case { format, m, n, k }));
    }
    if !args.quick {
        cases.extend(F32.iter().map(|&[m, n, k]| Case { format: "F32", m, n, k }));
    }
    let formats = &args.format;
    cases.retain(|case| {
        formats.is_empty() || formats.iter().any(|name| name.eq_ignore_ascii_case(case.format))
    });
    if let Some(text) = &args.shape {
        cases.retain(|case| case.name().contains(text.as_str()));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_its_case() {
        let case = Case { format: "Q4_K", m: 1, n: 151_936, k: 1024 };
        assert_eq!(Case::parse(&case.name()), Some(case));
        assert_eq!(case.operations(), 311_164_928.0);
        for name in ["", "Q4_K", "Q4_K 1x2", "Q4_K 1x2x3x4", "Q9 1x2x3", "gemma pp128"] {
            assert_eq!(Case::parse(name), None, "{name}");
        }
    }
}
