//! Integer and bit instructions.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "machine arithmetic keeps the low bits"
)]

use super::inst::Fun;
use super::lanes::lanes;
use crate::ptx::ast::Ty;

/// Lifts an expression for each integer type; bits count as unsigned.
macro_rules! by_type {
    ($ty:expr; L $l:ident, D $d:ident; ($($arg:ident),+) => $value:expr) => {
        match $ty {
            Ty::U16 | Ty::B16 => Some(lanes!($l: ($($arg: u16),+) => $value)),
            Ty::S16 => Some(lanes!($l: ($($arg: i16),+) => $value)),
            Ty::U32 | Ty::B32 => Some(lanes!($l: ($($arg: u32),+) => $value)),
            Ty::S32 => Some(lanes!($l: ($($arg: i32),+) => $value)),
            Ty::U64 | Ty::B64 => Some(lanes!($d: ($($arg: u64),+) => $value)),
            Ty::S64 => Some(lanes!($d: ($($arg: i64),+) => $value)),
            _ => None,
        }
    };
}

/// Two sources and a result of one type.
pub(super) fn binary(name: &str, ty: Ty) -> Option<Fun> {
    match name {
        "add" => by_type!(ty; L LL, D DD; (a, b) => a.wrapping_add(b)),
        "sub" => by_type!(ty; L LL, D DD; (a, b) => a.wrapping_sub(b)),
        "mul.lo" => by_type!(ty; L LL, D DD; (a, b) => a.wrapping_mul(b)),
        // The result of a division by zero is not specified; all ones is what devices give.
        "div" => by_type!(ty; L LL, D DD; (a, b) => if b == 0 { !0 } else { a.wrapping_div(b) }),
        "rem" => by_type!(ty; L LL, D DD; (a, b) => if b == 0 { a } else { a.wrapping_rem(b) }),
        "min" => by_type!(ty; L LL, D DD; (a, b) => a.min(b)),
        "max" => by_type!(ty; L LL, D DD; (a, b) => a.max(b)),
        "and" => by_type!(ty; L LL, D DD; (a, b) => a & b),
        "or" => by_type!(ty; L LL, D DD; (a, b) => a | b),
        "xor" => by_type!(ty; L LL, D DD; (a, b) => a ^ b),
        "mul.hi" => mul_hi(ty),
        "mul.wide" => mul_wide(ty),
        "mul24.lo" => match ty {
            Ty::U32 => {
                Some(lanes!(LL: (a: u32, b: u32) => (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff)))
            }
            Ty::S32 => {
                Some(lanes!(LL: (a: i32, b: i32) => (a << 8 >> 8).wrapping_mul(b << 8 >> 8)))
            }
            _ => None,
        },
        _ => None,
    }
}

fn mul_hi(ty: Ty) -> Option<Fun> {
    Some(match ty {
        Ty::U16 => lanes!(LL: (a: u16, b: u16) => ((u32::from(a) * u32::from(b)) >> 16) as u16),
        Ty::S16 => lanes!(LL: (a: i16, b: i16) => ((i32::from(a) * i32::from(b)) >> 16) as i16),
        Ty::U32 => lanes!(LL: (a: u32, b: u32) => ((u64::from(a) * u64::from(b)) >> 32) as u32),
        Ty::S32 => lanes!(LL: (a: i32, b: i32) => ((i64::from(a) * i64::from(b)) >> 32) as i32),
        Ty::U64 => lanes!(DD: (a: u64, b: u64) => ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Ty::S64 => lanes!(DD: (a: i64, b: i64) => ((i128::from(a) * i128::from(b)) >> 64) as i64),
        _ => return None,
    })
}

fn mul_wide(ty: Ty) -> Option<Fun> {
    Some(match ty {
        Ty::U16 => lanes!(LL: (a: u16, b: u16) => u32::from(a) * u32::from(b)),
        Ty::S16 => lanes!(LL: (a: i16, b: i16) => i32::from(a) * i32::from(b)),
        Ty::U32 => lanes!(LLtoD: (a: u32, b: u32) => u64::from(a) * u64::from(b)),
        Ty::S32 => lanes!(LLtoD: (a: i32, b: i32) => i64::from(a) * i64::from(b)),
        _ => return None,
    })
}

/// Multiply and add.
pub(super) fn mad(name: &str, ty: Ty) -> Option<Fun> {
    match name {
        "mad.lo" => {
            by_type!(ty; L LLL, D DDD; (a, b, c) => a.wrapping_mul(b).wrapping_add(c))
        }
        "mad.hi" => Some(match ty {
            Ty::U32 => lanes!(LLL: (a: u32, b: u32, c: u32) =>
                (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)),
            Ty::S32 => lanes!(LLL: (a: i32, b: i32, c: i32) =>
                (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c)),
            Ty::U64 => lanes!(DDD: (a: u64, b: u64, c: u64) =>
                (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)),
            Ty::S64 => lanes!(DDD: (a: i64, b: i64, c: i64) =>
                (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c)),
            _ => return None,
        }),
        "mad.wide" => Some(match ty {
            Ty::U16 => lanes!(LLL: (a: u16, b: u16, c: u32) =>
                (u32::from(a) * u32::from(b)).wrapping_add(c)),
            Ty::S16 => lanes!(LLL: (a: i16, b: i16, c: i32) =>
                (i32::from(a) * i32::from(b)).wrapping_add(c)),
            Ty::U32 => lanes!(LLDtoD: (a: u32, b: u32, c: u64) =>
                (u64::from(a) * u64::from(b)).wrapping_add(c)),
            Ty::S32 => lanes!(LLDtoD: (a: i32, b: i32, c: i64) =>
                (i64::from(a) * i64::from(b)).wrapping_add(c)),
            _ => return None,
        }),
        "sad" => by_type!(ty; L LLL, D DDD; (a, b, c) =>
            if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) }.wrapping_add(c)),
        _ => None,
    }
}

/// One source.
pub(super) fn unary(name: &str, ty: Ty) -> Option<Fun> {
    Some(match (name, ty) {
        ("neg", Ty::S16) => lanes!(L: (a: i16) => a.wrapping_neg()),
        ("neg", Ty::S32) => lanes!(L: (a: i32) => a.wrapping_neg()),
        ("neg", Ty::S64) => lanes!(D: (a: i64) => a.wrapping_neg()),
        ("abs", Ty::S16) => lanes!(L: (a: i16) => a.wrapping_abs()),
        ("abs", Ty::S32) => lanes!(L: (a: i32) => a.wrapping_abs()),
        ("abs", Ty::S64) => lanes!(D: (a: i64) => a.wrapping_abs()),
        ("not", Ty::B16) => lanes!(L: (a: u16) => !a),
        ("not", Ty::B32) => lanes!(L: (a: u32) => !a),
        ("not", Ty::B64) => lanes!(D: (a: u64) => !a),
        ("cnot", Ty::B16) => lanes!(L: (a: u16) => u16::from(a == 0)),
        ("cnot", Ty::B32) => lanes!(L: (a: u32) => u32::from(a == 0)),
        ("cnot", Ty::B64) => lanes!(D: (a: u64) => u64::from(a == 0)),
        ("popc", Ty::B32) => lanes!(L: (a: u32) => a.count_ones()),
        ("popc", Ty::B64) => lanes!(DtoL: (a: u64) => a.count_ones()),
        ("clz", Ty::B32) => lanes!(L: (a: u32) => a.leading_zeros()),
        ("clz", Ty::B64) => lanes!(DtoL: (a: u64) => a.leading_zeros()),
        ("brev", Ty::B32) => lanes!(L: (a: u32) => a.reverse_bits()),
        ("brev", Ty::B64) => lanes!(D: (a: u64) => a.reverse_bits()),
        ("bfind", Ty::U32) => lanes!(L: (a: u32) => 31_u32.wrapping_sub(a.leading_zeros())),
        ("bfind", Ty::U64) => lanes!(DtoL: (a: u64) => 63_u32.wrapping_sub(a.leading_zeros())),
        ("bfind", Ty::S32) => {
            lanes!(L: (a: i32) => 31_u32.wrapping_sub((a ^ a >> 31).leading_zeros()))
        }
        ("bfind", Ty::S64) => {
            lanes!(DtoL: (a: i64) => 63_u32.wrapping_sub((a ^ a >> 63).leading_zeros()))
        }
        _ => return None,
    })
}

/// `bfind.shiftamt`: how far to shift left.
pub(super) fn shift_amount(ty: Ty) -> Option<Fun> {
    Some(match ty {
        Ty::U32 => lanes!(L: (a: u32) => if a == 0 { !0 } else { a.leading_zeros() }),
        Ty::S32 => lanes!(L: (a: i32) =>
            if a ^ a >> 31 == 0 { !0 } else { (a ^ a >> 31).leading_zeros() }),
        Ty::U64 => lanes!(DtoL: (a: u64) => if a == 0 { !0_u32 } else { a.leading_zeros() }),
        Ty::S64 => lanes!(DtoL: (a: i64) =>
            if a ^ a >> 63 == 0 { !0_u32 } else { (a ^ a >> 63).leading_zeros() }),
        _ => return None,
    })
}

/// `shl` and `shr`; amounts above the width count as the width.
pub(super) fn shift(name: &str, ty: Ty) -> Option<Fun> {
    Some(match (name, ty) {
        ("shl", Ty::B16) => {
            lanes!(LL: (a: u32, b: u32) => if b > 15 { 0 } else { a << b & 0xffff })
        }
        ("shl", Ty::B32) => lanes!(LL: (a: u32, b: u32) => if b > 31 { 0 } else { a << (b & 31) }),
        ("shl", Ty::B64) => lanes!(DL: (a: u64, b: u32) => if b > 63 { 0 } else { a << (b & 63) }),
        ("shr", Ty::B16 | Ty::U16) => {
            lanes!(LL: (a: u16, b: u32) => if b > 15 { 0 } else { a >> b })
        }
        ("shr", Ty::S16) => lanes!(LL: (a: i16, b: u32) => a >> b.min(15)),
        ("shr", Ty::B32 | Ty::U32) => {
            lanes!(LL: (a: u32, b: u32) => if b > 31 { 0 } else { a >> (b & 31) })
        }
        ("shr", Ty::S32) => lanes!(LL: (a: i32, b: u32) => a >> b.min(31)),
        ("shr", Ty::B64 | Ty::U64) => {
            lanes!(DL: (a: u64, b: u32) => if b > 63 { 0 } else { a >> (b & 63) })
        }
        ("shr", Ty::S64) => lanes!(DL: (a: i64, b: u32) => a >> b.min(63)),
        _ => return None,
    })
}

/// `shf`, the funnel shift: direction and what large amounts do.
pub(super) fn funnel(left: bool, clamp: bool) -> Fun {
    fn pair(low: u32, high: u32) -> u64 {
        u64::from(high) << 32 | u64::from(low)
    }
    match (left, clamp) {
        (true, false) => {
            lanes!(LLL: (a: u32, b: u32, c: u32) => (pair(a, b) << (c & 31) >> 32) as u32)
        }
        (true, true) => {
            lanes!(LLL: (a: u32, b: u32, c: u32) => (pair(a, b) << c.min(32) >> 32) as u32)
        }
        (false, false) => lanes!(LLL: (a: u32, b: u32, c: u32) => (pair(a, b) >> (c & 31)) as u32),
        (false, true) => lanes!(LLL: (a: u32, b: u32, c: u32) => (pair(a, b) >> c.min(32)) as u32),
    }
}

/// `len` ones at `at`; both are clipped to the word.
fn field(at: u32, len: u32, bits: u32) -> u64 {
    let (at, len) = (at & 0xff, len & 0xff);
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    let all = u64::MAX >> (64 - bits);
    if at >= bits { 0 } else { ones << at & all }
}

fn extract(a: u64, at: u32, len: u32, bits: u32, signed: bool) -> u64 {
    let (at, len) = (at & 0xff, len & 0xff);
    let low = if at >= bits { 0 } else { (a & field(at, len, bits)) >> at };
    // The sign is the field's top bit, or the word's where the field leaves it.
    let top = (at + len).wrapping_sub(1).min(bits - 1);
    let negative = signed && len > 0 && a >> top & 1 == 1;
    let kept = len.min(bits.saturating_sub(at));
    let fill = if kept >= 64 { 0 } else { u64::MAX << kept };
    if negative { low | fill } else { low }
}

fn insert(a: u64, b: u64, at: u32, len: u32, bits: u32) -> u64 {
    let mask = field(at, len, bits);
    let moved = if at & 0xff >= bits { 0 } else { a << (at & 0xff) };
    b & !mask | moved & mask
}

/// `bfe` and `bfi`.
pub(super) fn bit_field(name: &str, ty: Ty) -> Option<Fun> {
    Some(match (name, ty) {
        ("bfe", Ty::U32) => lanes!(LLL: (a: u32, b: u32, c: u32) =>
            extract(u64::from(a), b, c, 32, false) as u32),
        ("bfe", Ty::S32) => lanes!(LLL: (a: u32, b: u32, c: u32) =>
            extract(u64::from(a), b, c, 32, true) as u32),
        ("bfe", Ty::U64) => lanes!(DLL: (a: u64, b: u32, c: u32) => extract(a, b, c, 64, false)),
        ("bfe", Ty::S64) => lanes!(DLL: (a: u64, b: u32, c: u32) => extract(a, b, c, 64, true)),
        ("bfi", Ty::B32) => lanes!(LLLL: (a: u32, b: u32, c: u32, d: u32) =>
            insert(u64::from(a), u64::from(b), c, d, 32) as u32),
        ("bfi", Ty::B64) => {
            lanes!(DDLL: (a: u64, b: u64, c: u32, d: u32) => insert(a, b, c, d, 64))
        }
        ("bmsk", Ty::B32) => lanes!(LL: (a: u32, b: u32) =>
            if a > 31 || b == 0 { 0 } else { field(a, b.min(32), 32) as u32 }),
        _ => return None,
    })
}

/// One byte of `pair`, or its sign eight times.
fn permute_byte(pair: u64, select: u32) -> u32 {
    let byte = (pair >> (8 * (select & 7))) as u32 & 0xff;
    if select & 8 == 0 {
        byte
    } else if byte & 0x80 == 0 {
        0
    } else {
        0xff
    }
}

fn permute(a: u32, b: u32, selectors: [u32; 4]) -> u32 {
    let pair = u64::from(b) << 32 | u64::from(a);
    let mut out = 0;
    for (index, select) in selectors.into_iter().enumerate() {
        out |= permute_byte(pair, select) << (8 * index);
    }
    out
}

/// `prmt` in one of its modes; the empty name is the general one.
pub(super) fn prmt(mode: &str) -> Option<Fun> {
    Some(match mode {
        "" => lanes!(LLL: (a: u32, b: u32, c: u32) =>
            permute(a, b, [c & 15, c >> 4 & 15, c >> 8 & 15, c >> 12 & 15])),
        "f4e" => lanes!(LLL: (a: u32, b: u32, c: u32) =>
            permute(a, b, [0, 1, 2, 3].map(|i| i + (c & 3)))),
        "b4e" => lanes!(LLL: (a: u32, b: u32, c: u32) =>
            permute(a, b, [8_u32, 7, 6, 5].map(|i| (i + (c & 3)) & 7))),
        "rc8" => lanes!(LLL: (a: u32, b: u32, c: u32) => permute(a, b, [c & 3; 4])),
        "ecl" => lanes!(LLL: (a: u32, b: u32, c: u32) =>
            permute(a, b, [0, 1, 2, 3].map(|i: u32| i.max(c & 3)))),
        "ecr" => lanes!(LLL: (a: u32, b: u32, c: u32) =>
            permute(a, b, [0, 1, 2, 3].map(|i: u32| i.min(c & 3)))),
        "rc16" => lanes!(LLL: (a: u32, b: u32, c: u32) => {
            let at = 2 * (c & 1);
            permute(a, b, [at, at + 1, at, at + 1])
        }),
        _ => return None,
    })
}

fn lut(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let mut out = 0;
    for row in 0..8 {
        if table >> row & 1 == 1 {
            let of = |value: u32, bit: u32| if row >> bit & 1 == 1 { value } else { !value };
            out |= of(a, 2) & of(b, 1) & of(c, 0);
        }
    }
    out
}

/// `lop3` with its table as fourth source; the frequent tables have their own functions.
pub(super) fn lop3(table: u32) -> Fun {
    match table {
        0x80 => lanes!(LLLL: (a: u32, b: u32, c: u32, _t: u32) => a & b & c),
        0xfe => lanes!(LLLL: (a: u32, b: u32, c: u32, _t: u32) => a | b | c),
        0x96 => lanes!(LLLL: (a: u32, b: u32, c: u32, _t: u32) => a ^ b ^ c),
        0xea => lanes!(LLLL: (a: u32, b: u32, c: u32, _t: u32) => a & b | c),
        0xca => lanes!(LLLL: (a: u32, b: u32, c: u32, _t: u32) => a & b | !a & c),
        0x6a => lanes!(LLLL: (a: u32, b: u32, c: u32, _t: u32) => a & b ^ c),
        _ => lanes!(LLLL: (a: u32, b: u32, c: u32, t: u32) => lut(a, b, c, t)),
    }
}

/// Sum of the products of four bytes, each signed or not.
fn dot4(a: u32, b: u32, c: u32, signed: (bool, bool)) -> u32 {
    let byte = |word: u32, index: usize, signed: bool| {
        let byte = word.to_le_bytes()[index];
        if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
    };
    let sum: i32 = (0..4).map(|i| byte(a, i, signed.0) * byte(b, i, signed.1)).sum();
    c.wrapping_add(sum.cast_unsigned())
}

fn dot2(a: u32, b: u32, c: u32, signed: (bool, bool), high: bool) -> u32 {
    let half = |index: u32| {
        let half = (a >> (16 * index)) as u16;
        if signed.0 { i32::from(half.cast_signed()) } else { i32::from(half) }
    };
    let byte = |index: usize| {
        let byte = b.to_le_bytes()[index];
        if signed.1 { i32::from(byte.cast_signed()) } else { i32::from(byte) }
    };
    let at = if high { 2 } else { 0 };
    let sum = half(0) * byte(at) + half(1) * byte(at + 1);
    c.wrapping_add(sum.cast_unsigned())
}

/// `dp4a`, by the types of its two factors.
pub(super) fn dp4a(a: Ty, b: Ty) -> Option<Fun> {
    Some(match (a, b) {
        (Ty::S32, Ty::S32) => lanes!(LLL: (a: u32, b: u32, c: u32) => dot4(a, b, c, (true, true))),
        (Ty::S32, Ty::U32) => lanes!(LLL: (a: u32, b: u32, c: u32) => dot4(a, b, c, (true, false))),
        (Ty::U32, Ty::S32) => lanes!(LLL: (a: u32, b: u32, c: u32) => dot4(a, b, c, (false, true))),
        (Ty::U32, Ty::U32) => {
            lanes!(LLL: (a: u32, b: u32, c: u32) => dot4(a, b, c, (false, false)))
        }
        _ => return None,
    })
}

/// `dp2a`, by the types of its two factors.
pub(super) fn dp2a(high: bool, a: Ty, b: Ty) -> Option<Fun> {
    macro_rules! both {
        ($signed:expr) => {
            if high {
                lanes!(LLL: (a: u32, b: u32, c: u32) => dot2(a, b, c, $signed, true))
            } else {
                lanes!(LLL: (a: u32, b: u32, c: u32) => dot2(a, b, c, $signed, false))
            }
        };
    }
    Some(match (a, b) {
        (Ty::S32, Ty::S32) => both!((true, true)),
        (Ty::S32, Ty::U32) => both!((true, false)),
        (Ty::U32, Ty::S32) => both!((false, true)),
        (Ty::U32, Ty::U32) => both!((false, false)),
        _ => return None,
    })
}

/// Absolute differences of the four bytes of two words.
fn differences(a: u32, b: u32, signed: bool) -> [u8; 4] {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    std::array::from_fn(|i| match signed {
        true => a[i].cast_signed().abs_diff(b[i].cast_signed()),
        false => a[i].abs_diff(b[i]),
    })
}

/// `vabsdiff4`: the differences, or their sum added to the third operand.
pub(super) fn absolute_differences(ty: Ty, sum: bool) -> Option<Fun> {
    fn add(c: u32, parts: [u8; 4]) -> u32 {
        parts.into_iter().fold(c, |sum, part| sum.wrapping_add(u32::from(part)))
    }
    Some(match (ty, sum) {
        (Ty::U32, false) => lanes!(LL: (a: u32, b: u32) =>
            u32::from_le_bytes(differences(a, b, false))),
        (Ty::S32, false) => lanes!(LL: (a: u32, b: u32) =>
            u32::from_le_bytes(differences(a, b, true))),
        (Ty::U32, true) => lanes!(LLL: (a: u32, b: u32, c: u32) =>
            add(c, differences(a, b, false))),
        (Ty::S32, true) => lanes!(LLL: (a: u32, b: u32, c: u32) =>
            add(c, differences(a, b, true))),
        _ => return None,
    })
}

/// Two halves of 16 bits at once, as chips from `sm_90` on have them.
pub(super) fn halves(name: &str, ty: &str) -> Option<Fun> {
    macro_rules! pair {
        (($a:ident, $b:ident: $half:ty) => $value:expr) => {
            lanes!(LL: (a: u32, b: u32) => {
                let one = |$a: $half, $b: $half| -> $half { $value };
                let low = one(a as $half, b as $half) as u16;
                let high = one((a >> 16) as $half, (b >> 16) as $half) as u16;
                u32::from(low) | u32::from(high) << 16
            })
        };
    }
    Some(match (name, ty) {
        ("add", "u16x2" | "s16x2") => pair!((a, b: u16) => a.wrapping_add(b)),
        ("min", "u16x2") => pair!((a, b: u16) => a.min(b)),
        ("max", "u16x2") => pair!((a, b: u16) => a.max(b)),
        ("min", "s16x2") => pair!((a, b: i16) => a.min(b)),
        ("max", "s16x2") => pair!((a, b: i16) => a.max(b)),
        _ => return None,
    })
}

/// `fns`: the n-th set bit of `mask`, counted from `base` upwards or downwards.
fn nth_set(mask: u32, base: u32, nth: i32) -> u32 {
    let (step, mut left) = (if nth < 0 { -1 } else { 1 }, nth.unsigned_abs().max(1));
    let mut at = i64::from(base);
    while (0..32).contains(&at) {
        if mask >> at & 1 == 1 {
            left -= 1;
        }
        if left == 0 {
            return at as u32;
        }
        if nth == 0 {
            break;
        }
        at += step;
    }
    u32::MAX
}

/// `fns.b32`.
pub(super) fn find_nth_set() -> Fun {
    lanes!(LLL: (a: u32, b: u32, c: i32) => nth_set(a, b, c))
}

/// A comparison of integers, to a predicate.
pub(super) fn compare(name: &str, ty: Ty) -> Option<Fun> {
    match name {
        "eq" => by_type!(ty; L LLtoP, D DDtoP; (a, b) => a == b),
        "ne" => by_type!(ty; L LLtoP, D DDtoP; (a, b) => a != b),
        "lt" => by_type!(ty; L LLtoP, D DDtoP; (a, b) => a < b),
        "le" => by_type!(ty; L LLtoP, D DDtoP; (a, b) => a <= b),
        "gt" => by_type!(ty; L LLtoP, D DDtoP; (a, b) => a > b),
        "ge" => by_type!(ty; L LLtoP, D DDtoP; (a, b) => a >= b),
        // Unsigned, whatever the type says.
        "lo" => compare("lt", unsigned(ty)),
        "ls" => compare("le", unsigned(ty)),
        "hi" => compare("gt", unsigned(ty)),
        "hs" => compare("ge", unsigned(ty)),
        _ => None,
    }
}

fn unsigned(ty: Ty) -> Ty {
    match ty {
        Ty::S16 => Ty::U16,
        Ty::S32 => Ty::U32,
        Ty::S64 => Ty::U64,
        other => other,
    }
}
