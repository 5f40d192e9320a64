//! One program under many orders of execution, with and without every wait, and with failures.

mod common;

use common::Rig;
use common::scenario::{Trouble, program};
use fucina_accel::{DeviceError, Provider as _};
use fucina_cuda_driver::control::{Config, Fail, Schedule};

/// Large enough that operands of the square products have locked pages.
const SIDE: usize = 136;
const SMALL: usize = 24;

#[test]
fn any_legal_order_gives_the_same_results() {
    for seed in 0..200_u16 {
        let schedule = match seed % 8 {
            0 => Schedule::Lazy,
            1 => Schedule::CopiesFirst,
            _ => Schedule::Random,
        };
        let capability = if seed % 2 == 0 { 80 } else { 70 };
        let rig =
            Rig::new(Config { seed: u64::from(seed), schedule, capability, ..Config::default() });
        let side = if seed % 8 == 3 { SIDE } else { SMALL };
        let outcome = program(&*rig.provider, usize::from(seed), side);
        assert!(outcome.is_ok(), "seed {seed}: {outcome:?}, {}", rig.driver.violations());
        rig.finish();
    }
}

/// Calls that the program could do without: the download of a result that the host has waited for
/// already, because it wrote an operand.
const REDUNDANT: [(&str, u64); 1] = [("cuStreamWaitEvent", 5)];

/// Leaves one wait, mark or copy out after another. Each time something must show on a device that
/// is late, or on one that copies early.
#[test]
fn every_wait_is_needed() {
    waits_are_needed(Rig::new);
}

#[test]
fn every_wait_is_needed_with_cublas() {
    waits_are_needed(Rig::with_cublas);
}

fn waits_are_needed(rig: fn(Config) -> Rig) {
    for call in
        ["cuStreamWaitEvent", "cuEventRecord", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"]
    {
        let mut left_out = 0;
        while let Some(shows) = shows_without(rig, call, left_out) {
            let redundant = REDUNDANT.contains(&(call, left_out));
            assert!(shows != redundant, "{call} number {left_out}: shows is {shows}");
            left_out += 1;
        }
        assert!(left_out > 8, "{call}: only {left_out}");
    }
}

/// Whether it shows that call number `at` is left out. `None` if there are not as many.
fn shows_without(rig: fn(Config) -> Rig, call: &str, at: u64) -> Option<bool> {
    for schedule in [Schedule::Lazy, Schedule::CopiesFirst] {
        let ignore = Fail::new(call, at, 1);
        let rig = rig(Config { schedule, ignore, ..Config::default() });
        let outcome = program(&*rig.provider, 1, SMALL);
        if rig.driver.calls(call) <= at {
            return None;
        }
        if outcome.is_err() || rig.driver.report().violations > 0 {
            return Some(true);
        }
    }
    Some(false)
}

#[test]
fn waits_for_the_host_are_needed() {
    for call in ["cuEventSynchronize", "cuEventQuery"] {
        let ignore = Fail::new(call, u64::MAX, 1);
        let rig = Rig::new(Config { schedule: Schedule::Lazy, ignore, ..Config::default() });
        let outcome = program(&*rig.provider, 1, SMALL);
        let shows = outcome.is_err() || rig.driver.report().violations > 0;
        assert!(shows, "without {call} everything is right");
    }
}

/// Every entry point fails once, at every place, and always.
#[test]
fn a_call_that_fails_declines_or_is_an_error() {
    let calls = [
        "cuMemAlloc_v2",
        "cuMemHostAlloc",
        "cuMemHostRegister_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuStreamWaitEvent",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuFuncSetAttribute",
        "cuLaunchKernel",
        "cuStreamSynchronize",
        "cuMemFree_v2",
    ];
    for call in calls {
        for at in [0, 1, 2, 5, u64::MAX] {
            let fail = Fail::new(call, at, 2);
            let config = Config { fail, schedule: Schedule::Random, seed: at, ..Config::default() };
            let rig = if at % 2 == 0 { Rig::new(config) } else { Rig::with_cublas(config) };
            match program(&*rig.provider, 2, SIDE) {
                Ok(()) | Err(Trouble::Declined(_) | Trouble::Fault(_)) => {}
                Err(Trouble::Wrong(why)) => panic!("{call} {at}: {why}"),
            }
            let report = rig.driver.report();
            assert_eq!(report.violations, 0, "{call} {at}: {}", rig.driver.violations());
        }
    }
}

#[test]
fn r07_a_fault_is_a_value_and_ends_the_device() {
    for fault_at in 0..12 {
        let schedule = if fault_at % 2 == 0 { Schedule::Lazy } else { Schedule::Random };
        let rig = Rig::new(Config { fault_at, schedule, seed: fault_at, ..Config::default() });
        match program(&*rig.provider, 3, SMALL) {
            Err(Trouble::Fault(DeviceError::Lost { provider, code, .. })) => {
                assert_eq!(provider, "cuda");
                assert!(code.contains("CUDA_ERROR_LAUNCH_FAILED"), "{code}");
            }
            Err(Trouble::Declined(why)) => assert_eq!(why, fucina_accel::Decline::DeviceLost),
            other => panic!("kernel {fault_at} failed, and the program ended with {other:?}"),
        }
        assert!(rig.provider.is_lost());
        let again = program(&*rig.provider, 3, SMALL);
        assert!(matches!(again, Err(Trouble::Declined(fucina_accel::Decline::DeviceLost))));
    }
}

#[test]
fn memory_that_cannot_be_locked_is_staged() {
    let rig = Rig::new(Config { refuse_registration: true, ..Config::default() });
    program(&*rig.provider, 4, SIDE).unwrap();
    let report = rig.finish();
    assert!(report.uploads > 0);
}

#[test]
fn r08_device_memory_stays_within_its_budget() {
    let budget = 600 << 10;
    let rig = Rig::with(Config::default(), |cuda| cuda.memory_bytes = Some(budget));
    for round in 0..5 {
        match program(&*rig.provider, round, SIDE) {
            Ok(()) | Err(Trouble::Declined(fucina_accel::Decline::OutOfDeviceMemory)) => {}
            other => panic!("{other:?}"),
        }
        assert!(rig.provider.counters().device_bytes <= budget as u64);
    }
    rig.finish();
}

#[test]
fn r15_an_input_of_several_calls_is_uploaded_once() {
    let rig = Rig::new(Config::default());
    program(&*rig.provider, 5, SMALL).unwrap();
    let counters = rig.provider.counters();
    assert!(counters.reused_copies >= 4, "{counters:?}");
    let report = rig.finish();
    assert_eq!(counters.uploads + tables(), report.uploads, "{counters:?} {report:?}");
}

/// Uploads of the program that are not operands: the tiles of the experts.
const fn tables() -> u64 {
    1
}

/// What is known of a part of a matrix does not hold for the whole: the rest has larger weights.
#[test]
fn the_largest_weight_of_a_part_is_not_that_of_the_whole() {
    use fucina_accel::{Call, MatMul, Operand, submit};
    use fucina_dtype::DType;

    const ROWS: usize = 16;
    const K: usize = 512;
    let rig = Rig::new(Config::default());
    let pool = common::scenario::pool();
    // bf16: 2^-30 in the first half of each row, 2^30 in the second.
    let halves = (0..ROWS * K).map(|at| if at % K < K / 2 { 0x3080_u16 } else { 0x4e80 });
    let mut weights = pool.take(2 * ROWS * K).unwrap();
    for (to, half) in weights.host_mut().unwrap().as_chunks_mut::<2>().0.iter_mut().zip(halves) {
        *to = half.to_le_bytes();
    }
    let ones = vec![1.0_f32; ROWS * K];
    let mut x = pool.take(4 * ones.len()).unwrap();
    common::scenario::write(&mut x, &ones);
    let run = |rows: usize, k: usize| {
        let lhs = Operand::new(&x, DType::F32, 0, &[1, rows, k], &[rows * K, K, 1]).unwrap();
        let strides = [ROWS * K, K, 1];
        let rhs = Operand::new(&weights, DType::BF16, 0, &[1, ROWS, k], &strides).unwrap();
        let call = Call::MatMul(MatMul { lhs, rhs });
        let out = pool.take(call.out_bytes().unwrap()).unwrap();
        let out = submit(&*rig.provider, &call, out).map_err(|(why, _)| why).unwrap();
        f32::from_le_bytes(out.host().unwrap()[..4].try_into().unwrap())
    };
    let large = 256.0 * 2.0_f32.powi(30);
    assert_eq!(run(4, K), large, "few rows: the whole matrix is on the device");
    assert_eq!(run(ROWS, K / 2), 256.0 * 2.0_f32.powi(-30), "the first half");
    assert_eq!(run(ROWS, K), large, "the whole, after its half");
    drop((x, weights, pool));
    rig.finish();
}
