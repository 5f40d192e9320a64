//! The blocked f32 product on one thread: every instruction set, shape and layout.
//!
//! `cargo bench -p fucina-kernels --bench gemm -- [--quick] [FILTER]...`
//!
//! A case runs if its line contains every filter, as `avx2` or `NT`. `pack` is the share of the
//! time that packing the left operand takes. `peak` is what the core does when all operands are in
//! registers, measured around every call, and `share` the part of it that the call reaches: the
//! clock of a shared machine changes, and a share changes less than a rate.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::time::{Duration, Instant};

use fucina_kernels::dense::{
    Lhs, Matrix, MatrixMut, Rhs, multiply, multiply_scratch_len, pack_lhs, packed_lhs_len,
};
use fucina_kernels::isa::Isa;
use fucina_kernels::probe::multiply_add_f32;
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

/// Time for a case.
const AT_LEAST: Duration = Duration::from_millis(300);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let quick = args.iter().any(|arg| arg == "--quick");
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    println!(
        "isa          m x k x n            layout  min GFLOP/s  med GFLOP/s  pack    peak  share"
    );
    let shapes = if quick { &[[33, 40, 50]] } else { SHAPES };
    for &shape in shapes {
        for layout in ["NN", "NT", "TN"] {
            for isa in Isa::available() {
                let [m, k, n] = shape;
                let line = format!("{:12} {:20} {layout}", isa.name(), format!("{m}x{k}x{n}"));
                if filters.iter().all(|filter| line.contains(filter.as_str())) {
                    run(isa, shape, layout, &line, quick);
                }
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn run(isa: Isa, [m, k, n]: [usize; 3], layout: &str, line: &str, quick: bool) {
    let mut rng = Rng::new(1);
    let (a, b) = (rng.normals(m * k, 1.0), rng.normals(k * n, 1.0));
    let a = if layout == "TN" { Matrix::new(&a, 1, m) } else { Matrix::new(&a, k, 1) };
    let b = if layout == "NT" { Matrix::new(&b, 1, k) } else { Matrix::new(&b, n, 1) };
    let mut packed = vec![0.0; packed_lhs_len(isa, m, k).expect("a small operand")];
    let mut scratch = vec![0.0; multiply_scratch_len(n, k)];
    let mut out = vec![0.0; m * n];
    let (mut times, mut shares, mut packing) = (Vec::new(), Vec::new(), Vec::new());
    let (mut peaks, flops) = (Vec::new(), 2.0 * (m * k * n) as f64);
    let mut before = peak(isa);
    let began = Instant::now();
    while times.is_empty() || (!quick && (times.len() < 15 || began.elapsed() < AT_LEAST)) {
        let start = Instant::now();
        pack_lhs(isa, (a, m, k), 0..m, &mut packed);
        packing.push(start.elapsed());
        let (lhs, mut out) = (Lhs::new(isa, &packed, m, k), MatrixMut::new(&mut out, m, n));
        multiply(isa, (lhs, 0..m), Rhs::Matrix(b), &mut out, &mut scratch);
        times.push(start.elapsed());
        let after = peak(isa);
        peaks.push(f64::midpoint(before, after));
        shares.push(flops / times[times.len() - 1].as_secs_f64() / f64::midpoint(before, after));
        before = after;
    }
    times.sort_unstable();
    packing.sort_unstable();
    for values in [&mut peaks, &mut shares] {
        values.sort_unstable_by(f64::total_cmp);
    }
    let gflops = |time: Duration| flops / time.as_secs_f64() / 1e9;
    let middle = |times: &[Duration]| times[times.len() / 2];
    println!(
        "{line}      {:11.1}  {:11.1}  {:4.1} %  {:6.1}  {:.2}",
        gflops(times[0]),
        gflops(middle(&times)),
        100.0 * middle(&packing).as_secs_f64() / middle(&times).as_secs_f64(),
        peaks[peaks.len() / 2] / 1e9,
        shares[shares.len() / 2],
    );
}

/// Operations a second with all operands in registers, for a fraction of a millisecond.
#[expect(clippy::cast_precision_loss, reason = "operations are far below 2^53")]
fn peak(isa: Isa) -> f64 {
    let start = Instant::now();
    let flops = multiply_add_f32(isa, 50_000);
    flops as f64 / start.elapsed().as_secs_f64()
}
