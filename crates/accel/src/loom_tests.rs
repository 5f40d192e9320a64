//! Models of the concurrent rules: every interleaving, within a bound of preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p fucina-accel --lib --release loom`

use fucina_dtype::DType;
use loom::sync::Arc;
use loom::thread;

use crate::reference::{ManualProvider, Witness};
use crate::{
    Call, CommandError, Completion, DeviceError, Operand, Pool, Storage, Unary, UnaryOp, submit,
};

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

fn negate(x: &Storage) -> Call<'_> {
    let x = Operand::dense(x, DType::F32, 0, &[x.len_bytes() / 4]).unwrap();
    Call::Unary(Unary { op: UnaryOp::Neg, x })
}

fn run(provider: &ManualProvider, pool: &Pool, x: &Storage) -> Storage {
    let out = pool.take(x.len_bytes()).unwrap();
    submit(provider, &negate(x), out).map_err(|(why, _)| why).unwrap()
}

/// The waiter parks or sees the result; it never sleeps through it.
#[test]
fn r18_loom_a_completion_wakes_its_waiters() {
    model(|| {
        let (completion, bytes) = (Arc::new(Completion::default()), Arc::new(Witness::default()));
        let waiter = |completion: Arc<Completion>, bytes: Arc<Witness>| {
            thread::spawn(move || {
                completion.wait().unwrap();
                bytes.read();
            })
        };
        let first = waiter(completion.clone(), bytes.clone());
        let second = waiter(completion.clone(), bytes.clone());
        bytes.write();
        assert!(completion.complete(Ok(())));
        assert!(!completion.complete(Err(CommandError::Lost { code: String::new() })));
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// A poll that says "done" also shows what the device wrote.
#[test]
fn r18_loom_a_poll_orders_the_bytes() {
    model(|| {
        let (completion, bytes) = (Arc::new(Completion::default()), Arc::new(Witness::default()));
        let (theirs, their_bytes) = (completion.clone(), bytes.clone());
        let device = thread::spawn(move || {
            their_bytes.write();
            theirs.complete(Ok(()));
        });
        if completion.poll().is_some() {
            bytes.read();
        }
        device.join().unwrap();
    });
}

/// Two readers race with the device. The command is published once, and each sees its bytes.
#[test]
fn r12_loom_racing_readers_publish_once() {
    model(|| {
        let (pool, provider) = (Pool::default(), Arc::new(ManualProvider::default()));
        let x = pool.take(4).unwrap();
        let out = Arc::new(run(&provider, &pool, &x));
        let (alias, theirs) = (out.clone(), provider.clone());
        let reader = thread::spawn(move || {
            assert_eq!(alias.host().unwrap(), [1; 4]);
            theirs.look(0);
        });
        let device = provider.clone();
        let device = thread::spawn(move || device.finish(0));
        assert_eq!(out.host().unwrap(), [1; 4]);
        provider.look(0);
        reader.join().unwrap();
        device.join().unwrap();
        assert_eq!(provider.publishes(0), 1);
        assert!(out.is_on_host());
    });
}

/// One thread fetches two results while another reads one of them. Nothing is published twice.
#[test]
fn r12_loom_a_fetch_races_with_a_read() {
    model(|| {
        let (pool, provider) = (Pool::default(), Arc::new(ManualProvider::default()));
        provider.set_ends_at_once();
        let x = pool.take(4).unwrap();
        let a = Arc::new(run(&provider, &pool, &x));
        let b = run(&provider, &pool, &x);
        let (alias, theirs) = (a.clone(), provider.clone());
        let reader = thread::spawn(move || {
            assert_eq!(alias.host().unwrap(), [1; 4]);
            theirs.look(0);
        });
        Storage::fetch([&*a, &b]).unwrap();
        assert_eq!((a.host().unwrap(), b.host().unwrap()), (&[1; 4][..], &[2; 4][..]));
        provider.look(0);
        reader.join().unwrap();
        assert_eq!((provider.publishes(0), provider.publishes(1)), (1, 1));
    });
}

/// One alias is read while another is dropped and a third thread takes memory: what it gets is
/// never the memory of the command.
#[test]
fn r14_loom_a_read_a_drop_and_a_take() {
    model(|| {
        let (pool, provider) = (Pool::default(), Arc::new(ManualProvider::default()));
        let x = pool.take(4).unwrap();
        let out = Arc::new(run(&provider, &pool, &x));
        let address = out.as_ptr().addr();
        let (alias, device) = (out.clone(), provider.clone());
        let reader = thread::spawn(move || {
            device.finish(0);
            assert_eq!(alias.host().unwrap(), [1; 4]);
        });
        drop(out);
        let other = pool.take(4).unwrap();
        if other.as_ptr().addr() == address {
            // Then the reader was the last owner, and it is done.
            assert_eq!(provider.publishes(0), 1);
        }
        reader.join().unwrap();
        drop((other, x));
        assert_eq!((pool.stats().live, pool.stats().parked), (0, 0));
    });
}

/// Memory of a dropped input is reused only after the device has read it.
#[test]
fn r14_loom_a_dropped_input_is_reused_after_the_device() {
    model(|| {
        let (pool, provider) = (Pool::default(), Arc::new(ManualProvider::default()));
        let bytes = Arc::new(Witness::default());
        let x = pool.take(4).unwrap();
        let address = x.as_ptr().addr();
        let out = run(&provider, &pool, &x);
        let (device, their_bytes) = (provider.clone(), bytes.clone());
        let device = thread::spawn(move || {
            their_bytes.read();
            device.finish(0);
        });
        drop(x);
        let mut other = pool.take(4).unwrap();
        if other.as_ptr().addr() == address {
            other.host_mut().unwrap().fill(9);
            bytes.write();
        }
        device.join().unwrap();
        drop(out);
    });
}

/// A thread submits a command that reads a storage and lets go of its alias; whoever becomes the
/// only owner waits for that command before it writes.
#[test]
fn r13_loom_a_reader_is_seen_by_the_next_writer() {
    model(|| {
        let (pool, provider) = (Pool::default(), Arc::new(ManualProvider::default()));
        let bytes = Arc::new(Witness::default());
        let mut x = Arc::new(pool.take(4).unwrap());
        let (alias, theirs, their_bytes) = (x.clone(), provider.clone(), bytes.clone());
        let their_pool = pool.clone();
        let submitter = thread::spawn(move || {
            let out = run(&theirs, &their_pool, &alias);
            drop(alias);
            // The device.
            their_bytes.read();
            theirs.finish(0);
            out
        });
        if let Some(x) = Arc::get_mut(&mut x) {
            x.host_mut().unwrap().fill(9);
            bytes.write();
        }
        drop(submitter.join().unwrap());
    });
}

/// Two threads submit commands that read one storage on two lanes: neither reader gets lost.
#[test]
fn r13_loom_no_reader_is_lost() {
    model(|| {
        let (pool, provider) = (Pool::default(), Arc::new(ManualProvider::default()));
        let x = Arc::new(pool.take(4).unwrap());
        let (alias, theirs, their_pool) = (x.clone(), provider.clone(), pool.clone());
        let submitter = thread::spawn(move || {
            theirs.set_lane(1);
            drop(run(&theirs, &their_pool, &alias));
        });
        provider.set_lane(0);
        drop(run(&provider, &pool, &x));
        submitter.join().unwrap();
        // The lanes may coincide, and then one stands for both; memory is parked all the same.
        let address = x.as_ptr().addr();
        drop(x);
        assert_ne!(pool.take(4).unwrap().as_ptr().addr(), address);
        provider.finish(0);
        assert_ne!(pool.take(4).unwrap().as_ptr().addr(), address, "command 1 still reads it");
        provider.finish(1);
        assert_eq!(pool.stats().parked, 0);
    });
}

/// One thread submits while another drops its alias of the input and a third finishes commands.
#[test]
fn r09_loom_submit_while_an_alias_is_dropped() {
    model(|| {
        let (pool, provider) = (Pool::default(), Arc::new(ManualProvider::default()));
        let x = pool.take(4).unwrap();
        let first = Arc::new(run(&provider, &pool, &x));
        let (alias, device) = (first.clone(), provider.clone());
        let dropper = thread::spawn(move || drop(alias));
        let device = thread::spawn(move || device.finish(0));
        let second = run(&provider, &pool, &first);
        drop(first);
        provider.finish(1);
        assert_eq!(second.host().unwrap(), [2; 4]);
        dropper.join().unwrap();
        device.join().unwrap();
        drop((x, second));
        assert_eq!((pool.stats().live, pool.stats().parked), (0, 0));
    });
}

/// A fault and readers race: all of them get the same error, and the pool gives the memory up
/// once.
#[test]
fn r07_loom_racing_readers_see_the_same_fault() {
    model(|| {
        let (pool, provider) = (Pool::default(), Arc::new(ManualProvider::default()));
        let x = pool.take(4).unwrap();
        let out = Arc::new(run(&provider, &pool, &x));
        let alias = out.clone();
        let reader = thread::spawn(move || alias.host().map(<[u8]>::to_vec).unwrap_err());
        let device = provider.clone();
        let device = thread::spawn(move || {
            device.end(0, Err(CommandError::Failed { code: "broken".to_owned() }));
        });
        let error = out.wait().unwrap_err();
        assert_eq!(reader.join().unwrap(), error);
        device.join().unwrap();
        drop((x, out));
        assert_eq!((pool.stats().leaked, pool.stats().cached), (2, 0));
    });
}

/// Two threads want what is derived from the bytes: it is made once, and both see all of it.
#[test]
fn r09_loom_threads_that_race_derive_one_object() {
    model(|| {
        let pool = Pool::default();
        let x = Arc::new(pool.take(4).unwrap());
        let (alias, bytes) = (x.clone(), Arc::new(Witness::default()));
        let their_bytes = bytes.clone();
        let derive = |x: &Storage, bytes: &Witness| {
            let made = x.derive(|| {
                bytes.write();
                Ok::<_, DeviceError>(5u8)
            });
            assert_eq!(made.map(|made| *made), Ok(5));
            bytes.read();
        };
        let other = thread::spawn(move || derive(&alias, &their_bytes));
        derive(&x, &bytes);
        other.join().unwrap();
    });
}
