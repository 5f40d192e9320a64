//! Where the tile kernels overtake the vector kernels, on a CPU with AMX.
//!
//! `cargo bench -p fucina-kernels --bench tiles -- [--quick] [FILTER]...`
//!
//! For each format and number of rows, all kernels in turn, one thread; medians in GFLOP/s. `*` marks
//! the fastest, `planned` what the plan takes. The last line of a format has the numbers of rows
//! from which each kind of tile was the fastest: what belongs into `quant/plan.rs` and
//! `dense/split.rs`. A filter is part of a format's name.
//!
//! Activations are brought into their form beforehand: a model does it once for all weights that
//! read them.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::time::{Duration, Instant};

use fucina_dtype::DType;
use fucina_kernels::dense::{
    MatrixMut, Rows, SPLIT_BLOCK, SPLIT_ROWS, Split, matmul_rows, scratch_len,
};
use fucina_kernels::isa::{AmxState, Isa};
use fucina_kernels::quant::{
    Kernel, PANEL_COLS, PackLayout, Plan, activation_len, matmul_planned, pack_panel,
    planned_scratch_len,
};
use fucina_testkit::Rng;

const ROWS: &[usize] = &[4, 8, 9, 12, 16, 17, 24, 25, 32, 33, 48, 64, 65, 96, 128, 256, 512];
const KERNELS: [Kernel; 3] = [Kernel::Vector, Kernel::Int8Tiles, Kernel::Bf16Tiles];
/// Weight rows of one call of the unpacked kernels, and panels of one of the vector kernels.
const DENSE_ROWS: usize = 64;
const PANELS: usize = 16;

/// Sizes and effort.
struct Effort {
    n: usize,
    k: usize,
    rows: &'static [usize],
    rounds: usize,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let isa = Isa::best();
    if isa.name() != "avx512-amx" {
        println!("nothing to measure: {}", AmxState::get());
        return;
    }
    let effort = if args.iter().any(|arg| arg == "--quick") {
        Effort { n: 64, k: 512, rows: &[8, 9, 65], rounds: 2 }
    } else {
        Effort { n: 1024, k: 4096, rows: ROWS, rounds: 15 }
    };
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |dtype: &DType| filters.iter().all(|filter| dtype.name().contains(*filter));
    let mut rng = Rng::new(1);
    let most = effort.rows.iter().max().copied().unwrap_or(0);
    let x = rng.normals(most * effort.k, 1.0);
    for &dtype in DType::ALL.iter().filter(|dtype| wanted(dtype)) {
        let mut raw = vec![0; dtype.row_bytes(effort.n * effort.k).unwrap_or(0)];
        if dtype.encode(&rng.normals(effort.n * effort.k, 0.02), &mut raw).is_err() {
            continue;
        }
        if let Some(layout) = PackLayout::new(dtype, effort.n, effort.k) {
            packed(isa, &layout, &raw, &x, &effort);
        } else if matches!(dtype, DType::F16 | DType::BF16) {
            dense(isa, dtype, &raw, &x, &effort);
        }
    }
}

/// Median time of each of `runs`, in turns, after one round to warm up.
fn medians<const N: usize>(rounds: usize, mut run: impl FnMut(usize)) -> [f64; N] {
    let mut times = [(); N].map(|()| Vec::with_capacity(rounds));
    for round in 0..=rounds {
        for (which, times) in times.iter_mut().enumerate() {
            let start = Instant::now();
            run(which);
            if round > 0 {
                times.push(start.elapsed());
            }
        }
    }
    times.map(|mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    })
}

/// Prints a row and returns which was the fastest.
fn print_row(label: &str, names: &[&str], planned: usize, times: &[f64], flops: f64) -> usize {
    let fastest = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
    let cells = names.iter().zip(times).enumerate().map(|(at, (name, time))| {
        let mark = if at == fastest { "*" } else { " " };
        format!("{name} {:8.1}{mark}", flops / time / 1e9)
    });
    let cells = cells.collect::<Vec<_>>().join("  ");
    println!("{label:14} {cells}  planned {}", names[planned]);
    fastest
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn flops(m: usize, effort: &Effort) -> f64 {
    2.0 * (m * effort.n * effort.k) as f64
}

/// Prints, for each kernel but the first, from which number of rows on it is never overtaken by the
/// kernels before it.
fn print_crossovers(format: &str, names: &[&str], fastest: &[(usize, usize)]) {
    for (which, name) in names.iter().enumerate().skip(1) {
        let slower = fastest.iter().rposition(|&(_, best)| best < which);
        let from = fastest.get(slower.map_or(0, |at| at + 1)).map(|&(rows, _)| rows);
        let from = from.map_or("no number of rows".to_owned(), |rows| format!("{rows} rows"));
        println!("{format}: {name} from {from} on");
    }
}

fn packed(isa: Isa, layout: &PackLayout, raw: &[u8], x: &[f32], effort: &Effort) {
    let (names, k) = (["vector", "int8", "bf16"], effort.k);
    let mut panels = vec![0; layout.total_bytes()];
    let outs = panels.chunks_exact_mut(layout.panel_bytes());
    for (rows, panel) in raw.chunks(PANEL_COLS * layout.row_bytes()).zip(outs) {
        pack_panel(layout, rows, panel);
    }
    let mut fastest = Vec::new();
    for &m in effort.rows {
        let planned = Plan::new(isa, layout, m);
        let Some(plans) = KERNELS
            .map(|kernel| planned.with_kernel(kernel))
            .into_iter()
            .collect::<Option<Vec<_>>>()
        else {
            return;
        };
        let words: Vec<_> = plans.iter().map(|plan| activations(*plan, &x[..m * k], k)).collect();
        let count = |plan: &Plan| plan.panels_at_once(m, k).min(PANELS);
        let scratch = plans.iter().map(|plan| planned_scratch_len(*plan, k, (count(plan), m)));
        let mut scratch = vec![0.0; scratch.max().unwrap_or(0)];
        let mut out = vec![0.0; PANELS * m * PANEL_COLS];
        let times: [f64; 3] = medians(effort.rounds, |which| {
            let (plan, count) = (plans[which], count(&plans[which]));
            for panels in panels.chunks(count * layout.panel_bytes()) {
                let cols = panels.len() / layout.panel_bytes() * PANEL_COLS;
                let mut out = MatrixMut::new(&mut out[..m * cols], m, cols);
                matmul_planned(plan, (layout, panels), (&words[which], m), &mut out, &mut scratch);
            }
        });
        let at = KERNELS.iter().position(|kernel| *kernel == planned.kernel()).unwrap_or(0);
        let label = format!("{} {m}", layout.dtype().name());
        fastest.push((m, print_row(&label, &names, at, &times, flops(m, effort))));
    }
    print_crossovers(layout.dtype().name(), &names, &fastest);
}

/// Rows in the form of a plan, and what must be behind them.
fn activations(plan: Plan, x: &[f32], k: usize) -> Vec<u32> {
    let len = activation_len(k);
    let (rows, together) = (x.len() / k, plan.rows_together());
    let mut words = vec![0; (plan.room(rows) + plan.rows_behind()) * len];
    for (x, out) in x.chunks(together * k).zip(words.chunks_mut(together * len)) {
        plan.write((x, k), 0, out);
    }
    words
}

fn dense(isa: Isa, dtype: DType, raw: &[u8], x: &[f32], effort: &Effort) {
    let (names, k) = (["vector", "split"], effort.k);
    let Some(split) = Split::new(isa, dtype, SPLIT_ROWS) else { return };
    let mut fastest = Vec::new();
    for &m in effort.rows {
        let x = &x[..m * k];
        let words = Split::block_words(k);
        let mut parts = vec![0; m.div_ceil(SPLIT_BLOCK) * words];
        for (x, out) in x.chunks(SPLIT_BLOCK * k).zip(parts.chunks_exact_mut(words)) {
            split.pack(x, k, out);
        }
        let len = split.scratch_len(m, DENSE_ROWS).max(scratch_len(isa, dtype, (m, DENSE_ROWS), k));
        let (mut scratch, mut out) = (vec![0.0; len], vec![0.0; m * DENSE_ROWS]);
        let times: [f64; 2] = medians(effort.rounds, |which| {
            for bytes in raw.chunks(DENSE_ROWS * 2 * k) {
                let w = Rows { dtype, k, bytes };
                let out = &mut out[..bytes.len() / (2 * k) * m];
                if which == 0 {
                    matmul_rows(isa, w, x, out, &mut scratch);
                } else {
                    split.multiply(w, (&parts, m), out, &mut scratch);
                }
            }
        });
        let planned = usize::from(Split::new(isa, dtype, m).is_some());
        let label = format!("{} {m}", dtype.name());
        fastest.push((m, print_row(&label, &names, planned, &times, flops(m, effort))));
    }
    print_crossovers(dtype.name(), &names, &fastest);
}
