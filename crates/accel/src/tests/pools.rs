//! Pools: what is reused, and what never is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::reference::{ManualProvider, ReferenceConfig, ReferenceProvider};
use crate::{CommandError, MIN_ALIGN_BYTES, PAGE_BYTES, PoolConfig, ProviderId};

/// What a device reads or writes is not handed out, whoever asks.
#[test]
fn r14_memory_that_a_device_may_touch_is_not_handed_out() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let out = run(&provider, &pool, &scale(&x, 2.0));
    let in_use = [x.as_ptr(), out.as_ptr()];
    drop((x, out));
    let others: Vec<_> = (0..4).map(|_| pool.take(16).unwrap()).collect();
    assert!(others.iter().all(|other| !in_use.contains(&other.as_ptr())));
    drop(others);
    provider.finish(0);
    let again: Vec<_> = (0..6).map(|_| pool.take(16).unwrap()).collect();
    let reused = again.iter().filter(|again| in_use.contains(&again.as_ptr())).count();
    assert_eq!(reused, 2, "when the device is done, it is");
}

/// After a fault nobody knows what the device still touches: the memory is gone, and counted.
#[test]
fn r14_memory_of_a_faulted_command_is_leaked() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let out = run(&provider, &pool, &scale(&x, 2.0));
    let gone = [x.as_ptr(), out.as_ptr()];
    drop((x, out));
    provider.end(0, Err(CommandError::Failed { code: "broken".to_owned() }));
    let stats = pool.stats();
    assert_eq!((stats.leaked, stats.leaked_bytes, stats.parked, stats.cached), (2, 128, 0, 0));
    let others: Vec<_> = (0..4).map(|_| pool.take(16).unwrap()).collect();
    assert!(others.iter().all(|other| !gone.contains(&other.as_ptr())));
}

/// The trap of dropped handles: submit, drop everything at once, reuse from another thread with a
/// poison fill, many times over.
#[test]
fn r14_reuse_after_drop_does_not_disturb_the_device() {
    let config = ReferenceConfig { lanes: 3, max_delay_us: 20, ..Default::default() };
    let (pool, provider) = (poisoned(), ReferenceProvider::new(config));
    std::thread::scope(|scope| {
        let stop = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&stop);
        let pool = &pool;
        scope.spawn(move || {
            while theirs.load(Ordering::Relaxed) == 0 {
                drop((pool.take(12).unwrap(), pool.take(12).unwrap()));
            }
        });
        for i in 0..2000u16 {
            let x = storage(pool, &[f32::from(i); 3]);
            let out = pool.take(12).unwrap();
            let Ok(out) = submit(&provider, &scale(&x, 2.0), out) else { continue };
            drop(x);
            let chained = pool.take(12).unwrap();
            let chained = submit(&provider, &scale(&out, 2.0), chained);
            drop(out);
            if let Ok(chained) = chained {
                assert_eq!(values(&chained), [f32::from(i) * 4.0; 3]);
            }
        }
        stop.store(1, Ordering::Relaxed);
    });
    assert_eq!(provider.counters().faults, 0);
}

/// A provider's object for an allocation is made once, whatever the pool does with the memory,
/// for every element type, and destroyed before the memory goes.
#[test]
fn r16_a_resource_lives_as_long_as_the_allocation() {
    struct Registration(Arc<AtomicUsize>);
    impl Drop for Registration {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let pool = poisoned();
    let (provider, other) = (ProviderId::fresh(), ProviderId::fresh());
    let (made, destroyed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    // Sizes of f32, f16 and of blocks of 34 bytes that share a size class.
    for len_bytes in [2 * PAGE_BYTES, 2 * PAGE_BYTES - 2, 34 * (2 * PAGE_BYTES / 34)] {
        let x = pool.take(len_bytes).unwrap();
        let register = || {
            made.fetch_add(1, Ordering::SeqCst);
            Some(Registration(Arc::clone(&destroyed)))
        };
        assert!(x.resource(provider, register).is_some());
        assert!(x.resource::<Registration>(other, || None).is_none());
        assert!(x.as_ptr().addr().get().is_multiple_of(PAGE_BYTES));
        assert_eq!(x.capacity_bytes(), 2 * PAGE_BYTES);
    }
    assert_eq!((made.load(Ordering::SeqCst), destroyed.load(Ordering::SeqCst)), (1, 0));
    pool.trim();
    assert_eq!((made.load(Ordering::SeqCst), destroyed.load(Ordering::SeqCst)), (1, 1));
}

#[test]
fn r16_a_failed_registration_is_not_tried_again() {
    let (pool, provider) = (poisoned(), ProviderId::fresh());
    let mut tries = 0;
    for _ in 0..3 {
        let x = pool.take(64).unwrap();
        let register = || {
            tries += 1;
            None::<u8>
        };
        assert!(x.resource(provider, register).is_none());
    }
    assert_eq!(tries, 1);
    pool.forget_provider(provider);
    assert_eq!(pool.take(64).unwrap().resource(provider, || Some(5u8)).as_deref(), Some(&5));
}

/// Waste is at most an eighth, or the rest of a page, at every size.
#[test]
fn size_classes_waste_little() {
    let sizes =
        (0..63).flat_map(|bits| [(1usize << bits) - 1, 1 << bits, (1 << bits) + 1, 3 << bits >> 1]);
    for len_bytes in sizes.filter(|&len| len < 1 << 62) {
        let class = Pool::class_bytes(len_bytes).unwrap();
        let waste = class - len_bytes;
        assert!(waste <= (len_bytes / 8).max(PAGE_BYTES - 1), "{len_bytes}: {class}");
        if len_bytes < PAGE_BYTES / 2 {
            assert!(waste <= (len_bytes / 8).max(MIN_ALIGN_BYTES), "{len_bytes}: {class}");
        }
        assert_eq!(Pool::class_bytes(class), Some(class), "a class serves itself");
        assert!(class < PAGE_BYTES || class.is_multiple_of(PAGE_BYTES));
    }
    assert_eq!(Pool::class_bytes(0), Some(0));
    assert_eq!(Pool::class_bytes(usize::MAX), None);
    assert_eq!(Pool::class_bytes(isize::MAX as usize), None);
}

#[test]
fn reused_memory_is_not_much_larger_than_the_request() {
    let pool = poisoned();
    drop(pool.take(100 << 20).unwrap());
    let small = pool.take(1 << 20).unwrap();
    assert!(small.capacity_bytes() <= (1 << 20) * 5 / 4, "{}", small.capacity_bytes());
    assert_eq!(pool.stats().hits, 0);
    drop(small);
    // Within the bound, larger memory serves.
    drop(pool.take((1 << 20) - (1 << 17)).unwrap());
    assert_eq!(pool.stats().hits, 1);
}

#[test]
fn sizes_that_do_not_exist_are_errors() {
    let pool = poisoned();
    for len_bytes in [usize::MAX, isize::MAX as usize, isize::MAX as usize - 4096, 1 << 60] {
        assert_eq!(pool.take(len_bytes).unwrap_err().len_bytes, len_bytes);
    }
    let stats = pool.stats();
    assert_eq!((stats.live, stats.live_bytes), (0, 0));
}

/// Fresh memory costs nothing until it is used: a cache for a long context is not all filled.
#[test]
#[cfg(target_os = "linux")]
fn fresh_memory_is_not_touched() {
    let resident_pages = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
    };
    let before = resident_pages();
    let big = Pool::default().take(4 << 30).unwrap();
    let grown = resident_pages().saturating_sub(before);
    // Other tests run at the same time, but none takes a quarter of that.
    assert!(grown < (1 << 30) / 4096, "{grown} pages of {}", big.len_bytes() / 4096);
}

#[test]
fn every_allocation_is_aligned() {
    let pool = poisoned();
    for len_bytes in [1, 63, 64, 65, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 5 << 20] {
        let x = pool.take(len_bytes).unwrap();
        let align = if len_bytes >= PAGE_BYTES { PAGE_BYTES } else { MIN_ALIGN_BYTES };
        assert!(x.as_ptr().addr().get().is_multiple_of(align), "{len_bytes}");
        assert_eq!(x.len_bytes(), len_bytes);
    }
}

#[test]
fn the_shelf_is_bounded_and_drops_the_oldest() {
    let config = PoolConfig { retention_bytes: 4096, ..PoolConfig::default() };
    let pool = Pool::new(config);
    let held: Vec<_> = (0..8).map(|_| pool.take(1024).unwrap()).collect();
    let newest = held[7].as_ptr();
    drop(held);
    let stats = pool.stats();
    assert_eq!((stats.cached, stats.cached_bytes, stats.evictions), (4, 4096, 4));
    assert_eq!(pool.take(1024).unwrap().as_ptr(), newest, "the newest is the warmest");
    drop(pool.take(1 << 20).unwrap());
    assert_eq!(pool.stats().cached, 4, "larger than the shelf: freed at once");
    pool.trim();
    assert_eq!(pool.stats().cached_bytes, 0);
}

/// Random sizes for a long time: the shelf keeps to its budget, and the books balance.
#[test]
fn the_books_balance() {
    let pool = Pool::new(PoolConfig { retention_bytes: 1 << 20, ..PoolConfig::default() });
    let (mut random, mut held) = (1u64, Vec::new());
    for _ in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let size = usize::try_from(random >> 33).unwrap() % (1 << (random >> 60));
        held.push(pool.take(size * 8).unwrap());
        if held.len() > 16 {
            held.swap_remove(usize::try_from(random >> 40).unwrap() % 16);
        }
        assert!(pool.stats().cached_bytes <= 1 << 20);
    }
    let live: usize = held.iter().map(Storage::capacity_bytes).sum();
    assert_eq!((pool.stats().live, pool.stats().live_bytes), (held.len(), live));
    drop(held);
    assert_eq!(pool.stats().live_bytes, 0);
}

#[test]
fn poison_shows_bytes_that_nobody_wrote() {
    let pool = poisoned();
    drop(storage(&pool, &[1.0; 4]));
    assert!(values(&pool.take(16).unwrap()).iter().all(|value| value.is_nan()));
}
