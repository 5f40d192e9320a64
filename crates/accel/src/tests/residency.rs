//! Device copies and their budget.

use std::sync::Arc;

use super::*;
use crate::{Budget, Charge, DeviceCopy, ProviderId};

/// Device memory that counts.
struct Object(#[expect(dead_code, reason = "gives its charge back when dropped")] Charge);

fn copy_of(storage: &Storage, budget: &Budget, provider: ProviderId) -> Option<DeviceCopy> {
    let object = Object(budget.charge(storage.len_bytes())?);
    let copy = DeviceCopy::new(provider.device(0), 0..storage.len_bytes(), Arc::new(object));
    budget.track(&copy);
    storage.add_device_copy(copy.clone());
    Some(copy)
}

#[test]
fn r08_the_oldest_unused_copy_makes_room() {
    let (pool, budget, provider) = (poisoned(), Budget::new(48), ProviderId::fresh());
    let storages: Vec<_> = (0..4).map(|_| storage(&pool, &[1.0; 4])).collect();
    let find = |i: usize| storages[i].device_copy(provider.device(0), 0..16);
    for storage in &storages[..3] {
        copy_of(storage, &budget, provider).unwrap();
    }
    // The first one was used last.
    let held = find(1).unwrap().object::<Object>().unwrap();
    find(0).unwrap().object::<Object>().unwrap();
    copy_of(&storages[3], &budget, provider).unwrap();
    assert!(find(2).is_none() && find(0).is_some());
    assert_eq!((budget.used_bytes(), budget.evictions()), (48, 1));
    // What a command uses stays, even when it is the oldest.
    drop(budget.charge(32).unwrap());
    assert!(find(1).is_some() && find(0).is_none() && find(3).is_none());
    assert!(budget.charge(33).is_none());
    drop(held);
    assert!(budget.charge(49).is_none() && budget.charge(usize::MAX).is_none());
    assert!(find(1).is_none(), "it tried");
    assert_eq!(budget.used_bytes(), 0);
}

/// A copy of bytes that are nowhere else is not dropped to make room, however old it is.
#[test]
fn r08_only_copies_that_the_host_has_make_room() {
    let (pool, budget, id) = (poisoned(), Budget::new(16), ProviderId::fresh());
    let provider = crate::reference::ManualProvider::default();
    let x = storage(&pool, &[1.0; 4]);
    let out = run(&provider, &pool, &scale(&x, 2.0));
    copy_of(&out, &budget, id).unwrap();
    assert!(budget.charge(16).is_none());
    assert!(out.device_copy(id.device(0), 0..16).is_some());
    provider.finish(0);
    assert!(budget.charge(16).is_none(), "finished, but not on the host");
    out.host().unwrap();
    assert!(budget.charge(16).is_some());
    assert!(out.device_copy(id.device(0), 0..16).is_none());
}

#[test]
fn r15_a_host_write_makes_copies_stale_from_where_it_starts() {
    let (pool, budget, provider) = (poisoned(), Budget::new(1 << 20), ProviderId::fresh());
    let device = provider.device(0);
    let mut cache = storage(&pool, &[1.0; 8]);
    copy_of(&cache, &budget, provider).unwrap();
    cache.host_range_mut(20..24).unwrap();
    assert!(cache.device_copy(device, 0..20).is_some());
    assert!(
        cache.device_copy(device, 0..21).is_none() && cache.device_copy(device, 24..32).is_none()
    );
    cache.host_range_mut(0..4).unwrap();
    assert!(cache.device_copy(device, 0..0).is_none());
    assert_eq!(budget.used_bytes(), 0);
    copy_of(&cache, &budget, provider).unwrap();
    cache.host_mut().unwrap();
    assert!(cache.device_copy(device, 0..32).is_none());
}

#[test]
fn r15_a_larger_copy_replaces_a_smaller_one() {
    let (pool, budget, provider) = (poisoned(), Budget::new(1 << 20), ProviderId::fresh());
    let (device, other) = (provider.device(0), provider.device(1));
    let cache = storage(&pool, &[1.0; 8]);
    for (device, end) in [(device, 8), (other, 8), (device, 16)] {
        let object = Object(budget.charge(end).unwrap());
        cache.add_device_copy(DeviceCopy::new(device, 0..end, Arc::new(object)));
    }
    assert!(cache.device_copy(device, 0..16).is_some());
    assert!(cache.device_copy(other, 0..8).is_some() && cache.device_copy(other, 0..16).is_none());
    assert_eq!(budget.used_bytes(), 24, "the small copy of the first device is gone");
    // A copy that claims more than there is does not count.
    let object = Object(budget.charge(64).unwrap());
    cache.add_device_copy(DeviceCopy::new(device, 0..64, Arc::new(object)));
    assert_eq!(budget.used_bytes(), 24);
}

/// A provider that claims more than its command produces gets nothing kept.
#[test]
fn r11_an_output_copy_beyond_what_was_produced_is_not_kept() {
    let (pool, provider) = (poisoned(), crate::reference::ManualProvider::default());
    let (device, x) = (provider.device().id, storage(&pool, &[1.0; 4]));
    for (claim, kept) in [(0..16, true), (0..32, false), (4..20, false)] {
        provider.set_output_copy(claim);
        let out = submit(&provider, &scale(&x, 2.0), pool.take(32).unwrap());
        let out = out.map_err(|(why, _)| why).unwrap();
        assert_eq!(out.device_copy(device, 4..16).is_some(), kept);
    }
    (0..3).for_each(|number| provider.finish(number));
}

#[test]
fn an_object_of_another_type_is_not_found() {
    let copy = DeviceCopy::new(ProviderId::fresh().device(0), 0..4, Arc::new(7u8));
    assert_eq!(copy.object::<u16>(), None);
    assert_eq!(copy.object::<u8>().as_deref(), Some(&7));
}

#[test]
fn copies_go_with_their_storage() {
    let (pool, budget, provider) = (poisoned(), Budget::new(1 << 20), ProviderId::fresh());
    for _ in 0..100 {
        let x = storage(&pool, &[1.0; 8]);
        copy_of(&x, &budget, provider).unwrap();
    }
    assert_eq!(budget.used_bytes(), 0);
}
