//! Products of few rows with scalar weights, against the floor of reading the weights.
//!
//! `cargo bench -p fucina-kernels --bench few -- [--quick] [--threads=N] [--shape=NxK] [--rows=A,B..] [FILTER]...`
//!
//! Weights are copied until 256 MiB are full, and the copies take turns: no weight stays in a cache
//! from round to round. `read` is the rate of adding up the same bytes, which is the floor. A case
//! runs if its line contains every filter, as `avx2` or `F16`. Packing of activations is not timed
//! here: it is done once for all threads. `dot`, `few` and `gemm` are the kernels for weights
//! `[n, k]`, `wide` and `gemm NN` those for f32 weights `[k, n]`.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]
#![expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fucina_dtype::DType;
use fucina_kernels::dense::{
    Few, Lhs, Matrix, MatrixMut, Rhs, Rows, Wide, multiply, multiply_scratch_len, multiply_wide,
    pack_lhs, packed_lhs_len, stream_rows, wide_scratch_len,
};
use fucina_kernels::isa::Isa;
use fucina_testkit::Rng;
use zerocopy::FromBytes;

/// Bytes of weights that are gone through in turns.
const POOL_BYTES: usize = 256 << 20;
/// Weight rows of a task.
const TASK_ROWS: usize = 96;
/// Columns of a task with weights `[k, n]`.
const WIDE_COLS: usize = 512;

struct Wish {
    threads: usize,
    n: usize,
    k: usize,
    rows: Vec<usize>,
    rounds: usize,
    /// All if empty.
    kernels: Vec<String>,
    filters: Vec<String>,
}

fn main() {
    let mut wish = Wish {
        threads: 1,
        n: 4096,
        k: 4096,
        rows: vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 48, 64],
        rounds: 7,
        kernels: Vec::new(),
        filters: Vec::new(),
    };
    for arg in std::env::args().skip(1) {
        let number = |text: &str| text.parse::<usize>().expect("a number");
        if arg == "--quick" {
            (wish.n, wish.k, wish.rounds, wish.rows) = (200, 512, 1, vec![1, 9, 33]);
        } else if let Some(text) = arg.strip_prefix("--threads=") {
            wish.threads = number(text);
        } else if let Some(text) = arg.strip_prefix("--rounds=") {
            wish.rounds = number(text);
        } else if let Some(text) = arg.strip_prefix("--rows=") {
            wish.rows = text.split(',').map(number).collect();
        } else if let Some(text) = arg.strip_prefix("--kernels=") {
            wish.kernels = text.split(',').map(String::from).collect();
        } else if let Some((n, k)) =
            arg.strip_prefix("--shape=").and_then(|text| text.split_once('x'))
        {
            (wish.n, wish.k) = (number(n), number(k));
        } else if arg != "--bench" {
            wish.filters.push(arg);
        }
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let line = |isa: Isa| format!("{} {dtype} ", isa.name());
        let isas: Vec<Isa> = Isa::available()
            .into_iter()
            .filter(|isa| *isa != Isa::Scalar && isa.name() != "avx2-vnni")
            .filter(|isa| wish.filters.iter().all(|filter| line(*isa).contains(filter.as_str())))
            .collect();
        if !isas.is_empty() {
            run(&wish, dtype, &isas);
        }
    }
}

/// One way to multiply.
struct Case {
    name: String,
    isa: Isa,
    m: usize,
    kind: Kind,
    times: Vec<f64>,
}

enum Kind {
    Read,
    Dot,
    Few(Few, Aligned),
    Wide,
    /// Whether the weights are `[k, n]`.
    Blocked(Aligned, bool),
}

/// Packed activations, which begin on a cache line.
struct Aligned {
    memory: Vec<f32>,
    first: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let memory = vec![0.0; len + 16];
        let first = memory.as_ptr().align_offset(64).min(16);
        Self { memory, first, len }
    }

    fn elems(&self) -> &[f32] {
        &self.memory[self.first..][..self.len]
    }

    fn elems_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.first..][..self.len]
    }
}

/// The kernels for one instruction set and number of rows.
fn kinds(isa: Isa, dtype: DType, (x, m, k): (&[f32], usize, usize)) -> Vec<(&'static str, Kind)> {
    let mut kinds = vec![("dot", Kind::Dot)];
    if let Some(few) = Few::new(isa, dtype, m) {
        let mut packed = Aligned::new(few.packed_len(k).expect("a small operand"));
        for (block, out) in packed.elems_mut().chunks_mut(few.block_len()).enumerate() {
            few.pack(x, k, block, out);
        }
        kinds.push(("few", Kind::Few(few, packed)));
    }
    let lhs = || {
        let mut packed = Aligned::new(packed_lhs_len(isa, m, k).expect("a small operand"));
        pack_lhs(isa, (Matrix::new(x, k, 1), m, k), 0..m, packed.elems_mut());
        packed
    };
    kinds.push(("gemm", Kind::Blocked(lhs(), false)));
    if dtype == DType::F32 {
        kinds.push(("wide", Kind::Wide));
        kinds.push(("gemm NN", Kind::Blocked(lhs(), true)));
    }
    kinds
}

fn run(wish: &Wish, dtype: DType, isas: &[Isa]) {
    let mut rng = Rng::new(1);
    let row_bytes = dtype.row_bytes(wish.k).expect("rows of floats");
    let bytes = wish.n * row_bytes;
    let copies = (POOL_BYTES / bytes).clamp(1, 4096);
    let one = rng.normals(wish.n * wish.k, 0.1);
    let one: Vec<u8> = match dtype {
        DType::F16 => one.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        DType::BF16 => one.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
        _ => one.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    let pool = one.repeat(copies);
    let most = wish.rows.iter().max().copied().unwrap_or(1);
    let x = rng.normals(most * wish.k, 1.0);
    let mut cases = vec![Case::new("read".into(), isas[0], 0, Kind::Read)];
    for &isa in isas {
        for &m in &wish.rows {
            for (kernel, kind) in kinds(isa, dtype, (&x[..m * wish.k], m, wish.k)) {
                let name = format!("{:11} {dtype:5} {m:3} {kernel}", isa.name());
                if wish.kernels.is_empty() || wish.kernels.iter().any(|name| name == kernel) {
                    cases.push(Case::new(name, isa, m, kind));
                }
            }
        }
    }
    let weights = Weights { dtype, k: wish.k, n: wish.n, row_bytes, pool: &pool };
    time(&mut cases, &weights, &x, wish);
    let median = |case: &Case| case.times[case.times.len() / 2];
    let floor = median(&cases[0]);
    for case in &cases {
        println!(
            "{:27} {:7.0} us (best {:7.0}) {:6.1} GFLOP/s {:5.1} GB/s  time/floor {:.2}",
            case.name,
            median(case) * 1e6,
            case.times[0] * 1e6,
            2.0 * (case.m * wish.n * wish.k) as f64 / median(case) / 1e9,
            bytes as f64 / median(case) / 1e9,
            median(case) / floor,
        );
    }
}

struct Weights<'a> {
    dtype: DType,
    k: usize,
    n: usize,
    row_bytes: usize,
    pool: &'a [u8],
}

/// Runs the cases in turns, the tasks of each on all threads.
fn time(cases: &mut [Case], weights: &Weights<'_>, x: &[f32], wish: &Wish) {
    let turns = wish.rounds * cases.len();
    let next: Vec<AtomicUsize> = (0..turns).map(|_| AtomicUsize::new(0)).collect();
    let arrived = AtomicUsize::new(0);
    let times: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let (cases, next, arrived) = (&*cases, &next, &arrived);
        let work = move || {
            let (mut out, mut scratch) = (Vec::new(), Vec::new());
            let mut times = Vec::new();
            for (turn, case) in (0..wish.rounds).flat_map(|_| cases).enumerate() {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < (turn + 1) * wish.threads {
                    std::hint::spin_loop();
                }
                let bytes = weights.n * weights.row_bytes;
                let copy = &weights.pool[turn % (weights.pool.len() / bytes) * bytes..][..bytes];
                let start = Instant::now();
                loop {
                    let cols = if let Kind::Wide = case.kind { WIDE_COLS } else { TASK_ROWS };
                    let first = next[turn].fetch_add(cols, Ordering::SeqCst);
                    if first >= weights.n {
                        break;
                    }
                    let end = weights.n.min(first + cols);
                    let task = Task { weights, copy, first, cols: end - first };
                    case.run(&task, x, &mut out, &mut scratch);
                }
                times.push(start.elapsed().as_secs_f64());
            }
            times
        };
        let threads: Vec<_> = (0..wish.threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let count = cases.len();
    for turn in 0..turns {
        let slowest = times.iter().map(|times| times[turn]).fold(0.0, f64::max);
        cases[turn % count].times.push(slowest);
    }
    cases.iter_mut().for_each(|case| case.times.sort_unstable_by(f64::total_cmp));
}

/// Some columns of the product.
struct Task<'a> {
    weights: &'a Weights<'a>,
    copy: &'a [u8],
    first: usize,
    cols: usize,
}

impl<'a> Task<'a> {
    /// The weights as rows.
    fn rows(&self) -> Rows<'a> {
        let Weights { dtype, k, row_bytes, .. } = *self.weights;
        let bytes = &self.copy[self.first * row_bytes..][..self.cols * row_bytes];
        Rows { dtype, k, bytes }
    }

    /// The columns of `[k, n]`, from the first one on.
    fn columns(&self) -> &'a [f32] {
        &<[f32]>::ref_from_bytes(self.copy).expect("f32 on a boundary")[self.first..]
    }
}

impl Case {
    fn new(name: String, isa: Isa, m: usize, kind: Kind) -> Self {
        Self { name, isa, m, kind, times: Vec::new() }
    }

    fn run(&self, task: &Task<'_>, x: &[f32], out: &mut Vec<f32>, scratch: &mut Vec<f32>) {
        let (isa, m) = (self.isa, self.m);
        let Weights { n, k, .. } = *task.weights;
        let mut room = |len: usize| {
            scratch.resize(scratch.len().max(len + 16), 0.0);
            scratch.as_ptr().align_offset(64).min(16)
        };
        out.resize(m * task.cols, 0.0);
        match &self.kind {
            Kind::Read => {
                black_box(read(task.rows().bytes));
            }
            Kind::Dot => stream_rows(isa, task.rows(), &x[..m * k], out),
            Kind::Few(few, packed) => {
                let line = room(few.scratch_len());
                few.multiply(task.rows(), packed.elems(), out, &mut scratch[line..]);
            }
            Kind::Wide => {
                let line = room(wide_scratch_len(m, task.cols));
                let b = Wide { data: task.columns(), row_stride: n };
                multiply_wide(isa, (&x[..m * k], m), b, out, &mut scratch[line..]);
            }
            Kind::Blocked(packed, across) => {
                let line = room(multiply_scratch_len(task.cols, k));
                let lhs = (Lhs::new(isa, packed.elems(), m, k), 0..m);
                let rhs = if *across {
                    Rhs::Matrix(Matrix::new(task.columns(), n, 1))
                } else {
                    Rhs::Rows(task.rows())
                };
                let out = &mut MatrixMut::new(out, m, task.cols);
                multiply(isa, lhs, rhs, out, &mut scratch[line..]);
            }
        }
        black_box(out);
    }
}

/// Touches all bytes.
fn read(bytes: &[u8]) -> [u32; 64] {
    let words = bytes.as_chunks::<4>().0.as_chunks::<64>().0;
    words.iter().fold([0; 64], |mut sum, words| {
        for (sum, word) in sum.iter_mut().zip(words) {
            *sum ^= u32::from_ne_bytes(*word);
        }
        sum
    })
}
