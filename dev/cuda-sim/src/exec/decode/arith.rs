//! Floating-point arithmetic, and arithmetic with carry.

use super::{Decoder, Result};
use crate::exec::inst::{Bool, File, Fun, Op};
use crate::exec::lanes::lanes;
use crate::exec::num::Mode;
use crate::exec::{float, int};
use crate::ptx::ast::{Operand, Ty};

/// Modifiers of a floating-point instruction.
#[derive(Default)]
struct Mods {
    mode: Option<Mode>,
    flush: bool,
    saturate: bool,
    relu: bool,
    /// What stays part of the name, like `approx`.
    rest: String,
}

fn mods(name: &str, parts: &[&str]) -> Mods {
    let mut out = Mods { rest: name.to_owned(), ..Mods::default() };
    for part in parts {
        match (*part, Mode::parse(part)) {
            (_, Some(mode)) => out.mode = Some(mode),
            ("ftz", _) => out.flush = true,
            ("sat", _) => out.saturate = true,
            ("relu", _) => out.relu = true,
            // Quotients are right in every approximation that is allowed.
            ("full" | "approx", _) if name == "div" => {}
            ("lo", _) => {}
            (other, _) => {
                out.rest.push('.');
                out.rest.push_str(other);
            }
        }
    }
    out
}

impl Decoder<'_> {
    /// Decodes float arithmetic; `false` if it is not known.
    pub(super) fn float(
        &mut self,
        name: &str,
        parts: &[&str],
        ty: Ty,
        operands: &[Operand],
    ) -> Result<bool> {
        let mods = mods(name, parts);
        let Some(fun) = pick(name, &mods, ty, operands.len()) else { return Ok(false) };
        let [dst, sources @ ..] = operands else { return Ok(false) };
        let (files, file) = fun.files();
        if files.len() != sources.len() {
            return Ok(false);
        }
        let flush =
            if mods.flush && ty == Ty::F32 { float::unary("flush", ty, Mode::Near) } else { None };
        let mut s = [0; 4];
        for (slot, operand) in s.iter_mut().zip(sources) {
            *slot = self.source(operand, ty)?;
            if let Some(flush) = flush {
                *slot = self.raw(flush, [*slot, 0, 0, 0])?;
            }
        }
        // What happens to the result before it reaches its register.
        let mut tail = Vec::new();
        if mods.saturate {
            let sat = float::unary("sat", ty, Mode::Near).or(float::narrow_unary("sat", ty));
            let Some(sat) = sat else { return Ok(false) };
            tail.push(sat);
        }
        if mods.relu && !name.starts_with("fma") {
            return Ok(false);
        }
        tail.extend(flush);
        let d = self.result(dst, file, ty)?;
        let Some(last) = tail.pop() else {
            self.push_last(Op::Fun { fun, d, s })?;
            return Ok(true);
        };
        let mut value = self.raw(fun, s)?;
        for step in tail {
            value = self.raw(step, [value, 0, 0, 0])?;
        }
        self.push_last(Op::Fun { fun: last, d, s: [value, 0, 0, 0] })?;
        Ok(true)
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc` and `madc`.
    pub(super) fn carry(
        &mut self,
        name: &str,
        parts: &[&str],
        ty: Ty,
        operands: &[Operand],
    ) -> Result<bool> {
        let wide = ty.bytes() == 8;
        let unsigned = if wide { Ty::U64 } else { Ty::U32 };
        let [dst, a, b, rest @ ..] = operands else { return Ok(false) };
        let (mut a, mut b) = (self.source(a, ty)?, self.source(b, ty)?);
        if name.starts_with("mad") {
            let [c] = rest else { return Ok(false) };
            let half = if parts.contains(&"hi") { "mul.hi" } else { "mul.lo" };
            let Some(fun) = int::binary(half, ty) else { return Ok(false) };
            a = self.raw(fun, [a, b, 0, 0])?;
            b = self.source(c, ty)?;
        }
        let minus = name.starts_with("sub");
        let op = if minus { "sub" } else { "add" };
        let (Some(fun), Some(less)) = (int::binary(op, unsigned), int::compare("lt", unsigned))
        else {
            return Ok(false);
        };
        let carry = self.carry_register();
        let (value, mut out) = self.with_carry(fun, less, minus, (a, b))?;
        let mut value = value;
        if name.ends_with('c') {
            let one = self.carry_value(carry, wide)?;
            let (second, out2) = self.with_carry(fun, less, minus, (value, one))?;
            let both = self.temp(File::P);
            self.push(Op::Pred { op: Bool::Or, d: both, a: out, b: out2 })?;
            (value, out) = (second, both);
        }
        if parts.contains(&"cc") {
            self.push(Op::Pred { op: Bool::First, d: carry, a: out, b: out })?;
        }
        let file = if wide { File::D } else { File::L };
        let d = self.result(dst, file, ty)?;
        self.push_last(if wide { Op::MovD { d, a: value } } else { Op::MovL { d, a: value } })?;
        Ok(true)
    }

    fn carry_register(&mut self) -> u32 {
        match self.carry {
            Some(reg) => reg,
            None => {
                let reg = self.temp(File::P);
                self.carry = Some(reg);
                reg
            }
        }
    }

    /// A sum or difference, and whether it wrapped.
    fn with_carry(
        &mut self,
        fun: Fun,
        less: Fun,
        minus: bool,
        (a, b): (u32, u32),
    ) -> Result<(u32, u32)> {
        let value = self.raw(fun, [a, b, 0, 0])?;
        let (left, right) = if minus { (a, b) } else { (value, a) };
        let out = self.raw(less, [left, right, 0, 0])?;
        Ok((value, out))
    }

    fn carry_value(&mut self, carry: u32, wide: bool) -> Result<u32> {
        let d = self.temp(File::L);
        self.push(Op::FromPred { d, p: carry, bits: 1 })?;
        if !wide {
            return Ok(d);
        }
        self.raw(lanes!(LtoD: (a: u32) => u64::from(a)), [d, 0, 0, 0])
    }
}

fn pick(name: &str, mods: &Mods, ty: Ty, operands: usize) -> Option<Fun> {
    let mode = mods.mode.unwrap_or(Mode::Near);
    let rest = mods.rest.as_str();
    let narrow = matches!(ty, Ty::F16 | Ty::BF16 | Ty::F16x2 | Ty::BF16x2);
    if narrow && mode != Mode::Near {
        return None;
    }
    match (name, operands) {
        ("fma", 4) if narrow => narrow_fma(rest, mods, ty),
        ("fma" | "mad", 4) if rest == name => float::fma(ty, mode),
        (_, 3) if narrow => float::narrow_binary(rest, ty),
        (_, 3) => float::binary(rest, ty, mode),
        (_, 2) if narrow => float::narrow_unary(rest, ty),
        (_, 2) => float::unary(rest, ty, mode),
        _ => None,
    }
}

fn narrow_fma(rest: &str, mods: &Mods, ty: Ty) -> Option<Fun> {
    if rest == "fma" { float::narrow_fma(ty, mods.relu) } else { None }
}
