//! The blocked f32 product on one thread: every instruction set, shape and layout.
//!
//! `cargo bench -p fucina-kernels --bench gemm -- [--quick] [FILTER]...`
//!
//! A case runs if its line contains every filter, as `avx2` or `NT`. `pack` is the share of the
//! time that packing the left operand takes.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::time::{Duration, Instant};

use fucina_kernels::dense::{
    Lhs, Matrix, MatrixMut, Rhs, multiply, multiply_scratch_len, pack_lhs, packed_lhs_len,
};
use fucina_kernels::isa::Isa;
use fucina_testkit::Rng;

/// `[m, k, n]`.
const SHAPES: &[[usize; 3]] = &[
    [256, 256, 256],
    [512, 512, 512],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [16, 4096, 4096],
    [32, 4096, 4096],
    [128, 4096, 4096],
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let quick = args.iter().any(|arg| arg == "--quick");
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    println!("isa          m x k x n            layout  min GFLOP/s  med GFLOP/s  pack");
    let shapes = if quick { &[[33, 40, 50]] } else { SHAPES };
    for &shape in shapes {
        for layout in ["NN", "NT", "TN"] {
            for isa in Isa::available() {
                let [m, k, n] = shape;
                let line = format!("{:12} {:20} {layout}", isa.name(), format!("{m}x{k}x{n}"));
                if filters.iter().all(|filter| line.contains(filter.as_str())) {
                    run(isa, shape, layout, &line, if quick { 1 } else { 15 });
                }
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn run(isa: Isa, [m, k, n]: [usize; 3], layout: &str, line: &str, rounds: usize) {
    let mut rng = Rng::new(1);
    let (a, b) = (rng.normals(m * k, 1.0), rng.normals(k * n, 1.0));
    let a = if layout == "TN" { Matrix::new(&a, 1, m) } else { Matrix::new(&a, k, 1) };
    let b = if layout == "NT" { Matrix::new(&b, 1, k) } else { Matrix::new(&b, n, 1) };
    let mut packed = vec![0.0; packed_lhs_len(m, k).expect("a small operand")];
    let mut scratch = vec![0.0; multiply_scratch_len(n, k)];
    let mut out = vec![0.0; m * n];
    let (mut times, mut pack) = (Vec::new(), Duration::ZERO);
    for _ in 0..rounds {
        let start = Instant::now();
        pack_lhs(isa, (a, m, k), 0..m, &mut packed);
        pack += start.elapsed();
        let (lhs, mut out) = (Lhs::new(&packed, m, k), MatrixMut::new(&mut out, m, n));
        multiply(isa, (lhs, 0..m), Rhs::Matrix(b), &mut out, &mut scratch);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let gflops = |time: Duration| 2.0 * (m * k * n) as f64 / time.as_secs_f64() / 1e9;
    let all: Duration = times.iter().sum();
    println!(
        "{line}      {:11.1}  {:11.1}  {:4.1} %",
        gflops(times[0]),
        gflops(times[times.len() / 2]),
        100.0 * pack.as_secs_f64() / all.as_secs_f64(),
    );
}
