//! Storages: who waits for whom, and what is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::reference::ManualProvider;
use crate::{Decline, StorageError};

/// Runs `wait` on a thread, and checks that it needs each step of the device in `steps`.
fn waits_for<T: Send>(wait: impl FnOnce() -> T + Send, steps: &[&dyn Fn()]) -> T {
    std::thread::scope(|scope| {
        let (started, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let (started, done) = (&Arc::new(started), &Arc::new(done));
        let flags = (Arc::clone(started), Arc::clone(done));
        let thread = scope.spawn(move || {
            flags.0.store(true, Ordering::SeqCst);
            let result = wait();
            flags.1.store(true, Ordering::SeqCst);
            result
        });
        while !started.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        for step in steps {
            std::thread::sleep(Duration::from_millis(30));
            assert!(!done.load(Ordering::SeqCst), "it did not wait");
            step();
        }
        thread.join().unwrap()
    })
}

#[test]
fn r05_a_read_waits_for_the_writer() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let out = run(&provider, &pool, &scale(&x, 2.0));
    assert!(out.writer().is_some_and(|writer| !writer.is_finished()));
    let got = waits_for(|| out.host().unwrap().to_vec(), &[&|| provider.finish(0)]);
    assert_eq!(got, [1; 16]);
    assert!(out.is_on_host() && out.writer().is_none());
}

#[test]
fn r05_a_write_waits_for_the_writer_and_for_device_readers() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let mut a = run(&provider, &pool, &scale(&x, 2.0));
    let b = run(&provider, &pool, &scale(&a, 2.0));
    // A pending reader on the same lane ends after the writer: each is waited for.
    waits_for(|| a.host_mut().unwrap().fill(0), &[&|| provider.finish(0), &|| provider.finish(1)]);
    assert_eq!(provider.publishes(0), 1);
    assert_eq!(provider.publishes(1), 0, "the reader's output is not copied to the host");
    assert_eq!(b.host().unwrap(), [2; 16]);
}

/// A second writer cannot exist: the output of a call is owned by it. When it is written again,
/// the first writer and every reader have let go.
#[test]
fn r10_a_second_write_waits_for_the_first_and_its_readers() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let a = run(&provider, &pool, &scale(&x, 2.0));
    provider.set_lane(1);
    let b = run(&provider, &pool, &scale(&a, 2.0));
    let again = || submit(&provider, &scale(&x, 3.0), a).map_err(|(why, _)| why).unwrap();
    let a = waits_for(again, &[&|| provider.finish(0), &|| provider.finish(1)]);
    assert_eq!((provider.publishes(0), provider.publishes(1)), (0, 0));
    provider.finish(2);
    assert_eq!((a.host().unwrap(), b.host().unwrap()), (&[3; 16][..], &[2; 16][..]));
}

#[test]
fn r10_a_failed_submission_gives_a_pending_output_back() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let a = run(&provider, &pool, &scale(&x, 2.0));
    provider.finish(0);
    provider.set_decline(Some(Decline::Busy));
    let (_, a) = submit(&provider, &scale(&x, 3.0), a).unwrap_err();
    assert_eq!(a.host().unwrap(), [1; 16]);
}

/// However many threads and views ask, one command is published once.
#[test]
fn r12_completion_through_any_alias_completes_all() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let out = Arc::new(run(&provider, &pool, &scale(&x, 2.0)));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let alias = Arc::clone(&out);
            scope.spawn(move || assert_eq!(alias.host().unwrap(), [1; 16]));
        }
        provider.finish(0);
    });
    assert!(out.is_on_host());
    assert_eq!(provider.publishes(0), 1);
}

/// Of one lane the newest reader stands for all; readers of other lanes stay.
#[test]
fn r13_readers_are_the_newest_of_each_lane() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let mut x = storage(&pool, &[1.0; 4]);
    let mut outs = Vec::new();
    for lane in [0, 1, 0, 0] {
        provider.set_lane(lane);
        outs.push(run(&provider, &pool, &scale(&x, 2.0)));
    }
    assert_eq!(x.lanes_reading(), 2);
    for number in [0, 2, 3] {
        provider.finish(number);
    }
    assert_eq!(x.lanes_reading(), 1, "the reader on lane 1");
    waits_for(|| x.host_mut().map(drop).unwrap(), &[&|| provider.finish(1)]);
    assert_eq!(provider.retires(0) + provider.retires(2), 0, "subsumed");
    assert_eq!(provider.retires(1), 1);
}

/// Threads that submit at the same time may record their readers in another order than the lane
/// runs them.
#[test]
fn r13_the_newest_reader_is_the_last_in_the_queue_not_the_last_to_arrive() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let outs = [(); 2].map(|()| run(&provider, &pool, &scale(&x, 2.0)));
    let mut y = storage(&pool, &[1.0; 4]);
    y.add_reader(outs[1].writer().unwrap(), 0..4);
    y.add_reader(outs[0].writer().unwrap(), 12..16);
    provider.finish(0);
    assert_eq!(y.lanes_reading(), 1);
    waits_for(|| y.host_range_mut(12..16).map(drop).unwrap(), &[&|| provider.finish(1)]);
}

/// A range write waits for the readers of its range only, and copies keep what is before it.
#[test]
fn r13_a_range_write_waits_for_readers_of_the_range() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let mut cache = storage(&pool, &[1.0; 8]);
    let front = Operand::dense(&cache, DType::F32, 0, &[4]).unwrap();
    let call = Call::Unary(Unary { op: UnaryOp::Neg, x: front });
    let _out = run(&provider, &pool, &call);
    // Bytes 0..16 are being read: the rest can be written.
    cache.host_range_mut(16..32).unwrap().fill(0);
    assert_eq!(provider.retires(0), 0);
    waits_for(|| cache.host_range_mut(12..16).map(drop).unwrap(), &[&|| provider.finish(0)]);
}

#[test]
fn r13_a_newer_reader_covers_what_the_older_one_read() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let mut x = storage(&pool, &[1.0; 8]);
    for offset in [0, 16] {
        let part = Operand::dense(&x, DType::F32, offset, &[4]).unwrap();
        drop(run(&provider, &pool, &Call::Unary(Unary { op: UnaryOp::Neg, x: part })));
    }
    provider.finish(0);
    // The older command read bytes 0..16; the newer one of its lane answers for them now.
    waits_for(|| x.host_range_mut(0..4).map(drop).unwrap(), &[&|| provider.finish(1)]);
}

/// Borrowed bytes are kept alive by their owner and are never written.
#[test]
fn r17_borrowed_memory_is_owned_and_read_only() {
    struct Owner(Vec<u8>, Arc<AtomicBool>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.store(true, Ordering::SeqCst);
        }
    }
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let dropped = Arc::new(AtomicBool::new(false));
    let bytes = Bytes::from_owner(Owner(vec![0; 64], Arc::clone(&dropped)));
    let address = bytes.as_ptr();
    let mut mapped = Storage::from_bytes(bytes);
    assert_eq!(mapped.host().unwrap().as_ptr(), address, "no copy");
    assert_eq!(mapped.host_mut().unwrap_err(), StorageError::ReadOnly);
    assert_eq!(mapped.host_range_mut(0..1).unwrap_err(), StorageError::ReadOnly);

    let x = storage(&pool, &[1.0; 4]);
    let (why, mapped) = submit(&provider, &scale(&x, 2.0), mapped).unwrap_err();
    assert_eq!(why, Decline::InvalidCall, "a command must not write it either");

    // The owner outlives the storage while the device reads, and not longer.
    let out = run(&provider, &pool, &scale(&mapped, 2.0));
    drop(mapped);
    pool.trim();
    assert!(!dropped.load(Ordering::SeqCst));
    provider.finish(0);
    pool.trim();
    assert!(dropped.load(Ordering::SeqCst));
    drop(out);
}

#[test]
fn r14_a_drop_does_not_wait() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let out = run(&provider, &pool, &scale(&x, 2.0));
    drop(x);
    drop(out);
    assert_eq!((provider.retires(0), provider.publishes(0)), (0, 0));
    assert_eq!(pool.stats().parked, 2);
    provider.finish(0);
    assert_eq!((pool.stats().parked, pool.stats().cached), (0, 2));
    assert_eq!(provider.publishes(0), 0, "nobody read the result, so nobody copied it");
}

/// Memory outlives its pool for as long as a device may touch it.
#[test]
fn r14_a_pool_that_is_dropped_does_not_wait() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let out = run(&provider, &pool, &scale(&x, 2.0));
    drop((x, out));
    drop(pool);
    assert_eq!(provider.retires(0), 0);
    provider.finish(0);
    Pool::default().trim();
}

#[test]
fn ranges_outside_a_storage_are_refused() {
    let pool = poisoned();
    let mut x = storage(&pool, &[1.0; 4]);
    for (start, end) in [(0, 17), (17, 17), (9, 8), (usize::MAX, usize::MAX), (3, usize::MAX)] {
        let error = x.host_range_mut(start..end).unwrap_err();
        assert_eq!(error, StorageError::OutOfRange { range: start..end, len_bytes: 16 });
    }
    assert_eq!(x.host_range_mut(16..16).unwrap(), []);
}

#[test]
fn a_storage_may_be_empty() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let mut x = pool.take(0).unwrap();
    assert_eq!((x.host().unwrap().len(), x.host_mut().unwrap().len()), (0, 0));
    let out = run(&provider, &pool, &scale(&x, 2.0));
    provider.finish(0);
    assert_eq!(out.host().unwrap(), []);
    assert_eq!(Storage::from_bytes(Bytes::new()).host().unwrap(), []);
}

#[test]
fn wait_and_is_ready_do_not_copy() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    assert!(x.is_ready());
    x.wait().unwrap();
    let out = run(&provider, &pool, &scale(&x, 2.0));
    waits_for(|| out.wait().unwrap(), &[&|| provider.finish(0)]);
    assert!(out.is_ready() && !out.is_on_host());
    assert_eq!(provider.publishes(0), 0);
}

/// The seam's own cost is in `benches/host_access.rs`; here: the quick path takes no lock.
#[test]
fn r19_a_read_with_nothing_pending_takes_no_lock() {
    let pool = poisoned();
    let x = storage(&pool, &[1.0; 4]);
    x.with_locked_record(|| assert_eq!(values(&x), [1.0; 4]));
}

/// Advice about pages changes no byte, of whatever the storage is made of.
#[test]
fn large_pages_leave_the_bytes_alone() {
    let pool = Pool::default();
    for len in [0, 1, 4096, (2 << 20) - 1, 5 << 20] {
        let mut storage = pool.take(len).unwrap();
        let pattern = |at: usize| (at % 251).to_le_bytes()[0];
        (0..len).zip(storage.host_mut().unwrap()).for_each(|(at, byte)| *byte = pattern(at));
        storage.prefer_large_pages();
        assert!(storage.host().unwrap().iter().enumerate().all(|(at, &byte)| byte == pattern(at)));
        storage.host_mut().unwrap().fill(7);
        assert!(storage.host().unwrap().iter().all(|&byte| byte == 7), "{len}");
    }
    let lent = Storage::from_bytes(Bytes::from(vec![3; 5 << 20]));
    lent.prefer_large_pages();
    assert!(lent.host().unwrap().iter().all(|&byte| byte == 3));
}

#[test]
fn what_is_derived_is_made_once_and_goes_with_the_bytes() {
    let pool = poisoned();
    let mut x = storage(&pool, &[1.0, 2.0]);
    let sum = |x: &Storage| -> Result<u32, StorageError> {
        Ok(x.host()?.iter().map(|&byte| u32::from(byte)).sum())
    };
    let first = x.derive(|| sum(&x)).unwrap();
    let again = x.derive(|| -> Result<u32, StorageError> { panic!("it is there") }).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    assert_eq!(x.derived::<u32>().as_deref(), Some(&*first));
    assert_eq!(x.derived::<u64>(), None, "another type");
    // A write of any part makes it stale.
    x.host_range_mut(0..1).unwrap()[0] = 77;
    assert_eq!(x.derived::<u32>(), None);
    let second = x.derive(|| sum(&x)).unwrap();
    assert_eq!(*second, *first + 77);
    assert_eq!(x.derive(|| Err::<u64, _>(StorageError::ReadOnly)), Err(StorageError::ReadOnly));
    let alive = Arc::downgrade(&second);
    drop((first, again, second));
    assert!(alive.upgrade().is_some());
    drop(x);
    assert!(alive.upgrade().is_none(), "the pool keeps the memory, and nothing of this");
}

#[test]
fn a_command_that_writes_makes_what_is_derived_stale() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let out = storage(&pool, &[5.0; 4]);
    let old = out.derive(|| Ok::<_, StorageError>(7u8)).unwrap();
    let out = submit(&provider, &scale(&x, 2.0), out).unwrap();
    assert_eq!(out.derived::<u8>(), None);
    assert_eq!(Arc::strong_count(&old), 1);
    provider.finish(0);
    out.host().unwrap();
}

#[test]
fn threads_that_race_derive_one_object() {
    let pool = poisoned();
    let x = storage(&pool, &[1.0; 4]);
    let made = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let object = x.derive(|| {
                    made.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    Ok::<_, StorageError>(3u8)
                });
                assert_eq!(*object.unwrap(), 3);
            });
        }
    });
    assert_eq!(made.into_inner(), 1);
}
