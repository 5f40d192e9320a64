//! Loads, stores and atomics in every space and width.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    reason = "tests panic when something is wrong, and the oracles are casts"
)]

mod common;

use common::snippet::{fault, longs, run, words};
use common::{Arg, Device, read_u32s};
use fucina_cuda_sim::exec::FaultKind;
use fucina_cuda_sim::ptx::Module;

/// Stores and loads back through each space.
#[test]
fn every_width_goes_through_every_space() {
    let places = [
        (".shared .align 16 .b8 s[1024]; mov.u64 %x0, s; shl.b32 %t0, %lane, 5; cvt.u64.u32 %x1, %t0;
          add.s64 %x0, %x0, %x1;", "shared"),
        (".local .align 16 .b8 s[32]; mov.u64 %x0, s;", "local"),
        (".shared .align 16 .b8 s[1024]; mov.u64 %x0, s; shl.b32 %t0, %lane, 5; cvt.u64.u32 %x1, %t0;
          add.s64 %x0, %x0, %x1; cvta.shared.u64 %x0, %x0;", ""),
        (".local .align 16 .b8 s[32]; mov.u64 %x0, s; cvta.local.u64 %x0, %x0;", ""),
    ];
    for (setup, space) in places {
        let dot = if space.is_empty() { String::new() } else { format!(".{space}") };
        let body = |text: &str| format!("{setup} {}", text.replace('@', &dot));
        words(&body("st@.u32 [%x0+4], %a0; ld@.b32 %o, [%x0+4];"), |a, _, _| a);
        longs(&body("st@.u64 [%x0+8], %d0; ld@.b64 %od, [%x0+8];"), |a, _, _| a);
        longs(&body("st@.v2.u32 [%x0], {%a0, %a1}; ld@.b64 %od, [%x0];"), |a, b, _| {
            a & 0xffff_ffff | b << 32
        });
        longs(
            &body(
                "st@.v2.u64 [%x0+16], {%d0, %d1}; ld@.v4.u32 {%t0, %t1, %t2, %t3}, [%x0+16];
                   mov.b64 %od, {%t1, %t2};",
            ),
            |a, b, _| a >> 32 | b << 32,
        );
        words(
            &body(
                "st@.u8 [%x0], %a0; st@.u8 [%x0+1], %a1; ld@.u16 %h5, [%x0]; cvt.u32.u16 %o, %h5;",
            ),
            |a, b, _| a & 0xff | (b & 0xff) << 8,
        );
        words(&body("st@.u16 [%x0+2], %h0; ld@.s8 %o, [%x0+3];"), |a, _, _| {
            (a >> 8) as i8 as i32 as u32
        });
        words(&body("st@.u16 [%x0+2], %h0; ld@.s16 %o, [%x0+2];"), |a, _, _| {
            a as i16 as i32 as u32
        });
        longs(&body("st@.u16 [%x0+2], %h0; ld@.s16 %od, [%x0+2];"), |a, _, _| {
            a as i16 as i64 as u64
        });
        words(
            &body(
                "st@.u32 [%x0], %a0; ld@.v4.u8 {%h5, %h6, %h7, %h8}, [%x0]; cvt.u32.u16 %o, %h7;",
            ),
            |a, _, _| a >> 16 & 0xff,
        );
        words(
            &body("st@.u32 [%x0], %d0; ld@.v2.u16 {%h5, %h6}, [%x0]; mov.b32 %o, {%h6, %h5};"),
            |a, _, _| a.rotate_left(16),
        );
        words(&body("st@.f32 [%x0], %f0; ld.volatile@.u32 %o, [%x0];"), |a, _, _| a);
    }
}

#[test]
fn accesses_must_be_aligned_to_their_whole_size() {
    let setup =
        ".shared .align 16 .b8 s[64]; mov.u64 %x0, s; st.shared.v4.u32 [%x0], {%a1,%a1,%a1,%a1};";
    for (text, align) in [
        ("ld.shared.u32 %o, [%x0+2];", 4),
        ("ld.shared.v2.u32 {%o, %t0}, [%x0+4];", 8),
        ("ld.shared.v4.u32 {%o, %t0, %t1, %t2}, [%x0+8];", 16),
        ("ld.shared.u16 %h5, [%x0+1]; mov.u32 %o, 0;", 2),
    ] {
        let broken = fault(&format!("setp.eq.u32 %p0, %lane, 0; {setup} bar.warp.sync -1; {text}"));
        assert_eq!(broken, FaultKind::Misaligned { space: "shared", align }, "{text}");
    }
}

/// Atomics of one lane each, on shared and global memory, against their definitions.
#[test]
fn atomics_follow_their_definitions() {
    let shared = ".shared .align 8 .b8 s[256]; mov.u64 %x0, s; shl.b32 %t0, %lane, 3;
        cvt.u64.u32 %x1, %t0; add.s64 %x0, %x0, %x1; st.shared.u64 [%x0], %d0;";
    let global = "mov.u64 %x0, %dst; st.global.u64 [%x0], %d0;";
    type Def = fn(u64, u64) -> u64;
    let narrow: [(&str, Def); 11] = [
        ("add.u32", |a, b| u64::from((a as u32).wrapping_add(b as u32))),
        ("min.s32", |a, b| u64::from((a as i32).min(b as i32) as u32)),
        ("max.s32", |a, b| u64::from((a as i32).max(b as i32) as u32)),
        ("min.u32", |a, b| u64::from((a as u32).min(b as u32))),
        ("max.u32", |a, b| u64::from((a as u32).max(b as u32))),
        ("and.b32", |a, b| a & b & 0xffff_ffff),
        ("or.b32", |a, b| (a | b) & 0xffff_ffff),
        ("xor.b32", |a, b| (a ^ b) & 0xffff_ffff),
        ("exch.b32", |_, b| b & 0xffff_ffff),
        ("inc.u32", |a, b| if a as u32 >= b as u32 { 0 } else { (a + 1) & 0xffff_ffff }),
        ("dec.u32", |a, b| {
            let (a, b) = (a as u32, b as u32);
            u64::from(if a == 0 || a > b { b } else { a - 1 })
        }),
    ];
    let wide: [(&str, Def); 5] = [
        ("add.u64", u64::wrapping_add),
        ("max.s64", |a, b| (a as i64).max(b as i64) as u64),
        ("min.u64", u64::min),
        ("exch.b64", |_, b| b),
        ("xor.b64", |a, b| a ^ b),
    ];
    for (setup, space) in [(shared, "shared"), (global, "global")] {
        for (name, def) in narrow {
            // The old value, and the new one above it.
            let body = format!(
                "{setup} atom.{space}.{name} %t0, [%x0], %a1; ld.{space}.u32 %t1, [%x0];
                 mov.b64 %od, {{%t0, %t1}};"
            );
            longs(&body, |a, b, _| a & 0xffff_ffff | def(a, b) << 32);
            let body = format!("{setup} red.{space}.{name} [%x0], %a1; ld.{space}.u32 %o, [%x0];");
            words(&body, |a, b, _| def(u64::from(a), u64::from(b)) as u32);
        }
        for (name, def) in wide {
            let body =
                format!("{setup} atom.{space}.{name} %x2, [%x0], %d1; ld.{space}.u64 %x3, [%x0];");
            longs(&format!("{body} mov.b64 %od, %x2;"), |a, _, _| a);
            longs(&format!("{body} mov.b64 %od, %x3;"), def2(def));
        }
        let body =
            format!("{setup} atom.{space}.cas.b32 %t0, [%x0], %a1, %a2; ld.{space}.u32 %o, [%x0];");
        words(&body, |a, b, c| if a == b { c } else { a });
        let equal =
            format!("{setup} atom.{space}.cas.b32 %t0, [%x0], %a0, %a2; ld.{space}.u32 %o, [%x0];");
        words(&equal, |_, _, c| c);
        let body = format!(
            "{setup} mov.f32 %f5, 0f3F800000; st.{space}.f32 [%x0], %f5;
             atom.{space}.add.f32 %f6, [%x0], 0f40000000; ld.{space}.u32 %o, [%x0];"
        );
        words(&body, |_, _, _| 3.0_f32.to_bits());
        let body = format!(
            "{setup} st.{space}.u32 [%x0], 1073757184; mov.u32 %t0, 939524096;
             atom.{space}.add.noftz.f16x2 %t1, [%x0], %t0; ld.{space}.u32 %o, [%x0];"
        );
        // {1, 2} and {0, 0.5}: 0x40003c00 and 0x38000000.
        words(&body, |_, _, _| 0x4100_3c00);
    }
}

fn def2(def: fn(u64, u64) -> u64) -> impl Fn(u64, u64, u64) -> u64 {
    move |a, b, _| def(a, b)
}

#[test]
fn atomics_of_all_lanes_add_up() {
    // Every lane gets another old value: the sum of some order.
    let body = ".shared .align 4 .b32 s; setp.eq.u32 %p0, %lane, 0; @%p0 st.shared.u32 [s], 100;
        bar.warp.sync -1; atom.shared.add.u32 %o, [s], 2;";
    let mut out = run(body, &[[0; 3]; 32]);
    out.sort_unstable();
    assert_eq!(out, std::array::from_fn(|lane| 100 + 2 * lane as u64));
}

#[test]
fn parameters_are_read_at_fixed_and_computed_places() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n
        .visible .entry k(.param .u64 out, .param .align 8 .b8 s[40], .param .u8 byte) {
        .reg .b64 %a<4>; .reg .b32 %r<8>; .reg .b16 %h<2>;
        ld.param.u64 %a0, [out]; mov.b64 %a1, s; mov.u32 %r0, %tid.x; mul.wide.u32 %a2, %r0, 4;
        add.s64 %a3, %a1, %a2; ld.param.u32 %r1, [%a3+8]; ld.param.v2.u32 {%r2, %r3}, [s+32];
        ld.param.s8 %r4, [byte]; add.u32 %r1, %r1, %r3; add.u32 %r1, %r1, %r4;
        add.s64 %a0, %a0, %a2; st.global.u32 [%a0], %r1; ret; }";
    let module = Module::parse(text).unwrap();
    let function = module.function("k").unwrap();
    let places: Vec<(u32, u32)> = function.params().iter().map(|p| (p.offset, p.size)).collect();
    assert_eq!(places, [(0, 8), (8, 40), (48, 1)]);
    let device = Device::new();
    let out = device.poisoned(32);
    let mut params = out.base().to_le_bytes().to_vec();
    (0..10_u32).for_each(|i| params.extend((i * 1000).to_le_bytes()));
    params.push(0xff);
    let launched = fucina_cuda_sim::exec::Launch {
        function,
        grid: [1; 3],
        block: [8, 1, 1],
        dynamic_shared: 0,
        params: &params,
        variables: &[],
    };
    let launch = |threads: u32| {
        let launched = fucina_cuda_sim::exec::Launch { block: [threads, 1, 1], ..launched };
        fucina_cuda_sim::exec::launch(&launched, &device.options, &device.memory)
    };
    launch(8).unwrap();
    let want: Vec<u32> = (0..8).map(|i| (i + 2) * 1000 + 9000 - 1).collect();
    assert_eq!(read_u32s(&out), want);
    // The eleventh word is not there.
    let broken = launch(16).unwrap_err();
    assert!(matches!(broken.kind, FaultKind::OutOfBounds { space: "param", .. }), "{broken}");
}

#[test]
fn variables_of_a_module_are_placed_and_initialised() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n
        .global .align 4 .u32 counter = 5; .const .align 8 .b8 table[8] = {1, 2, 3, 4};
        .global .align 4 .b32 zeros[3];
        .visible .entry k(.param .u64 out) { .reg .b64 %a<4>; .reg .b32 %r<8>;
        ld.param.u64 %a0, [out]; atom.global.add.u32 %r0, [counter], 1; ld.const.u32 %r1, [table];
        ld.global.u32 %r2, [zeros+8]; mov.u64 %a1, table; cvta.const.u64 %a2, %a1; ld.u8 %r3, [%a2+1];
        st.global.v4.u32 [%a0], {%r0, %r1, %r2, %r3}; ret; }";
    let module = Module::parse(text).unwrap();
    let names: Vec<&str> = module.variables().iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names, ["counter", "table", "zeros"]);
    let device = Device::new();
    let out = device.poisoned(16);
    let args = [Arg::Buffer(&out)];
    device.launch(&module, "k", ([1; 3], [1; 3], 0), &args).unwrap();
    assert_eq!(read_u32s(&out), [5, 0x0403_0201, 0, 2]);
}

#[test]
fn spaces_are_told_apart() {
    let body = |space: &str, address: &str| {
        format!(
            ".shared .align 4 .b32 s; .local .align 4 .b32 l; mov.u64 %x0, s; mov.u64 %x1, l;
             cvta.shared.u64 %x0, %x0; cvta.local.u64 %x1, %x1;
             isspacep.{space} %p0, {address}; selp.u32 %o, 1, 0, %p0;"
        )
    };
    for (space, want) in [("shared", [1, 0, 0]), ("local", [0, 1, 0]), ("global", [0, 0, 1])] {
        for (address, want) in ["%x0", "%x1", "%dst"].into_iter().zip(want) {
            assert_eq!(run(&body(space, address), &[[0; 3]; 32]), [want; 32], "{space} {address}");
        }
    }
}

#[test]
fn copies_fill_with_zeros_past_the_source_size() {
    for (size, take) in [(16, 16), (16, 5), (16, 0), (8, 3), (8, 8), (4, 1)] {
        let way = if size == 16 { "cg" } else { "ca" };
        // Input lies at multiples of 8 for each lane: pairs of lanes share 16 bytes.
        let body = format!(
            ".shared .align 16 .b8 s[512]; mov.u64 %x0, s; mul.wide.u32 %x1, %lane, 16;
             add.s64 %x0, %x0, %x1; and.b64 %x2, %base, -16; mov.u32 %t0, {take};
             cp.async.{way}.shared.global [%x0], [%x2], {size}, %t0;
             cp.async.commit_group; cp.async.wait_group 0; ld.shared.u64 %od, [%x0];"
        );
        let body =
            if size == 4 { body.replace("ld.shared.u64 %od", "ld.shared.u32 %o") } else { body };
        let inputs = std::array::from_fn(|lane| [0x0101_0101_0101_0101 * (lane as u64 / 2 + 1); 3]);
        for (lane, out) in run(&body, &inputs).into_iter().enumerate() {
            let bytes = (lane as u64 / 2 + 1).to_le_bytes()[0];
            let want: [u8; 8] =
                std::array::from_fn(|i| if i < take && i < size { bytes } else { 0 });
            assert_eq!(out.to_le_bytes(), want, "{take} of {size} bytes, lane {lane}");
        }
    }
}
