//! Throughput of the matrix kernels: every format and instruction set.
//!
//! `cargo bench -p fucina-kernels --bench matmul -- [plan] [--quick] [--threads=N] [FILTER]...`
//!
//! The rounds of a shape are interleaved over its cases; minimum and median are printed. A case
//! runs if its line contains every filter, as `Q4_K` or `avx2`. `GB/s` counts the weight once. It
//! is read again in every round: between rounds it stays in a shared cache that is large enough.
//! Threads share the columns. Activations of packed weights are quantized beforehand, and timed
//! on a line of their own.
//!
//! `plan` compares row counts: no count may be slower than a larger one, or than single rows.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fucina_dtype::DType;
use fucina_kernels::dense::MatrixMut;
use fucina_kernels::dense::{Rows, matmul_rows, scratch_len};
use fucina_kernels::isa::Isa;
use fucina_kernels::quant::{
    Kernel, PANEL_COLS, PackLayout, Plan, activation_len, matmul_planned, pack_panel,
    planned_scratch_len, quantize_row,
};
use fucina_testkit::Rng;

/// Row counts of the table and of the plan, for a weight `[N, K]`.
const ROWS: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64, 128, 512];
const PLAN_ROWS: &[usize] =
    &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 24, 25, 32, 48, 64];
const QUICK_ROWS: &[usize] = &[1, 9];
const N: usize = 4096;
const K: usize = 4096;

/// Panels and weight rows of one call.
const PANELS: usize = 16;
const DENSE_ROWS: usize = 64;

/// What is slower than it should be by more than this share is no noise.
const NOISE: f64 = 0.04;

/// Weights of one format, with what any kernel needs to multiply them.
struct Weight {
    dtype: DType,
    n: usize,
    k: usize,
    raw: Vec<u8>,
    packed: Option<(PackLayout, Aligned)>,
}

/// Bytes that start on a cache line, as a runtime allocates them.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

/// One timed product `[m, k] x [n, k]ᵀ`.
struct Case<'a> {
    isa: Isa,
    weight: &'a Weight,
    m: usize,
    x: &'a [f32],
    quantized: Vec<u32>,
    times: Vec<Duration>,
}

/// What a run is asked for.
struct Wish {
    plan: bool,
    rows: &'static [usize],
    n: usize,
    k: usize,
    rounds: usize,
    threads: usize,
    filters: Vec<String>,
}

fn main() {
    let wish = Wish::new(std::env::args().skip(1));
    let mut rng = Rng::new(1);
    let x = rng.normals(wish.rows.iter().max().copied().unwrap_or(0) * wish.k, 1.0);
    let wanted = |dtype: DType, isa: Isa, m: usize| {
        let line = format!("{} {dtype} {m}x{}x{}", isa.name(), wish.n, wish.k);
        wish.filters.iter().all(|filter| line.contains(filter.as_str()))
    };
    let isas = Isa::available();
    let any =
        |dtype: DType| wish.rows.iter().any(|&m| isas.iter().any(|&isa| wanted(dtype, isa, m)));
    let weights: Vec<Weight> = DType::ALL
        .iter()
        .filter(|dtype| any(**dtype))
        .filter_map(|&dtype| Weight::random(dtype, wish.n, wish.k, &mut rng))
        .collect();
    print_quantize(&wish, &isas, &x);
    println!(
        "isa          format  m x n x k            min GFLOP/s  med GFLOP/s   GB/s  rel. error"
    );
    if wish.plan {
        for weight in &weights {
            for &isa in &isas {
                let rows = wish.rows.iter().copied().filter(|&m| wanted(weight.dtype, isa, m));
                let mut cases: Vec<_> = rows.map(|m| Case::new(isa, weight, m, &x)).collect();
                time(&mut cases, &wish);
                cases.iter().for_each(Case::print);
                print_breaches(&cases);
            }
        }
        return;
    }
    for &m in wish.rows {
        let mut cases: Vec<Case<'_>> = Vec::new();
        for weight in &weights {
            let isas = isas.iter().copied().filter(|isa| wanted(weight.dtype, *isa, m));
            cases.extend(isas.map(|isa| Case::new(isa, weight, m, &x)));
        }
        time(&mut cases, &wish);
        cases.iter().for_each(Case::print);
    }
}

impl Wish {
    fn new(args: impl Iterator<Item = String>) -> Self {
        let mut wish = Self {
            plan: false,
            rows: ROWS,
            n: N,
            k: K,
            rounds: 15,
            threads: 1,
            filters: Vec::new(),
        };
        for arg in args {
            match arg.as_str() {
                "--bench" => {}
                "plan" => (wish.plan, wish.rows) = (true, PLAN_ROWS),
                "--quick" => (wish.rows, wish.n, wish.k, wish.rounds) = (QUICK_ROWS, 64, 512, 2),
                _ => match arg.strip_prefix("--threads=").map(str::parse) {
                    Some(threads) => wish.threads = threads.expect("a number of threads"),
                    None => wish.filters.push(arg),
                },
            }
        }
        wish
    }
}

/// Runs the cases in turn, `rounds` times, each on all threads at once.
fn time(cases: &mut [Case<'_>], wish: &Wish) {
    let arrived = AtomicUsize::new(0);
    let times: Vec<Vec<Duration>> = std::thread::scope(|scope| {
        let cases = &*cases;
        let arrived = &arrived;
        let threads: Vec<_> = (0..wish.threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut buffers = Buffers::default();
                    let mut times = Vec::new();
                    for (turn, case) in (0..wish.rounds).flat_map(|_| cases).enumerate() {
                        arrived.fetch_add(1, Ordering::SeqCst);
                        while arrived.load(Ordering::SeqCst) < (turn + 1) * wish.threads {
                            std::hint::spin_loop();
                        }
                        let start = Instant::now();
                        case.run((thread, wish.threads), &mut buffers);
                        times.push(start.elapsed());
                    }
                    times
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for turn in 0..wish.rounds * cases.len() {
        let slowest = times.iter().map(|times| times[turn]).max().unwrap_or_default();
        let at = turn % cases.len();
        cases[at].times.push(slowest);
    }
    cases.iter_mut().for_each(|case| case.times.sort_unstable());
}

/// Row counts that take longer than a larger one, or than as many single rows.
fn print_breaches(cases: &[Case<'_>]) {
    let Some(single) = cases.first().filter(|case| case.m == 1) else { return };
    for (at, case) in cases.iter().enumerate() {
        let seconds = case.seconds();
        for larger in &cases[at + 1..] {
            if seconds > larger.seconds() * (1.0 + NOISE) {
                println!("    breach: {} rows take longer than {}", case.m, larger.m);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "few rows")]
        if seconds > case.m as f64 * single.seconds() * (1.0 + NOISE) {
            println!("    breach: {} rows take longer than as many single rows", case.m);
        }
    }
}

/// Time to quantize activations, for one thread.
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn print_quantize(wish: &Wish, isas: &[Isa], x: &[f32]) {
    let mut out = vec![0; activation_len(wish.k)];
    for &isa in isas.iter().filter(|isa| wish.filters.iter().any(|f| isa.name().contains(f))) {
        let fastest = (0..wish.rounds)
            .map(|_| {
                let start = Instant::now();
                x.chunks_exact(wish.k).for_each(|x| quantize_row(isa, x, &mut out));
                start.elapsed().as_secs_f64()
            })
            .fold(f64::INFINITY, f64::min);
        let blocks = (x.len() / 32) as f64;
        println!("{:12} quantize: {:.1} ns for a block of 32", isa.name(), fastest / blocks * 1e9);
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

impl Aligned {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + 63];
        let start = memory.as_ptr().align_offset(64);
        Self { memory, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// What a thread keeps from call to call.
#[derive(Default)]
struct Buffers {
    out: Vec<f32>,
    floats: Vec<f32>,
}

impl<'a> Case<'a> {
    fn new(isa: Isa, weight: &'a Weight, m: usize, x: &'a [f32]) -> Self {
        let (x, len) = (&x[..m * weight.k], activation_len(weight.k));
        let mut quantized = Vec::new();
        if let Some((layout, _)) = &weight.packed {
            let plan = vector(isa, layout, m);
            quantized.resize(plan.room(m) * len, 0);
            let together = plan.rows_together();
            for (x, out) in x.chunks(together * weight.k).zip(quantized.chunks_mut(together * len))
            {
                plan.write((x, weight.k), 0, out);
            }
        }
        Self { isa, weight, m, x, quantized, times: Vec::new() }
    }
}

/// The plan for some rows, with the kernel of vectors: `tiles` compares it with those of AMX.
fn vector(isa: Isa, layout: &PackLayout, rows: usize) -> Plan {
    Plan::new(isa, layout, rows).with_kernel(Kernel::Vector).expect("every CPU has it")
}

impl Case<'_> {
    /// The share of one of several threads.
    fn run(&self, (thread, threads): (usize, usize), buffers: &mut Buffers) {
        let Weight { dtype, n, k, ref raw, ref packed } = *self.weight;
        let share = |units: usize| units * thread / threads..units * (thread + 1) / threads;
        buffers.out.resize(self.m * n.next_multiple_of(PANEL_COLS), f32::NAN);
        if let Some((layout, packed)) = packed {
            let (bytes, share) = (layout.panel_bytes(), share(layout.panels()));
            let plan = vector(self.isa, layout, self.m);
            let rows = plan.row_block(k).min(self.m);
            buffers.floats.resize(planned_scratch_len(plan, k, (PANELS, rows)) + 16, 0.0);
            let line = buffers.floats.as_ptr().align_offset(64);
            let scratch = &mut buffers.floats[line..];
            for first in (0..self.m).step_by(rows) {
                let (rows, x) =
                    (rows.min(self.m - first), &self.quantized[first * activation_len(k)..]);
                let panels =
                    packed.bytes()[share.start * bytes..share.end * bytes].chunks(PANELS * bytes);
                for (panels, out) in
                    panels.zip(buffers.out.chunks_mut(PANELS * self.m * PANEL_COLS))
                {
                    let cols = panels.len() / bytes * PANEL_COLS;
                    let mut out =
                        MatrixMut::new(&mut out[first * cols..][..rows * cols], rows, cols);
                    matmul_planned(plan, (layout, panels), (x, rows), &mut out, scratch);
                }
            }
            return;
        }
        let rows = n.min(DENSE_ROWS);
        let (bytes, share) = (rows * raw.len() / n, share(n / rows));
        buffers.floats.resize(scratch_len(self.isa, dtype, (self.m, rows), k), 0.0);
        let tiles = raw[share.start * bytes..share.end * bytes].chunks_exact(bytes);
        for (bytes, out) in tiles.zip(buffers.out.chunks_exact_mut(self.m * rows)) {
            matmul_rows(self.isa, Rows { dtype, k, bytes }, self.x, out, &mut buffers.floats);
        }
    }

    fn seconds(&self) -> f64 {
        self.times[0].as_secs_f64()
    }

    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    fn print(&self) {
        let Weight { dtype, n, k, packed, raw } = self.weight;
        let flops = 2.0 * (self.m * n * k) as f64;
        let bytes = packed.as_ref().map_or(raw.len(), |(layout, _)| layout.total_bytes());
        let median = self.times[self.times.len() / 2].as_secs_f64();
        println!(
            "{:12} {:6}  {:19}  {:11.1}  {:11.1}  {:5.1}  {:.2e}",
            self.isa.name(),
            dtype.name(),
            format!("{}x{n}x{k}", self.m),
            flops / self.seconds() / 1e9,
            flops / median / 1e9,
            bytes as f64 / self.seconds() / 1e9,
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
        let mut buffers = Buffers::default();
        self.run((0, n.div_ceil(stride)), &mut buffers);
        let (mut error, mut size) = (0.0, 0.0);
        for (x, out) in self.x.chunks_exact(*k).zip(buffers.out.chunks_exact(stride)) {
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
