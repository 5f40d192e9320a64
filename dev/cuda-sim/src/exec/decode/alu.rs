//! Integer, logic, move and compare instructions.

use super::{Decoder, Result, file_of};
use crate::exec::convert::{self, Convert};
use crate::exec::inst::{Bool, File, Fun, Op};
use crate::exec::lanes::lanes;
use crate::exec::num::Mode;
use crate::exec::{float, int};
use crate::ptx::ast::{Class, Operand, Place, Ty};

impl Decoder<'_> {
    /// Decodes an instruction without memory; `false` if it is not known.
    pub(super) fn alu(&mut self, parts: &[&str], operands: &[Operand]) -> Result<bool> {
        let Some(ty) = parts.last().and_then(|part| Ty::parse(part)) else {
            return self.alu_untyped(parts, operands);
        };
        let mods = &parts[1..parts.len() - 1];
        match parts[0] {
            "mov" => self.mov(ty, operands)?,
            "setp" => return self.setp(mods, ty, operands),
            "set" => return self.set(mods, ty, operands),
            "selp" => return self.selp(ty, operands),
            "slct" => return self.slct(mods, operands),
            "cvt" => return self.cvt(mods, ty, operands),
            "testp" => return self.testp(mods, ty, operands),
            "and" | "or" | "xor" | "not" if ty == Ty::Pred => {
                return self.logic(parts[0], operands);
            }
            "shl" | "shr" => return self.shift(parts[0], ty, operands),
            "shf" => return self.funnel(mods, operands),
            "lop3" => return self.lop3(mods, operands),
            "bfe" | "bfi" | "bmsk" => return self.bit_field(parts[0], ty, operands),
            "prmt" => return self.lookup(int::prmt(""), ty, operands, &[ty; 3]),
            "dp4a" | "dp2a" => return self.dot(parts, operands),
            "fns" => {
                let types = [Ty::B32, Ty::U32, Ty::S32];
                return self.lookup(Some(int::find_nth_set()), Ty::B32, operands, &types);
            }
            "vabsdiff4" if matches!(mods, ["u32", a] if Ty::parse(a) == Some(ty)) => {
                let fun = int::absolute_differences(ty, false);
                return self.lookup(fun, Ty::U32, operands, &[Ty::U32; 3]);
            }
            "bfind" | "popc" | "clz" | "brev" => return self.count(parts[0], mods, ty, operands),
            "add" | "addc" | "sub" | "subc" | "mad" | "madc"
                if mods.contains(&"cc") || parts[0].ends_with('c') =>
            {
                return self.carry(parts[0], mods, ty, operands);
            }
            _ if ty.is_float() => return self.float(parts[0], mods, ty, operands),
            _ => return self.integer(parts[0], mods, ty, operands),
        }
        Ok(true)
    }

    fn alu_untyped(&mut self, parts: &[&str], operands: &[Operand]) -> Result<bool> {
        match parts {
            [name @ ("add" | "min" | "max"), pair] => {
                self.lookup(int::halves(name, pair), Ty::B32, operands, &[Ty::B32; 2])
            }
            ["vabsdiff4", "u32", a, b, "add"] if a == b => {
                let fun = Ty::parse(a).and_then(|ty| int::absolute_differences(ty, true));
                self.lookup(fun, Ty::U32, operands, &[Ty::U32; 3])
            }
            ["prmt", "b32", mode] => self.lookup(int::prmt(mode), Ty::B32, operands, &[Ty::B32; 3]),
            _ => Ok(false),
        }
    }

    /// Emits `fun`, if there is one, with sources of these types.
    fn lookup(
        &mut self,
        fun: Option<Fun>,
        ty: Ty,
        operands: &[Operand],
        types: &[Ty],
    ) -> Result<bool> {
        let Some(fun) = fun else { return Ok(false) };
        let [dst, sources @ ..] = operands else { return Ok(false) };
        if sources.len() < fun.files().0.len() {
            return Ok(false);
        }
        let typed: Vec<(&Operand, Ty)> = sources.iter().zip(types.iter().copied()).collect();
        self.fun(fun, (dst, ty), &typed)?;
        Ok(true)
    }

    fn integer(&mut self, name: &str, mods: &[&str], ty: Ty, operands: &[Operand]) -> Result<bool> {
        if mods == ["sat"] && ty == Ty::S32 {
            let fun = match name {
                "add" => lanes!(LL: (a: i32, b: i32) => a.saturating_add(b)),
                "sub" => lanes!(LL: (a: i32, b: i32) => a.saturating_sub(b)),
                _ => return Ok(false),
            };
            return self.lookup(Some(fun), ty, operands, &[ty; 2]);
        }
        let full = match mods {
            [] => name.to_owned(),
            [part @ ("lo" | "hi" | "wide")] => format!("{name}.{part}"),
            _ => return Ok(false),
        };
        let wide = mods == ["wide"];
        let to = match (wide, ty) {
            (true, Ty::U16) => Ty::U32,
            (true, Ty::S16) => Ty::S32,
            (true, Ty::U32) => Ty::U64,
            (true, Ty::S32) => Ty::S64,
            _ => ty,
        };
        let fun = match operands.len() {
            2 => int::unary(&full, ty),
            3 => int::binary(&full, ty),
            4 => int::mad(&full, ty),
            _ => None,
        };
        self.lookup(fun, to, operands, &[ty, ty, to])
    }

    fn count(&mut self, name: &str, mods: &[&str], ty: Ty, operands: &[Operand]) -> Result<bool> {
        let fun = match (name, mods) {
            ("bfind", ["shiftamt"]) => int::shift_amount(ty),
            (_, []) => int::unary(name, ty),
            _ => None,
        };
        let to = if name == "brev" { ty } else { Ty::U32 };
        self.lookup(fun, to, operands, &[ty])
    }

    fn shift(&mut self, name: &str, ty: Ty, operands: &[Operand]) -> Result<bool> {
        self.lookup(int::shift(name, ty), ty, operands, &[ty, Ty::U32])
    }

    fn bit_field(&mut self, name: &str, ty: Ty, operands: &[Operand]) -> Result<bool> {
        let types: &[Ty] = match name {
            "bfe" => &[ty, Ty::U32, Ty::U32],
            "bfi" => &[ty, ty, Ty::U32, Ty::U32],
            _ => &[Ty::U32; 2],
        };
        self.lookup(int::bit_field(name, ty), ty, operands, types)
    }

    fn funnel(&mut self, mods: &[&str], operands: &[Operand]) -> Result<bool> {
        let [side @ ("l" | "r"), mode @ ("wrap" | "clamp")] = mods else { return Ok(false) };
        let fun = int::funnel(*side == "l", *mode == "clamp");
        self.lookup(Some(fun), Ty::B32, operands, &[Ty::B32; 3])
    }

    fn lop3(&mut self, mods: &[&str], operands: &[Operand]) -> Result<bool> {
        let [_, _, _, _, Operand::Int(table)] = operands else { return Ok(false) };
        let Ok(table) = u8::try_from(*table) else { return Ok(false) };
        if !mods.is_empty() {
            return Ok(false);
        }
        self.lookup(Some(int::lop3(u32::from(table))), Ty::B32, operands, &[Ty::B32; 4])
    }

    fn dot(&mut self, parts: &[&str], operands: &[Operand]) -> Result<bool> {
        let fun = match parts {
            ["dp4a", a, b] => match (Ty::parse(a), Ty::parse(b)) {
                (Some(a), Some(b)) => int::dp4a(a, b),
                _ => None,
            },
            ["dp2a", half @ ("lo" | "hi"), a, b] => match (Ty::parse(a), Ty::parse(b)) {
                (Some(a), Some(b)) => int::dp2a(*half == "hi", a, b),
                _ => None,
            },
            _ => None,
        };
        self.lookup(fun, Ty::B32, operands, &[Ty::B32; 3])
    }

    fn logic(&mut self, name: &str, operands: &[Operand]) -> Result<bool> {
        let op = match name {
            "and" => Bool::And,
            "or" => Bool::Or,
            "xor" => Bool::Xor,
            _ => Bool::Not,
        };
        let (dst, a, b) = match operands {
            [dst, a] => (dst, a, a),
            [dst, a, b] => (dst, a, b),
            _ => return Ok(false),
        };
        let (a, b) = (self.plain_p(a)?, self.plain_p(b)?);
        let d = self.result(dst, File::P, Ty::Pred)?;
        self.push_last(Op::Pred { op, d, a, b })?;
        Ok(true)
    }

    fn mov(&mut self, ty: Ty, operands: &[Operand]) -> Result<()> {
        match operands {
            [Operand::Vector(parts), source] => self.unpack(ty, parts, source),
            [dst, Operand::Vector(parts)] => self.pack(ty, dst, parts),
            [dst, source] if ty == Ty::Pred => {
                let a = self.plain_p(source)?;
                let d = self.result(dst, File::P, ty)?;
                self.push_last(Op::Pred { op: Bool::First, d, a, b: a })
            }
            // The address of dynamic shared memory plus an offset is computed.
            [dst, Operand::Var(Place::SharedDynamic, offset)] if *offset != 0 => {
                let base = self.d(&Operand::Var(Place::SharedDynamic, 0))?;
                let more = self.d(&Operand::Int(offset.cast_unsigned()))?;
                let fun = lanes!(DD: (a: u64, b: u64) => a.wrapping_add(b));
                let d = self.result(dst, File::D, Ty::U64)?;
                self.push_last(Op::Fun { fun, d, s: [base, more, 0, 0] })
            }
            [dst, source] => {
                let a = self.source(source, ty)?;
                let file = if ty.bytes() == 8 { File::D } else { File::L };
                let d = self.result(dst, file, ty)?;
                self.push_last(match file {
                    File::D => Op::MovD { d, a },
                    _ => Op::MovL { d, a },
                })
            }
            _ => self.unknown(),
        }
    }

    /// `mov.b32 r, {a, b}` and the like.
    fn pack(&mut self, ty: Ty, dst: &Operand, parts: &[Operand]) -> Result<()> {
        let fun = match (ty.bytes(), parts.len()) {
            (4, 2) => lanes!(LL: (a: u16, b: u16) => u32::from(a) | u32::from(b) << 16),
            (8, 2) => lanes!(LLtoD: (a: u32, b: u32) => u64::from(a) | u64::from(b) << 32),
            (4, 4) => {
                let low = lanes!(LL: (a: u8, b: u8) => u32::from(a) | u32::from(b) << 8);
                return self.pack_four(low, dst, parts, Ty::B8);
            }
            (8, 4) => {
                let low = lanes!(LL: (a: u16, b: u16) => u32::from(a) | u32::from(b) << 16);
                return self.pack_four(low, dst, parts, Ty::B16);
            }
            (2, 2) => lanes!(LL: (a: u8, b: u8) => u32::from(a) | u32::from(b) << 8),
            _ => return self.unknown(),
        };
        let part = match ty.bytes() {
            4 => Ty::B16,
            8 => Ty::B32,
            _ => Ty::B8,
        };
        let typed: Vec<(&Operand, Ty)> = parts.iter().map(|operand| (operand, part)).collect();
        self.fun(fun, (dst, ty), &typed)
    }

    fn pack_four(&mut self, pair: Fun, dst: &Operand, parts: &[Operand], ty: Ty) -> Result<()> {
        let mut s = [0; 4];
        for (slot, operand) in s.iter_mut().zip(parts) {
            *slot = self.l(operand, ty)?;
        }
        let low = self.raw(pair, [s[0], s[1], 0, 0])?;
        let high = self.raw(pair, [s[2], s[3], 0, 0])?;
        let (fun, file) = if ty == Ty::B8 {
            (lanes!(LL: (a: u32, b: u32) => a | b << 16), File::L)
        } else {
            (lanes!(LLtoD: (a: u32, b: u32) => u64::from(a) | u64::from(b) << 32), File::D)
        };
        let d = self.result(dst, file, Ty::B32)?;
        self.push_last(Op::Fun { fun, d, s: [low, high, 0, 0] })
    }

    /// `mov.b32 {a, b}, r` and the like.
    fn unpack(&mut self, ty: Ty, parts: &[Operand], source: &Operand) -> Result<()> {
        let from = self.source(source, ty)?;
        let bits = ty.bits() / u32::try_from(parts.len().max(1)).unwrap_or(u32::MAX);
        for (index, part) in parts.iter().enumerate() {
            if *part == Operand::Sink {
                continue;
            }
            let at = u32::try_from(index).expect("a vector is short") * bits;
            let shift = self.bits(at);
            let fun = match (ty.bytes(), bits) {
                (8, 32) if index == 0 => lanes!(DtoL: (a: u64) => (a & 0xffff_ffff) as u32),
                (8, 32) => lanes!(DtoL: (a: u64) => (a >> 32) as u32),
                (8, 16) => {
                    let moved = lanes!(DL: (a: u64, b: u32) => a >> (b & 63) & 0xffff);
                    let moved = self.raw(moved, [from, shift, 0, 0])?;
                    let fun = lanes!(DtoL: (a: u64) => (a & 0xffff) as u32);
                    let d = self.result(part, File::L, Ty::B16)?;
                    self.push_last(Op::Fun { fun, d, s: [moved, 0, 0, 0] })?;
                    continue;
                }
                (4, 16) => lanes!(LL: (a: u32, b: u32) => a >> (b & 31) & 0xffff),
                (4 | 2, 8) => lanes!(LL: (a: u32, b: u32) => a >> (b & 31) & 0xff),
                _ => return self.unknown(),
            };
            let d = self.result(part, File::L, if bits == 32 { Ty::B32 } else { Ty::B16 })?;
            self.push_last(Op::Fun { fun, d, s: [from, shift, 0, 0] })?;
        }
        Ok(())
    }

    fn setp(&mut self, mods: &[&str], ty: Ty, operands: &[Operand]) -> Result<bool> {
        let mods: Vec<&str> = mods.iter().copied().filter(|part| *part != "ftz").collect();
        let (name, bool_op) = match mods[..] {
            [name] => (name, None),
            [name, "and"] => (name, Some(Bool::And)),
            [name, "or"] => (name, Some(Bool::Or)),
            [name, "xor"] => (name, Some(Bool::Xor)),
            _ => return Ok(false),
        };
        let [dst, a, b, rest @ ..] = operands else { return Ok(false) };
        let with = match (bool_op, rest) {
            (Some(op), [operand]) => {
                let (reg, negated) = self.p(operand)?;
                Some((op, reg, negated))
            }
            (None, []) => None,
            _ => return Ok(false),
        };
        if matches!(ty, Ty::F16x2 | Ty::BF16x2) {
            return self.setp_pair(name, ty, dst, (a, b), with);
        }
        let Some(fun) = compare(name, ty) else { return Ok(false) };
        let s = [self.source(a, ty)?, self.source(b, ty)?];
        let (d, q) = match dst {
            Operand::Pair(p, q) => {
                let q = match **q {
                    Operand::Sink => None,
                    _ => Some(self.result(q, File::P, Ty::Pred)?),
                };
                (self.result(p, File::P, Ty::Pred)?, q)
            }
            one => (self.result(one, File::P, Ty::Pred)?, None),
        };
        self.push_last(Op::SetP { fun, d, q, s, with })?;
        Ok(true)
    }

    /// Both halves of a packed pair, to two predicates.
    fn setp_pair(
        &mut self,
        name: &str,
        ty: Ty,
        dst: &Operand,
        (a, b): (&Operand, &Operand),
        with: Option<(Bool, u32, bool)>,
    ) -> Result<bool> {
        let Operand::Pair(low, high) = dst else { return Ok(false) };
        let Some((fun, halves)) = self.halves(name, ty, a, b)? else { return Ok(false) };
        for (part, s) in [low, high].into_iter().zip(halves) {
            let d = self.result(part, File::P, Ty::Pred)?;
            self.push_last(Op::SetP { fun, d, q: None, s, with })?;
        }
        Ok(true)
    }

    /// The comparison of a half, and the halves of both operands.
    fn halves(
        &mut self,
        name: &str,
        ty: Ty,
        a: &Operand,
        b: &Operand,
    ) -> Result<Option<(Fun, [[u32; 2]; 2])>> {
        let half = if ty == Ty::F16x2 { Ty::F16 } else { Ty::BF16 };
        let Some(fun) = float::compare(name, half) else { return Ok(None) };
        let (a, b) = (self.l(a, Ty::B32)?, self.l(b, Ty::B32)?);
        let low = lanes!(L: (a: u32) => a & 0xffff);
        let high = lanes!(L: (a: u32) => a >> 16);
        let mut out = [[0; 2]; 2];
        for (pair, cut) in out.iter_mut().zip([low, high]) {
            *pair = [self.raw(cut, [a, 0, 0, 0])?, self.raw(cut, [b, 0, 0, 0])?];
        }
        Ok(Some((fun, out)))
    }

    /// `set.lt.u32.f32` and the like: all ones, or one.
    fn set(&mut self, mods: &[&str], from: Ty, operands: &[Operand]) -> Result<bool> {
        let mods: Vec<&str> = mods.iter().copied().filter(|part| *part != "ftz").collect();
        let [name, to] = mods[..] else { return Ok(false) };
        let (Some(to), [dst, a, b]) = (Ty::parse(to), operands) else { return Ok(false) };
        if matches!(from, Ty::F16x2 | Ty::BF16x2) {
            let Some((fun, halves)) = self.halves(name, from, a, b)? else { return Ok(false) };
            let one = match to {
                Ty::F16x2 => 0x3c00,
                Ty::BF16x2 => 0x3f80,
                _ => 0xffff,
            };
            let mut words = [0; 2];
            for ((word, s), bits) in words.iter_mut().zip(halves).zip([one, one << 16]) {
                let p = self.temp(File::P);
                self.push(Op::SetP { fun, d: p, q: None, s, with: None })?;
                *word = self.temp(File::L);
                self.push(Op::FromPred { d: *word, p, bits })?;
            }
            let fun = lanes!(LL: (a: u32, b: u32) => a | b);
            let d = self.result(dst, File::L, Ty::B32)?;
            self.push_last(Op::Fun { fun, d, s: [words[0], words[1], 0, 0] })?;
            return Ok(true);
        }
        let Some(fun) = compare(name, from) else { return Ok(false) };
        let s = [self.source(a, from)?, self.source(b, from)?];
        let p = self.temp(File::P);
        self.push(Op::SetP { fun, d: p, q: None, s, with: None })?;
        let bits = match to {
            Ty::F32 => 0x3f80_0000,
            Ty::F16 => 0x3c00,
            Ty::BF16 => 0x3f80,
            Ty::U16 | Ty::S16 => 0xffff,
            _ => u32::MAX,
        };
        let d = self.result(dst, File::L, to)?;
        self.push_last(Op::FromPred { d, p, bits })?;
        Ok(true)
    }

    fn selp(&mut self, ty: Ty, operands: &[Operand]) -> Result<bool> {
        let [dst, a, b, p] = operands else { return Ok(false) };
        let p = self.plain_p(p)?;
        self.select(ty, dst, (a, b), p)?;
        Ok(true)
    }

    fn select(
        &mut self,
        ty: Ty,
        dst: &Operand,
        (a, b): (&Operand, &Operand),
        p: u32,
    ) -> Result<()> {
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let file = if ty.bytes() == 8 { File::D } else { File::L };
        let d = self.result(dst, file, ty)?;
        self.push_last(match file {
            File::D => Op::SelD { d, a, b, p },
            _ => Op::SelL { d, a, b, p },
        })
    }

    fn slct(&mut self, mods: &[&str], operands: &[Operand]) -> Result<bool> {
        let [dst, a, b, c] = operands else { return Ok(false) };
        let Some(ty) = mods.iter().find_map(|part| Ty::parse(part)) else { return Ok(false) };
        let float = operands.len() == 4 && self.opcode.ends_with(".f32");
        let fun = if float {
            lanes!(LtoP: (a: f32) => a >= 0.0)
        } else {
            lanes!(LtoP: (a: i32) => a >= 0)
        };
        let c = self.l(c, Ty::B32)?;
        let p = self.raw(fun, [c, 0, 0, 0])?;
        self.select(ty, dst, (a, b), p)?;
        Ok(true)
    }

    fn testp(&mut self, mods: &[&str], ty: Ty, operands: &[Operand]) -> Result<bool> {
        let ([name], [dst, source]) = (mods, operands) else { return Ok(false) };
        let Some(fun) = float::test(name, ty) else { return Ok(false) };
        self.fun(fun, (dst, Ty::Pred), &[(source, ty)])?;
        Ok(true)
    }

    fn cvt(&mut self, mods: &[&str], from: Ty, operands: &[Operand]) -> Result<bool> {
        let Some((to, mods)) = mods.split_last() else { return Ok(false) };
        let Some(to) = Ty::parse(to) else { return Ok(false) };
        let mut convert = Convert {
            to,
            from,
            // Without a modifier a conversion is exact.
            mode: if from.is_float() && !to.is_float() { Mode::Zero } else { Mode::Near },
            saturate: false,
            flush: false,
            relu: false,
            extend: false,
            integral: false,
        };
        for part in mods {
            match (*part, Mode::parse(part)) {
                ("sat" | "satfinite", _) => convert.saturate = true,
                ("ftz", _) => convert.flush = true,
                ("relu", _) => convert.relu = true,
                (name, Some(mode)) => {
                    convert.mode = mode;
                    convert.integral = name.ends_with('i');
                }
                _ => return Ok(false),
            }
        }
        if let ([dst, high, low], Ty::F16x2 | Ty::BF16x2) = (operands, to) {
            return self.cvt_pair(convert, dst, high, low);
        }
        let [dst, source] = operands else { return Ok(false) };
        if !convert.is_known() {
            return Ok(false);
        }
        self.convert(convert, dst, source)?;
        Ok(true)
    }

    fn convert(&mut self, mut convert: Convert, dst: &Operand, source: &Operand) -> Result<()> {
        let wide_slot = |operand: &Operand| match operand {
            Operand::Reg(reg) => reg.class,
            _ => Class::B16,
        };
        // A signed narrow result fills a register that is wider than 16 bits.
        convert.extend = convert.to.is_signed() && wide_slot(dst) != Class::B16;
        let narrow_result = convert.to.bytes() < 4 && convert.to.is_signed() && convert.extend;
        let fast = if narrow_result { None } else { convert::fast(convert) };
        if let Some(fun) = fast {
            return self.fun(fun, (dst, convert.to), &[(source, convert.from)]);
        }
        let from_wide = convert.from.bytes() == 8;
        let a = self.source(source, convert.from)?;
        let slot = match dst {
            Operand::Reg(reg) => file_of(reg.class),
            _ => File::L,
        };
        let to_wide = slot == File::D;
        let d = self.result(dst, slot, convert.to)?;
        self.push_last(Op::Convert { convert, d, a, from_wide, to_wide })
    }

    /// `cvt.rn.f16x2.f32 d, high, low`.
    fn cvt_pair(
        &mut self,
        convert: Convert,
        dst: &Operand,
        high: &Operand,
        low: &Operand,
    ) -> Result<bool> {
        let to = if convert.to == Ty::F16x2 { Ty::F16 } else { Ty::BF16 };
        let convert = Convert { to, ..convert };
        let mut halves = [0; 2];
        for (half, operand) in halves.iter_mut().zip([low, high]) {
            let a = self.l(operand, Ty::F32)?;
            *half = self.temp(File::L);
            let d = *half;
            self.push(match convert::fast(convert) {
                Some(fun) => Op::Fun { fun, d, s: [a, 0, 0, 0] },
                None => Op::Convert { convert, d, a, from_wide: false, to_wide: false },
            })?;
        }
        let fun = lanes!(LL: (a: u32, b: u32) => a | b << 16);
        let d = self.result(dst, File::L, Ty::B32)?;
        self.push_last(Op::Fun { fun, d, s: [halves[0], halves[1], 0, 0] })?;
        Ok(true)
    }
}

fn compare(name: &str, ty: Ty) -> Option<Fun> {
    if ty.is_float() { float::compare(name, ty) } else { int::compare(name, ty) }
}
