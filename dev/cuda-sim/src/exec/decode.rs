//! From parsed statements to a program: operands, scopes, calls and labels.
//!
//! Device functions are decoded again at each call, into registers and a piece of the frame of
//! their own; so a program has no calls, and recursion is an error.

mod alu;
mod arith;
mod control;
mod matrix;
mod memory;

mod sync;

pub(super) use memory::{LOCAL_WINDOW, SHARED_WINDOW};

use std::collections::HashMap;
use std::sync::Arc;

use super::inst::{Addr, AddrReg, Const, File, Fun, Inst, LaneMask, Op, Program, Special};
use super::lanes::lanes;
use super::shared::SHARED_START;
use crate::ptx::ast::{Base, Class, Func, Item, Operand, Place, Reg, Stmt, Ty};
use crate::ptx::{Function, Param, ParseError, Unit};

/// Set in register numbers that mean a constant, until constants are moved to the front.
const CONST: u32 = 1 << 31;

/// Most instructions of a program, inlined calls included.
const MAX_INSTS: usize = 1 << 22;

type Result<T> = std::result::Result<T, ParseError>;

/// A function being decoded, or one that called it.
struct Frame {
    /// First register of each file, and first byte of the frame.
    regs: [u32; 3],
    local: u32,
    /// Formal parameters in the frame: first byte, length, and where the argument lies instead.
    bound: Vec<(u32, u32, u32)>,
    labels: HashMap<String, u32>,
    targets: HashMap<String, Vec<String>>,
    /// Branches to labels that may come later.
    fixups: Vec<(usize, String, u32)>,
    name: String,
}

/// What of the current statement applies to each of its instructions.
struct Decoder<'a> {
    unit: &'a Unit,
    insts: Vec<Inst>,
    names: Vec<Arc<str>>,
    consts: [Vec<Const>; 2],
    known: HashMap<(File, Const), u32>,
    counts: [u32; 3],
    frame_bytes: u32,
    frames: Vec<Frame>,
    shared: HashMap<u32, u32>,
    shared_end: u32,
    /// Predicate of `add.cc` and its kin.
    carry: Option<u32>,
    line: u32,
    opcode: Arc<str>,
    guard: Option<(u32, u32)>,
    /// Instructions to add after the current one: they move results to wider or narrower registers.
    after: Vec<Op>,
    returns: Vec<Vec<usize>>,
}

/// Decodes an entry.
pub(crate) fn decode(unit: &Unit, func: &Func) -> Result<Function> {
    let mut decoder = Decoder {
        unit,
        insts: Vec::new(),
        names: Vec::new(),
        consts: [Vec::new(), Vec::new()],
        known: HashMap::new(),
        counts: [0; 3],
        frame_bytes: 0,
        frames: Vec::new(),
        shared: HashMap::new(),
        shared_end: 0,
        carry: None,
        line: func.line,
        opcode: "".into(),
        guard: None,
        after: Vec::new(),
        returns: Vec::new(),
    };
    decoder.enter(func);
    decoder.body(func)?;
    let end = func.params.iter().map(|param| match param.at {
        crate::ptx::ast::FormalAt::Place(Place::Param(offset)) => offset + param.size,
        _ => 0,
    });
    let param_bytes = end.max().unwrap_or(0);
    let static_shared = decoder.shared_end;
    let program = super::optimise::finish(decoder.finish(param_bytes)?);
    let params = func.params.iter().filter_map(|param| match param.at {
        crate::ptx::ast::FormalAt::Place(Place::Param(offset)) => {
            Some(Param { offset, size: param.size })
        }
        _ => None,
    });
    Ok(Function {
        name: func.name.clone(),
        params: params.collect(),
        static_shared,
        required: func.required,
        max_threads: func.max_threads.max(func.required.iter().product()),
        program: Arc::new(program),
    })
}

fn file_number(file: File) -> usize {
    match file {
        File::P => 0,
        File::L => 1,
        File::D => 2,
    }
}

fn file_of(class: Class) -> File {
    match class {
        Class::Pred => File::P,
        Class::B16 | Class::B32 => File::L,
        Class::B64 => File::D,
    }
}

impl Decoder<'_> {
    fn fail<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(ParseError::new(self.line, what))
    }

    fn unknown<T>(&self) -> Result<T> {
        self.fail(format!("instruction {} is not known", self.opcode))
    }

    /// Makes room for a function's registers and frame.
    fn enter(&mut self, func: &Func) {
        let regs = self.counts;
        for (count, more) in self.counts.iter_mut().zip(func.regs) {
            *count += more;
        }
        let local = self.frame_bytes.next_multiple_of(16);
        self.frame_bytes = local + func.frame;
        self.frames.push(Frame {
            regs,
            local,
            bound: Vec::new(),
            labels: HashMap::new(),
            targets: HashMap::new(),
            fixups: Vec::new(),
            name: func.name.clone(),
        });
        self.returns.push(Vec::new());
    }

    /// Decodes a function's statements; its returns end up behind them.
    fn body(&mut self, func: &Func) -> Result<()> {
        let items = func.body.as_deref().unwrap_or_default();
        for item in items {
            if let Item::Targets(name, targets) = item {
                self.frame().targets.insert(name.clone(), targets.clone());
            }
        }
        for item in items {
            match item {
                Item::Label(name, line) => {
                    let at = self.here();
                    if self.frame().labels.insert(name.clone(), at).is_some() {
                        return Err(ParseError::new(*line, format!("label {name} twice")));
                    }
                }
                Item::Stmt(stmt) => self.statement(stmt)?,
                Item::Targets(..) => {}
            }
        }
        let outermost = self.frames.len() == 1;
        if outermost {
            self.guard = None;
            self.push(Op::Exit)?;
        }
        self.leave()
    }

    /// Patches branches of the innermost function.
    fn leave(&mut self) -> Result<()> {
        let here = self.here();
        let frame = self.frames.pop().expect("a function is being decoded");
        let find = |name: &String, line: u32| {
            let found = frame.labels.get(name).copied();
            found.ok_or_else(|| ParseError::new(line, format!("label {name} is not there")))
        };
        for (at, name, line) in &frame.fixups {
            match &mut self.insts[*at].op {
                Op::Branch { target } => *target = find(name, *line)?,
                Op::BranchIndex { targets, .. } => {
                    let Some(names) = frame.targets.get(name) else {
                        return Err(ParseError::new(*line, format!("targets {name} not there")));
                    };
                    let found: Result<Vec<u32>> =
                        names.iter().map(|name| find(name, *line)).collect();
                    *targets = found?.into_boxed_slice();
                }
                _ => {}
            }
        }
        for at in self.returns.pop().unwrap_or_default() {
            if let Op::Branch { target } = &mut self.insts[at].op {
                *target = here;
            }
        }
        Ok(())
    }

    fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("a function is being decoded")
    }

    fn here(&self) -> u32 {
        u32::try_from(self.insts.len()).expect("programs are bounded")
    }

    fn push(&mut self, op: Op) -> Result<()> {
        if self.insts.len() >= MAX_INSTS {
            return self.fail("the program is too long");
        }
        self.insts.push(Inst { op, guard: self.guard, line: self.line });
        self.names.push(self.opcode.clone());
        Ok(())
    }

    /// The instruction itself, then what its results still need.
    fn push_last(&mut self, op: Op) -> Result<()> {
        self.push(op)?;
        for op in std::mem::take(&mut self.after) {
            self.push(op)?;
        }
        Ok(())
    }

    fn statement(&mut self, stmt: &Stmt) -> Result<()> {
        self.line = stmt.line;
        self.opcode = stmt.opcode.as_str().into();
        self.guard = match stmt.guard {
            Some((reg, negated)) if reg.class == Class::Pred => {
                Some((self.reg(reg), if negated { u32::MAX } else { 0 }))
            }
            Some(_) => return self.fail("a guard that is no predicate"),
            None => None,
        };
        let parts: Vec<&str> = stmt.opcode.split('.').collect();
        if self.control(&parts, &stmt.operands)?
            || self.memory(&parts, &stmt.operands)?
            || self.sync(&parts, &stmt.operands)?
            || self.matrix(&parts, &stmt.operands)?
            || self.alu(&parts, &stmt.operands)?
        {
            return Ok(());
        }
        self.unknown()
    }

    fn reg(&self, reg: Reg) -> u32 {
        let frame = self.frames.last().expect("a function is being decoded");
        frame.regs[file_number(file_of(reg.class))] + reg.index
    }

    fn temp(&mut self, file: File) -> u32 {
        let count = &mut self.counts[file_number(file)];
        *count += 1;
        *count - 1
    }

    fn constant(&mut self, file: File, value: Const) -> u32 {
        if let Some(reg) = self.known.get(&(file, value)) {
            return *reg;
        }
        let list = &mut self.consts[file_number(file) - 1];
        let reg = CONST | u32::try_from(list.len()).expect("programs are bounded");
        list.push(value);
        self.known.insert((file, value), reg);
        reg
    }

    fn bits(&mut self, bits: u32) -> u32 {
        self.constant(File::L, Const::Bits(u64::from(bits)))
    }

    /// The address of a variable within its space, as a constant.
    fn place(&mut self, place: Place, offset: i64) -> Result<Const> {
        let plus = |at: u32| Const::Bits(i64::from(at).wrapping_add(offset).cast_unsigned());
        Ok(match place {
            Place::Module(number) => Const::Module(number, offset),
            Place::Param(at) => plus(at),
            Place::Local(at) => {
                let frame = self.frames.last().expect("a function is being decoded");
                let bound =
                    frame.bound.iter().find(|(from, len, _)| at >= *from && at < from + len);
                plus(match bound {
                    Some((from, _, to)) => to + (at - from),
                    None => frame.local + at,
                })
            }
            Place::Shared(number) => plus(self.shared_address(number)?),
            Place::SharedDynamic if offset == 0 => Const::Special(Special::DynamicShared),
            Place::SharedDynamic => return self.fail("an offset to dynamic shared memory"),
        })
    }

    fn shared_address(&mut self, number: u32) -> Result<u32> {
        if let Some(address) = self.shared.get(&number) {
            return Ok(*address);
        }
        let var = &self.unit.shared[number as usize];
        let at = self.shared_end.next_multiple_of(var.align.max(1));
        let Some(end) = at.checked_add(var.size).filter(|end| *end <= 1 << 20) else {
            return self.fail(format!("shared variable {} is too large", var.name));
        };
        self.shared_end = end;
        self.shared.insert(number, SHARED_START + at);
        Ok(SHARED_START + at)
    }

    fn special(&self, name: &str) -> Option<Const> {
        let axis = |name: &str, prefix: &str| match name.strip_prefix(prefix)? {
            ".x" => Some(0),
            ".y" => Some(1),
            ".z" => Some(2),
            _ => None,
        };
        let special = match name {
            "laneid" => Special::LaneId,
            "warpid" => Special::WarpId,
            "nwarpid" => Special::NwarpId,
            "smid" => Special::SmId,
            "nsmid" => Special::NsmId,
            "gridid" => Special::GridId,
            "lanemask_eq" => Special::LaneMask(LaneMask::Eq),
            "lanemask_le" => Special::LaneMask(LaneMask::Le),
            "lanemask_lt" => Special::LaneMask(LaneMask::Lt),
            "lanemask_ge" => Special::LaneMask(LaneMask::Ge),
            "lanemask_gt" => Special::LaneMask(LaneMask::Gt),
            "total_smem_size" => Special::TotalShared,
            "dynamic_smem_size" => Special::DynamicShared,
            _ => None
                .or(axis(name, "tid").map(Special::Tid))
                .or(axis(name, "ntid").map(Special::Ntid))
                .or(axis(name, "ctaid").map(Special::Ctaid))
                .or(axis(name, "nctaid").map(Special::Nctaid))?,
        };
        // The size of dynamic shared memory is asked for by nobody; its address has that name here.
        (name != "dynamic_smem_size").then_some(Const::Special(special))
    }

    /// Reads an operand of up to 32 bits as `ty`.
    fn l(&mut self, operand: &Operand, ty: Ty) -> Result<u32> {
        let narrow = ty.bits() < 32;
        match operand {
            Operand::Reg(reg) if reg.class == Class::B64 => {
                let (d, a) = (self.temp(File::L), self.reg(*reg));
                let fun = if narrow {
                    lanes!(DtoL: (a: u64) => (a & 0xffff) as u32)
                } else {
                    lanes!(DtoL: (a: u64) => (a & 0xffff_ffff) as u32)
                };
                self.push(Op::Fun { fun, d, s: [a, 0, 0, 0] })?;
                Ok(d)
            }
            Operand::Reg(reg) if reg.class == Class::B32 && ty.bits() == 16 => {
                let (d, a) = (self.temp(File::L), self.reg(*reg));
                let fun = lanes!(L: (a: u32) => a & 0xffff);
                self.push(Op::Fun { fun, d, s: [a, 0, 0, 0] })?;
                Ok(d)
            }
            Operand::Reg(reg) if reg.class != Class::Pred => Ok(self.reg(*reg)),
            Operand::Int(value) => {
                let all = if narrow { (1 << ty.bits()) - 1 } else { u64::from(u32::MAX) };
                Ok(self.constant(File::L, Const::Bits(value & all)))
            }
            Operand::F32(bits) => Ok(self.bits(*bits)),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a literal of the instruction's type"
            )]
            Operand::F64(bits) if ty == Ty::F32 => {
                let value = f64::from_bits(*bits) as f32;
                Ok(self.bits(value.to_bits()))
            }
            Operand::Special(name) => self.special_operand(File::L, name),
            Operand::Var(place, offset) => {
                let value = self.place(*place, *offset)?;
                if matches!(value, Const::Module(..)) {
                    return self.fail("a device address in 32 bits");
                }
                Ok(self.constant(File::L, value))
            }
            other => self.fail(format!("operand {other:?} of {}", self.opcode)),
        }
    }

    fn special_operand(&mut self, file: File, name: &str) -> Result<u32> {
        if matches!(name, "clock" | "clock_hi" | "clock64" | "globaltimer" | "globaltimer_lo") {
            let d = self.temp(file);
            self.push(Op::Clock { d, wide: file == File::D })?;
            return Ok(d);
        }
        match self.special(name) {
            Some(value) => Ok(self.constant(file, value)),
            None => self.fail(format!("special register %{name} is not known")),
        }
    }

    /// Reads an operand of 64 bits; narrower registers are zero-extended.
    fn d(&mut self, operand: &Operand) -> Result<u32> {
        match operand {
            Operand::Reg(reg) if reg.class == Class::B64 => Ok(self.reg(*reg)),
            Operand::Reg(reg) if reg.class != Class::Pred => {
                let (d, a) = (self.temp(File::D), self.reg(*reg));
                let fun = lanes!(LtoD: (a: u32) => u64::from(a));
                self.push(Op::Fun { fun, d, s: [a, 0, 0, 0] })?;
                Ok(d)
            }
            Operand::Int(bits) | Operand::F64(bits) => {
                Ok(self.constant(File::D, Const::Bits(*bits)))
            }
            Operand::Special(name) => self.special_operand(File::D, name),
            Operand::Var(place, offset) => {
                let value = self.place(*place, *offset)?;
                Ok(self.constant(File::D, value))
            }
            other => self.fail(format!("operand {other:?} of {}", self.opcode)),
        }
    }

    /// Reads an operand as `ty`, from the file that `ty` lives in.
    fn source(&mut self, operand: &Operand, ty: Ty) -> Result<u32> {
        if ty.bytes() == 8 { self.d(operand) } else { self.l(operand, ty) }
    }

    /// Reads a predicate, and whether it is negated.
    fn p(&mut self, operand: &Operand) -> Result<(u32, bool)> {
        match operand {
            Operand::Reg(reg) if reg.class == Class::Pred => Ok((self.reg(*reg), false)),
            Operand::NotPred(reg) if reg.class == Class::Pred => Ok((self.reg(*reg), true)),
            // A constant: a predicate that is compared from a constant.
            Operand::Int(value) => {
                let d = self.temp(File::P);
                let a = self.bits(u32::from(*value != 0));
                let fun = lanes!(LtoP: (a: u32) => a != 0);
                self.push(Op::Fun { fun, d, s: [a, 0, 0, 0] })?;
                Ok((d, false))
            }
            other => self.fail(format!("{other:?} is no predicate")),
        }
    }

    /// A predicate without negation.
    fn plain_p(&mut self, operand: &Operand) -> Result<u32> {
        let (reg, negated) = self.p(operand)?;
        if !negated {
            return Ok(reg);
        }
        let d = self.temp(File::P);
        self.push(Op::Pred { op: super::inst::Bool::Not, d, a: reg, b: reg })?;
        Ok(d)
    }

    /// The register for a result of `file`; a register of another width gets it afterwards.
    fn result(&mut self, operand: &Operand, file: File, ty: Ty) -> Result<u32> {
        let reg = match operand {
            Operand::Sink => return Ok(self.temp(file)),
            Operand::Reg(reg) => *reg,
            Operand::Special(name) => return self.fail(format!("%{name} is not declared")),
            other => return self.fail(format!("result {other:?} of {}", self.opcode)),
        };
        let to = self.reg(reg);
        match (file, file_of(reg.class)) {
            (have, want) if have == want => Ok(to),
            (File::L, File::D) => {
                let temp = self.temp(File::L);
                let fun = match ty {
                    Ty::S8 => lanes!(LtoD: (a: i8) => i64::from(a)),
                    Ty::S16 => lanes!(LtoD: (a: i16) => i64::from(a)),
                    Ty::S32 => lanes!(LtoD: (a: i32) => i64::from(a)),
                    _ => lanes!(LtoD: (a: u32) => u64::from(a)),
                };
                self.after.push(Op::Fun { fun, d: to, s: [temp, 0, 0, 0] });
                Ok(temp)
            }
            (File::D, File::L) => {
                let temp = self.temp(File::D);
                let fun = lanes!(DtoL: (a: u64) => (a & 0xffff_ffff) as u32);
                self.after.push(Op::Fun { fun, d: to, s: [temp, 0, 0, 0] });
                Ok(temp)
            }
            _ => self.fail(format!("result {operand:?} of {}", self.opcode)),
        }
    }

    /// Emits a function of registers: sources with their types, and the type of the result.
    fn fun(&mut self, fun: Fun, dst: (&Operand, Ty), sources: &[(&Operand, Ty)]) -> Result<()> {
        let (files, to) = fun.files();
        if files.len() > sources.len() {
            return self.fail(format!("{} takes {} operands", self.opcode, files.len()));
        }
        let mut s = [0; 4];
        for ((slot, file), (operand, ty)) in s.iter_mut().zip(files).zip(sources) {
            *slot = match file {
                File::L => self.l(operand, *ty)?,
                File::D => self.d(operand)?,
                File::P => return self.unknown(),
            };
        }
        let d = self.result(dst.0, to, dst.1)?;
        self.push_last(Op::Fun { fun, d, s })
    }

    /// Emits a function whose operands are registers already; gives the result's.
    fn raw(&mut self, fun: Fun, s: [u32; 4]) -> Result<u32> {
        let d = self.temp(fun.files().1);
        self.push(Op::Fun { fun, d, s })?;
        Ok(d)
    }

    /// An address operand.
    fn address(&mut self, operand: &Operand) -> Result<Addr> {
        let (base, offset) = match operand {
            Operand::Address(base, offset) => (*base, *offset),
            other => return self.fail(format!("{other:?} is no address")),
        };
        Ok(match base {
            Base::Reg(reg) => match file_of(reg.class) {
                File::L => Addr { reg: AddrReg::L(self.reg(reg)), offset },
                File::D => Addr { reg: AddrReg::D(self.reg(reg)), offset },
                File::P => return self.fail("an address in a predicate"),
            },
            Base::Var(place) => {
                let dynamic = place == Place::SharedDynamic;
                let value = self.place(place, if dynamic { 0 } else { offset })?;
                let reg = AddrReg::D(self.constant(File::D, value));
                Addr { reg, offset: if dynamic { offset } else { 0 } }
            }
            Base::None => {
                let value = Const::Bits(offset.cast_unsigned());
                Addr { reg: AddrReg::D(self.constant(File::D, value)), offset: 0 }
            }
        })
    }

    /// Moves constants to the front of their files.
    fn finish(mut self, param_bytes: u32) -> Result<Program> {
        let [consts_l, consts_d] = std::mem::take(&mut self.consts);
        let lead = |file: File| match file {
            File::P => 0,
            File::L => u32::try_from(consts_l.len()).expect("programs are bounded"),
            File::D => u32::try_from(consts_d.len()).expect("programs are bounded"),
        };
        for inst in &mut self.insts {
            inst.visit(&mut |file, _, reg| {
                *reg = if *reg & CONST != 0 { *reg & !CONST } else { *reg + lead(file) };
            });
        }
        let counts = [File::P, File::L, File::D].map(|f| self.counts[file_number(f)] + lead(f));
        Ok(Program {
            insts: self.insts,
            consts_l,
            consts_d,
            count_p: counts[0],
            count_l: counts[1],
            count_d: counts[2],
            frame: self.frame_bytes,
            static_shared: self.shared_end,
            dynamic_align: self.unit.dynamic_align,
            param_bytes,
            names: self.names,
        })
    }
}
