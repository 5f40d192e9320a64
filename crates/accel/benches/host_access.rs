//! What a host access costs when nothing is pending: a `Storage` beside a plain slice.
//!
//! Prints nanoseconds per access, minimum and median of interleaved rounds. With `--quick` it
//! runs few rounds, as a smoke test.
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

use std::hint::black_box;
use std::time::Instant;

use fucina_accel::{Pool, Storage};

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
    u64::from(black_box(bytes)[black_box(0)])
}

fn host(storage: &Storage) -> u64 {
    storage.host().map_or(0, |bytes| u64::from(black_box(bytes)[black_box(0)]))
}

fn host_mut(storage: &mut Storage) -> u64 {
    storage.host_mut().map_or(0, |bytes| u64::from(black_box(bytes)[black_box(0)]))
}

fn main() {
    let rounds =
        if std::env::args().any(|arg| arg == "--quick" || arg == "--test") { 3 } else { 101 };
    let Ok(mut storage) = Pool::default().take(4096) else {
        println!("no memory");
        return;
    };
    let boxed: Box<[u8]> = vec![0; 4096].into();
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        times[0].push(round(|| slice(black_box(&boxed))));
        times[1].push(round(|| host(black_box(&storage))));
        times[2].push(round(|| host_mut(black_box(&mut storage))));
    }
    println!("{:<22} {:>8} {:>8}", "ns per access", "min", "median");
    for (name, times) in ["slice", "Storage::host", "Storage::host_mut"].iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{name:<22} {:>8.2} {:>8.2}", times[0], times[times.len() / 2]);
    }
}
