//! Products of few rows with scalar weights, against the floor of reading the weights.
//!
//! `cargo bench -p fucina-kernels --bench few -- [--quick] [--threads=N] [--shape=NxK] [--rows=A,B..] [FILTER]...`
//!
//! Weights are copied until 256 MiB are full, and the copies take turns: no weight stays in a cache
//! from round to round. `read` is the rate of adding up the same bytes, which is the floor. A case
//! runs if its line contains every filter, as `avx2` or `F16`. Packing of activations is not timed
//! here: it is done once for all threads.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]
#![expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fucina_dtype::DType;
use fucina_kernels::dense::{Few, Rows, stream_rows};
use fucina_kernels::isa::Isa;
use fucina_kernels::reduce;
use fucina_testkit::Rng;

/// Bytes of weights that are gone through in turns.
const POOL_BYTES: usize = 256 << 20;
/// Weight rows of a task.
const TASK_ROWS: usize = 96;

struct Wish {
    threads: usize,
    n: usize,
    k: usize,
    rows: Vec<usize>,
    rounds: usize,
    filters: Vec<String>,
}

fn main() {
    let mut wish = Wish {
        threads: 1,
        n: 4096,
        k: 4096,
        rows: vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 48, 64],
        rounds: 7,
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
    /// With the packed activations, which begin on a cache line, and where.
    few: Option<(Few, Vec<f32>, usize)>,
    times: Vec<f64>,
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
    let mut cases = vec![Case::new("read".into(), isas[0], 0, None)];
    for &isa in isas {
        for &m in &wish.rows {
            let name = format!("{:11} {dtype:5} {m:3}", isa.name());
            if m < 32 {
                cases.push(Case::new(format!("{name} dot"), isa, m, None));
            }
            if let Some(few) = Few::new(isa, dtype, m).filter(|_| m >= 2) {
                let len = few.packed_len(wish.k).expect("a small operand");
                let mut packed = vec![0.0; len + 16];
                let line = packed.as_ptr().align_offset(64).min(16);
                let blocks = packed[line..][..len].chunks_mut(few.block_len());
                for (block, out) in blocks.enumerate() {
                    few.pack(&x[..m * wish.k], wish.k, block, out);
                }
                cases.push(Case::new(format!("{name} few"), isa, m, Some((few, packed, line))));
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
                    let first = next[turn].fetch_add(TASK_ROWS, Ordering::SeqCst);
                    if first >= weights.n {
                        break;
                    }
                    let end = weights.n.min(first + TASK_ROWS);
                    let rows = &copy[first * weights.row_bytes..end * weights.row_bytes];
                    let rows = Rows { dtype: weights.dtype, k: weights.k, bytes: rows };
                    case.run(rows, x, &mut out, &mut scratch);
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

impl Case {
    fn new(name: String, isa: Isa, m: usize, few: Option<(Few, Vec<f32>, usize)>) -> Self {
        Self { name, isa, m, few, times: Vec::new() }
    }

    fn run(&self, w: Rows<'_>, x: &[f32], out: &mut Vec<f32>, scratch: &mut Vec<f32>) {
        if self.m == 0 {
            let words = w.bytes.as_chunks::<4>().0.as_chunks::<64>().0;
            let sum = words.iter().fold([0_u32; 64], |mut sum, words| {
                for (sum, word) in sum.iter_mut().zip(words) {
                    *sum ^= u32::from_ne_bytes(*word);
                }
                sum
            });
            black_box((sum, reduce::sum(self.isa, &[])));
            return;
        }
        let nr = w.bytes.len() / w.dtype.row_bytes(w.k).expect("rows of floats");
        out.resize(self.m * nr, 0.0);
        match &self.few {
            Some((few, packed, line)) => {
                let len = few.packed_len(w.k).expect("a small operand");
                let packed = &packed[*line..][..len];
                scratch.resize(few.scratch_len() + 16, 0.0);
                let line = scratch.as_ptr().align_offset(64).min(16);
                few.multiply(w, packed, out, &mut scratch[line..]);
            }
            None => {
                let x = &x[..self.m * w.k];
                stream_rows(self.isa, w, x, out);
            }
        }
        black_box(out);
    }
}
