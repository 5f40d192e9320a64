//! The rules under concurrency.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::protocol::{LEN_BYTES, Probe, expect, filled, integers};
use super::{Check, Stop, ensure, offload};
use crate::pool::Pool;
use crate::provider::Provider;

/// Drops operands and results right after the submission, while another thread takes memory of
/// the same size (and the pool fills it with NaN).
pub(super) fn drop_at_once(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop((pool.take(LEN_BYTES), pool.take(LEN_BYTES)));
                thread::yield_now();
            }
        });
        let result = rounds(&**provider, pool, probe);
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn rounds(provider: &dyn Provider, pool: &Pool, probe: Probe) -> Check {
    let constant = probe.constant();
    for round in 0..500 {
        let x = filled(pool, &integers(round))?;
        let y = offload(provider, pool, &probe.call(&x, &constant)?)?;
        drop(x);
        let z = offload(provider, pool, &probe.call(&y, &constant)?)?;
        drop(y);
        if round % 3 > 0 {
            expect(&z, &probe.repeat(&integers(round), 2), "result")?;
        }
    }
    Ok(())
}

/// Eight threads use one provider and one operand; each also has its own.
pub(super) fn many_threads(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let (constant, x) = (probe.constant(), filled(pool, &integers(0))?);
    let shared = offload(&**provider, pool, &probe.call(&x, &constant)?)?;
    let worker = |seed: usize| -> Check {
        for round in 0..50 {
            let own = filled(pool, &integers(seed + round))?;
            let a = offload(&**provider, pool, &probe.call(&own, &constant)?)?;
            let b = offload(&**provider, pool, &probe.call(&shared, &constant)?)?;
            expect(&a, &probe.host(&integers(seed + round)), "own result")?;
            if round % 2 == 0 {
                expect(&b, &probe.repeat(&integers(0), 2), "result of the shared operand")?;
            }
            expect(&shared, &probe.host(&integers(0)), "shared operand")?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|seed| scope.spawn(move || worker(100 * seed))).collect();
        for thread in threads {
            let result = thread.join();
            result.unwrap_or_else(|_| Err(Stop::Fail("a thread panicked".to_owned())))?;
        }
        ensure(!provider.is_lost(), || "the device was lost".to_owned())
    })
}
