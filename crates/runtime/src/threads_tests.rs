use super::*;

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 3, 8] {
        let team = Team::new(threads);
        for tasks in [0, 1, 2, 7, 100, 1000] {
            let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            team.run(tasks, |index| {
                counts[index].fetch_add(1, SeqCst);
            });
            assert!(counts.iter().all(|count| count.load(SeqCst) == 1), "{threads} {tasks}");
        }
    }
}

#[test]
fn chunks_cover_the_slice_once() {
    let team = Team::new(3);
    for len in [0, 1, 5, 64, 65] {
        let mut data = vec![0usize; len];
        team.for_each_chunk(&mut data, 8, |index, chunk| {
            for (offset, value) in chunk.iter_mut().enumerate() {
                *value += index * 8 + offset + 1;
            }
        });
        assert!(data.iter().enumerate().all(|(at, &value)| value == at + 1), "{len}");
    }
}

#[test]
fn tiles_cover_the_matrix_once() {
    let team = Team::new(2);
    for (rows, cols) in [(1, 1), (3, 17), (5, 16), (9, 33)] {
        let mut data = vec![0usize; rows * cols];
        team.for_each_tile(&mut data, cols, (4, 16), |mut tile| {
            for row in tile.rows.clone() {
                let start = tile.cols.start;
                for (offset, value) in tile.row_mut(row).iter_mut().enumerate() {
                    *value += row * cols + start + offset + 1;
                }
            }
        });
        assert!(data.iter().enumerate().all(|(at, &value)| value == at + 1), "{rows}x{cols}");
    }
}

#[test]
fn bands_of_any_height_are_covered_once_and_the_rest_is_left_alone() {
    let team = Team::new(3);
    // Empty bands, a gap of two rows, and a last row of none.
    let bands = [0..0, 0..1, 1..8, 8..8, 10..43];
    let is_inside = |row: usize| bands.iter().any(|band| band.contains(&row));
    for cols in [1, 16, 33] {
        let mut data = vec![0usize; 44 * cols];
        team.for_each_band(&mut data, cols, (&bands, 16), |band, mut tile| {
            assert_eq!(tile.rows, bands[band]);
            for row in tile.rows.clone() {
                let start = tile.cols.start;
                for (offset, value) in tile.row_mut(row).iter_mut().enumerate() {
                    *value += row * cols + start + offset + 1;
                }
            }
        });
        for (at, &value) in data.iter().enumerate() {
            assert_eq!(value, if is_inside(at / cols) { at + 1 } else { 0 }, "{at} of {cols}");
        }
    }
}

#[test]
fn bands_that_overlap_or_leave_the_matrix_are_refused() {
    let team = Team::new(2);
    #[expect(clippy::reversed_empty_ranges, reason = "one of the wrong ones")]
    let wrong = [[0..2, 1..3], [2..3, 0..1], [0..2, 2..5], [0..1, 3..2]];
    for bands in wrong {
        let run = || team.for_each_band(&mut [0; 8], 2, (&bands, 1), |_, _| ());
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "{bands:?}");
    }
}

#[test]
fn a_panic_in_a_task_reaches_the_caller_and_the_team_lives_on() {
    let team = Team::new(4);
    for bad in 0..8 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            team.run(8, |index| assert_ne!(index, bad, "task {bad}"));
        }));
        assert!(result.is_err(), "{bad}");
        let sum = AtomicUsize::new(0);
        team.run(10, |index| {
            sum.fetch_add(index, SeqCst);
        });
        assert_eq!(sum.load(SeqCst), 45);
    }
}

#[test]
fn nested_and_concurrent_regions_finish() {
    let team = Team::new(4);
    let sum = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    team.run(4, |_| {
                        team.run(4, |_| {
                            sum.fetch_add(1, SeqCst);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(sum.load(SeqCst), 4 * 50 * 16);
}

#[test]
fn a_team_that_has_gone_to_sleep_wakes_up() {
    let team = Team::new(3);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(1));
        let sum = AtomicUsize::new(0);
        team.run(64, |_| {
            sum.fetch_add(1, SeqCst);
        });
        assert_eq!(sum.load(SeqCst), 64);
    }
}

/// A payload whose destructor panics must not keep a worker in the region.
#[test]
fn payloads_that_panic_when_dropped_do_not_hang_the_team() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("dropped");
            }
        }
    }
    let team = Team::new(4);
    for _ in 0..20 {
        let barrier = std::sync::Barrier::new(team.threads());
        let result = catch_unwind(AssertUnwindSafe(|| {
            team.run(team.threads(), |_| {
                barrier.wait();
                std::panic::panic_any(Bomb);
            });
        }));
        // The caller's own payload; dropping it is the caller's business.
        std::mem::forget(result);
    }
    let sum = AtomicUsize::new(0);
    team.run(10, |index| {
        sum.fetch_add(index, SeqCst);
    });
    assert_eq!(sum.load(SeqCst), 45);
}

#[test]
#[should_panic(expected = "are too many")]
fn a_region_of_more_tasks_than_the_cursor_counts_is_refused() {
    Team::new(2).run(usize::MAX, |_| ());
}

#[test]
fn the_number_of_threads_may_change_between_regions() {
    let team = Team::new(2);
    for threads in [1, 4, 2, 8, 1, 3, 0, 2] {
        team.set_threads(threads);
        let threads = threads.max(1);
        assert_eq!(team.threads(), threads);
        // Every thread has a task, and waits for the others: as many threads as that are there.
        let barrier = std::sync::Barrier::new(threads);
        for _ in 0..3 {
            team.run(threads, |_| {
                barrier.wait();
            });
        }
        let names = Mutex::new(std::collections::HashSet::new());
        team.run(100, |_| {
            lock(&names).insert(std::thread::current().id());
        });
        assert!(lock(&names).len() <= threads);
    }
}

/// From inside a task too: the change waits for the next region, not for this one.
#[test]
fn a_change_of_the_number_never_waits() {
    let team = Team::new(3);
    for round in 0..20 {
        team.run(4, |task| team.set_threads(1 + (round + task) % 4));
        assert!((1..=4).contains(&team.threads()));
    }
    std::thread::scope(|scope| {
        for first in 0..3 {
            let team = &team;
            scope.spawn(move || {
                for round in 0..50 {
                    team.set_threads(1 + (first + round) % 4);
                    let sum = AtomicUsize::new(0);
                    team.run(10, |index| {
                        sum.fetch_add(index, SeqCst);
                    });
                    assert_eq!(sum.load(SeqCst), 45);
                }
            });
        }
    });
}

#[test]
fn no_team_has_more_than_the_most_threads() {
    let team = Team::new(1);
    team.set_threads(usize::MAX);
    assert_eq!(team.threads(), MAX_THREADS);
    team.set_threads(2);
    team.run(4, |_| ());
    assert_eq!(team.threads(), 2);
}
