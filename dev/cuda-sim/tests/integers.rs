//! Integer, bit, compare and move instructions against plain arithmetic.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    reason = "the oracles are casts"
)]

mod common;

use common::snippet::{longs, run, words};

fn s(value: u32) -> i64 {
    i64::from(value as i32)
}

#[test]
fn sums_and_products_of_32_bits() {
    words("add.s32 %o, %a0, %a1;", |a, b, _| (s(a) + s(b)) as u32);
    words("sub.u32 %o, %a0, %a1;", |a, b, _| (s(a) - s(b)) as u32);
    words("add.sat.s32 %o, %a0, %a1;", |a, b, _| {
        (s(a) + s(b)).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32
    });
    words("mul.lo.s32 %o, %a0, %a1;", |a, b, _| (a as u64 * b as u64) as u32);
    words("mul.hi.s32 %o, %a0, %a1;", |a, b, _| ((s(a) * s(b)) >> 32) as u32);
    words("mul.hi.u32 %o, %a0, %a1;", |a, b, _| ((a as u64 * b as u64) >> 32) as u32);
    words("mad.lo.s32 %o, %a0, %a1, %a2;", |a, b, c| (a as u64 * b as u64 + c as u64) as u32);
    words("mad.hi.s32 %o, %a0, %a1, %a2;", |a, b, c| (((s(a) * s(b)) >> 32) + s(c)) as u32);
    words("sad.s32 %o, %a0, %a1, %a2;", |a, b, c| (s(c) + (s(a) - s(b)).abs()) as u32);
    words("mul24.lo.s32 %o, %a0, %a1;", |a, b, _| {
        let low = |v: u32| i64::from((v << 8) as i32 >> 8);
        (low(a) * low(b)) as u32
    });
    words("neg.s32 %o, %a0;", |a, _, _| (-s(a)) as u32);
    words("abs.s32 %o, %a0;", |a, _, _| s(a).unsigned_abs() as u32);
    words("min.s32 %o, %a0, %a1;", |a, b, _| s(a).min(s(b)) as u32);
    words("max.s32 %o, %a0, %a1;", |a, b, _| s(a).max(s(b)) as u32);
    words("min.u32 %o, %a0, %a1;", |a, b, _| a.min(b));
    words("max.u32 %o, %a0, %a1;", |a, b, _| a.max(b));
}

#[test]
fn quotients() {
    words("div.u32 %o, %a0, %a1;", |a, b, _| a.checked_div(b).unwrap_or(u32::MAX));
    words("rem.u32 %o, %a0, %a1;", |a, b, _| a.checked_rem(b).unwrap_or(a));
    words("div.s32 %o, %a0, %a1;", |a, b, _| if b == 0 { u32::MAX } else { (s(a) / s(b)) as u32 });
    words("rem.s32 %o, %a0, %a1;", |a, b, _| if b == 0 { a } else { (s(a) % s(b)) as u32 });
    longs("div.s64 %od, %d0, %d1;", |a, b, _| {
        if b == 0 { u64::MAX } else { (a as i64 as i128 / b as i64 as i128) as u64 }
    });
    longs("rem.u64 %od, %d0, %d1;", |a, b, _| a.checked_rem(b).unwrap_or(a));
}

#[test]
fn arithmetic_of_16_and_64_bits() {
    words("add.s16 %h5, %h0, %h1; cvt.u32.u16 %o, %h5;", |a, b, _| a.wrapping_add(b) & 0xffff);
    words("mul.lo.u16 %h5, %h0, %h1; cvt.u32.u16 %o, %h5;", |a, b, _| {
        (a & 0xffff).wrapping_mul(b & 0xffff) & 0xffff
    });
    words("mul.wide.s16 %o, %h0, %h1;", |a, b, _| (a as i16 as i32 * b as i16 as i32) as u32);
    words("min.s16 %h5, %h0, %h1; cvt.s32.s16 %o, %h5;", |a, b, _| {
        (a as i16).min(b as i16) as i32 as u32
    });
    words("shr.s16 %h5, %h0, %a1; cvt.u32.u16 %o, %h5;", |a, b, _| {
        (a as i16 >> b.min(15)) as u16 as u32
    });
    words("neg.s16 %h5, %h0; cvt.u32.u16 %o, %h5;", |a, _, _| (-(a as i16 as i32)) as u16 as u32);
    longs("add.s64 %od, %d0, %d1;", |a, b, _| (a as u128 + b as u128) as u64);
    longs("mul.lo.s64 %od, %d0, %d1;", |a, b, _| (a as u128 * b as u128) as u64);
    longs("mul.hi.u64 %od, %d0, %d1;", |a, b, _| ((a as u128 * b as u128) >> 64) as u64);
    longs("mul.hi.s64 %od, %d0, %d1;", |a, b, _| {
        ((a as i64 as i128 * b as i64 as i128) >> 64) as u64
    });
    longs("mul.wide.s32 %od, %a0, %a1;", |a, b, _| (s(a as u32) * s(b as u32)) as u64);
    longs("mul.wide.u32 %od, %a0, %a1;", |a, b, _| (a as u32 as u64) * (b as u32 as u64));
    longs("mad.wide.s32 %od, %a0, %a1, %d2;", |a, b, c| {
        (s(a as u32) * s(b as u32)).wrapping_add(c as i64) as u64
    });
    longs("mad.lo.s64 %od, %d0, %d1, %d2;", |a, b, c| {
        (a as u128).wrapping_mul(b as u128).wrapping_add(c as u128) as u64
    });
    longs("abs.s64 %od, %d0;", |a, _, _| (a as i64).unsigned_abs());
    longs("max.s64 %od, %d0, %d1;", |a, b, _| (a as i64).max(b as i64) as u64);
}

#[test]
fn carries_run_through_a_128_bit_sum_and_difference() {
    let high = |body: &str| format!("{body} mov.b64 %od, {{%t0, %t1}};");
    longs(&high("add.cc.u32 %t0, %a0, %a1; addc.u32 %t1, %a2, 0;"), |a, b, c| {
        let low = (a as u32 as u64) + (b as u32 as u64);
        (low as u32 as u64) | ((c as u32).wrapping_add((low >> 32) as u32) as u64) << 32
    });
    longs(&high("sub.cc.u32 %t0, %a0, %a1; subc.u32 %t1, %a2, 5;"), |a, b, c| {
        let borrow = u32::from((a as u32) < (b as u32));
        let low = (a as u32).wrapping_sub(b as u32) as u64;
        low | ((c as u32).wrapping_sub(5).wrapping_sub(borrow) as u64) << 32
    });
    longs("add.cc.u64 %x0, %d0, %d1; addc.cc.u64 %x1, %d1, %d2; addc.u64 %od, 0, 0;", |a, b, c| {
        let carry = (a as u128 + b as u128) >> 64;
        ((b as u128 + c as u128 + carry) >> 64) as u64
    });
    longs(&high("mad.lo.cc.u32 %t0, %a0, %a1, %a2; madc.hi.u32 %t1, %a0, %a1, 0;"), |a, b, c| {
        (a as u32 as u64) * (b as u32 as u64) + (c as u32 as u64)
    });
}

#[test]
fn logic_and_shifts() {
    words("and.b32 %o, %a0, %a1;", |a, b, _| a & b);
    words("or.b32 %o, %a0, %a1;", |a, b, _| a | b);
    words("xor.b32 %o, %a0, %a1;", |a, b, _| a ^ b);
    words("not.b32 %o, %a0;", |a, _, _| !a);
    words("cnot.b32 %o, %a0;", |a, _, _| u32::from(a == 0));
    words("shl.b32 %o, %a0, %a1;", |a, b, _| a.checked_shl(b).unwrap_or(0));
    words("shr.u32 %o, %a0, %a1;", |a, b, _| a.checked_shr(b).unwrap_or(0));
    words("shr.s32 %o, %a0, %a1;", |a, b, _| (s(a) >> b.min(63)) as u32);
    longs("shl.b64 %od, %d0, %a1;", |a, b, _| a.checked_shl(b as u32).unwrap_or(0));
    longs("shr.u64 %od, %d0, %a1;", |a, b, _| a.checked_shr(b as u32).unwrap_or(0));
    longs("shr.s64 %od, %d0, %a1;", |a, b, _| (a as i64 >> (b as u32).min(63)) as u64);
    words("shf.l.wrap.b32 %o, %a0, %a1, %a2;", |a, b, c| {
        (((b as u64) << 32 | a as u64) << (c & 31) >> 32) as u32
    });
    words("shf.r.wrap.b32 %o, %a0, %a1, %a2;", |a, b, c| {
        (((b as u64) << 32 | a as u64) >> (c & 31)) as u32
    });
    words("shf.r.clamp.b32 %o, %a0, %a1, %a2;", |a, b, c| {
        (((b as u64) << 32 | a as u64) >> c.min(32)) as u32
    });
    words("shf.l.clamp.b32 %o, %a0, %a1, %a2;", |a, b, c| {
        if c >= 32 { a } else { (((b as u64) << 32 | a as u64) << c >> 32) as u32 }
    });
}

#[test]
fn lop3_follows_its_table() {
    for table in [0x80_u32, 0xfe, 0x96, 0xea, 0xca, 0x6a, 0x1e, 0x00, 0xff, 0xd8, 0x2d] {
        words(&format!("lop3.b32 %o, %a0, %a1, %a2, {table};"), |a, b, c| {
            (0..32).fold(0, |out, i| {
                let row = (a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1;
                out | (table >> row & 1) << i
            })
        });
    }
}

/// `bfe` as PTX describes it, bit by bit.
fn extract(a: u64, b: u32, c: u32, bits: u32, signed: bool) -> u64 {
    let (at, len) = (b & 0xff, c & 0xff);
    let top = (at + len).wrapping_sub(1).min(bits - 1);
    let sign = if signed && len > 0 { a >> top & 1 } else { 0 };
    (0..bits).fold(0, |out, i| {
        let bit = if i < len && at + i < bits { a >> (at + i) & 1 } else { sign };
        out | bit << i
    })
}

fn insert(a: u64, b: u64, c: u32, d: u32, bits: u32) -> u64 {
    let (at, len) = (c & 0xff, d & 0xff);
    (0..bits).fold(0, |out, i| {
        let inside = i >= at && i < at + len;
        out | (if inside { a >> (i - at) & 1 } else { b >> i & 1 }) << i
    })
}

#[test]
fn bit_fields() {
    words("bfe.u32 %o, %a0, %a1, %a2;", |a, b, c| extract(a as u64, b, c, 32, false) as u32);
    words("bfe.s32 %o, %a0, %a1, %a2;", |a, b, c| extract(a as u64, b, c, 32, true) as u32);
    longs("bfe.s64 %od, %d0, %a1, %a2;", |a, b, c| extract(a, b as u32, c as u32, 64, true));
    longs("bfe.u64 %od, %d0, %a1, %a2;", |a, b, c| extract(a, b as u32, c as u32, 64, false));
    for (at, len) in [(0, 32), (3, 7), (28, 8), (32, 4), (5, 0), (0, 255), (255, 255)] {
        words(&format!("bfi.b32 %o, %a0, %a1, {at}, {len};"), |a, b, _| {
            insert(a as u64, b as u64, at, len, 32) as u32
        });
        longs(&format!("bfi.b64 %od, %d0, %d1, {at}, {len};"), |a, b, _| insert(a, b, at, len, 64));
    }
    words("popc.b32 %o, %a0;", |a, _, _| (0..32).map(|i| a >> i & 1).sum());
    longs("popc.b64 %o, %d0; cvt.u64.u32 %od, %o;", |a, _, _| (0..64).map(|i| a >> i & 1).sum());
    words("clz.b32 %o, %a0;", |a, _, _| {
        (0..32).rev().take_while(|i| a >> i & 1 == 0).count() as u32
    });
    longs("clz.b64 %o, %d0; cvt.u64.u32 %od, %o;", |a, _, _| {
        (0..64).rev().take_while(|i| a >> i & 1 == 0).count() as u64
    });
    words("brev.b32 %o, %a0;", |a, _, _| (0..32).fold(0, |out, i| out | (a >> i & 1) << (31 - i)));
    words("bfind.u32 %o, %a0;", |a, _, _| {
        (0..32).rev().find(|i| a >> i & 1 == 1).unwrap_or(u32::MAX)
    });
    words("bfind.s32 %o, %a0;", |a, _, _| {
        let sign = a >> 31;
        (0..32).rev().find(|i| a >> i & 1 != sign).unwrap_or(u32::MAX)
    });
    words("bfind.shiftamt.u32 %o, %a0;", |a, _, _| {
        (0..32).rev().find(|i| a >> i & 1 == 1).map_or(u32::MAX, |i| 31 - i)
    });
}

#[test]
fn permutations_of_bytes() {
    words("prmt.b32 %o, %a0, %a1, %a2;", |a, b, c| {
        let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
        let pick = |select: u32| {
            let byte = bytes[(select & 7) as usize];
            if select & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
        };
        u32::from_le_bytes(std::array::from_fn(|i| pick(c >> (4 * i))))
    });
    words("prmt.b32.f4e %o, %a0, %a1, %a2;", |a, b, c| {
        (((b as u64) << 32 | a as u64) >> (8 * (c & 3))) as u32
    });
    words("prmt.b32.rc8 %o, %a0, %a1, %a2;", |a, _, c| {
        u32::from_le_bytes([a.to_le_bytes()[(c & 3) as usize]; 4])
    });
    words("prmt.b32.rc16 %o, %a0, %a1, %a2;", |a, _, c| {
        let half = a >> (16 * (c & 1)) & 0xffff;
        half | half << 16
    });
    // Tables of the instruction set: byte 0 upwards, for selectors 0 to 3.
    let tables = [
        ("b4e", [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]]),
        ("ecl", [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]]),
        ("ecr", [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]]),
    ];
    for (mode, table) in tables {
        words(&format!("prmt.b32.{mode} %o, %a0, %a1, %a2;"), |a, b, c| {
            let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
            u32::from_le_bytes(table[(c & 3) as usize].map(|i| bytes[i]))
        });
    }
}

#[test]
fn dot_products_of_bytes() {
    let bytes = |word: u32, signed: bool| {
        word.to_le_bytes().map(|byte| if signed { byte as i8 as i64 } else { byte as i64 })
    };
    for (x, y) in [("s32", "s32"), ("u32", "s32"), ("s32", "u32"), ("u32", "u32")] {
        let signed = (x == "s32", y == "s32");
        words(&format!("dp4a.{x}.{y} %o, %a0, %a1, %a2;"), |a, b, c| {
            let (a, b) = (bytes(a, signed.0), bytes(b, signed.1));
            (a.iter().zip(b).map(|(a, b)| a * b).sum::<i64>() + c as i64) as u32
        });
        for (half, at) in [("lo", 0), ("hi", 2)] {
            words(&format!("dp2a.{half}.{x}.{y} %o, %a0, %a1, %a2;"), |a, b, c| {
                let b = bytes(b, signed.1);
                let half = |i: usize| {
                    let half = (a >> (16 * i)) as u16;
                    if signed.0 { half as i16 as i64 } else { half as i64 }
                };
                (half(0) * b[at] + half(1) * b[at + 1] + c as i64) as u32
            });
        }
    }
}

#[test]
fn parts_of_words() {
    let bytes = |a: u32, b: u32, f: fn(u8, u8) -> u8| -> [u8; 4] {
        std::array::from_fn(|i| f((a >> (8 * i)) as u8, (b >> (8 * i)) as u8))
    };
    let apart = |x: u8, y: u8| (i32::from(x) - i32::from(y)).unsigned_abs() as u8;
    let apart_signed =
        |x: u8, y: u8| (i32::from(x as i8) - i32::from(y as i8)).unsigned_abs() as u8;
    words("vabsdiff4.u32.u32.u32 %o, %a0, %a1, %a2;", |a, b, _| {
        u32::from_le_bytes(bytes(a, b, apart))
    });
    words("vabsdiff4.u32.s32.s32 %o, %a0, %a1, %a2;", |a, b, _| {
        u32::from_le_bytes(bytes(a, b, apart_signed))
    });
    words("vabsdiff4.u32.u32.u32.add %o, %a0, %a1, %a2;", |a, b, c| {
        bytes(a, b, apart).iter().fold(c, |sum, part| sum.wrapping_add(u32::from(*part)))
    });
    words("add.u16x2 %o, %a0, %a1;", |a, b, _| {
        (a.wrapping_add(b) & 0xffff) | ((a >> 16).wrapping_add(b >> 16) << 16)
    });
    words("max.s16x2 %o, %a0, %a1;", |a, b, _| {
        let high = (a as i32 >> 16).max(b as i32 >> 16) as u32;
        u32::from((a as i16).max(b as i16) as u16) | high << 16
    });
    for nth in [0, 1, 2, 5, -1, -3] {
        for base in [0, 3, 17, 31] {
            words(&format!("fns.b32 %o, %a0, {base}, {nth};"), |a, _, _| {
                let up: Vec<u32> = (base..32).filter(|i| a >> i & 1 == 1).collect();
                let down: Vec<u32> = (0..=base).rev().filter(|i| a >> i & 1 == 1).collect();
                let found = match nth {
                    0 => up.first().filter(|i| **i == base),
                    1.. => up.get(nth as usize - 1),
                    _ => down.get((-nth) as usize - 1),
                };
                found.copied().unwrap_or(u32::MAX)
            });
        }
    }
}

#[test]
fn comparisons_and_selections() {
    let flag = |name: &str, ty: &str, a: &str, b: &str| {
        format!("setp.{name}.{ty} %p0, {a}, {b}; selp.u32 %o, 1, 0, %p0;")
    };
    for (name, want) in [
        ("eq", [false, true, false]),
        ("ne", [true, false, true]),
        ("lt", [true, false, false]),
        ("le", [true, true, false]),
        ("gt", [false, false, true]),
        ("ge", [false, true, true]),
    ] {
        let of = |order: std::cmp::Ordering| u32::from(want[(order as i8 + 1) as usize]);
        words(&flag(name, "s32", "%a0", "%a1"), |a, b, _| of((a as i32).cmp(&(b as i32))));
        words(&flag(name, "u32", "%a0", "%a1"), |a, b, _| of(a.cmp(&b)));
        words(&flag(name, "s16", "%h0", "%h1"), |a, b, _| of((a as i16).cmp(&(b as i16))));
        longs(&(flag(name, "s64", "%d0", "%d1") + "cvt.u64.u32 %od, %o;"), |a, b, _| {
            u64::from(of((a as i64).cmp(&(b as i64))))
        });
    }
    words("setp.hs.u32 %p0, %a0, %a1; selp.u32 %o, 1, 0, %p0;", |a, b, _| u32::from(a >= b));
    words(
        "setp.eq.s32 %p1, %a2, 0; setp.lt.and.s32 %p0|%p2, %a0, %a1, !%p1;
         selp.u32 %o, 1, 0, %p0; @%p2 add.u32 %o, %o, 2;",
        |a, b, c| {
            let less = (a as i32) < (b as i32);
            u32::from(less && c != 0) + 2 * u32::from(!less && c != 0)
        },
    );
    words("set.lt.u32.s32 %o, %a0, %a1;", |a, b, _| if s(a) < s(b) { u32::MAX } else { 0 });
    words("set.lt.f32.u32 %o, %a0, %a1;", |a, b, _| if a < b { 1.0_f32.to_bits() } else { 0 });
    words("slct.u32.s32 %o, %a0, %a1, %a2;", |a, b, c| if s(c) >= 0 { a } else { b });
    words(
        "setp.ne.u32 %p0, %a0, 0; setp.ne.u32 %p1, %a1, 0; xor.pred %p2, %p0, %p1;
         not.pred %p3, %p2; and.pred %p3, %p3, %p0; or.pred %p3, %p3, %p2; selp.u32 %o, 1, 0, %p3;",
        |a, b, _| u32::from(a != 0 || b != 0),
    );
}

#[test]
fn moves_pack_and_unpack() {
    longs("mov.b64 %od, {%a1, %a0};", |a, b, _| (b as u32 as u64) | (a as u32 as u64) << 32);
    longs("mov.b64 {%t0, %t1}, %d0; mov.b64 %od, {%t1, %t0};", |a, _, _| a.rotate_left(32));
    words("mov.b32 %o, {%h0, %h1};", |a, b, _| (a & 0xffff) | b << 16);
    words("mov.b32 {%h5, %h6}, %a0; mov.b32 %o, {%h6, %h5};", |a, _, _| a.rotate_left(16));
    longs("mov.b64 {%h5, %h6, %h7, %h8}, %d0; mov.b64 %od, {%h8, %h5, %h7, %h6};", |a, _, _| {
        let h = |i: u64| a >> (16 * i) & 0xffff;
        h(3) | h(0) << 16 | h(2) << 32 | h(1) << 48
    });
    longs("mov.b64 {_, %o}, %d0; cvt.u64.u32 %od, %o;", |a, _, _| a >> 32);
    // Scopes hide outer names, and inline assembly declares its own.
    words("{ .reg .b32 %a0; mov.u32 %a0, 7; add.u32 %o, %a1, %a0; }", |_, b, _| b.wrapping_add(7));
}

#[test]
fn special_registers_tell_the_place_of_a_thread() {
    let inputs = [[0; 3]; 32];
    let lanes = |f: fn(u32) -> u32| std::array::from_fn(|lane| u64::from(f(lane as u32)));
    assert_eq!(run("mov.u32 %o, %laneid;", &inputs), lanes(|lane| lane));
    assert_eq!(run("mov.u32 %o, %lanemask_lt;", &inputs), lanes(|lane| (1 << lane) - 1));
    assert_eq!(run("mov.u32 %o, %lanemask_ge;", &inputs), lanes(|lane| u32::MAX << lane));
    assert_eq!(run("mov.u32 %o, %lanemask_eq;", &inputs), lanes(|lane| 1 << lane));
    assert_eq!(
        run("mov.u32 %o, %lanemask_le;", &inputs),
        lanes(|lane| ((1_u64 << (lane + 1)) - 1) as u32)
    );
    assert_eq!(
        run("mov.u32 %o, %lanemask_gt;", &inputs),
        lanes(|lane| (u64::from(u32::MAX) << (lane + 1)) as u32)
    );
    assert_eq!(run("mov.u32 %o, %ntid.x;", &inputs), [32; 32]);
    assert_eq!(run("mov.u32 %o, %nctaid.z; add.u32 %o, %o, %ctaid.y;", &inputs), [1; 32]);
}
