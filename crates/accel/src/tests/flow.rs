//! What a caller sees, on the reference provider.

use std::time::{Duration, Instant};

use super::*;
use crate::reference::{Copied, ManualProvider, ReferenceConfig, ReferenceProvider};
use crate::{Decline, DeviceError};

fn quick() -> ReferenceProvider {
    ReferenceProvider::new(ReferenceConfig::default())
}

fn slow(seed: u64) -> ReferenceProvider {
    let config = ReferenceConfig { seed, lanes: 3, max_delay_us: 300, ..Default::default() };
    ReferenceProvider::new(config)
}

/// When `submit` returns, the device has the command: it finishes without any further call.
#[test]
fn r01_a_command_runs_without_a_later_call() {
    let (pool, provider) = (poisoned(), quick());
    let x = storage(&pool, &[1.0, 2.0]);
    let out = run(&provider, &pool, &scale(&x, 3.0));
    assert_eq!(provider.submitted(), 1);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !out.is_ready() {
        assert!(Instant::now() < deadline, "nobody sent the command");
        std::thread::yield_now();
    }
    assert_eq!(provider.counters().downloads, 0);
}

/// A token holds no operand: the storages of a call can go while its submission is kept.
#[test]
fn r02_a_submission_keeps_no_operand() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let out = run(&provider, &pool, &scale(&x, 2.0));
    let ticket = out.writer().unwrap();
    provider.finish(0);
    drop((x, out));
    assert_eq!((pool.stats().live, pool.stats().parked), (0, 0));
    assert_eq!((ticket.op(), ticket.range()), ("scale", 0..16));
}

/// The result is a storage like any other: read it, write it, use it, drop it.
#[test]
fn r03_a_result_is_an_ordinary_storage() {
    let (pool, provider) = (poisoned(), quick());
    let x = storage(&pool, &[1.0, 2.0]);
    let mut out = run(&provider, &pool, &scale(&x, 3.0));
    assert_eq!(values(&out), [3.0, 6.0]);
    write(&mut out, &[5.0, 7.0]);
    assert_eq!(values(&out), [5.0, 7.0]);
    assert_eq!(values(&run(&provider, &pool, &add(&out, &x))), [6.0, 9.0]);
}

/// A long program of device calls and host writes gives what running it in order gives.
#[test]
fn r04_the_outcome_is_that_of_program_order() {
    for seed in 0..20 {
        let (pool, provider) = (poisoned(), slow(seed));
        let mut x = storage(&pool, &[1.0, 2.0, 3.0]);
        let mut want = vec![1.0f32, 2.0, 3.0];
        for step in 0..40u8 {
            let y = call_or(&provider, &pool, &add(&x, &x), || {
                values(&x).iter().map(|x| x + x).collect()
            });
            // A write right after the submission: the command has seen the values before.
            write(&mut x, &[f32::from(step); 3]);
            let z = call_or(&provider, &pool, &add(&y, &x), || {
                values(&y).iter().map(|y| y + f32::from(step)).collect()
            });
            x = call_or(&provider, &pool, &scale(&z, 0.25), || {
                values(&z).iter().map(|z| z * 0.25).collect()
            });
            want = want.iter().map(|x| (x + x + f32::from(step)) * 0.25).collect();
        }
        // Every step is exact in f64 and rounded once, so the results are equal.
        assert_eq!(values(&x), want, "seed {seed}");
    }
}

/// Offloads, or computes on the host what the call says.
fn call_or(
    provider: &dyn Provider,
    pool: &Pool,
    call: &Call<'_>,
    cpu: impl FnOnce() -> Vec<f32>,
) -> Storage {
    let out = pool.take(call.out_bytes().unwrap()).unwrap();
    submit(provider, call, out).unwrap_or_else(|(_, mut out)| {
        write(&mut out, &cpu());
        out
    })
}

/// Submitting, asking and passing on do not wait; a read waits, and only for its own writer.
#[test]
fn r05_the_host_waits_only_at_a_host_boundary() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let a = run(&provider, &pool, &scale(&x, 2.0));
    let b = run(&provider, &pool, &scale(&x, 2.0));
    let c = run(&provider, &pool, &scale(&a, 2.0));
    assert!(!a.is_ready() && !b.is_ready() && !c.is_ready());
    assert_eq!(values(&x), [1.0; 4], "a read of an input waits for nobody");
    provider.finish(1);
    assert_eq!(b.host().unwrap(), [2; 16], "command 0 is still running");
    assert_eq!((provider.retires(0), provider.publishes(0)), (0, 0));
    provider.finish(0);
    provider.finish(2);
}

/// Copies of several results are all under way before the first is waited for, and the last one is
/// waited for first: what its lane brought before is there then.
#[test]
fn r05_results_that_are_fetched_together_are_waited_for_last_one_first() {
    use Copied::{Prefetched, Published};

    let (pool, provider) = (poisoned(), ManualProvider::default());
    provider.set_ends_at_once();
    let x = storage(&pool, &[1.0; 4]);
    let [a, b, c] = [(); 3].map(|()| run(&provider, &pool, &scale(&x, 2.0)));
    Storage::fetch([&a]).unwrap();
    assert_eq!(provider.copies(), [Published(0)], "one alone is waited for at once");
    Storage::fetch([&x, &c, &a, &b, &c]).unwrap();
    let order = [Prefetched(2), Prefetched(1), Published(2), Published(1)];
    assert_eq!(provider.copies()[1..], order, "each once");
    assert!(a.is_on_host() && b.is_on_host() && c.is_on_host());
    assert_eq!((b.host().unwrap(), c.host().unwrap()), (&[2; 16][..], &[3; 16][..]));
    Storage::fetch([&x, &a, &b, &c]).unwrap();
    assert_eq!(provider.copies().len(), 5);
}

/// A fault among results that are fetched together is the error of its storage, and the others
/// arrive. What was started ahead is waited for in any case.
#[test]
fn r07_a_fault_among_results_that_are_fetched_together() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let [a, b] = [(); 2].map(|()| run(&provider, &pool, &scale(&x, 2.0)));
    provider.finish(0);
    let late = std::thread::scope(|scope| {
        let fetch = scope.spawn(|| Storage::fetch([&a, &b]));
        while provider.copies().len() < 3 {
            std::thread::yield_now();
        }
        // Both are started; the second fails.
        provider.end(1, Err(crate::CommandError::Failed { code: "7".to_owned() }));
        fetch.join().unwrap()
    });
    assert!(matches!(&late, Err(DeviceError::Fault { code, .. }) if &**code == "7"), "{late:?}");
    assert_eq!(b.host().map(<[u8]>::len), late.map(|()| 0));
    assert_eq!(a.host().unwrap(), [1; 16]);
    let started = |copied: &Copied| matches!(copied, Copied::Prefetched(_));
    assert_eq!(provider.copies().iter().filter(|c| started(c)).count(), 2);
}

/// Every kind of decline gives the output back untouched.
#[test]
fn r06_a_decline_gives_the_output_back_untouched() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0, 2.0]);
    for reason in [Decline::Busy, Decline::UnsupportedOp, Decline::DeviceLost] {
        provider.set_decline(Some(reason));
        let out = storage(&pool, &[5.0, 6.0]);
        let address = out.as_ptr();
        let (why, out) = submit(&provider, &scale(&x, 1.0), out).unwrap_err();
        assert_eq!((why, out.as_ptr()), (reason, address));
        assert!(out.writer().is_none());
        assert_eq!(values(&out), [5.0, 6.0]);
    }
}

#[test]
fn r06_random_declines_do_not_change_a_result() {
    let config = ReferenceConfig { decline_percent: 50, max_delay_us: 50, ..Default::default() };
    let (pool, provider) = (poisoned(), ReferenceProvider::new(config));
    let mut x = storage(&pool, &[1.0; 3]);
    for _ in 0..100 {
        x = call_or(&provider, &pool, &scale(&x, -1.0), || values(&x).iter().map(|x| -x).collect());
    }
    assert_eq!(values(&x), [1.0; 3]);
    let submitted = provider.submitted();
    assert!(submitted > 20 && submitted < 80, "{submitted} of 100 were taken");
}

/// At the bound the lane declines; when a command has finished it takes the next one.
#[test]
fn r08_commands_in_flight_are_bounded_by_number() {
    let config = ReferenceConfig { lanes: 1, ..Default::default() };
    let (pool, provider) = (poisoned(), ReferenceProvider::new(config));
    provider.pause();
    let x = storage(&pool, &[1.0; 4]);
    let held: Vec<_> = (0..8).map(|_| run(&provider, &pool, &scale(&x, 2.0))).collect();
    let (why, out) = submit(&provider, &scale(&x, 2.0), pool.take(16).unwrap()).unwrap_err();
    assert_eq!((why, provider.counters().in_flight), (Decline::Busy, 8));
    provider.resume();
    held[0].wait().unwrap();
    // Finished commands do not count, read or not.
    let out = submit(&provider, &scale(&x, 2.0), out).unwrap();
    assert_eq!(values(&out), [2.0; 4]);
    for out in &held {
        assert_eq!(values(out), [2.0; 4]);
    }
}

#[test]
fn r08_commands_in_flight_are_bounded_by_bytes() {
    let config = ReferenceConfig { max_in_flight_bytes: 40, ..Default::default() };
    let (pool, provider) = (poisoned(), ReferenceProvider::new(config));
    provider.pause();
    let x = storage(&pool, &[1.0; 4]);
    let first = run(&provider, &pool, &scale(&x, 2.0));
    // 32 bytes are taken: the upload of `x` and the output. `x` is there already.
    let (why, _) = submit(&provider, &scale(&x, 2.0), pool.take(16).unwrap()).unwrap_err();
    assert_eq!(why, Decline::Busy);
    provider.resume();
    first.wait().unwrap();
    assert_eq!(values(&run(&provider, &pool, &scale(&x, 3.0))), [3.0; 4]);
}

/// Device memory stays within its budget: copies that the host also has make room, then calls
/// are declined.
#[test]
fn r08_device_copies_are_bounded_by_a_budget() {
    let config = ReferenceConfig { memory_bytes: 64, ..Default::default() };
    let (pool, provider) = (poisoned(), ReferenceProvider::new(config));
    let x = storage(&pool, &[1.0; 4]);
    for _ in 0..10 {
        let y = storage(&pool, &[2.0; 4]);
        assert_eq!(values(&run(&provider, &pool, &add(&x, &y))), [3.0; 4]);
        assert!(provider.counters().device_bytes <= 64);
    }
    let keep: Vec<_> = (0..2).map(|_| run(&provider, &pool, &scale(&x, 2.0))).collect();
    keep.iter().for_each(|out| out.wait().unwrap());
    // Unread results are only on the device: 32 bytes. `x` makes way, and then nothing is left.
    let big = storage(&pool, &[1.0; 8]);
    let (why, _) = submit(&provider, &scale(&big, 2.0), pool.take(32).unwrap()).unwrap_err();
    assert_eq!(why, Decline::OutOfDeviceMemory);
    assert!(provider.counters().evictions >= 1);
    assert_eq!(values(&keep[0]), [2.0; 4]);
}

/// In steady state neither the pool nor the device asks for more memory.
#[test]
fn r08_a_steady_loop_allocates_nothing() {
    let (pool, provider) = (poisoned(), quick());
    let weights = storage(&pool, &[1.0; 64]);
    let mut x = storage(&pool, &[1.0; 8]);
    let mut step = |times: usize| {
        for _ in 0..times {
            let out = run(&provider, &pool, &matmul(matrix(&x, 1, 8), matrix(&weights, 8, 8)));
            out.wait().unwrap();
            x = run(&provider, &pool, &scale(&out, 0.125));
            x.wait().unwrap();
        }
        provider.synchronize();
        (pool.stats().misses, provider.counters().device_bytes, provider.counters().uploads)
    };
    let warm = step(10);
    assert_eq!(step(1000), warm);
}

#[test]
fn r09_threads_share_and_drop_storages() {
    let (pool, provider) = (poisoned(), slow(7));
    let x = std::sync::Arc::new(storage(&pool, &[1.0, 2.0, 3.0]));
    let shared = std::sync::Arc::new(run(&provider, &pool, &scale(&x, 2.0)));
    std::thread::scope(|scope| {
        for worker in 0..8u16 {
            let (pool, provider) = (&pool, &provider);
            let (x, shared) = (std::sync::Arc::clone(&x), std::sync::Arc::clone(&shared));
            scope.spawn(move || {
                for i in 0..50 {
                    let factor = f32::from(worker * 64 + i);
                    let out = call_or(provider, pool, &scale(&x, factor), || {
                        values(&x).iter().map(|x| x * factor).collect()
                    });
                    if i % 3 > 0 {
                        assert_eq!(values(&out), [factor, factor * 2.0, factor * 3.0]);
                    }
                    assert_eq!(values(&shared), [2.0, 4.0, 6.0]);
                }
            });
        }
    });
    assert_eq!(provider.counters().faults, 0);
    drop((x, shared));
    provider.synchronize();
    assert_eq!((pool.stats().live, pool.stats().parked), (0, 0));
}

/// A consumer gets a device address only for bytes that the producer answers for.
#[test]
fn r11_a_copy_answers_only_for_its_range() {
    let (pool, provider) = (poisoned(), quick());
    let device = provider.device().id;
    let x = storage(&pool, &[1.0, 2.0]);
    let mut out = pool.take(16).unwrap();
    write(&mut out, &[7.0; 4]);
    let out = submit(&provider, &scale(&x, 2.0), out).unwrap();
    assert!(out.device_copy(device, 0..8).is_some());
    assert!(out.device_copy(device, 4..8).is_some());
    assert!(out.device_copy(device, 0..12).is_none());
    assert!(out.device_copy(device, 8..16).is_none());
    // A consumer of the whole storage goes through the host, and sees both parts.
    assert_eq!(values(&run(&provider, &pool, &scale(&out, 1.0))), [2.0, 4.0, 7.0, 7.0]);
}

/// Projections of one activation upload it once.
#[test]
fn r15_q_k_and_v_upload_the_activation_once() {
    let (pool, provider) = (poisoned(), quick());
    let x = storage(&pool, &[1.0; 8]);
    let weights: Vec<_> = (0..3u8).map(|i| storage(&pool, &[f32::from(i); 64])).collect();
    for round in 1..=3u64 {
        for (i, weight) in (0u8..).zip(&weights) {
            let call = matmul(matrix(&x, 1, 8), matrix(weight, 8, 8));
            assert_eq!(values(&run(&provider, &pool, &call)), [f32::from(i) * 8.0; 8]);
        }
        let counters = provider.counters();
        assert_eq!((counters.uploads, counters.uploaded_bytes), (4, 32 + 3 * 256));
        assert_eq!(counters.downloads, 3 * round);
    }
}

/// A chain stays on the device: no upload between its calls and no download before the read.
#[test]
fn r15_a_chain_needs_no_host_read() {
    let (pool, provider) = (poisoned(), slow(3));
    let weight = storage(&pool, &[0.5; 16]);
    let mut x = storage(&pool, &[1.0; 4]);
    for _ in 0..20 {
        x = run(&provider, &pool, &matmul(matrix(&x, 1, 4), matrix(&weight, 4, 4)));
        x.wait().unwrap();
    }
    let counters = provider.counters();
    assert_eq!((counters.uploads, counters.downloads), (2, 0));
    assert_eq!(values(&x), [1_048_576.0; 4]);
    assert_eq!(provider.counters().downloads, 1);
}

/// Reading on the host keeps the device copy; writing on the host makes it stale.
#[test]
fn r15_both_copies_can_be_valid() {
    let (pool, provider) = (poisoned(), quick());
    let x = storage(&pool, &[1.0; 4]);
    let mut y = run(&provider, &pool, &scale(&x, 2.0));
    assert_eq!(values(&y), [2.0; 4]);
    let uploads = provider.counters().uploads;
    assert_eq!(values(&run(&provider, &pool, &scale(&y, 2.0))), [4.0; 4]);
    assert_eq!(provider.counters().uploads, uploads);
    write(&mut y, &[5.0; 4]);
    assert!(y.device_copy(provider.device().id, 0..16).is_none());
    assert_eq!(values(&run(&provider, &pool, &scale(&y, 2.0))), [10.0; 4]);
    assert_eq!(provider.counters().uploads, uploads + 1);
}

/// Waiting for a slow device burns no processor time to speak of.
#[test]
#[cfg(target_os = "linux")]
fn r18_waiting_parks() {
    let ticks = || {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let fields: Vec<_> =
            stat[stat.rfind(')').unwrap()..].split(' ').map(str::to_owned).collect();
        fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap()
    };
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let out = run(&provider, &pool, &scale(&x, 2.0));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let before = ticks();
                    out.host().unwrap();
                    ticks() - before
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        provider.finish(0);
        // A tick is 10 ms; a spinning waiter would need 50 of them, on a busy machine fewer.
        let used: u64 = waiters.into_iter().map(|waiter| waiter.join().unwrap()).sum();
        assert!(used <= 4, "{used} ticks");
    });
}

/// A device that is torn down finishes what it has. Its results outlive it.
#[test]
fn teardown_finishes_queued_commands() {
    let (pool, provider) = (poisoned(), slow(1));
    let x = storage(&pool, &[1.0; 4]);
    let outs: Vec<_> = (0..8).map(|_| run(&provider, &pool, &scale(&x, 2.0))).collect();
    drop(provider);
    for out in outs {
        assert_eq!(values(&out), [2.0; 4]);
    }
    drop(x);
    assert_eq!((pool.stats().live, pool.stats().parked), (0, 0));
}

#[test]
fn a_dead_lane_loses_its_commands_and_nothing_else() {
    let config = ReferenceConfig { lanes: 1, ..Default::default() };
    let (pool, provider) = (poisoned(), ReferenceProvider::new(config));
    let x = storage(&pool, &[1.0; 4]);
    provider.pause();
    let outs: Vec<_> = (0..3).map(|_| run(&provider, &pool, &scale(&x, 2.0))).collect();
    provider.kill_lane(0);
    provider.resume();
    // The first command may have been on its way; the last cannot.
    assert!(matches!(outs[2].host(), Err(DeviceError::Lost { .. })));
    let (why, _) = submit(&provider, &scale(&x, 2.0), pool.take(16).unwrap()).unwrap_err();
    assert_eq!(why, Decline::DeviceLost);
    assert_eq!(values(&x), [1.0; 4]);
}
