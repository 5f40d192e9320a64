//! `cvt` between all scalar types.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    reason = "conversions are what this file is about"
)]

use super::inst::Fun;
use super::lanes::lanes;
use super::num::{self, Format, Mode, bf16, f16, to_bf16, to_f16};
use crate::ptx::ast::Ty;

/// A conversion that has no function of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Convert {
    pub(crate) to: Ty,
    pub(crate) from: Ty,
    pub(crate) mode: Mode,
    pub(crate) saturate: bool,
    pub(crate) flush: bool,
    pub(crate) relu: bool,
    /// A signed result is extended to the whole register.
    pub(crate) extend: bool,
    /// The modifier rounds to an integer, like `rni`.
    pub(crate) integral: bool,
}

/// The frequent conversions.
pub(super) fn fast(convert: Convert) -> Option<Fun> {
    let Convert { to, from, mode, saturate, flush, relu, extend, .. } = convert;
    if saturate || flush || relu {
        return None;
    }
    Some(match (to, from, mode) {
        (Ty::F32, Ty::F16, _) => lanes!(L: (a: u32) => f16(a)),
        (Ty::F32, Ty::BF16, _) => lanes!(L: (a: u32) => bf16(a)),
        (Ty::F16, Ty::F32, Mode::Near) => lanes!(L: (a: f32) => to_f16(a)),
        (Ty::BF16, Ty::F32, Mode::Near) => lanes!(L: (a: f32) => to_bf16(a)),
        (Ty::F32, Ty::S32, Mode::Near) => lanes!(L: (a: i32) => a as f32),
        (Ty::F32, Ty::U32, Mode::Near) => lanes!(L: (a: u32) => a as f32),
        (Ty::F32, Ty::S16, Mode::Near) => lanes!(L: (a: i16) => f32::from(a)),
        (Ty::F32, Ty::U16, Mode::Near) => lanes!(L: (a: u16) => f32::from(a)),
        (Ty::F32, Ty::S8, Mode::Near) => lanes!(L: (a: i8) => f32::from(a)),
        (Ty::F32, Ty::U8, Mode::Near) => lanes!(L: (a: u8) => f32::from(a)),
        // Rust's casts saturate and take NaN to zero, like the device.
        (Ty::S32, Ty::F32, Mode::Zero) => lanes!(L: (a: f32) => a as i32),
        (Ty::U32, Ty::F32, Mode::Zero) => lanes!(L: (a: f32) => a as u32),
        (Ty::S32, Ty::F32, Mode::Near) => lanes!(L: (a: f32) => a.round_ties_even() as i32),
        (Ty::F64, Ty::F32, _) => lanes!(LtoD: (a: f32) => f64::from(a)),
        (Ty::F32, Ty::F64, Mode::Near) => lanes!(DtoL: (a: f64) => a as f32),
        (Ty::F64, Ty::S32, _) => lanes!(LtoD: (a: i32) => f64::from(a)),
        (Ty::U32 | Ty::S32, Ty::U32 | Ty::S32, _) => lanes!(L: (a: u32) => a),
        (Ty::U32 | Ty::S32, Ty::U16, _) => lanes!(L: (a: u16) => u32::from(a)),
        (Ty::U32 | Ty::S32, Ty::S16, _) => lanes!(L: (a: i16) => i32::from(a)),
        (Ty::U32 | Ty::S32, Ty::U8, _) => lanes!(L: (a: u8) => u32::from(a)),
        (Ty::U32 | Ty::S32, Ty::S8, _) => lanes!(L: (a: i8) => i32::from(a)),
        (Ty::U16, Ty::U32 | Ty::S32, _) => lanes!(L: (a: u16) => a),
        (Ty::U64 | Ty::S64, Ty::U32, _) => lanes!(LtoD: (a: u32) => u64::from(a)),
        (Ty::U64 | Ty::S64, Ty::S32, _) => lanes!(LtoD: (a: i32) => i64::from(a)),
        (Ty::U32 | Ty::S32, Ty::U64 | Ty::S64, _) => lanes!(DtoL: (a: u64) => a as u32),
        (Ty::U16, Ty::U64 | Ty::S64, _) if !extend => lanes!(DtoL: (a: u64) => a as u16),
        _ => return None,
    })
}

/// A value on its way.
#[derive(Clone, Copy)]
enum Value {
    Int(i128),
    /// Exact, or rounded to odd.
    Float(f64),
}

impl Convert {
    /// Whether the pair of types is one that `cvt` has.
    pub(super) fn is_known(self) -> bool {
        let scalar = |ty: Ty| !matches!(ty, Ty::Pred | Ty::B128 | Ty::F16x2 | Ty::BF16x2);
        let exact = self.to != Ty::F64 || self.mode == Mode::Near || self.from.is_float();
        scalar(self.to) && scalar(self.from) && self.from != Ty::TF32 && exact
    }

    /// Converts one lane.
    pub(super) fn lane(self, raw: u64) -> u64 {
        let value = match self.read(raw) {
            Value::Float(value) if self.to.is_float() => return self.float(value),
            Value::Int(value) if self.to.is_float() => return self.float_of_int(value),
            Value::Float(value) if value.is_nan() => {
                let wide = self.from == Ty::F64 || self.to.bytes() == 8;
                return if wide { 1 << (self.to.bits() - 1) } else { 0 };
            }
            Value::Float(value) => self.clamp(num::integral(value, self.mode) as i128),
            Value::Int(value) if self.saturate => self.clamp(value),
            Value::Int(value) => value,
        };
        self.integer(value as u64)
    }

    fn read(self, raw: u64) -> Value {
        let low = raw as u32;
        let flushed = |value: f64| {
            let subnormal = value != 0.0 && value.abs() < f64::from(f32::MIN_POSITIVE);
            if self.flush && subnormal { 0.0_f64.copysign(value) } else { value }
        };
        match self.from {
            Ty::F16 => Value::Float(f64::from(f16(low & 0xffff))),
            Ty::BF16 => Value::Float(f64::from(bf16(low & 0xffff))),
            Ty::F32 => Value::Float(flushed(f64::from(f32::from_bits(low)))),
            Ty::F64 => Value::Float(f64::from_bits(raw)),
            Ty::S8 => Value::Int(i128::from(raw as i8)),
            Ty::S16 => Value::Int(i128::from(raw as i16)),
            Ty::S32 => Value::Int(i128::from(raw as i32)),
            Ty::S64 => Value::Int(i128::from(raw as i64)),
            ty => Value::Int(i128::from(raw & (u64::MAX >> (64 - ty.bits())))),
        }
    }

    fn clamp(self, value: i128) -> i128 {
        let bits = self.to.bits();
        if self.to.is_signed() {
            value.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        } else {
            value.clamp(0, (1 << bits) - 1)
        }
    }

    /// Cuts to the result type; zero- or sign-extends to 16 bits or to the register.
    fn integer(self, value: u64) -> u64 {
        let unused = 64 - self.to.bits();
        let zero = value << unused >> unused;
        if !self.to.is_signed() {
            return zero;
        }
        let signed = ((value << unused) as i64 >> unused) as u64;
        match (self.extend, self.to.bytes()) {
            (true, _) | (_, 8) => signed,
            (false, 4) => signed & 0xffff_ffff,
            // A register of 16 bits.
            (false, _) => signed & 0xffff,
        }
    }

    fn float_of_int(self, value: i128) -> u64 {
        if self.to == Ty::F64 {
            return (value as f64).to_bits();
        }
        let near = value as f64;
        let error = (value - near as i128) as f64;
        self.float(num::to_odd(near, error))
    }

    fn float(self, value: f64) -> u64 {
        let mut value = value;
        if self.integral {
            value = num::integral(value, self.mode);
        }
        if self.saturate {
            value = if value > 0.0 { value.min(1.0) } else { 0.0 };
        }
        if self.relu && !value.is_nan() {
            value = value.max(0.0);
        }
        let format: Format = match self.to {
            Ty::F16 => num::F16,
            Ty::BF16 => num::BF16,
            Ty::F32 => num::F32,
            Ty::TF32 => return u64::from(num::round(value, num::TF32, self.mode)) << 13,
            _ => return value.to_bits(),
        };
        let bits = num::round(value, format, self.mode);
        u64::from(if self.flush && self.to == Ty::F32 { num::flush(bits) } else { bits })
    }
}
