//! Throughput of the matrix kernels on one thread: every format and instruction set.
//!
//! `cargo bench -p fucina-kernels --bench matmul -- [--quick] [FILTER]...`
//!
//! The rounds of a shape are interleaved over its cases; minimum and median are printed. A case
//! runs if its line contains every filter, as `Q4_K` or `avx2`. `GB/s` counts the weight once.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::time::{Duration, Instant};

use fucina_dtype::DType;
use fucina_kernels::dense::{Rows, matmul_rows, scratch_len};
use fucina_kernels::isa::Isa;
use fucina_kernels::quant::{
    PANEL_COLS, PackLayout, activation_len, matmul_panels, pack_panel, quantize_row, scratch_words,
};
use fucina_testkit::Rng;

/// Weights of one format, with what any kernel needs to multiply them.
struct Weight {
    dtype: DType,
    n: usize,
    k: usize,
    raw: Vec<u8>,
    packed: Option<(PackLayout, Aligned)>,
}

/// Bytes that start on a cache line, as a runtime allocates them.
struct Aligned(Vec<u8>, usize, usize);

impl Aligned {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + 63];
        let at = memory.as_ptr().align_offset(64);
        Self(memory, at, len)
    }

    fn bytes(&self) -> &[u8] {
        &self.0[self.1..][..self.2]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0[self.1..][..self.2]
    }
}

/// Weight rows of one call of the unpacked kernels.
const DENSE_ROWS: usize = 64;

/// Panels of one call of the packed kernels.
const PANELS: usize = 16;

/// One timed product `[m, k] x [n, k]ᵀ`.
struct Case<'a> {
    isa: Isa,
    weight: &'a Weight,
    m: usize,
    x: &'a [f32],
    out: Vec<f32>,
    times: Vec<Duration>,
}

/// Sizes and effort of a run.
struct Plan {
    shapes: &'static [(usize, usize, usize)],
    rounds: usize,
}

const FULL: Plan = Plan {
    shapes: &[
        (1, 4096, 4096),
        (2, 4096, 4096),
        (3, 4096, 4096),
        (4, 4096, 4096),
        (5, 4096, 4096),
        (6, 4096, 4096),
        (7, 4096, 4096),
        (8, 4096, 4096),
        (12, 4096, 4096),
        (16, 4096, 4096),
        (32, 4096, 4096),
        (128, 1024, 4096),
    ],
    rounds: 15,
};
const QUICK: Plan = Plan { shapes: &[(1, 64, 512), (9, 64, 512)], rounds: 2 };

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let plan = if args.iter().any(|arg| arg == "--quick") { QUICK } else { FULL };
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    println!(
        "isa          format  m x n x k            min GFLOP/s  med GFLOP/s   GB/s  rel. error"
    );
    for &(m, n, k) in plan.shapes {
        let mut rng = Rng::new(1);
        let x = rng.normals(m * k, 1.0);
        let wanted = |dtype: DType, isa: Isa| {
            let line = format!("{} {dtype} {m}x{n}x{k}", isa.name());
            filters.iter().all(|filter| line.contains(filter.as_str()))
        };
        let isas = Isa::available();
        let weights: Vec<Weight> = DType::ALL
            .iter()
            .filter(|dtype| isas.iter().any(|&isa| wanted(**dtype, isa)))
            .filter_map(|&dtype| Weight::random(dtype, n, k, &mut rng))
            .collect();
        let mut cases: Vec<Case<'_>> = Vec::new();
        for weight in &weights {
            for &isa in isas.iter().filter(|isa| wanted(weight.dtype, **isa)) {
                let out = vec![f32::NAN; m * n.next_multiple_of(PANEL_COLS)];
                cases.push(Case { isa, weight, m, x: &x, out, times: Vec::new() });
            }
        }
        for _ in 0..plan.rounds {
            cases.iter_mut().for_each(Case::time);
        }
        cases.iter_mut().for_each(Case::print);
    }
}

impl Weight {
    /// Random quants; scales around 2^-7, so that outputs are ordinary numbers.
    fn random(dtype: DType, n: usize, k: usize, rng: &mut Rng) -> Option<Self> {
        let (_, unit_bytes) = dtype.unit();
        let mut raw = Vec::new();
        raw.resize_with(n * dtype.row_bytes(k)?, || rng.next_i8().cast_unsigned());
        let (at, exponent) = scales_at(dtype)?;
        for unit in raw.chunks_exact_mut(unit_bytes) {
            for &at in at {
                unit[at + 1] = exponent | unit[at + 1] & 0x83;
            }
        }
        let packed = PackLayout::new(dtype, n, k).map(|layout| {
            let mut packed = Aligned::new(layout.total_bytes());
            let panels = packed.bytes_mut().chunks_exact_mut(layout.panel_bytes());
            for (rows, panel) in raw.chunks(PANEL_COLS * layout.row_bytes()).zip(panels) {
                pack_panel(&layout, rows, panel);
            }
            (layout, packed)
        });
        Some(Self { dtype, n, k, raw, packed })
    }
}

/// Where the 16 bits with an exponent are in a unit, and which exponent makes ordinary numbers.
fn scales_at(dtype: DType) -> Option<(&'static [usize], u8)> {
    Some(match dtype {
        DType::F32 => (&[2], 0x3c),
        DType::BF16 => (&[0], 0x3c),
        DType::F16 | DType::Q4_0 | DType::Q5_0 | DType::Q8_0 => (&[0], 0x20),
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => (&[0, 2], 0x20),
        DType::Q2_K => (&[80, 82], 0x20),
        DType::Q3_K => (&[108], 0x20),
        DType::Q6_K => (&[208], 0x20),
        DType::TQ2_0 => (&[64], 0x20),
        _ => return None,
    })
}

impl Case<'_> {
    fn time(&mut self) {
        let start = Instant::now();
        self.run();
        self.times.push(start.elapsed());
    }

    fn run(&mut self) {
        let Weight { k, packed, .. } = self.weight;
        let Some((layout, packed)) = packed else { return self.run_dense() };
        let len = activation_len(*k);
        let mut x = vec![0; self.m * len];
        for (x, out) in self.x.chunks_exact(*k).zip(x.chunks_exact_mut(len)) {
            quantize_row(self.isa, x, out);
        }
        let mut scratch = vec![0; scratch_words(*k)];
        let panels = packed.bytes().chunks(PANELS * layout.panel_bytes());
        for (panels, out) in panels.zip(self.out.chunks_mut(PANELS * self.m * PANEL_COLS)) {
            matmul_panels(self.isa, layout, panels, &x, out, &mut scratch);
        }
    }

    fn run_dense(&mut self) {
        let &Weight { dtype, n, k, ref raw, .. } = self.weight;
        let rows = n.min(DENSE_ROWS);
        let mut scratch = vec![0.0; scratch_len(dtype, self.m, rows, k)];
        let tiles = raw.chunks_exact(rows * raw.len() / n);
        for (bytes, out) in tiles.zip(self.out.chunks_exact_mut(self.m * rows)) {
            matmul_rows(self.isa, Rows { dtype, k, bytes }, self.x, out, &mut scratch);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    fn print(&mut self) {
        let Weight { dtype, n, k, packed, raw } = self.weight;
        self.times.sort_unstable();
        let flops = 2.0 * (self.m * n * k) as f64;
        let bytes = packed.as_ref().map_or(raw.len(), |(layout, _)| layout.total_bytes());
        let min = self.times[0].as_secs_f64();
        let median = self.times[self.times.len() / 2].as_secs_f64();
        println!(
            "{:12} {:6}  {:19}  {:11.1}  {:11.1}  {:5.1}  {:.2e}",
            self.isa.name(),
            dtype.name(),
            format!("{}x{n}x{k}", self.m),
            flops / min / 1e9,
            flops / median / 1e9,
            bytes as f64 / min / 1e9,
            self.relative_error(),
        );
    }

    /// Root mean square error against f64 arithmetic on unquantized activations, relative to the
    /// root mean square of the exact values. First panel only.
    fn relative_error(&self) -> f64 {
        let Weight { dtype, n, k, raw, packed } = self.weight;
        let stride = if packed.is_some() { PANEL_COLS } else { DENSE_ROWS.min(*n) };
        let columns = PANEL_COLS.min(*n);
        let mut w = vec![0.0; columns * k];
        let row_bytes = raw.len() / n;
        if dtype.decode(&raw[..columns * row_bytes], &mut w).is_err() {
            return f64::NAN;
        }
        let (mut error, mut size) = (0.0, 0.0);
        for (x, out) in self.x.chunks_exact(*k).zip(self.out.chunks_exact(stride)) {
            for (w, &got) in w.chunks_exact(*k).zip(out) {
                let products = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                let exact: f64 = products.sum();
                error += (f64::from(got) - exact).powi(2);
                size += exact * exact;
            }
        }
        (error / size).sqrt()
    }
}
