//! What a host access costs when nothing is pending: a `Storage` beside a plain slice.
//!
//! Prints nanoseconds per access, minimum and median of interleaved rounds. With `--quick` it
//! runs few rounds, as a smoke test.
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

use std::hint::black_box;
use std::time::Instant;

use fucina_accel::Pool;

const ACCESSES: u32 = 1 << 20;

/// Times one round of `access`, in nanoseconds per access.
fn round(mut access: impl FnMut() -> u64) -> f64 {
    let start = Instant::now();
    let mut sum = 0u64;
    for _ in 0..ACCESSES {
        sum = sum.wrapping_add(access());
    }
    black_box(sum);
    start.elapsed().as_secs_f64() * 1e9 / f64::from(ACCESSES)
}

fn slice(bytes: &[u8]) -> u64 {
    u64::from(bytes[black_box(7)])
}

fn slice_mut(bytes: &mut [u8]) -> u64 {
    let byte = &mut bytes[black_box(7)];
    *byte = byte.wrapping_add(1);
    u64::from(*byte)
}

fn main() {
    let rounds =
        if std::env::args().any(|arg| arg == "--quick" || arg == "--test") { 3 } else { 101 };
    let Ok(mut storage) = Pool::default().take(4096) else {
        println!("no memory");
        return;
    };
    let mut owned = vec![0u8; 4096];
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        times[0].push(round(|| slice(black_box(&owned))));
        times[1].push(round(|| black_box(&storage).host().map_or(0, slice)));
        times[2].push(round(|| slice_mut(black_box(&mut owned))));
        times[3].push(round(|| black_box(&mut storage).host_mut().map_or(0, slice_mut)));
    }
    println!("{:<22} {:>8} {:>8}", "ns per access", "min", "median");
    for (name, times) in ["read a slice", "Storage::host", "write a slice", "Storage::host_mut"]
        .iter()
        .zip(&mut times)
    {
        times.sort_by(f64::total_cmp);
        println!("{name:<22} {:>8.2} {:>8.2}", times[0], times[times.len() / 2]);
    }
}
