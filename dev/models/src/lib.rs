//! Loom models of the worker team. The team's own source is compiled here under `--cfg loom`, so
//! that the rest of the runtime need not be.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p fucina-models --release`, or `cargo xtask loom`.
#![cfg(loom)]

#[path = "../../../crates/runtime/src/cores.rs"]
pub mod cores;
#[path = "../../../crates/runtime/src/limits.rs"]
pub mod limits;
#[path = "../../../crates/runtime/src/sync.rs"]
pub mod sync;
#[path = "../../../crates/runtime/src/threads.rs"]
pub mod threads;

#[cfg(test)]
mod loom_models {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use crate::threads::Team;

    fn model(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(check);
    }

    /// Each task runs once, in each region, whenever the worker wakes up; then the team ends.
    #[test]
    fn loom_every_task_runs_once_and_the_team_ends() {
        model(3, || {
            let team = Team::new(2);
            for _ in 0..2 {
                let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
                team.run(2, |task| {
                    counts[task].fetch_add(1, Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Relaxed) == 1));
            }
        });
    }

    /// What tasks write is there for the caller without further synchronization.
    #[test]
    fn loom_the_writes_of_tasks_are_visible_after_the_region() {
        model(3, || {
            let team = Team::new(2);
            let mut data = [0u32; 2];
            team.for_each_chunk(&mut data, 1, |at, chunk| {
                chunk[0] = u32::try_from(at).unwrap() + 1
            });
            assert_eq!(data, [1, 2]);
        });
    }

    /// The number of threads may change between regions, up and down.
    #[test]
    fn loom_a_team_that_changes_its_size_runs_every_task_once() {
        model(2, || {
            let team = Team::new(2);
            for threads in [2, 1, 2] {
                team.set_threads(threads);
                let count = AtomicUsize::new(0);
                team.run(2, |_| {
                    count.fetch_add(1, Relaxed);
                });
                assert_eq!(count.load(Relaxed), 2);
            }
        });
    }

    /// Two callers: one region opens, the other caller works alone; nobody waits for ever.
    #[test]
    fn loom_two_callers_finish() {
        model(2, || {
            let team = Arc::new(Team::new(2));
            let sum = Arc::new(AtomicUsize::new(0));
            let other = {
                let (team, sum) = (Arc::clone(&team), Arc::clone(&sum));
                loom::thread::spawn(move || {
                    team.run(2, |_| {
                        sum.fetch_add(1, Relaxed);
                    });
                })
            };
            team.run(2, |_| {
                sum.fetch_add(1, Relaxed);
            });
            other.join().unwrap();
            assert_eq!(sum.load(Relaxed), 4);
        });
    }
}
