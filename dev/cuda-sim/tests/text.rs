//! PTX text: what is accepted, what is refused and where, and that nothing makes the parser panic.

#![allow(clippy::unwrap_used, reason = "tests panic when something is wrong")]

mod common;

use common::snippet::{kernel, run_text};
use fucina_cuda_sim::ptx::{Module, ParseError};
use fucina_testkit::Rng;

fn refused(text: &str) -> ParseError {
    Module::parse(text).expect_err("the text is wrong")
}

#[test]
fn an_unknown_instruction_is_named_with_its_line() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    for (text, name) in [
        ("frobnicate.f32 %r0, %r1;", "frobnicate.f32"),
        ("add.rx.f32 %r0, %r0, %r0;", "add.rx.f32"),
        (
            "mma.sync.aligned.m16n8k8.row.row.f32.f16.f16.f32 {%r0}, {%r0}, {%r0}, {%r0};",
            "mma.sync",
        ),
        ("ld.tex.u32 %r0, [%r1];", "ld.tex.u32"),
        ("atom.global.add.s8 %r0, [%r1], %r0;", "atom.global.add.s8"),
    ] {
        let error = refused(&format!("{head}.entry k() {{\n.reg .b32 %r<2>;\n{text}\n}}"));
        assert_eq!(error.line, 6, "{error}");
        assert!(error.what.contains(name), "{error}");
    }
}

#[test]
fn mistakes_of_declaration_are_refused() {
    let body = |text: &str| format!(".version 8.0\n.target sm_80\n.address_size 64\n{text}");
    for (text, what) in [
        (".entry k() { mov.u32 %r0, 1; }", "%r0"),
        (".entry k() { .reg .b32 %r<2>; mov.u32 %r2, 1; }", "%r2"),
        (".entry k() { bra NOWHERE; }", "NOWHERE"),
        (".entry k() { A: A: ret; }", "twice"),
        (".entry k() { call nothing; }", "nothing"),
        (".extern .func nothing(); .entry k() { call nothing; }", "no body"),
        (".func f() { call f; } .entry k() { call f; }", "itself"),
        (".entry k() { .reg .b32 %r<99999999>; }", "too many"),
        (".entry k() { .local .b8 x[99999999999]; }", "too large"),
        (".global .b8 x[18446744073709551615][3];", "overflow"),
        (".global .align 3 .b8 x[4];", "alignment"),
        (".address_size 32", "32"),
        (".entry k() { ", "ends"),
        (".version \"", "without an end"),
    ] {
        let error = refused(&body(text));
        assert!(error.what.contains(what), "{text}: {error}");
    }
}

#[test]
fn a_module_tells_what_it_holds() {
    let text = ".version 7.5\n.target sm_70, texmode_independent\n.address_size 64\n
        /* a comment\n over lines */ .visible .entry a(.param .u32 x, .param .u64 y)
        .maxntid 128, 2, 1 .minnctapersm 2 { .shared .align 8 .f64 s[3][2]; .reg .b64 %r;
        mov.u64 %r, s; ret; }
        .entry b() .reqntid 64, 1, 1 { ret; }";
    let module = Module::parse(text).unwrap();
    assert_eq!((module.target(), module.version()), ("sm_70", (7, 5)));
    let names: Vec<&str> = module.functions().iter().map(|f| f.name()).collect();
    assert_eq!(names, ["a", "b"]);
    let a = module.function("a").unwrap();
    assert_eq!((a.static_shared(), a.max_threads(), a.params()[1].offset), (48, 256, 8));
    assert_eq!(module.function("b").unwrap().max_threads(), 64);
    assert!(module.function("c").is_none());
}

#[test]
fn functions_are_called_with_memory_and_register_arguments() {
    // Called twice, once under a guard, and the inner one from the outer one.
    let text = kernel(
        "{ .param .b32 p; .param .align 8 .b8 q[8]; .param .b32 r; st.param.b32 [p], %a0;
         st.param.v2.b32 [q], {%a1, %a2}; call.uni (r), outer, (p, q); ld.param.b32 %o, [r]; }
         setp.lt.u32 %p0, %lane, 4; @%p0 call (%o), twice, (%o);",
    );
    let text = text.replacen(
        ".visible",
        ".func (.reg .b32 y) twice(.reg .b32 x) { add.u32 y, x, x; ret; }
         .func (.param .b32 out) inner(.param .b32 v) { .reg .b32 %r<3>; .reg .pred %p;
           ld.param.b32 %r0, [v]; setp.gt.u32 %p, %r0, 100; mov.u32 %r1, 7;
           @%p bra BIG; add.u32 %r1, %r0, 1; st.param.b32 [out], %r1; ret;
           BIG: st.param.b32 [out], %r1; ret; }
         .func (.param .b32 out) outer(.param .b32 a, .param .align 8 .b8 b[8]) { .reg .b32 %r<5>;
           ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b+4]; add.u32 %r2, %r0, %r1;
           { .param .b32 x; .param .b32 y; st.param.b32 [x], %r2; call (y), inner, (x);
             ld.param.b32 %r3, [y]; } st.param.b32 [out], %r3; ret; }
         .visible",
        1,
    );
    let inputs = std::array::from_fn(|lane| [lane as u64 * 5, 1, lane as u64]);
    let out = run_text(&text, &inputs);
    for (lane, value) in out.into_iter().enumerate() {
        let sum = 6 * lane as u64;
        let inner = if sum > 100 { 7 } else { sum + 1 };
        assert_eq!(value, if lane < 4 { 2 * inner } else { inner }, "lane {lane}");
    }
}

/// Cuts, doubles and changes pieces of real text: the parser answers, and never panics.
#[test]
fn damaged_text_is_refused_or_understood() {
    let sources = [include_str!("data/kernels.ptx"), include_str!("data/faults.ptx")];
    let mut rng = Rng::new(77);
    let mut below = |limit: usize| usize::try_from(rng.next_u64() >> 33).unwrap() % limit;
    let mut understood = 0;
    for round in 0..600 {
        let source = sources[round % 2];
        let lines: Vec<&str> = source.lines().collect();
        let first = below(lines.len());
        let mut piece: Vec<String> =
            lines.iter().take(lines.len() / 2).map(|line| (*line).to_owned()).collect();
        let tokens: Vec<&str> = source.split_whitespace().collect();
        for _ in 0..1 + below(4) {
            let at = below(piece.len());
            match below(4) {
                0 => {
                    piece.remove(at);
                }
                1 => piece.insert(at, lines[first].to_owned()),
                2 => {
                    let token = tokens[below(tokens.len())];
                    piece[at] = piece[at].split(' ').next().unwrap_or("").to_owned() + " " + token;
                }
                _ => {
                    let keep = below(piece[at].len() + 1);
                    piece[at] = piece[at].chars().take(keep).collect();
                }
            }
        }
        understood += u32::from(Module::parse(&piece.join("\n")).is_ok());
    }
    assert!(understood < 600, "no damage was noticed");
}
