//! Kernels that break a rule are reported, and their twins that do not are not.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "tests panic when something is wrong, and sizes are small"
)]

mod common;

use std::sync::Arc;

use common::snippet::{self, fault};
use common::{Arg, Device, read_f32s};
use fucina_cuda_sim::exec::{Fault, FaultKind, Region};
use fucina_cuda_sim::ptx::Module;

const TEXT: &str = include_str!("data/faults.ptx");

fn module() -> Module {
    Module::parse(TEXT).unwrap()
}

/// Runs `name(in, out, value)` on one block, with a thousand floats each.
fn run(name: &str, threads: u32, value: u32) -> Result<Vec<f32>, Box<Fault>> {
    let mut seeds = 0..6;
    loop {
        let mut device = Device::new();
        device.options.seed = seeds.next().unwrap();
        let (input, out) = buffers(&device);
        let args = [Arg::Buffer(&input), Arg::Buffer(&out), Arg::U32(value)];
        device.launch(&module(), name, ([1; 3], [threads, 1, 1], 0), &args)?;
        if seeds.is_empty() {
            return Ok(read_f32s(&out));
        }
    }
}

fn buffers(device: &Device) -> (Arc<Region>, Arc<Region>) {
    let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    (device.f32s(&values), device.poisoned(4000))
}

fn run_out(name: &str, threads: u32, ints: &[u32]) -> Result<(), Box<Fault>> {
    let device = Device::new();
    let (_, out) = buffers(&device);
    let mut args = vec![Arg::Buffer(&out)];
    args.extend(ints.iter().map(|int| Arg::U32(*int)));
    device.launch(&module(), name, ([1; 3], [threads, 1, 1], 0), &args).map(|_| ())
}

/// A read that comes before the other warp's write finds that nothing was written; one that comes
/// after it is a race. Which one happens is the schedule's choice.
fn is_race(kind: &FaultKind) -> bool {
    let early = FaultKind::Uninitialised { space: "shared" };
    matches!(kind, FaultKind::SharedRace { .. }) || *kind == early
}

#[test]
fn a_missing_barrier_is_a_race_whatever_the_order() {
    let broken = run("reverse", 64, 0).unwrap_err();
    assert!(is_race(&broken.kind), "{broken}");
    assert_eq!(
        run("reverse", 64, 1).unwrap()[..64],
        std::array::from_fn::<_, 64, _>(|i| 63.0 - i as f32)
    );
}

#[test]
fn a_missing_barrier_is_found_in_every_schedule() {
    for seed in 0..50 {
        let mut device = Device::new();
        device.options.seed = seed;
        let (input, out) = buffers(&device);
        let args = [Arg::Buffer(&input), Arg::Buffer(&out), Arg::U32(0)];
        for name in ["reverse", "overwrite"] {
            let broken = device.launch(&module(), name, ([1; 3], [64, 1, 1], 0), &args);
            let kind = broken.unwrap_err().kind;
            assert!(is_race(&kind), "{name}, seed {seed}: {kind:?}");
        }
    }
}

#[test]
fn overwriting_what_others_read_is_a_race() {
    assert!(matches!(run("overwrite", 64, 0).unwrap_err().kind, FaultKind::SharedRace { .. }));
    run("overwrite", 64, 1).unwrap();
}

#[test]
fn lanes_of_a_warp_need_a_syncwarp() {
    let broken = run("rotate", 32, 0).unwrap_err();
    assert!(
        matches!(broken.kind, FaultKind::WarpRace { hazard: "read after write", .. }),
        "{broken}"
    );
    assert_eq!(run("rotate", 32, 1).unwrap()[31], 0.0);
}

#[test]
fn a_lane_that_reads_its_own_value_first_does_not_hide_a_race() {
    // Lane 0 writes and reads; then every lane reads the same word.
    let body = ".shared .align 4 .b32 s; setp.eq.u32 %p0, %lane, 0;
        @%p0 st.shared.u32 [s], %a0; @%p0 ld.shared.u32 %t0, [s];";
    let other = "ld.shared.u32 %o, [s];";
    let kind = fault(&format!("{body} {other}"));
    assert_eq!(kind, FaultKind::WarpRace { hazard: "read after write", other_lane: 0 });
    let inputs = [[5; 3]; 32];
    assert_eq!(snippet::run(&format!("{body} bar.warp.sync -1; {other}"), &inputs), [5; 32]);
}

#[test]
fn one_element_past_the_end_is_out_of_bounds() {
    let broken = {
        let device = Device::new();
        let (input, out) = buffers(&device);
        let args = [Arg::Buffer(&input), Arg::Buffer(&out), Arg::U32(1000)];
        let launched = ([4, 1, 1], [256, 1, 1], 0);
        device.launch(&module(), "one_past_the_end", launched, &args).map_err(|f| (f, out.base()))
    };
    let (broken, base) = broken.unwrap_err();
    let kind = FaultKind::OutOfBounds { space: "global", size: 4, write: true };
    assert_eq!(broken.kind, kind);
    assert_eq!(broken.address, Some(base + 4000));
    assert_eq!((broken.block, broken.thread), ([3, 0, 0], [1000 - 768, 0, 0]));
    assert_eq!(broken.kernel, "one_past_the_end");
    assert_eq!(broken.instruction, "st.global.f32");
    let line = TEXT.lines().nth(broken.line as usize - 1).unwrap();
    assert!(line.contains("st.global.f32"), "line {} is {line}", broken.line);
}

#[test]
fn freed_memory_is_out_of_bounds() {
    let device = Device::new();
    let (input, out) = buffers(&device);
    let args = [Arg::Buffer(&input), Arg::Buffer(&out), Arg::U32(1)];
    device.memory.free(input.base());
    let broken = device.launch(&module(), "reverse", ([1; 3], [64, 1, 1], 0), &args).unwrap_err();
    assert_eq!(broken.kind, FaultKind::OutOfBounds { space: "global", size: 4, write: false });
}

#[test]
fn misaligned_addresses_are_reported() {
    let broken = run("misaligned", 32, 2).unwrap_err();
    assert_eq!(broken.kind, FaultKind::Misaligned { space: "global", align: 4 });
    run("misaligned", 32, 4).unwrap();
}

#[test]
fn reads_of_memory_that_nobody_wrote_are_reported() {
    let broken = run_out("unwritten_shared", 64, &[63]).unwrap_err();
    assert_eq!(broken.kind, FaultKind::Uninitialised { space: "shared" });
    assert_eq!(broken.thread, [62, 0, 0]);
    run_out("unwritten_shared", 64, &[64]).unwrap();
    let broken = run_out("unwritten_local", 32, &[5, 5]).unwrap_err();
    assert_eq!(broken.kind, FaultKind::Uninitialised { space: "local" });
    run_out("unwritten_local", 32, &[5, 4]).unwrap();
    let device = Device::new();
    let (input, out) = (device.poisoned(4000), device.poisoned(4000));
    input.write(input.base(), &[0; 4 * 63]);
    let args = [Arg::Buffer(&input), Arg::Buffer(&out), Arg::U32(1)];
    let broken = device.launch(&module(), "reverse", ([1; 3], [64, 1, 1], 0), &args).unwrap_err();
    assert_eq!(broken.kind, FaultKind::Uninitialised { space: "global" });
    assert_eq!(broken.address, Some(input.base() + 4 * 63));
}

#[test]
fn barriers_that_cannot_be_met_are_reported() {
    for (name, count) in [("divergent_barrier", 16), ("divergent_barrier", 32), ("early_exit", 32)]
    {
        let broken = run_out(name, 64, &[count]).unwrap_err();
        assert!(matches!(broken.kind, FaultKind::BarrierDivergence { .. }), "{name}: {broken}");
        assert!(broken.instruction.starts_with("bar"), "{broken}");
        run_out(name, 64, &[64]).unwrap();
    }
}

#[test]
fn a_missing_wait_for_a_copy_is_reported() {
    assert_eq!(run("missing_wait", 32, 0).unwrap_err().kind, FaultKind::CopyInFlight);
    assert_eq!(run("missing_wait", 32, 1).unwrap()[127], 127.0);
    // The newest group is still in flight.
    assert_eq!(run("short_wait", 32, 1).unwrap_err().kind, FaultKind::CopyInFlight);
    assert_eq!(run("short_wait", 32, 0).unwrap()[127], 127.0);
}

#[test]
fn a_wait_does_not_speak_for_other_warps() {
    let broken = run("copied_by_others", 64, 0).unwrap_err();
    // The other warp's copy is in flight, or done without a barrier since, or not begun.
    assert!(broken.kind == FaultKind::CopyInFlight || is_race(&broken.kind), "{broken}");
    assert_eq!(run("copied_by_others", 64, 1).unwrap()[0], 252.0);
}

#[test]
fn a_mask_that_names_absent_lanes_is_reported() {
    let broken = run_out("wrong_mask", 32, &[16]).unwrap_err();
    assert!(matches!(broken.kind, FaultKind::SyncMask { mask: u32::MAX, .. }), "{broken}");
    run_out("wrong_mask", 32, &[32]).unwrap();
}

#[test]
fn a_loop_without_end_runs_out_of_budget() {
    let mut device = Device::new();
    device.options.budget = 100_000;
    let (flag, out) = (device.u32s(&[0]), device.poisoned(128));
    let args = [Arg::Buffer(&flag), Arg::Buffer(&out)];
    let broken = device.launch(&module(), "spin", ([1; 3], [32, 1, 1], 0), &args).unwrap_err();
    assert_eq!(broken.kind, FaultKind::Budget { limit: 100_000 });
}

#[test]
fn a_trap_names_its_thread() {
    let broken = run_out("assertion", 64, &[45]).unwrap_err();
    assert_eq!((broken.kind, broken.thread), (FaultKind::Trap, [45, 0, 0]));
    run_out("assertion", 64, &[64]).unwrap();
}

#[test]
fn read_only_memory_is_not_written() {
    let device = Device::new();
    let (input, out) = buffers(&device);
    out.set_read_only(true);
    let args = [Arg::Buffer(&input), Arg::Buffer(&out), Arg::U32(1)];
    let broken = device.launch(&module(), "reverse", ([1; 3], [64, 1, 1], 0), &args).unwrap_err();
    assert_eq!(broken.kind, FaultKind::ReadOnly);
}

#[test]
fn spaces_do_not_alias() {
    // A generic address used as a shared one, a null pointer, and one past the window.
    let shared = ".shared .align 4 .b8 s[8]; mov.u64 %x0, s; ";
    let out_of = |space, write| FaultKind::OutOfBounds { space, size: 4, write };
    assert_eq!(fault("ld.global.u32 %o, [%d0];"), out_of("global", false));
    assert_eq!(fault("mov.u64 %x0, 0; ld.shared.u32 %o, [%x0];"), out_of("shared", false));
    let generic =
        format!("{shared} cvta.shared.u64 %x1, %x0; st.shared.u32 [%x1], %a0; mov.u32 %o, 0;");
    assert_eq!(fault(&generic), out_of("shared", true));
    let past = format!("{shared} st.shared.u32 [%x0+8], %a0; mov.u32 %o, 0;");
    assert_eq!(fault(&past), out_of("shared", true));
    let wrong = format!(
        "{shared} cvta.shared.u64 %x1, %x0; cvta.to.local.u64 %x1, %x1; ld.local.u32 %o, [%x1];"
    );
    assert_eq!(fault(&wrong), out_of("local", false));
}

#[test]
fn matrix_instructions_need_the_whole_warp() {
    let body = "setp.lt.u32 %p0, %lane, 16;
        @%p0 movmatrix.sync.aligned.m8n8.trans.b16 %o, %a0; mov.u32 %o, 0;";
    assert_eq!(fault(body), FaultKind::NotConverged { active: 0xffff });
}

#[test]
fn launches_that_no_device_takes_are_refused() {
    let device = Device::new();
    let (input, out) = buffers(&device);
    let args = [Arg::Buffer(&input), Arg::Buffer(&out), Arg::U32(1)];
    for dims in [
        ([0, 1, 1], [32, 1, 1], 0),
        ([1, 65536, 1], [32, 1, 1], 0),
        ([1, 1, 1], [1025, 1, 1], 0),
        ([1, 1, 1], [1, 1, 65], 0),
        ([1, 1, 1], [32, 1, 1], 1 << 18),
    ] {
        let refused = device.launch(&module(), "reverse", dims, &args).unwrap_err();
        assert!(matches!(refused.kind, FaultKind::BadLaunch { .. }), "{dims:?}: {refused}");
    }
}
