//! Exchanges between lanes, masks, barriers with results, and lanes that take different ways.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "tests panic when something is wrong, and sizes are small"
)]

mod common;

use common::snippet::{In, fault, integers, run};
use common::{Arg, Device, read_u32s};
use fucina_cuda_sim::exec::FaultKind;
use fucina_cuda_sim::ptx::Module;
use fucina_testkit::Rng;

/// Runs on random operands and compares with a function of all lanes' first and second operand.
fn check(body: &str, want: impl Fn(&[u32; 32], &[u32; 32], usize) -> u32) {
    let mut rng = Rng::new(body.len() as u64);
    for _ in 0..4 {
        let inputs: [In; 32] = integers(&mut rng);
        let (a, b) = (inputs.map(|lane| lane[0] as u32), inputs.map(|lane| lane[1] as u32));
        for (lane, out) in run(body, &inputs).into_iter().enumerate() {
            assert_eq!(out, u64::from(want(&a, &b, lane)), "{body}, lane {lane}");
        }
    }
}

#[test]
fn shuffles_move_values_between_lanes() {
    // `__shfl_*_sync` with its width as the mask and clamp that CUDA C makes of it.
    for width in [32_usize, 16, 8, 4, 2] {
        let clamp = (32 - width) << 8;
        for by in [0_usize, 1, 2, 3, 5, 8, 15, 17, 31] {
            let segment = |lane: usize| lane / width * width;
            let op = |how: &str, clamp: usize| {
                format!(
                    "shfl.sync.{how}.b32 %o|%p0, %a0, {by}, {clamp}, -1;
                    selp.u32 %t0, 7, 0, %p0; xor.b32 %o, %o, %t0;"
                )
            };
            let mark = |value: u32, inside: bool| value ^ if inside { 7 } else { 0 };
            check(&op("up", clamp), |a, _, lane| {
                let inside = lane >= segment(lane) + by;
                mark(a[if inside { lane - by } else { lane }], inside)
            });
            check(&op("down", clamp | 31), |a, _, lane| {
                let inside = lane + by < segment(lane) + width;
                mark(a[if inside { lane + by } else { lane }], inside)
            });
            check(&op("bfly", clamp | 31), |a, _, lane| {
                let inside = lane ^ by < segment(lane) + width;
                mark(a[if inside { lane ^ by } else { lane }], inside)
            });
            check(&op("idx", clamp | 31), |a, _, lane| mark(a[segment(lane) + by % width], true));
        }
    }
    check("shfl.sync.idx.b32 %o, %a0, %a1, 31, -1;", |a, b, lane| a[(b[lane] & 31) as usize]);
}

#[test]
fn votes_matches_and_reductions() {
    let odd = "and.b32 %t0, %a0, 1; setp.eq.u32 %p0, %t0, 1;";
    let flag = "selp.u32 %o, 1, 0, %p1;";
    let ballot = |a: &[u32; 32]| (0..32).fold(0, |out, i| out | (a[i] & 1) << i);
    check(&format!("{odd} vote.sync.ballot.b32 %o, %p0, -1;"), |a, _, _| ballot(a));
    check(&format!("{odd} vote.sync.ballot.b32 %o, !%p0, -1;"), |a, _, _| !ballot(a));
    check(&format!("{odd} vote.sync.any.pred %p1, %p0, -1; {flag}"), |a, _, _| {
        u32::from(ballot(a) != 0)
    });
    check(&format!("{odd} vote.sync.all.pred %p1, %p0, -1; {flag}"), |a, _, _| {
        u32::from(ballot(a) == u32::MAX)
    });
    check(&format!("{odd} vote.sync.uni.pred %p1, %p0, -1; {flag}"), |a, _, _| {
        u32::from(ballot(a) == u32::MAX || ballot(a) == 0)
    });
    let same = |a: &[u32; 32], lane: usize| {
        (0..32).fold(0, |out, i| out | u32::from(a[i] == a[lane]) << i)
    };
    check("match.any.sync.b32 %o, %a0, -1;", move |a, _, lane| same(a, lane));
    check(
        "and.b32 %t0, %a0, 0; match.all.sync.b32 %o|%p1, %t0, -1; @!%p1 mov.u32 %o, 5;",
        |_, _, _| u32::MAX,
    );
    check("match.all.sync.b32 %o|%p1, %lane, -1; @%p1 mov.u32 %o, 5;", |_, _, _| 0);
    check("redux.sync.add.u32 %o, %a0, -1;", |a, _, _| a.iter().fold(0, |s, v| s.wrapping_add(*v)));
    check("redux.sync.min.s32 %o, %a0, -1;", |a, _, _| {
        a.iter().map(|v| *v as i32).min().unwrap() as u32
    });
    check("redux.sync.max.u32 %o, %a0, -1;", |a, _, _| *a.iter().max().unwrap());
    check("redux.sync.xor.b32 %o, %a0, -1;", |a, _, _| a.iter().fold(0, |s, v| s ^ v));
    // The halves of a warp apart, each with its mask.
    check(
        "setp.lt.u32 %p0, %lane, 16; selp.b32 %t1, 0x0000ffff, 0xffff0000, %p0;
         redux.sync.or.b32 %o, %a0, %t1;",
        |a, _, lane| a[lane / 16 * 16..][..16].iter().fold(0, |s, v| s | v),
    );
}

#[test]
fn lanes_that_part_meet_at_masks_and_ends() {
    // Half of the lanes loop, and all of them exchange afterwards.
    check(
        "and.b32 %t0, %a0, 7; mov.u32 %t1, 0; setp.eq.u32 %p0, %t0, 0; @%p0 bra DONE;
         LOOP: add.u32 %t1, %t1, 3; sub.u32 %t0, %t0, 1; setp.ne.u32 %p0, %t0, 0; @%p0 bra LOOP;
         DONE: shfl.sync.bfly.b32 %o, %t1, 1, 31, -1;",
        |a, _, lane| (a[lane ^ 1] & 7) * 3,
    );
    // Both ways meet at different `bar.warp.sync` instructions.
    check(
        "setp.lt.u32 %p0, %lane, 11; @%p0 bra LESS; bar.warp.sync -1; mov.u32 %o, 1; bra END;
         LESS: bar.warp.sync -1; mov.u32 %o, 2; END:",
        |_, _, lane| if lane < 11 { 2 } else { 1 },
    );
    check(
        "setp.lt.u32 %p0, %lane, 5; @%p0 activemask.b32 %o; @!%p0 mov.u32 %o, 9;",
        |_, _, lane| {
            if lane < 5 { 31 } else { 9 }
        },
    );
    // A jump through a table.
    check(
        "{ and.b32 %t0, %a0, 3; T: .branchtargets A, B, C, D; brx.idx %t0, T;
         A: mov.u32 %o, 10; bra E; B: mov.u32 %o, 20; bra E; C: mov.u32 %o, 30; bra E;
         D: mov.u32 %o, 40; E: }",
        |a, _, lane| ((a[lane] & 3) + 1) * 10,
    );
}

#[test]
fn a_shuffle_from_a_lane_outside_the_mask_gives_poison() {
    let body = "mov.u32 %o, 0; setp.lt.u32 %p0, %lane, 8;
        @%p0 shfl.sync.down.b32 %o, %a0, 4, 31, 0xff;";
    let out = run(body, &[[3; 3]; 32]);
    let want = |lane: usize| match lane {
        0..4 => 3,
        4..8 => u64::from(fucina_cuda_sim::exec::POISON),
        _ => 0,
    };
    assert_eq!(out, std::array::from_fn(want));
}

#[test]
fn masks_must_fit() {
    let half = "setp.lt.u32 %p0, %lane, 16; mov.u32 %o, 0;";
    let sync = |text: &str| match fault(&format!("{half} {text}")) {
        FaultKind::SyncMask { what, .. } => what,
        other => panic!("{text}: {other:?}"),
    };
    // Not in the mask; skipped by named lanes; exited; gone another way.
    assert!(sync("bar.warp.sync 0xffff;").contains("not in the mask"));
    assert!(sync("@%p0 shfl.sync.bfly.b32 %o, %a0, 1, 31, -1;").contains("skip"));
    assert!(sync("@%p0 exit; shfl.sync.bfly.b32 %o, %a0, 1, 31, -1;").contains("exited"));
    let elsewhere = "@%p0 bra LESS; vote.sync.ballot.b32 %o, %p0, -1; bra END;
        LESS: shfl.sync.bfly.b32 %o, %a0, 1, 31, -1; END:";
    assert!(sync(elsewhere).contains("do not come"));
}

const BARRIERS: &str = ".version 8.0\n.target sm_80\n.address_size 64\n
    .visible .entry votes(.param .u64 out, .param .u32 n) { .reg .b64 %x<4>; .reg .b32 %r<8>;
    .reg .pred %p<6>; ld.param.u64 %x0, [out]; ld.param.u32 %r0, [n]; mov.u32 %r1, %tid.x;
    setp.lt.u32 %p0, %r1, %r0; barrier.cta.red.popc.aligned.u32 %r2, 0, %p0;
    bar.red.and.pred %p1, 1, %p0; bar.red.or.pred %p2, 15, !%p0;
    selp.u32 %r3, 1000, 0, %p1; selp.u32 %r4, 10000, 0, %p2; add.u32 %r2, %r2, %r3;
    add.u32 %r2, %r2, %r4; mul.wide.u32 %x1, %r1, 4; add.s64 %x0, %x0, %x1;
    st.global.u32 [%x0], %r2; ret; }
    .visible .entry twice(.param .u64 out, .param .u32 n) { .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.u32 %r0, [n]; mov.u32 %r1, %tid.x; setp.lt.u32 %p0, %r1, %r0;
    @%p0 bra OTHER; bar.sync 0; bar.sync 1; ret; OTHER: bar.sync 1; bar.sync 0; ret; }
    .visible .entry many(.param .u64 out, .param .u32 n) { .reg .b32 %r<4>;
    ld.param.u32 %r0, [n]; bar.sync 3, %r0; ret; }";

fn barriers(name: &str, threads: u32, n: u32) -> Result<Vec<u32>, FaultKind> {
    let module = Module::parse(BARRIERS).unwrap();
    let device = Device::new();
    let out = device.poisoned(u64::from(threads) * 4);
    let args = [Arg::Buffer(&out), Arg::U32(n)];
    let launched = device.launch(&module, name, ([1; 3], [threads, 1, 1], 0), &args);
    launched.map(|_| read_u32s(&out)).map_err(|fault| fault.kind)
}

#[test]
fn barriers_count_and_vote() {
    // The last warp is not full.
    assert_eq!(barriers("votes", 100, 37).unwrap(), [37 + 10000; 100]);
    assert_eq!(barriers("votes", 100, 100).unwrap(), [100 + 1000; 100]);
    assert_eq!(barriers("votes", 64, 0).unwrap(), [10000; 64]);
}

#[test]
fn barriers_in_another_order_or_of_the_wrong_size_are_reported() {
    for (name, n) in [("twice", 32), ("twice", 7), ("many", 96), ("many", 33), ("many", 0)] {
        let kind = barriers(name, 64, n).unwrap_err();
        assert!(matches!(kind, FaultKind::BarrierDivergence { .. }), "{name} {n}: {kind:?}");
    }
    barriers("many", 64, 64).unwrap();
}
