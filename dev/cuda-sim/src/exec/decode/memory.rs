//! Loads, stores, atomics, asynchronous copies and address conversions.

use super::{Decoder, Result};
use crate::exec::inst::{Access, Addr, Atomic, Const, CopyAsync, File, Op, Rmw, Space};
use crate::ptx::ast::{Base, Class, Operand, Place, Ty};

/// Base of the window of generic addresses that means shared memory.
pub(crate) const SHARED_WINDOW: u64 = 1 << 60;
/// Base of the window of generic addresses that means the frame of the thread.
pub(crate) const LOCAL_WINDOW: u64 = 1 << 61;

fn space(name: &str) -> Option<Space> {
    Some(match name {
        "global" | "const" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "param" | "param::entry" | "param::func" => Space::Param,
        _ => return None,
    })
}

/// Modifiers that do not change what is loaded or stored.
fn is_hint(name: &str) -> bool {
    matches!(
        name,
        "nc" | "ca"
            | "cg"
            | "cs"
            | "cv"
            | "lu"
            | "wb"
            | "wt"
            | "weak"
            | "cta"
            | "gpu"
            | "sys"
            | "cluster"
    ) || name.starts_with("L1::")
        || name.starts_with("L2::")
}

fn is_strong(name: &str) -> bool {
    matches!(name, "volatile" | "relaxed" | "acquire" | "release" | "acq_rel")
}

impl Decoder<'_> {
    /// Decodes a memory instruction; `false` if it is none.
    pub(super) fn memory(&mut self, parts: &[&str], operands: &[Operand]) -> Result<bool> {
        match (parts[0], operands) {
            ("ld" | "ldu", [dst, addr] | [dst, addr, _]) => self.access(parts, dst, addr, false),
            ("st", [addr, src] | [addr, src, _]) => self.access(parts, src, addr, true),
            ("atom", [dst, addr, rest @ ..]) => self.atomic(parts, Some(dst), addr, rest),
            ("red", [addr, rest @ ..]) if !parts.contains(&"async") => {
                self.atomic(parts, None, addr, rest)
            }
            ("cp", _) => self.copy_async(parts, operands),
            ("cvta", [dst, src]) => self.convert_address(parts, dst, src),
            ("isspacep", [dst, src]) => self.is_space(parts, dst, src),
            ("membar" | "fence", []) if !parts.contains(&"proxy") => {
                self.push(Op::Fence)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn access(
        &mut self,
        parts: &[&str],
        data: &Operand,
        addr: &Operand,
        store: bool,
    ) -> Result<bool> {
        let Some(ty) = parts.last().and_then(|part| Ty::parse(part)) else { return Ok(false) };
        let (mut at, mut count, mut strong) = (Space::Generic, 1, false);
        for part in &parts[1..parts.len() - 1] {
            match (*part, space(part)) {
                (_, Some(found)) => at = found,
                ("v2", _) => count = 2,
                ("v4", _) => count = 4,
                (name, _) if is_strong(name) => strong = true,
                (name, _) if is_hint(name) => {}
                _ => return Ok(false),
            }
        }
        if ty == Ty::Pred || ty == Ty::B128 || ty.bytes() * count > 32 {
            return Ok(false);
        }
        let single = std::slice::from_ref(data);
        let data = match data {
            Operand::Vector(parts) => parts.as_slice(),
            _ => single,
        };
        if data.len() != count as usize {
            return Ok(false);
        }
        if at == Space::Param {
            at = match addr {
                Operand::Address(Base::Var(Place::Local(_)), _) => Space::Local,
                Operand::Address(Base::Var(Place::Param(_)), _) if !store => {
                    return self.parameter(ty, data, addr);
                }
                // In a device function, parameters lie in the frame.
                Operand::Address(Base::Reg(_), _) if self.frames.len() > 1 => Space::Local,
                _ => Space::Param,
            };
        }
        let addr = self.address(addr)?;
        let wide = ty.bytes() == 8;
        let file = if wide { File::D } else { File::L };
        let mut regs = [0; 4];
        for (reg, operand) in regs.iter_mut().zip(data) {
            *reg = match store {
                true if ty.bits() == 16 => self.l(operand, Ty::B32)?,
                true => self.source(operand, ty)?,
                false => self.result(operand, file, ty)?,
            };
        }
        let in_wide_register = matches!(data, [Operand::Reg(reg), ..] if reg.class != Class::B16);
        let extend = match ty {
            Ty::S8 | Ty::S16 if in_wide_register => 32,
            Ty::S8 => 16,
            _ => 0,
        };
        let width = u8::try_from(ty.bytes()).expect("at most eight");
        let count = u8::try_from(count).expect("at most four");
        let access = Access { space: at, width, count, extend, wide, strong, regs, addr };
        self.push_last(if store { Op::Store(access) } else { Op::Load(access) })?;
        Ok(true)
    }

    /// A parameter at a fixed offset is a constant of the launch.
    fn parameter(&mut self, ty: Ty, data: &[Operand], addr: &Operand) -> Result<bool> {
        let Operand::Address(Base::Var(Place::Param(at)), offset) = addr else {
            return Ok(false);
        };
        let file = if ty.bytes() == 8 { File::D } else { File::L };
        for (index, operand) in data.iter().enumerate() {
            let step = i64::try_from(index).expect("a vector is short") * i64::from(ty.bytes());
            let Ok(from) = u32::try_from(i64::from(*at) + offset + step) else {
                return self.fail("a parameter outside the buffer");
            };
            let bytes = u8::try_from(ty.bytes()).expect("at most eight");
            let a = self.constant(file, Const::Param(from, bytes, ty.is_signed()));
            let d = self.result(operand, file, ty)?;
            self.push_last(match file {
                File::D => Op::MovD { d, a },
                _ => Op::MovL { d, a },
            })?;
        }
        Ok(true)
    }

    fn atomic(
        &mut self,
        parts: &[&str],
        dst: Option<&Operand>,
        addr: &Operand,
        rest: &[Operand],
    ) -> Result<bool> {
        let Some(ty) = parts.last().and_then(|part| Ty::parse(part)) else { return Ok(false) };
        let (mut at, mut rmw) = (Space::Generic, None);
        for part in &parts[1..parts.len() - 1] {
            let op = match *part {
                "and" => Rmw::And,
                "or" => Rmw::Or,
                "xor" => Rmw::Xor,
                "exch" => Rmw::Exch,
                "cas" => Rmw::Cas,
                "add" => Rmw::Add,
                "inc" => Rmw::Inc,
                "dec" => Rmw::Dec,
                "min" => Rmw::Min,
                "max" => Rmw::Max,
                name => {
                    match space(name) {
                        Some(found) => at = found,
                        None if is_strong(name) || is_hint(name) || name == "noftz" => {}
                        None => return Ok(false),
                    }
                    continue;
                }
            };
            rmw = Some(op);
        }
        let Some(rmw) = rmw else { return Ok(false) };
        let known = super::super::atomic::is_known(rmw, ty);
        if !known || rest.len() != if rmw == Rmw::Cas { 2 } else { 1 } {
            return Ok(false);
        }
        let addr = self.address(addr)?;
        let b = self.source(&rest[0], ty)?;
        let c = if rmw == Rmw::Cas { self.source(&rest[1], ty)? } else { b };
        let file = if ty.bytes() == 8 { File::D } else { File::L };
        let dst = match dst {
            Some(Operand::Sink) | None => None,
            Some(operand) => Some(self.result(operand, file, ty)?),
        };
        self.push_last(Op::Atomic(Box::new(Atomic { space: at, rmw, ty, dst, addr, b, c })))?;
        Ok(true)
    }

    /// `cp.async.ca.shared.global [dst], [src], size{, src_size}{, ignore}` and its groups.
    fn copy_async(&mut self, parts: &[&str], operands: &[Operand]) -> Result<bool> {
        match (parts, operands) {
            (["cp", "async", "commit_group"], []) => self.push(Op::CopyCommit)?,
            (["cp", "async", "wait_all"], []) => self.push(Op::CopyWait(None))?,
            (["cp", "async", "wait_group"], [Operand::Int(count)]) => {
                let count = u32::try_from(*count).unwrap_or(u32::MAX);
                self.push(Op::CopyWait(Some(count)))?;
            }
            (
                ["cp", "async", "ca" | "cg", "shared" | "shared::cta", "global", hints @ ..],
                [dst, src, Operand::Int(size), rest @ ..],
            ) if hints.iter().all(|hint| is_hint(hint)) => {
                let size = match (size, parts[2]) {
                    (4 | 8, "ca") | (16, _) => u8::try_from(*size).expect("at most sixteen"),
                    _ => return self.fail(format!("{} of {size} bytes", self.opcode)),
                };
                let (dst, src) = (self.address(dst)?, self.address(src)?);
                let (mut src_size, mut ignore) = (None, None);
                match rest.first() {
                    None => {}
                    Some(Operand::Reg(reg)) if reg.class == Class::Pred => {
                        ignore = Some(self.reg(*reg));
                    }
                    Some(operand) => src_size = Some(self.l(operand, Ty::U32)?),
                }
                let copy = CopyAsync { size, dst, src, src_size, ignore };
                self.push(Op::Copy(Box::new(copy)))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn convert_address(&mut self, parts: &[&str], dst: &Operand, src: &Operand) -> Result<bool> {
        let (back, name) = match parts {
            ["cvta", "to", name, "u64"] => (true, *name),
            ["cvta", name, "u64"] => (false, *name),
            _ => return Ok(false),
        };
        let Some(space) = space(name) else { return Ok(false) };
        let a = self.d(src)?;
        let d = self.result(dst, File::D, Ty::U64)?;
        let base = match space {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Global => 0,
            _ => return Ok(false),
        };
        self.push_last(match (base, back) {
            (0, _) => Op::MovD { d, a },
            (_, true) => Op::FromGeneric { d, a, space },
            (_, false) => Op::ToGeneric { d, a, base },
        })?;
        Ok(true)
    }

    fn is_space(&mut self, parts: &[&str], dst: &Operand, src: &Operand) -> Result<bool> {
        let ["isspacep", name] = parts else { return Ok(false) };
        let Some(space @ (Space::Global | Space::Shared | Space::Local)) = space(name) else {
            return Ok(false);
        };
        let a = self.d(src)?;
        let d = self.result(dst, File::P, Ty::Pred)?;
        self.push_last(Op::IsSpace { d, a, space })?;
        Ok(true)
    }

    /// The address of a matrix row, and whether it is generic.
    pub(super) fn matrix_address(&mut self, parts: &[&str], at: &Operand) -> Result<(Addr, Space)> {
        let space = parts.iter().find_map(|part| space(part)).unwrap_or(Space::Generic);
        Ok((self.address(at)?, space))
    }
}
