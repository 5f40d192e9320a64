//! What a parallel region costs: our team beside rayon, threads started for the region, and a loop.
//!
//! `cargo bench -p fucina-runtime --bench team -- [THREADS]..`: 1, 2 and 4 unless told otherwise.
//! Each case has `tasks` tasks of some work, and a pause before each region. Prints microseconds
//! for a region, less the pause: median and 90th percentile of interleaved rounds. With `--quick`
//! it runs few rounds, as a smoke test.
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use fucina_runtime::Team;

/// Regions in a round.
const REGIONS: u32 = 200;

/// What a region runs for each index.
type Task<'a> = &'a (dyn Fn(usize) + Sync);

struct Case {
    name: &'static str,
    tasks_per_thread: usize,
    /// Of one task.
    work: Duration,
    pause: Duration,
}

const CASES: [Case; 4] = [
    Case { name: "empty", tasks_per_thread: 1, work: Duration::ZERO, pause: Duration::ZERO },
    Case {
        name: "8 tasks of 2 us for each thread",
        tasks_per_thread: 8,
        work: Duration::from_micros(2),
        pause: Duration::ZERO,
    },
    Case {
        name: "empty, 10 us after the last",
        tasks_per_thread: 1,
        work: Duration::ZERO,
        pause: Duration::from_micros(10),
    },
    Case {
        name: "empty, 1 ms after the last",
        tasks_per_thread: 1,
        work: Duration::ZERO,
        pause: Duration::from_millis(1),
    },
];

/// Busy, not asleep: what a caller between regions is.
fn spend(time: Duration) {
    if !time.is_zero() {
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

/// Microseconds of each region.
fn round(
    case: &Case,
    threads: usize,
    quick: bool,
    region: &dyn Fn(usize, Task<'_>),
    times: &mut Vec<f64>,
) {
    let long = case.pause >= Duration::from_millis(1);
    let regions = if quick || long { REGIONS / 10 } else { REGIONS };
    for _ in 0..regions {
        spend(case.pause);
        let start = Instant::now();
        region(case.tasks_per_thread * threads, &|task| {
            spend(case.work);
            black_box(task);
        });
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
}

fn started(threads: usize, tasks: usize, task: Task<'_>) {
    std::thread::scope(|scope| {
        for thread in 1..threads {
            scope.spawn(move || (thread..tasks).step_by(threads).for_each(task));
        }
        (0..tasks).step_by(threads).for_each(task);
    });
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let quick = args.iter().any(|arg| arg == "--quick" || arg == "--test");
    let mut counts: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    if counts.is_empty() {
        counts = vec![1, 2, 4];
    }
    println!("microseconds for a region, median (90th percentile)");
    println!(
        "{:<34} {:>7} {:>16} {:>16} {:>16} {:>16}",
        "case", "threads", "team", "rayon", "started threads", "loop"
    );
    for threads in counts {
        let team = Team::new(threads);
        let Ok(pool) = rayon::ThreadPoolBuilder::new().num_threads(threads).build() else {
            println!("rayon has no pool of {threads} threads");
            continue;
        };
        let rayon = |tasks: usize, task: Task<'_>| {
            use rayon::prelude::*;
            pool.install(|| (0..tasks).into_par_iter().with_max_len(1).for_each(task));
        };
        for case in &CASES {
            let mut times = [const { Vec::new() }; 4];
            for _ in 0..if quick { 1 } else { 15 } {
                let [ours, theirs, fresh, alone] = &mut times;
                round(case, threads, quick, &|tasks, task| team.run(tasks, task), ours);
                round(case, threads, quick, &rayon, theirs);
                round(case, threads, quick, &|tasks, task| started(threads, tasks, task), fresh);
                round(case, threads, quick, &|tasks, task| (0..tasks).for_each(task), alone);
            }
            let cells = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                format!("{:.2} ({:.2})", times[times.len() / 2], times[times.len() * 9 / 10])
            });
            println!(
                "{:<34} {threads:>7} {:>16} {:>16} {:>16} {:>16}",
                case.name, cells[0], cells[1], cells[2], cells[3]
            );
        }
    }
}
