//! What a timeline shows of calls, waits and bytes.

use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::reference::{ReferenceConfig, ReferenceProvider};
use crate::{
    Arrival, DeviceCopy, Moved, ProviderId, Record, Timeline, Trace, reading, thread_number,
};

fn watched(capacity: usize) -> (Pool, Arc<Trace>, Arc<Timeline>) {
    let timeline = Arc::new(Timeline::new(capacity));
    let trace = Arc::new(Trace::with_log(0).and_timeline(Some(Arc::clone(&timeline))));
    let config = PoolConfig { trace: Some(Arc::clone(&trace)), ..PoolConfig::default() };
    (Pool::new(config), trace, timeline)
}

#[test]
fn a_submission_and_the_wait_for_it_are_noted_with_the_command() {
    let (pool, trace, timeline) = watched(16);
    let provider = ReferenceProvider::new(ReferenceConfig::default());
    let x = storage(&pool, &[1.0, 2.0]);
    let out = run(&provider, &pool, &scale(&x, 3.0));
    let id = out.writer().unwrap().id();
    reading("softmax", || assert_eq!(values(&out), [3.0, 6.0]));
    let [submit, wait] = timeline.records()[..] else { panic!("{:?}", timeline.records()) };
    let Record::Submit { thread, span: submitted, result } = submit else { panic!("{submit:?}") };
    assert_eq!((thread, result), (thread_number(), Ok(id)));
    let Record::Wait { span, command, len_bytes, reader, .. } = wait else { panic!("{wait:?}") };
    assert_eq!((command, len_bytes, reader), (id, Some(8), Some("softmax")));
    assert!(submitted.start_ns <= submitted.end_ns && submitted.end_ns <= span.start_ns);
    // A second read waits for nothing, and brings nothing.
    assert_eq!(values(&out), [3.0, 6.0]);
    assert_eq!(timeline.records().len(), 2);
    let downloads = trace.counters().downloads;
    assert_eq!(downloads[&Some("softmax")], Moved { copies: 1, bytes: 8 });
    assert_eq!(downloads.len(), 1);
}

#[test]
fn a_declined_call_is_noted_with_the_reason() {
    let (pool, _, timeline) = watched(16);
    let config = ReferenceConfig { decline_percent: 100, ..ReferenceConfig::default() };
    let provider = ReferenceProvider::new(config);
    let x = storage(&pool, &[1.0]);
    let (why, _) = submit(&provider, &scale(&x, 3.0), pool.take(4).unwrap()).unwrap_err();
    let [Record::Submit { result, .. }] = timeline.records()[..] else { panic!("one record") };
    assert_eq!(result, Err(why));
}

#[test]
fn contents_have_numbers_until_somebody_writes() {
    let pool = poisoned();
    let (mut x, y) = (storage(&pool, &[1.0]), storage(&pool, &[1.0]));
    let first = x.content();
    assert_eq!(x.content(), first);
    assert_ne!(y.content(), first, "equal bytes of another storage are others");
    write(&mut x, &[2.0]);
    let second = x.content();
    assert_ne!(second, first);
    drop(x);
    // The pool hands the same memory out again.
    assert_ne!(storage(&pool, &[2.0]).content(), second);
    // A command writes, too; reading its result on the host changes nothing.
    let provider = ReferenceProvider::new(ReferenceConfig::default());
    let out = pool.take(4).unwrap();
    let before = out.content();
    let out = submit(&provider, &scale(&y, 2.0), out).map_err(|(why, _)| why).unwrap();
    let after = out.content();
    assert_ne!(before, after);
    assert_eq!(values(&out), [2.0]);
    assert_eq!(out.content(), after);
}

#[test]
fn an_upload_knows_what_was_there_before() {
    let device = ProviderId::fresh().device(0);
    let mut x = storage(&poisoned(), &[0.0; 16]);
    assert_eq!(x.arrival(device, 0..32), Arrival::Uploaded);
    x.add_device_copy(DeviceCopy::new(device, 0..32, Arc::new(())));
    // Rows are added behind those that are there.
    x.host_range_mut(32..48).unwrap();
    assert!(x.device_copy(device, 0..48).is_none());
    assert_eq!(x.arrival(device, 0..48), Arrival::UploadedGrown);
    assert_eq!(x.arrival(device, 48..64), Arrival::Uploaded, "none of it was there");
    let other = ProviderId::fresh().device(0);
    assert_eq!(x.arrival(other, 0..48), Arrival::Uploaded);
    // A write at the front leaves nothing.
    x.host_mut().unwrap();
    assert_eq!(x.arrival(device, 0..48), Arrival::Uploaded);
}

#[test]
fn an_upload_after_an_eviction_is_one_again() {
    let device = ProviderId::fresh().device(0);
    let budget = crate::Budget::new(100);
    let x = Storage::from_bytes(Bytes::from(vec![0; 64]));
    let charge = budget.charge(80).unwrap();
    let copy = DeviceCopy::new(device, 0..64, Arc::new(charge));
    budget.track(&copy);
    x.add_device_copy(copy);
    assert!(x.device_copy(device, 0..64).is_some());
    assert!(budget.charge(50).is_some(), "the copy makes room");
    assert_eq!(x.arrival(device, 0..64), Arrival::UploadedAgain);
}
