//! Faults are values: they reach everything that depends on them, and nothing else.

use std::sync::Arc;

use super::*;
use crate::reference::{ManualProvider, ReferenceConfig, ReferenceProvider};
use crate::{CommandError, Decline, DeviceError, Event, StorageError, Trace};

fn faulty(fault_at: u64, seed: u64) -> ReferenceProvider {
    let fault_at = Some(fault_at);
    let config =
        ReferenceConfig { fault_at, seed, lanes: 3, max_delay_us: 200, ..Default::default() };
    ReferenceProvider::new(config)
}

fn broken() -> Result<(), CommandError> {
    Err(CommandError::Failed { code: "error 700".to_owned() })
}

#[test]
fn r07_a_fault_names_op_shapes_provider_and_code_and_sticks() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 6]);
    let mut out = run(&provider, &pool, &matmul(matrix(&x, 2, 3), matrix(&x, 1, 3)));
    provider.end(0, broken());
    let want = DeviceError::Fault {
        provider: "manual",
        op: "matmul",
        shapes: "[1, 2, 3] x [1, 1, 3]".into(),
        code: "error 700".into(),
    };
    assert_eq!(want.to_string(), "manual failed to run matmul on [1, 2, 3] x [1, 1, 3]: error 700");
    for _ in 0..2 {
        assert_eq!(out.host().unwrap_err(), want);
        assert_eq!(out.wait().unwrap_err(), want);
        assert_eq!(out.host_mut().unwrap_err(), StorageError::Device(want.clone()));
        assert_eq!(out.host_range_mut(0..0).unwrap_err(), StorageError::Device(want.clone()));
        assert_eq!(out.writer().unwrap().fault(), Some(want.clone()));
        assert!(out.is_ready(), "an error is there at once");
    }
    assert_eq!(provider.publishes(0), 0, "a fault that is known is not published");
}

/// One fault somewhere in a chain: everything after it fails with it, everything before is right.
#[test]
fn r07_a_fault_reaches_every_dependent_storage() {
    for fault_at in 0..8 {
        let (pool, provider) = (poisoned(), faulty(fault_at, fault_at));
        let mut chain = vec![storage(&pool, &[1.0; 4])];
        let mut last = 8;
        for step in 0..8 {
            let call = scale(&chain[step], 2.0);
            let out = pool.take(16).unwrap();
            match submit(&provider, &call, out) {
                Ok(out) => chain.push(out),
                // The fault is known already, and the call would depend on it.
                Err((why, _)) => {
                    assert_eq!(why, Decline::Faulted);
                    last = step;
                    break;
                }
            }
        }
        for (step, out) in chain.iter().enumerate().rev() {
            let step = step as u64;
            if step <= fault_at {
                assert_eq!(values(out), [f32::from(1u16 << step); 4], "step {step} of {fault_at}");
                continue;
            }
            let Err(DeviceError::Fault { op, code, .. }) = out.host() else {
                panic!("step {step} of {last} depends on the fault");
            };
            assert_eq!((op, &*code), ("scale", "injected fault"));
        }
    }
}

/// Who shares an input with a failed command, or its lane, or its device, is not concerned.
#[test]
fn r07_a_fault_does_not_reach_others() {
    for seed in 0..10 {
        let (pool, provider) = (poisoned(), faulty(0, seed));
        let mut x = storage(&pool, &[1.0; 4]);
        let bad = run(&provider, &pool, &scale(&x, 2.0));
        let good = run(&provider, &pool, &scale(&x, 3.0));
        assert_eq!(values(&good), [3.0; 4]);
        assert!(bad.host().is_err());
        assert_eq!(values(&x), [1.0; 4]);
        write(&mut x, &[4.0; 4]);
        assert_eq!(values(&run(&provider, &pool, &scale(&x, 2.0))), [8.0; 4]);
    }
}

/// The failed command may read its input for ever, so a write goes to other memory.
#[test]
fn r07_an_input_of_a_failed_command_moves_before_it_is_written() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let mut x = storage(&pool, &[1.0; 4]);
    let bad = run(&provider, &pool, &scale(&x, 2.0));
    provider.end(0, broken());
    let address = x.as_ptr();
    write(&mut x, &[4.0; 4]);
    assert_ne!(x.as_ptr(), address);
    assert_eq!((pool.stats().leaked, pool.stats().live), (1, 2));
    assert_eq!(values(&x), [4.0; 4]);
    write(&mut x, &[5.0; 4]);
    assert_eq!(pool.stats().leaked, 1);
    drop((x, bad));
    assert_eq!((pool.stats().leaked, pool.stats().live, pool.stats().cached), (2, 0, 1));
}

/// A command that is skipped, because one operand is faulted, has another one that others share.
#[test]
fn r07_a_skipped_command_does_not_spoil_its_other_operands() {
    for seed in 0..10 {
        let (pool, provider) = (poisoned(), faulty(0, seed));
        let (x, y) = (storage(&pool, &[1.0; 4]), storage(&pool, &[2.0; 4]));
        provider.pause();
        let bad = run(&provider, &pool, &scale(&x, 2.0));
        let skipped = run(&provider, &pool, &add(&bad, &y));
        let good = run(&provider, &pool, &scale(&y, 3.0));
        provider.resume();
        assert_eq!(values(&good), [6.0; 4]);
        assert_eq!(skipped.host().unwrap_err(), bad.host().unwrap_err());
    }
}

/// The same for a command that is to write where a failed one may still read.
#[test]
fn r07_an_output_that_a_failed_command_reads_moves_first() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let (x, y) = (storage(&pool, &[1.0; 4]), storage(&pool, &[2.0; 4]));
    let bad = run(&provider, &pool, &scale(&x, 2.0));
    provider.end(0, broken());
    let address = x.as_ptr();
    let out = submit(&provider, &scale(&y, 2.0), x).map_err(|(why, _)| why).unwrap();
    assert_ne!(out.as_ptr(), address);
    provider.finish(1);
    assert_eq!(out.host().unwrap(), [2; 16]);
    drop(bad);
    assert_eq!(pool.stats().leaked, 2);
}

/// A command that was skipped has touched nothing: its memory is used again.
#[test]
fn r14_memory_of_a_skipped_command_is_not_leaked() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let out = run(&provider, &pool, &scale(&x, 2.0));
    let cause = DeviceError::Fault {
        provider: "manual",
        op: "add",
        shapes: "[4] x [4]".into(),
        code: "error 700".into(),
    };
    provider.end(0, Err(CommandError::Skipped(cause.clone())));
    assert_eq!(out.host().unwrap_err(), cause);
    drop((x, out));
    assert_eq!((pool.stats().leaked, pool.stats().cached), (0, 2));
}

#[test]
fn r07_a_partial_write_after_a_fault_keeps_the_other_bytes() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let mut x = storage(&pool, &[1.0, 2.0, 3.0, 4.0]);
    drop(run(&provider, &pool, &scale(&x, 2.0)));
    provider.end(0, broken());
    x.host_range_mut(4..8).unwrap().copy_from_slice(&9f32.to_le_bytes());
    assert_eq!(values(&x), [1.0, 9.0, 3.0, 4.0]);
}

/// A lost device fails what it has and declines the rest.
#[test]
fn r07_a_lost_device_declines_later_calls() {
    let config = ReferenceConfig { lose_at: Some(2), lanes: 1, ..Default::default() };
    let (pool, provider) = (poisoned(), ReferenceProvider::new(config));
    let x = storage(&pool, &[1.0; 4]);
    provider.pause();
    let outs: Vec<_> = (0..5).map(|_| run(&provider, &pool, &scale(&x, 2.0))).collect();
    provider.resume();
    for (number, out) in outs.iter().enumerate() {
        match out.host() {
            Ok(_) => assert!(number < 2),
            Err(DeviceError::Lost { op, .. }) => assert!(number >= 2 && op == "scale"),
            Err(other) => panic!("{other}"),
        }
    }
    assert!(provider.is_lost());
    let (why, out) = submit(&provider, &scale(&x, 2.0), pool.take(16).unwrap()).unwrap_err();
    assert_eq!((why, out.is_ready()), (Decline::DeviceLost, true));
    assert_eq!(values(&x), [1.0; 4]);
}

/// A transient fault is over when it is over.
#[test]
fn r07_a_fault_does_not_latch() {
    let (pool, provider) = (poisoned(), faulty(3, 1));
    let x = storage(&pool, &[1.0; 4]);
    let failed = (0..10).filter(|_| run(&provider, &pool, &scale(&x, 2.0)).host().is_err()).count();
    assert_eq!(failed, 1);
}

/// A fault that nobody reads is counted and traced when its memory is looked at.
#[test]
fn r07_a_fault_on_a_discarded_result_is_counted() {
    let trace = Arc::new(Trace::with_log(8));
    let config = PoolConfig { trace: Some(Arc::clone(&trace)), ..PoolConfig::default() };
    let (pool, provider) = (Pool::new(config), ManualProvider::default());
    let x = storage(&pool, &[1.0; 4]);
    let (read, unread) =
        (run(&provider, &pool, &scale(&x, 2.0)), run(&provider, &pool, &add(&x, &x)));
    provider.end(0, broken());
    provider.end(1, broken());
    let error = read.host().unwrap_err();
    assert_eq!(read.host().unwrap_err(), error);
    drop((read, unread));
    pool.trim();
    let counters = trace.counters();
    assert_eq!((counters.delivered_faults, counters.discarded_faults), (1, 1));
    let log = trace.take_log();
    assert_eq!(log[0], Event::Fault { error, discarded: false });
    let Event::Fault { error: DeviceError::Fault { op, .. }, discarded } = &log[1] else {
        panic!("{log:?}");
    };
    assert_eq!((*op, *discarded), ("add", true));
}

/// Every kind of operand problem that a device finds is a fault with a reason.
#[test]
fn r07_a_row_outside_the_table_is_a_fault() {
    let (pool, provider) = (poisoned(), ReferenceProvider::new(ReferenceConfig::default()));
    let table = storage(&pool, &[1.0; 6]);
    for id in [3, -1, i32::MIN, i32::MAX] {
        let mut ids = pool.take(4).unwrap();
        ids.host_mut().unwrap().copy_from_slice(&id.to_le_bytes());
        let call = Call::Rows(crate::Rows {
            table: Operand::dense(&table, DType::F32, 0, &[3, 2]).unwrap(),
            ids: Operand::dense(&ids, DType::I32, 0, &[1]).unwrap(),
        });
        let error = run(&provider, &pool, &call).host().map(<[u8]>::to_vec).unwrap_err();
        assert!(error.to_string().ends_with(&format!("row {id} of a table of 3 rows")), "{error}");
    }
}

/// Faults at random, many threads, one rule: an answer is right or an error.
#[test]
fn r07_with_faults_at_random_no_answer_is_wrong() {
    let config =
        ReferenceConfig { fault_percent: 20, max_delay_us: 50, lanes: 3, ..Default::default() };
    let (pool, provider) = (poisoned(), ReferenceProvider::new(config));
    let x = storage(&pool, &[1.0, 2.0]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut answers = [0u32; 2];
                for _ in 0..100 {
                    let Ok(a) = submit(&provider, &scale(&x, 2.0), pool.take(8).unwrap()) else {
                        continue;
                    };
                    let Ok(b) = submit(&provider, &add(&a, &x), pool.take(8).unwrap()) else {
                        continue;
                    };
                    match b.host() {
                        Ok(_) => assert_eq!(values(&b), [3.0, 6.0]),
                        Err(DeviceError::Fault { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                    answers[usize::from(b.host().is_err())] += 1;
                }
                assert!(answers[0] > 0 && answers[1] > 0, "{answers:?}");
            });
        }
    });
    provider.synchronize();
    assert_eq!(pool.stats().parked, 0);
}
