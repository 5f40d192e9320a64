//! Without a timeline nothing is allocated for one, and with one nothing after its beginning. One
//! test only: the allocator counts the whole process.

#![allow(clippy::unwrap_used, reason = "a test: a panic is a failure")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fucina_accel::reference::{ReferenceConfig, ReferenceProvider};
use fucina_accel::{
    Call, Operand, Pool, PoolConfig, Provider, Record, Storage, Timeline, Trace, Unary, UnaryOp,
    submit,
};
use fucina_dtype::DType;

/// The system's allocator, with the number of allocations of this thread's test.
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes on to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, SeqCst);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller got `block` from `alloc` above, so from the system's allocator, with
        // this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(f: impl FnOnce()) -> usize {
    let before = COUNT.load(SeqCst);
    f();
    COUNT.load(SeqCst) - before
}

/// A result that has been computed, in a pool with this trace.
fn result(timeline: Option<Arc<Timeline>>) -> Storage {
    let trace = Arc::new(Trace::with_log(0).and_timeline(timeline));
    let config = PoolConfig { trace: Some(trace), ..PoolConfig::default() };
    let (pool, provider) = (Pool::new(config), ReferenceProvider::new(ReferenceConfig::default()));
    let mut x = pool.take(16).unwrap();
    x.host_mut().unwrap().fill(0);
    let view = Operand::dense(&x, DType::F32, 0, &[4]).unwrap();
    let call = Call::Unary(Unary { op: UnaryOp::Scale(2.0), x: view });
    let out = submit(&provider, &call, pool.take(16).unwrap()).map_err(|(why, _)| why).unwrap();
    provider.synchronize();
    out
}

#[test]
fn watching_allocates_nothing_per_record() {
    let timeline = Arc::new(Timeline::new(64));
    let (plain, watched) = (result(None), result(Some(Arc::clone(&timeline))));
    // A retirement notes a wait. The device has finished, and its threads are gone.
    assert_eq!(allocations(|| plain.wait().unwrap()), 0);
    assert_eq!(allocations(|| watched.wait().unwrap()), 0);
    let record = timeline.records()[0];
    assert!(matches!(record, Record::Submit { .. }), "{record:?}");
    let fill = allocations(|| (0..1000).for_each(|_| timeline.record(record)));
    assert_eq!(fill, 0, "room is reserved, and what does not fit is counted");
    assert_eq!(timeline.records().len(), 64);
    assert!(timeline.dropped() > 900);
}
