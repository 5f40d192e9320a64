//! Branches, calls, and the end of a thread.

use super::{Decoder, Result};
use crate::exec::inst::{Bool, File, Op};
use crate::ptx::ast::{Class, Formal, FormalAt, Func, Operand, Place, Ty};

/// Deepest nest of calls.
const MAX_CALLS: usize = 64;

impl Decoder<'_> {
    /// Decodes a control instruction; `false` if it is none.
    pub(super) fn control(&mut self, parts: &[&str], operands: &[Operand]) -> Result<bool> {
        match (parts[0], operands) {
            ("bra", [Operand::Name(name)]) => {
                let at = self.insts.len();
                let line = self.line;
                self.frame().fixups.push((at, name.clone(), line));
                self.push(Op::Branch { target: 0 })?;
            }
            ("brx", [index, Operand::Name(name)]) => {
                let a = self.l(index, Ty::U32)?;
                let at = self.insts.len();
                let line = self.line;
                self.frame().fixups.push((at, name.clone(), line));
                self.push(Op::BranchIndex { a, targets: Box::default() })?;
            }
            ("ret", []) if self.frames.len() > 1 => {
                let at = self.insts.len();
                self.returns.last_mut().expect("a function is being decoded").push(at);
                self.push(Op::Branch { target: 0 })?;
            }
            ("ret" | "exit", []) => self.push(Op::Exit)?,
            ("trap" | "brkpt", []) => self.push(Op::Trap)?,
            ("call", _) => self.call(operands)?,
            ("nanosleep" | "prefetch" | "prefetchu" | "applypriority" | "discard", _) => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn call(&mut self, operands: &[Operand]) -> Result<()> {
        let (returns, name, arguments): (&[Operand], &str, &[Operand]) = match operands {
            [Operand::List(returns), Operand::Name(name), Operand::List(arguments)] => {
                (returns, name, arguments)
            }
            [Operand::Name(name), Operand::List(arguments)] => (&[], name, arguments),
            [Operand::List(returns), Operand::Name(name)] => (returns, name, &[]),
            [Operand::Name(name)] => (&[], name, &[]),
            _ => return self.fail("an indirect call"),
        };
        let unit = self.unit;
        let Some(func) = unit.funcs.iter().find(|func| !func.entry && func.name == name) else {
            return self.fail(format!("function {name} is not declared"));
        };
        if func.body.is_none() {
            return self.external(name);
        }
        if self.frames.len() > MAX_CALLS || self.frames.iter().any(|frame| frame.name == name) {
            return self.fail(format!("function {name} calls itself"));
        }
        if returns.len() != func.returns.len() || arguments.len() != func.params.len() {
            return self.fail(format!("arguments of {name} do not match"));
        }
        self.inline(func, returns, arguments)
    }

    /// Functions that the driver has: printing is silent, a failed assertion traps.
    fn external(&mut self, name: &str) -> Result<()> {
        match name {
            "__assertfail" => self.push(Op::Assert),
            "vprintf" => Ok(()),
            _ => self.fail(format!("function {name} has no body")),
        }
    }

    fn inline(&mut self, func: &Func, returns: &[Operand], arguments: &[Operand]) -> Result<()> {
        let (line, opcode, guard) = (self.line, self.opcode.clone(), self.guard);
        // A guarded call is jumped over, since the guard may change inside.
        let over = match guard {
            Some((reg, flip)) => {
                let negated = self.temp(File::P);
                let op = if flip == 0 { Bool::Not } else { Bool::First };
                self.guard = None;
                self.push(Op::Pred { op, d: negated, a: reg, b: reg })?;
                self.guard = Some((negated, 0));
                let at = self.insts.len();
                self.push(Op::Branch { target: 0 })?;
                self.guard = None;
                Some(at)
            }
            None => None,
        };
        let mut bound = Vec::new();
        let mut moves = Vec::new();
        for (formal, actual) in func.params.iter().zip(arguments) {
            self.bind(formal, actual, &mut bound, &mut moves)?;
        }
        let mut results = Vec::new();
        for (formal, actual) in func.returns.iter().zip(returns) {
            self.bind(formal, actual, &mut bound, &mut results)?;
        }
        self.enter(func);
        self.frame().bound = bound;
        for (formal, actual) in moves {
            let to = self.reg(formal);
            self.push(move_op(formal.class, to, actual))?;
        }
        let base = self.frames.last().expect("just entered").regs;
        self.body(func)?;
        (self.line, self.opcode, self.guard) = (line, opcode, None);
        for (formal, actual) in results {
            let from = base[crate::ptx::file_of(formal.class)] + formal.index;
            self.push(move_op(formal.class, actual, from))?;
        }
        let here = self.here();
        if let Some(at) = over
            && let Op::Branch { target } = &mut self.insts[at].op
        {
            *target = here;
        }
        Ok(())
    }

    /// Where an argument lies: memory of the caller, or a register.
    fn bind(
        &mut self,
        formal: &Formal,
        actual: &Operand,
        bound: &mut Vec<(u32, u32, u32)>,
        moves: &mut Vec<(crate::ptx::ast::Reg, u32)>,
    ) -> Result<()> {
        match (formal.at, actual) {
            (FormalAt::Place(Place::Local(from)), Operand::Var(place @ Place::Local(_), 0)) => {
                let crate::exec::inst::Const::Bits(to) = self.place(*place, 0)? else {
                    return self.unknown();
                };
                let to = u32::try_from(to).expect("frames are bounded");
                bound.push((from, formal.size.max(1), to));
                Ok(())
            }
            (FormalAt::Reg(reg), Operand::Reg(actual)) if reg.class == actual.class => {
                let actual = self.reg(*actual);
                moves.push((reg, actual));
                Ok(())
            }
            (FormalAt::Reg(reg), Operand::Int(_) | Operand::F32(_)) if reg.class == Class::B32 => {
                let actual = self.l(actual, Ty::B32)?;
                moves.push((reg, actual));
                Ok(())
            }
            _ => self.fail(format!("argument {actual:?} of {}", formal.name)),
        }
    }
}

fn move_op(class: Class, d: u32, a: u32) -> Op {
    match class {
        Class::Pred => Op::Pred { op: Bool::First, d, a, b: a },
        Class::B16 | Class::B32 => Op::MovL { d, a },
        Class::B64 => Op::MovD { d, a },
    }
}
