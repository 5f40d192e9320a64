//! Floating-point instructions.
//!
//! Arithmetic is IEEE in the stated rounding. Approximate functions (`ex2.approx` and the like) give
//! the nearest value: within the error that PTX allows, though not the bits of a device.

#![expect(
    clippy::cast_possible_truncation,
    reason = "results are computed wide and rounded once to the type of the instruction"
)]

use super::inst::Fun;
use super::lanes::lanes;
use super::num::{self, Mode, bf16, f16, to_bf16, to_f16};
use crate::ptx::ast::Ty;

fn to_f32(value: f64, mode: Mode) -> f32 {
    f32::from_bits(num::round(value, num::F32, mode))
}

/// The smaller one; a NaN loses, and -0 is smaller than +0.
fn min(a: f32, b: f32) -> f32 {
    if a < b || b.is_nan() || (a == b && a.is_sign_negative()) { a } else { b }
}

fn max(a: f32, b: f32) -> f32 {
    if a > b || b.is_nan() || (a == b && a.is_sign_positive()) { a } else { b }
}

fn min64(a: f64, b: f64) -> f64 {
    if a < b || b.is_nan() || (a == b && a.is_sign_negative()) { a } else { b }
}

fn max64(a: f64, b: f64) -> f64 {
    if a > b || b.is_nan() || (a == b && a.is_sign_positive()) { a } else { b }
}

fn nan_or(a: f32, b: f32, value: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
}

/// Directed roundings of `f32`, from a result that is exact or rounded to odd.
macro_rules! directed {
    ($name:expr, $mode:expr) => {
        Some(match $name {
            "add" => lanes!(LL: (a: f32, b: f32) =>
                to_f32(num::add_odd(f64::from(a), f64::from(b)), $mode)),
            "sub" => lanes!(LL: (a: f32, b: f32) =>
                to_f32(num::add_odd(f64::from(a), -f64::from(b)), $mode)),
            "mul" => lanes!(LL: (a: f32, b: f32) => to_f32(f64::from(a) * f64::from(b), $mode)),
            "div" => lanes!(LL: (a: f32, b: f32) => to_f32(div_odd(a, b), $mode)),
            _ => return None,
        })
    };
}

/// Two sources of `f32` or `f64`. `name` has no rounding in it.
pub(super) fn binary(name: &str, ty: Ty, mode: Mode) -> Option<Fun> {
    match (ty, mode) {
        (Ty::F32, Mode::Near) => binary_f32(name),
        (Ty::F32, Mode::Zero) => directed!(name, Mode::Zero),
        (Ty::F32, Mode::Up) => directed!(name, Mode::Up),
        (Ty::F32, Mode::Down) => directed!(name, Mode::Down),
        (Ty::F64, Mode::Near) => Some(match name {
            "add" => lanes!(DD: (a: f64, b: f64) => a + b),
            "sub" => lanes!(DD: (a: f64, b: f64) => a - b),
            "mul" => lanes!(DD: (a: f64, b: f64) => a * b),
            "div" => lanes!(DD: (a: f64, b: f64) => a / b),
            "min" => lanes!(DD: (a: f64, b: f64) => min64(a, b)),
            "max" => lanes!(DD: (a: f64, b: f64) => max64(a, b)),
            "copysign" => lanes!(DD: (a: f64, b: f64) => b.copysign(a)),
            _ => return None,
        }),
        _ => None,
    }
}

/// The quotient, rounded to odd.
fn div_odd(a: f32, b: f32) -> f64 {
    let (a, b) = (f64::from(a), f64::from(b));
    let quotient = a / b;
    // The remainder's sign, over the divisor's, says on which side the exact quotient lies.
    let remainder = quotient.mul_add(-b, a);
    num::to_odd(quotient, if remainder == 0.0 { 0.0 } else { remainder / b })
}

fn sqrt_odd(a: f32) -> f64 {
    let a = f64::from(a);
    let root = a.sqrt();
    let remainder = root.mul_add(-root, a);
    num::to_odd(root, remainder)
}

fn binary_f32(name: &str) -> Option<Fun> {
    Some(match name {
        "add" => lanes!(LL: (a: f32, b: f32) => a + b),
        "sub" => lanes!(LL: (a: f32, b: f32) => a - b),
        "mul" => lanes!(LL: (a: f32, b: f32) => a * b),
        "div" => lanes!(LL: (a: f32, b: f32) => a / b),
        "min" => lanes!(LL: (a: f32, b: f32) => min(a, b)),
        "max" => lanes!(LL: (a: f32, b: f32) => max(a, b)),
        "min.NaN" => lanes!(LL: (a: f32, b: f32) => nan_or(a, b, min(a, b))),
        "max.NaN" => lanes!(LL: (a: f32, b: f32) => nan_or(a, b, max(a, b))),
        "copysign" => lanes!(LL: (a: f32, b: f32) => b.copysign(a)),
        _ => return None,
    })
}

/// Fused multiply-add of `f32` or `f64`.
pub(super) fn fma(ty: Ty, mode: Mode) -> Option<Fun> {
    Some(match (ty, mode) {
        (Ty::F32, Mode::Near) => lanes!(LLL: (a: f32, b: f32, c: f32) => num::fma(a, b, c)),
        (Ty::F32, Mode::Zero) => {
            lanes!(LLL: (a: f32, b: f32, c: f32) => to_f32(num::fma_odd(a, b, c), Mode::Zero))
        }
        (Ty::F32, Mode::Up) => {
            lanes!(LLL: (a: f32, b: f32, c: f32) => to_f32(num::fma_odd(a, b, c), Mode::Up))
        }
        (Ty::F32, Mode::Down) => {
            lanes!(LLL: (a: f32, b: f32, c: f32) => to_f32(num::fma_odd(a, b, c), Mode::Down))
        }
        (Ty::F64, Mode::Near) => lanes!(DDD: (a: f64, b: f64, c: f64) => a.mul_add(b, c)),
        _ => return None,
    })
}

/// One source of `f32` or `f64`. `name` keeps what is not a rounding, like `ex2.approx`.
pub(super) fn unary(name: &str, ty: Ty, mode: Mode) -> Option<Fun> {
    match ty {
        Ty::F32 => unary_f32(name, mode),
        Ty::F64 => Some(match name {
            "neg" => lanes!(D: (a: u64) => a ^ 1 << 63),
            "abs" => lanes!(D: (a: u64) => a & !(1 << 63)),
            "sqrt" => lanes!(D: (a: f64) => a.sqrt()),
            "rcp" | "rcp.approx" => lanes!(D: (a: f64) => 1.0 / a),
            "rsqrt.approx" => lanes!(D: (a: f64) => 1.0 / a.sqrt()),
            _ => return None,
        }),
        _ => None,
    }
}

fn unary_f32(name: &str, mode: Mode) -> Option<Fun> {
    if mode != Mode::Near {
        return match (name, mode) {
            ("sqrt", Mode::Zero) => Some(lanes!(L: (a: f32) => to_f32(sqrt_odd(a), Mode::Zero))),
            ("sqrt", Mode::Up) => Some(lanes!(L: (a: f32) => to_f32(sqrt_odd(a), Mode::Up))),
            ("sqrt", Mode::Down) => Some(lanes!(L: (a: f32) => to_f32(sqrt_odd(a), Mode::Down))),
            ("rcp", Mode::Zero) => Some(lanes!(L: (a: f32) => to_f32(div_odd(1.0, a), Mode::Zero))),
            ("rcp", Mode::Up) => Some(lanes!(L: (a: f32) => to_f32(div_odd(1.0, a), Mode::Up))),
            ("rcp", Mode::Down) => Some(lanes!(L: (a: f32) => to_f32(div_odd(1.0, a), Mode::Down))),
            _ => None,
        };
    }
    Some(match name {
        "neg" => lanes!(L: (a: u32) => a ^ 1 << 31),
        "abs" => lanes!(L: (a: u32) => a & !(1 << 31)),
        "sqrt" | "sqrt.approx" => lanes!(L: (a: f32) => a.sqrt()),
        "rcp" | "rcp.approx" => lanes!(L: (a: f32) => 1.0 / a),
        "rsqrt.approx" => lanes!(L: (a: f32) => (1.0 / f64::from(a).sqrt()) as f32),
        "ex2.approx" => lanes!(L: (a: f32) => f64::from(a).exp2() as f32),
        "lg2.approx" => lanes!(L: (a: f32) => f64::from(a).log2() as f32),
        "sin.approx" => lanes!(L: (a: f32) => f64::from(a).sin() as f32),
        "cos.approx" => lanes!(L: (a: f32) => f64::from(a).cos() as f32),
        "tanh.approx" => lanes!(L: (a: f32) => f64::from(a).tanh() as f32),
        "flush" => lanes!(L: (a: u32) => num::flush(a)),
        // A NaN saturates to zero.
        "sat" => lanes!(L: (a: f32) => if a > 0.0 { a.min(1.0) } else { 0.0 }),
        _ => return None,
    })
}

/// Lifts an operation on `f32` values of 16-bit operands; packed types work on both halves.
macro_rules! narrow {
    ($ty:expr; $variant:ident ($($arg:ident),+) => $value:expr) => {
        match $ty {
            Ty::F16 => Some(lanes!($variant: ($($arg: u32),+) => {
                $(let $arg = f16($arg);)+
                to_f16($value)
            })),
            Ty::BF16 => Some(lanes!($variant: ($($arg: u32),+) => {
                $(let $arg = bf16($arg);)+
                to_bf16($value)
            })),
            Ty::F16x2 => Some(lanes!($variant: ($($arg: u32),+) => {
                let low = { $(let $arg = f16($arg & 0xffff);)+ to_f16($value) };
                let high = { $(let $arg = f16($arg >> 16);)+ to_f16($value) };
                low | high << 16
            })),
            Ty::BF16x2 => Some(lanes!($variant: ($($arg: u32),+) => {
                let low = { $(let $arg = bf16($arg & 0xffff);)+ to_bf16($value) };
                let high = { $(let $arg = bf16($arg >> 16);)+ to_bf16($value) };
                low | high << 16
            })),
            _ => None,
        }
    };
}

/// Arithmetic of 16-bit formats. Sums and products of them round twice through `f32` without harm:
/// 24 bits are at least twice 11 (or 8) plus two.
pub(super) fn narrow_binary(name: &str, ty: Ty) -> Option<Fun> {
    match name {
        "add" => narrow!(ty; LL (a, b) => a + b),
        "sub" => narrow!(ty; LL (a, b) => a - b),
        "mul" => narrow!(ty; LL (a, b) => a * b),
        "min" => narrow!(ty; LL (a, b) => min(a, b)),
        "max" => narrow!(ty; LL (a, b) => max(a, b)),
        "min.NaN" => narrow!(ty; LL (a, b) => nan_or(a, b, min(a, b))),
        "max.NaN" => narrow!(ty; LL (a, b) => nan_or(a, b, max(a, b))),
        _ => None,
    }
}

/// `a * b + c`, rounded to an odd `f32`, so that the rounding to 16 bits is the only one.
fn fma_narrow(a: f32, b: f32, c: f32) -> f32 {
    let wide = num::fma_odd(a, b, c);
    let short = to_f32(wide, Mode::Zero);
    let exact = f64::from(short) == wide || !wide.is_finite();
    if exact { short } else { f32::from_bits(short.to_bits() | 1) }
}

/// Negative values become zero; a NaN stays.
fn relu_of(a: f32) -> f32 {
    if a.is_nan() { a } else { max(a, 0.0) }
}

/// Fused multiply-add of 16-bit formats.
pub(super) fn narrow_fma(ty: Ty, relu: bool) -> Option<Fun> {
    if relu {
        return narrow!(ty; LLL (a, b, c) => relu_of(fma_narrow(a, b, c)));
    }
    narrow!(ty; LLL (a, b, c) => fma_narrow(a, b, c))
}

/// One source of a 16-bit format.
pub(super) fn narrow_unary(name: &str, ty: Ty) -> Option<Fun> {
    let packed = matches!(ty, Ty::F16x2 | Ty::BF16x2);
    match name {
        "neg" if packed => Some(lanes!(L: (a: u32) => a ^ 0x8000_8000)),
        "neg" => Some(lanes!(L: (a: u32) => a ^ 0x8000)),
        "abs" if packed => Some(lanes!(L: (a: u32) => a & 0x7fff_7fff)),
        "abs" => Some(lanes!(L: (a: u32) => a & 0x7fff)),
        "ex2.approx" => narrow!(ty; L (a) => f64::from(a).exp2() as f32),
        "tanh.approx" => narrow!(ty; L (a) => f64::from(a).tanh() as f32),
        "sat" => narrow!(ty; L (a) => if a > 0.0 { a.min(1.0) } else { 0.0 }),
        "relu" => narrow!(ty; L (a) => relu_of(a)),
        _ => None,
    }
}

/// Lifts a comparison for each floating-point type.
macro_rules! by_float {
    ($ty:expr; ($a:ident, $b:ident) => $value:expr) => {
        match $ty {
            Ty::F32 => Some(lanes!(LLtoP: ($a: f32, $b: f32) => $value)),
            Ty::F64 => Some(lanes!(DDtoP: ($a: f64, $b: f64) => $value)),
            Ty::F16 => Some(lanes!(LLtoP: ($a: u32, $b: u32) => {
                let ($a, $b) = (f16($a), f16($b));
                $value
            })),
            Ty::BF16 => Some(lanes!(LLtoP: ($a: u32, $b: u32) => {
                let ($a, $b) = (bf16($a), bf16($b));
                $value
            })),
            _ => None,
        }
    };
}

/// A comparison of floats, to a predicate; names that end in `u` hold for NaN.
#[expect(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::double_comparisons,
    reason = "comparisons of NaN are told apart by how they are negated"
)]
pub(super) fn compare(name: &str, ty: Ty) -> Option<Fun> {
    match name {
        "eq" => by_float!(ty; (a, b) => a == b),
        "ne" => by_float!(ty; (a, b) => a < b || a > b),
        "lt" => by_float!(ty; (a, b) => a < b),
        "le" => by_float!(ty; (a, b) => a <= b),
        "gt" => by_float!(ty; (a, b) => a > b),
        "ge" => by_float!(ty; (a, b) => a >= b),
        "equ" => by_float!(ty; (a, b) => !(a < b || a > b)),
        "neu" => by_float!(ty; (a, b) => a != b),
        "ltu" => by_float!(ty; (a, b) => !(a >= b)),
        "leu" => by_float!(ty; (a, b) => !(a > b)),
        "gtu" => by_float!(ty; (a, b) => !(a <= b)),
        "geu" => by_float!(ty; (a, b) => !(a < b)),
        "num" => by_float!(ty; (a, b) => !a.is_nan() && !b.is_nan()),
        "nan" => by_float!(ty; (a, b) => a.is_nan() || b.is_nan()),
        _ => None,
    }
}

/// `testp`.
pub(super) fn test(name: &str, ty: Ty) -> Option<Fun> {
    macro_rules! both {
        (($a:ident) => $value:expr) => {
            match ty {
                Ty::F32 => Some(lanes!(LtoP: ($a: f32) => $value)),
                Ty::F64 => Some(lanes!(DtoP: ($a: f64) => $value)),
                _ => None,
            }
        };
    }
    match name {
        "finite" => both!((a) => a.is_finite()),
        "infinite" => both!((a) => a.is_infinite()),
        "number" => both!((a) => !a.is_nan()),
        "notanumber" => both!((a) => a.is_nan()),
        "normal" => both!((a) => a.is_normal()),
        "subnormal" => both!((a) => a.is_subnormal()),
        _ => None,
    }
}
