//! Floating-point instructions and conversions against `f64`, the `half` crate and plain casts.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "the oracles are casts and exact comparisons"
)]

mod common;

use common::snippet::{check, floats, integers, longs, near, singles, words};
use half::{bf16, f16};

fn h(bits: u64) -> f16 {
    f16::from_bits(bits as u16)
}

fn b(bits: u64) -> bf16 {
    bf16::from_bits(bits as u16)
}

/// NaNs of a 16-bit format compare equal.
fn canonical(bits: u16, infinity: u16) -> u16 {
    if bits & 0x7fff > infinity { 0x7fff } else { bits }
}

#[test]
fn arithmetic_of_singles_rounds_to_nearest() {
    singles("add.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", |a, b, _| a + b);
    singles("sub.rn.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", |a, b, _| a - b);
    singles("mul.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", |a, b, _| a * b);
    singles("div.rn.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", |a, b, _| a / b);
    singles("fma.rn.f32 %f5, %f0, %f1, %f2; mov.b32 %o, %f5;", f32::mul_add);
    singles("sqrt.rn.f32 %f5, %f0; mov.b32 %o, %f5;", |a, _, _| a.sqrt());
    singles("rcp.rn.f32 %f5, %f0; mov.b32 %o, %f5;", |a, _, _| 1.0 / a);
    singles("neg.f32 %f5, %f0; mov.b32 %o, %f5;", |a, _, _| -a);
    singles("abs.f32 %f5, %f0; mov.b32 %o, %f5;", |a, _, _| a.abs());
    singles("copysign.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", |a, b, _| b.copysign(a));
}

#[test]
fn minima_and_maxima_of_singles() {
    let less = |a: f32, b: f32| a < b || (a == b && a.is_sign_negative());
    let min = move |a: f32, b: f32| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if less(a, b) => a,
        _ => b,
    };
    let max = move |a: f32, b: f32| -min(-a, -b);
    singles("min.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", move |a, b, _| min(a, b));
    singles("max.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", move |a, b, _| max(a, b));
    singles("max.NaN.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", move |a, b, _| {
        if a.is_nan() || b.is_nan() { f32::NAN } else { max(a, b) }
    });
}

#[test]
fn directed_roundings_are_the_neighbours_of_the_exact_value() {
    // The sum and product of two singles are exact in f64 where exponents are near.
    let inputs = |rng: &mut fucina_testkit::Rng| {
        std::array::from_fn(|_| std::array::from_fn(|_| u64::from((rng.normal() * 3.0).to_bits())))
    };
    let down = |exact: f64| {
        let near = exact as f32;
        if f64::from(near) > exact { near.next_down() } else { near }
    };
    let up = move |exact: f64| -down(-exact);
    let zero = move |exact: f64| if exact < 0.0 { up(exact) } else { down(exact) };
    let bits = |value: f32| u64::from(value.to_bits());
    let f = |value: u64| f64::from(f32::from_bits(value as u32));
    check("add.rm.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", inputs, |[a, b, _]| {
        bits(down(f(a) + f(b)))
    });
    check("sub.rp.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", inputs, |[a, b, _]| bits(up(f(a) - f(b))));
    check("mul.rz.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", inputs, |[a, b, _]| {
        bits(zero(f(a) * f(b)))
    });
    // f64's own fused operation rounds to 53 bits: far enough for three random singles.
    check("fma.rz.f32 %f5, %f0, %f1, %f2; mov.b32 %o, %f5;", inputs, |[a, b, c]| {
        bits(zero(f(a).mul_add(f(b), f(c))))
    });
    check("fma.rm.f32 %f5, %f0, %f1, %f2; mov.b32 %o, %f5;", inputs, |[a, b, c]| {
        bits(down(f(a).mul_add(f(b), f(c))))
    });
    check("div.rp.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", inputs, |[a, b, _]| bits(up(f(a) / f(b))));
}

#[test]
fn flushing_and_saturation() {
    let flush = |v: f32| if v.is_subnormal() { 0.0_f32.copysign(v) } else { v };
    singles("add.ftz.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", move |a, b, _| {
        flush(flush(a) + flush(b))
    });
    singles("mul.ftz.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", move |a, b, _| {
        flush(flush(a) * flush(b))
    });
    let sat = |v: f32| if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) + 0.0 };
    singles("add.sat.f32 %f5, %f0, %f1; mov.b32 %o, %f5;", move |a, b, _| sat(a + b));
    singles("fma.rn.ftz.sat.f32 %f5, %f0, %f1, %f2; mov.b32 %o, %f5;", move |a, b, c| {
        flush(sat(flush(a).mul_add(flush(b), flush(c))))
    });
    singles("cvt.sat.f32.f32 %f5, %f0; mov.b32 %o, %f5;", move |a, _, _| sat(a));
}

#[test]
fn approximate_functions_stay_within_their_bounds() {
    // Two ulp, as the instruction set allows most of them.
    let two_ulp = (2.0 * f64::from(f32::EPSILON), 0.0);
    near("ex2.approx.f32 %f5, %f1; mov.b32 %o, %f5;", two_ulp, |_, b| b.exp2());
    near("ex2.approx.ftz.f32 %f5, %f1; mov.b32 %o, %f5;", two_ulp, |_, b| b.exp2());
    near("lg2.approx.f32 %f5, %f0; mov.b32 %o, %f5;", (1e-6, 1e-6), |a, _| a.log2());
    near("rsqrt.approx.f32 %f5, %f0; mov.b32 %o, %f5;", two_ulp, |a, _| 1.0 / a.sqrt());
    near("rcp.approx.ftz.f32 %f5, %f0; mov.b32 %o, %f5;", two_ulp, |a, _| 1.0 / a);
    near("sqrt.approx.f32 %f5, %f0; mov.b32 %o, %f5;", two_ulp, |a, _| a.sqrt());
    near("sin.approx.f32 %f5, %f1; mov.b32 %o, %f5;", (0.0, 1e-6), |_, b| b.sin());
    near("cos.approx.f32 %f5, %f1; mov.b32 %o, %f5;", (0.0, 1e-6), |_, b| b.cos());
    near("tanh.approx.f32 %f5, %f1; mov.b32 %o, %f5;", (1e-3, 0.0), |_, b| b.tanh());
    near("div.approx.f32 %f5, %f1, %f0; mov.b32 %o, %f5;", two_ulp, |a, b| b / a);
    near("div.full.f32 %f5, %f1, %f0; mov.b32 %o, %f5;", two_ulp, |a, b| b / a);
}

#[test]
fn comparisons_know_about_nan() {
    type Test = fn(f32, f32) -> bool;
    let tests: [(&str, Test); 14] = [
        ("eq", |a, b| a == b),
        ("ne", |a, b| !a.is_nan() && !b.is_nan() && a != b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
        ("equ", |a, b| a.is_nan() || b.is_nan() || a == b),
        ("neu", |a, b| a != b),
        ("ltu", |a, b| a.is_nan() || b.is_nan() || a < b),
        ("leu", |a, b| a.is_nan() || b.is_nan() || a <= b),
        ("gtu", |a, b| a.is_nan() || b.is_nan() || a > b),
        ("geu", |a, b| a.is_nan() || b.is_nan() || a >= b),
        ("num", |a, b| !a.is_nan() && !b.is_nan()),
        ("nan", |a, b| a.is_nan() || b.is_nan()),
    ];
    let f = |bits: u64| f32::from_bits(bits as u32);
    for (name, test) in tests {
        let body = format!("setp.{name}.f32 %p0, %f0, %f1; selp.u32 %o, 1, 0, %p0;");
        check(&body, floats, |[x, y, _]| u64::from(test(f(x), f(y))));
        let body = format!("setp.{name}.f16 %p0, %h0, %h1; selp.u32 %o, 1, 0, %p0;");
        check(&body, integers, |[x, y, _]| u64::from(test(h(x).to_f32(), h(y).to_f32())));
        let body = format!("setp.{name}.bf16 %p0, %h0, %h1; selp.u32 %o, 1, 0, %p0;");
        check(&body, integers, |[x, y, _]| u64::from(test(b(x).to_f32(), b(y).to_f32())));
    }
    type Class = fn(f32) -> bool;
    let tests: [(&str, Class); 6] = [
        ("finite", f32::is_finite),
        ("infinite", f32::is_infinite),
        ("number", |a| !a.is_nan()),
        ("notanumber", f32::is_nan),
        ("normal", f32::is_normal),
        ("subnormal", f32::is_subnormal),
    ];
    for (name, test) in tests {
        let body = format!("testp.{name}.f32 %p0, %f0; selp.u32 %o, 1, 0, %p0;");
        check(&body, floats, |[x, _, _]| u64::from(test(f(x))));
    }
}

/// The only 16-bit value nearest to an exact one, by search among neighbours of a first guess.
fn nearest(exact: f64, guess: u16, value: impl Fn(u16) -> f64) -> u16 {
    let around = |d: i32| (i32::from(guess & 0x7fff) + d).clamp(0, 0x7fff) as u16 | guess & 0x8000;
    let best = (-2..=2).map(around).filter(|bits| value(*bits).is_finite()).min_by(|x, y| {
        let (dx, dy) = ((value(*x) - exact).abs(), (value(*y) - exact).abs());
        dx.total_cmp(&dy).then((x & 1).cmp(&(y & 1)))
    });
    best.unwrap_or(guess)
}

#[test]
fn half_precision_arithmetic_rounds_once() {
    type Exact = fn(f64, f64) -> f64;
    let arithmetic: [(&str, Exact); 3] =
        [("add", |a, b| a + b), ("sub", |a, b| a - b), ("mul", |a, b| a * b)];
    for (name, exact) in arithmetic {
        // Sums and products of two halves are exact in f64, which the peer rounds once.
        check(&format!("{name}.f16 %h5, %h0, %h1; cvt.u32.u16 %o, %h5;"), integers, |[x, y, _]| {
            let want = f16::from_f64(exact(h(x).to_f64(), h(y).to_f64())).to_bits();
            u64::from(canonical(want, 0x7c00))
        });
        check(&format!("{name}.f16x2 %o, %a0, %a1;"), integers, |[x, y, _]| {
            let half = |at: u64| {
                let want = exact(h(x >> at).to_f64(), h(y >> at).to_f64());
                u64::from(canonical(f16::from_f64(want).to_bits(), 0x7c00)) << at
            };
            half(0) | half(16)
        });
    }
    check("fma.rn.f16 %h5, %h0, %h1, %h2; cvt.u32.u16 %o, %h5;", integers, |[x, y, z]| {
        let exact = h(x).to_f64() * h(y).to_f64() + h(z).to_f64();
        u64::from(canonical(f16::from_f64(exact).to_bits(), 0x7c00))
    });
    // A product halfway between two values, which a tiny addend decides.
    let tie = |addend: f32| {
        let inputs = move |_: &mut fucina_testkit::Rng| {
            let bits = |v: f32| u64::from(bf16::from_f32(v).to_bits());
            [[bits(1.0078125 * 0.5), bits(1.0078125 * 2.0), bits(addend)]; 32]
        };
        check("fma.rn.bf16 %h5, %h0, %h1, %h2; cvt.u32.u16 %o, %h5;", inputs, |[x, y, z]| {
            let exact = b(x).to_f64() * b(y).to_f64() + b(z).to_f64();
            let guess = bf16::from_f64(exact).to_bits();
            u64::from(nearest(exact, guess, |bits| bf16::from_bits(bits).to_f64()))
        });
    };
    tie(1e-10);
    tie(-1e-10);
}

#[test]
fn packed_pairs_compare_and_convert() {
    check("set.gt.f16x2.f16x2 %o, %a0, %a1;", integers, |[x, y, _]| {
        let half = |at: u64| if h(x >> at) > h(y >> at) { 0x3c00_u64 << at } else { 0 };
        half(0) | half(16)
    });
    check(
        "setp.lt.f16x2 %p0|%p1, %a0, %a1; selp.u32 %o, 1, 0, %p0; @%p1 or.b32 %o, %o, 2;",
        integers,
        |[x, y, _]| u64::from(h(x) < h(y)) | u64::from(h(x >> 16) < h(y >> 16)) << 1,
    );
    check("cvt.rn.f16x2.f32 %o, %f0, %f1;", floats, |[x, y, _]| {
        let half = |v: u64| {
            u64::from(canonical(f16::from_f32(f32::from_bits(v as u32)).to_bits(), 0x7c00))
        };
        half(x) << 16 | half(y)
    });
    check("cvt.rn.bf16x2.f32 %o, %f0, %f1;", floats, |[x, y, _]| {
        let half = |v: u64| {
            u64::from(canonical(bf16::from_f32(f32::from_bits(v as u32)).to_bits(), 0x7f80))
        };
        half(x) << 16 | half(y)
    });
    check("neg.f16x2 %o, %a0;", integers, |[x, _, _]| x & 0xffff_ffff ^ 0x8000_8000);
    check("abs.bf16x2 %o, %a0;", integers, |[x, _, _]| x & 0x7fff_7fff);
    check("max.f16x2 %o, %a0, %a1;", integers, |[x, y, _]| {
        let half = |at: u64| {
            let (a, b) = (h(x >> at), h(y >> at));
            let bits = match (a.is_nan(), b.is_nan()) {
                (true, true) => 0x7fff,
                (true, false) => b.to_bits(),
                (false, true) => a.to_bits(),
                _ if a > b || (a == b && a.is_sign_positive()) => a.to_bits(),
                _ => b.to_bits(),
            };
            u64::from(bits) << at
        };
        half(0) | half(16)
    });
}

#[test]
fn conversions_between_integers_and_floats() {
    let single = |value: f32| u64::from(value.to_bits());
    check("cvt.rn.f32.s32 %f5, %a0; mov.b32 %o, %f5;", integers, |[a, _, _]| {
        single(a as i32 as f32)
    });
    check("cvt.rn.f32.u64 %f5, %d0; mov.b32 %o, %f5;", integers, |[a, _, _]| single(a as f32));
    check("cvt.rn.f32.s64 %f5, %d0; mov.b32 %o, %f5;", integers, |[a, _, _]| {
        single(a as i64 as f32)
    });
    check("cvt.rn.f32.s8 %f5, %a0; mov.b32 %o, %f5;", integers, |[a, _, _]| single(a as i8 as f32));
    check("cvt.rn.f32.s16 %f5, %h0; mov.b32 %o, %f5;", integers, |[a, _, _]| {
        single(a as i16 as f32)
    });
    check("cvt.rn.f64.s64 %g5, %d0; mov.b64 %od, %g5;", integers, |[a, _, _]| {
        (a as i64 as f64).to_bits()
    });
    check("cvt.rn.f16.s32 %h5, %a0; cvt.u32.u16 %o, %h5;", integers, |[a, _, _]| {
        u64::from(f16::from_f64(f64::from(a as i32)).to_bits())
    });
    let f = |bits: u64| f32::from_bits(bits as u32);
    check("cvt.rzi.s32.f32 %o, %f0;", floats, |[a, _, _]| f(a) as i32 as u32 as u64);
    check("cvt.rni.s32.f32 %o, %f0;", floats, |[a, _, _]| {
        f(a).round_ties_even() as i32 as u32 as u64
    });
    check("cvt.rmi.s32.f32 %o, %f0;", floats, |[a, _, _]| f(a).floor() as i32 as u32 as u64);
    check("cvt.rpi.u32.f32 %o, %f0;", floats, |[a, _, _]| f(a).ceil() as u32 as u64);
    check("cvt.rzi.s64.f32 %od, %f0;", floats, |[a, _, _]| {
        if f(a).is_nan() { 1 << 63 } else { f(a) as i64 as u64 }
    });
    check("cvt.rzi.s8.f32 %t0, %f0; and.b32 %o, %t0, 255;", floats, |[a, _, _]| {
        (f(a) as i8 as u8).into()
    });
    check("cvt.rzi.u8.f32 %h5, %f0; cvt.u32.u16 %o, %h5;", floats, |[a, _, _]| (f(a) as u8).into());
    singles("cvt.rni.f32.f32 %f5, %f0; mov.b32 %o, %f5;", |a, _, _| a.round_ties_even());
    singles("cvt.rmi.f32.f32 %f5, %f0; mov.b32 %o, %f5;", |a, _, _| a.floor());
    singles("cvt.rzi.f32.f32 %f5, %f0; mov.b32 %o, %f5;", |a, _, _| a.trunc());
}

#[test]
fn conversions_between_integers() {
    words("cvt.s32.s8 %o, %a0;", |a, _, _| a as i8 as i32 as u32);
    words("cvt.u32.u8 %o, %a0;", |a, _, _| a & 0xff);
    words("cvt.s16.s8 %h5, %a0; cvt.u32.u16 %o, %h5;", |a, _, _| a as i8 as i16 as u16 as u32);
    words("cvt.s16.s8 %o, %a0;", |a, _, _| a as i8 as i32 as u32);
    words("cvt.u16.u32 %h5, %a0; cvt.s32.s16 %o, %h5;", |a, _, _| a as i16 as i32 as u32);
    words("cvt.sat.s8.s32 %h5, %a0; cvt.s32.s16 %o, %h5;", |a, _, _| {
        (a as i32).clamp(-128, 127) as u32
    });
    words("cvt.sat.u16.s32 %h5, %a0; cvt.u32.u16 %o, %h5;", |a, _, _| {
        (a as i32).clamp(0, 65535) as u32
    });
    longs("cvt.s64.s32 %od, %a0;", |a, _, _| a as i32 as i64 as u64);
    longs("cvt.u64.u32 %od, %a0;", |a, _, _| a & 0xffff_ffff);
    longs("cvt.s64.s8 %od, %a0;", |a, _, _| a as i8 as i64 as u64);
    longs("cvt.s64.s16 %od, %h0;", |a, _, _| a as i16 as i64 as u64);
    longs("cvt.sat.u32.s64 %o, %d0; cvt.u64.u32 %od, %o;", |a, _, _| {
        (a as i64).clamp(0, i64::from(u32::MAX)) as u64
    });
}

#[test]
fn conversions_between_floats() {
    let f = |bits: u64| f32::from_bits(bits as u32);
    check("cvt.rn.f16.f32 %h5, %f0; cvt.u32.u16 %o, %h5;", floats, |[a, _, _]| {
        canonical(f16::from_f32(f(a)).to_bits(), 0x7c00).into()
    });
    check("cvt.rz.f16.f32 %h5, %f0; cvt.u32.u16 %o, %h5;", floats, |[a, _, _]| {
        let value = f(a);
        let near = f16::from_f32(value);
        let bits = if value.is_infinite() || value.is_nan() || near.to_f32().abs() <= value.abs() {
            near.to_bits()
        } else {
            near.to_bits() - 1
        };
        canonical(bits, 0x7c00).into()
    });
    check("cvt.f32.f16 %f5, %h0; mov.b32 %o, %f5; add.u32 %o, %o, 0;", integers, |[a, _, _]| {
        let value = h(a).to_f32();
        // The payload of a NaN is kept; which one the peer gives does not matter here.
        if value.is_nan() { f16_nan(a) } else { u64::from(value.to_bits()) }
    });
    check("cvt.rn.f32.f64 %f5, %g0; mov.b32 %o, %f5;", integers, |[a, _, _]| {
        let value = f64::from_bits(a) as f32;
        if value.is_nan() { nan_of(a) } else { value.to_bits().into() }
    });
    check("cvt.f64.f32 %g5, %f0; mov.b64 %od, %g5;", floats, |[a, _, _]| f64::from(f(a)).to_bits());
    check(
        "cvt.rna.tf32.f32 %o, %f1;",
        |rng| std::array::from_fn(|_| [0, u64::from(rng.uniform(-9.0, 9.0).to_bits()), 0]),
        |[_, a, _]| {
            // Half of the last kept bit, away from zero.
            (a + 0x1000) & 0xffff_e000
        },
    );
}

/// What our conversion makes of a NaN: its payload, moved.
fn f16_nan(a: u64) -> u64 {
    (a & 0x8000) << 16 | 0x7f80_0000 | (a & 0x3ff) << 13
}

fn nan_of(a: u64) -> u64 {
    u64::from((f64::from_bits(a) as f32).to_bits())
}

#[test]
fn double_precision() {
    let g = f64::from_bits;
    let inputs = |rng: &mut fucina_testkit::Rng| -> [[u64; 3]; 32] {
        std::array::from_fn(|_| std::array::from_fn(|_| f64::from(rng.normal()).to_bits()))
    };
    check("fma.rn.f64 %g5, %g0, %g1, %g2; mov.b64 %od, %g5;", inputs, |[a, b, c]| {
        g(a).mul_add(g(b), g(c)).to_bits()
    });
    check("add.f64 %g5, %g0, %g1; mov.b64 %od, %g5;", inputs, |[a, b, _]| (g(a) + g(b)).to_bits());
    check("mul.f64 %g5, %g0, %g1; mov.b64 %od, %g5;", inputs, |[a, b, _]| (g(a) * g(b)).to_bits());
    check("div.rn.f64 %g5, %g0, %g1; mov.b64 %od, %g5;", inputs, |[a, b, _]| {
        (g(a) / g(b)).to_bits()
    });
    check("max.f64 %g5, %g0, %g1; mov.b64 %od, %g5;", inputs, |[a, b, _]| g(a).max(g(b)).to_bits());
    check("neg.f64 %g5, %g0; mov.b64 %od, %g5;", inputs, |[a, _, _]| (-g(a)).to_bits());
    check(
        "setp.lt.f64 %p0, %g0, %g1; selp.f64 %g5, %g0, %g1, %p0; mov.b64 %od, %g5;",
        inputs,
        |[a, b, _]| g(a).min(g(b)).to_bits(),
    );
}
