//! A child that is forked after CUDA has started: it gets errors, and the driver is left alone.
//! One test, so that no other thread holds a lock when the process forks.

#![cfg(unix)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Rig;
use common::scenario::{Matrix, pool};
use fucina_accel::{
    Call, Decline, DeviceError, MatMul, Operand, Pool, Provider as _, Storage, Unary, UnaryOp,
    submit,
};
use fucina_cuda_driver::control::{Config, Schedule};
use fucina_dtype::DType;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// Everything that the provider calls after its start.
const CALLS: [&str; 14] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuLaunchKernel",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cublasDestroy_v2",
];

fn product(rig: &Rig, pool: &Pool, x: &Storage) -> Storage {
    let view = || Operand::dense(x, DType::F32, 0, &[1, 24, 24]).expect("a view");
    let call = Call::MatMul(MatMul { lhs: view(), rhs: view() });
    let out = pool.take(call.out_bytes().expect("valid")).expect("memory");
    submit(&*rig.provider, &call, out).map_err(|(why, _)| why).expect("accepted")
}

/// What the child finds. `Err` names what is not as it should be.
fn child(rig: Rig, pool: &Pool, x: &Storage, pending: Storage) -> Result<(), &'static str> {
    let calls = |rig: &Rig| CALLS.map(|call| rig.driver.calls(call));
    let before = calls(&rig);
    if !rig.provider.is_lost() {
        return Err("the device is not lost");
    }
    let view = Operand::dense(x, DType::F32, 0, &[24, 24]).expect("a view");
    let call = Call::Unary(Unary { op: UnaryOp::Neg, x: view });
    let out = pool.take(call.out_bytes().expect("valid")).expect("memory");
    match submit(&*rig.provider, &call, out) {
        Err((Decline::DeviceLost, _)) => {}
        _ => return Err("a call is not declined"),
    }
    match pending.host() {
        Err(DeviceError::Lost { code, .. }) if code.contains("forked after CUDA had started") => {}
        _ => return Err("a pending result is not an error"),
    }
    rig.provider.synchronize();
    let _ = rig.provider.notes();
    drop(pending);
    let Rig { driver, provider } = rig;
    let last = Arc::into_inner(provider);
    if last.is_none() {
        return Err("the provider is still in use");
    }
    drop(last);
    if CALLS.map(|call| driver.calls(call)) != before {
        return Err("the driver was called");
    }
    Ok(())
}

#[test]
fn a_forked_child_gets_errors_and_ends() {
    let rig = Rig::with_cublas(Config { schedule: Schedule::Lazy, ..Config::default() });
    let pool = pool();
    let x = Matrix::integers(24, 24, 1);
    let stored = x.storage(&pool);
    let pending = product(&rig, &pool, &stored);
    // SAFETY: this is the only test of the process, so no other thread holds a lock; the child
    // ends without running what the test harness has registered.
    let forked = unsafe { fork() }.expect("the process forks");
    let ForkResult::Parent { child: pid } = forked else {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            child(rig, &pool, &stored, pending)
        }));
        let code = match found {
            Ok(Ok(())) => 0,
            Ok(Err(what)) => {
                eprintln!("the child: {what}");
                1
            }
            Err(_) => 2,
        };
        // SAFETY: the child ends at once, without destructors.
        unsafe { nix::libc::_exit(code) }
    };
    let start = Instant::now();
    let status = loop {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG)).expect("the child is ours") {
            WaitStatus::StillAlive if start.elapsed() > Duration::from_secs(100) => {
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
                panic!("the child hangs");
            }
            WaitStatus::StillAlive => std::thread::sleep(Duration::from_millis(10)),
            status => break status,
        }
    };
    assert_eq!(status, WaitStatus::Exited(pid, 0));
    // The parent goes on as if nothing had happened.
    let want = x.dot_t(&x).values;
    let got = pending.host().expect("a result");
    let got: Vec<f32> =
        got.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    assert_eq!(got[..want.len()], want);
    drop((pending, stored, pool));
    rig.finish();
}
