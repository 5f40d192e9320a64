//! Measures how many thread instructions a second the executor runs on one host thread.
//!
//! `cargo run --release -p fucina-cuda-sim --example rate`. The figure depends on the mix of a
//! kernel: shared-memory accesses are checked for races and cost most. No speed of a device
//! follows from it.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement prints, and stops when something is wrong"
)]

use fucina_cuda_sim::exec::{DeviceMemory, Launch, Options, Stats, launch};
use fucina_cuda_sim::ptx::Module;

const SMOKE: &str = include_str!("../tests/data/smoke.ptx");
const KERNELS: &str = include_str!("../tests/data/kernels.ptx");

struct Case {
    text: &'static str,
    name: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    ints: &'static [u32],
}

const CASES: [Case; 4] = [
    Case {
        text: SMOKE,
        name: "gemm_f32",
        grid: [16, 16, 1],
        block: [16, 16, 1],
        ints: &[256, 256, 256],
    },
    Case {
        text: SMOKE,
        name: "gemm_wmma",
        grid: [4, 16, 1],
        block: [128, 1, 1],
        ints: &[256, 256, 256],
    },
    Case { text: SMOKE, name: "gemv_h2", grid: [64, 1, 1], block: [128, 1, 1], ints: &[256, 2048] },
    Case {
        text: KERNELS,
        name: "gemm_mma",
        grid: [8, 8, 1],
        block: [64, 1, 1],
        ints: &[256, 256, 256],
    },
];

/// Seconds of processor time of this thread: other load does not matter.
fn cpu_seconds() -> f64 {
    fucina_testkit::thread_time().unwrap().as_secs_f64()
}

fn run(case: &Case) -> (Stats, f64) {
    let module = Module::parse(case.text).unwrap();
    let memory = DeviceMemory::new(1 << 30);
    let mut params = Vec::new();
    for _ in 0..3 {
        let region = memory.allocate(1 << 20).unwrap();
        region.write(region.base(), &vec![0_u8; 1 << 20]);
        params.extend(region.base().to_le_bytes());
    }
    for int in case.ints {
        params.extend(int.to_le_bytes());
    }
    let variables = vec![0; module.variables().len()];
    let launched = Launch {
        function: module.function(case.name).unwrap(),
        grid: case.grid,
        block: case.block,
        dynamic_shared: 0,
        params: &params,
        variables: &variables,
    };
    let options = Options { threads: 1, ..Options::default() };
    let mut best = f64::INFINITY;
    let mut stats = Stats::default();
    for _ in 0..5 {
        let start = cpu_seconds();
        stats = launch(&launched, &options, &memory).unwrap();
        best = best.min(cpu_seconds() - start);
    }
    (stats, best)
}

fn main() {
    for case in &CASES {
        let (stats, seconds) = run(case);
        #[allow(clippy::cast_precision_loss, reason = "a rate is shown with three digits")]
        let rate = stats.thread_instructions as f64 / seconds / 1e6;
        println!(
            "{:10} {:8.1} ms, {rate:6.0} M thread instructions/s ({} warp instructions, {} mma)",
            case.name,
            seconds * 1e3,
            stats.warp_instructions,
            stats.mma
        );
    }
}
