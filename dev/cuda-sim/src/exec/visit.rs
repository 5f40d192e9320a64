//! Register operands of every instruction, for passes over a program.

use super::inst::{Access, Addr, AddrReg, File, Inst, Op};

/// How an instruction uses a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

type Visit<'a> = &'a mut dyn FnMut(File, Use, &mut u32);

fn addr(addr: &mut Addr, visit: Visit<'_>) {
    match &mut addr.reg {
        AddrReg::L(reg) => visit(File::L, Use::Read, reg),
        AddrReg::D(reg) => visit(File::D, Use::Read, reg),
    }
}

fn access(access: &mut Access, how: Use, visit: Visit<'_>) {
    addr(&mut access.addr, visit);
    let file = if access.wide { File::D } else { File::L };
    for reg in &mut access.regs[..usize::from(access.count)] {
        visit(file, how, reg);
    }
}

fn all(regs: &mut [u32], how: Use, visit: Visit<'_>) {
    for reg in regs {
        visit(File::L, how, reg);
    }
}

impl Inst {
    /// Calls `visit` with every register; reads come before writes.
    pub(crate) fn visit(&mut self, visit: Visit<'_>) {
        if let Some((guard, _)) = &mut self.guard {
            visit(File::P, Use::Read, guard);
        }
        match &mut self.op {
            Op::Fun { .. } | Op::SetP { .. } | Op::Convert { .. } => self.op.visit_fun(visit),
            Op::Load(load) => access(load, Use::Write, visit),
            Op::Store(store) => access(store, Use::Read, visit),
            Op::Mma(_)
            | Op::Tile(_)
            | Op::LoadMatrix { .. }
            | Op::MoveMatrix { .. }
            | Op::Copy(_)
            | Op::Atomic(_) => self.op.visit_memory(visit),
            Op::Pred { .. }
            | Op::FromPred { .. }
            | Op::SelL { .. }
            | Op::SelD { .. }
            | Op::MovL { .. }
            | Op::MovD { .. }
            | Op::IsSpace { .. }
            | Op::ToGeneric { .. }
            | Op::FromGeneric { .. }
            | Op::Clock { .. }
            | Op::BranchIndex { .. } => self.op.visit_move(visit),
            _ => self.op.visit_sync(visit),
        }
    }
}

impl Op {
    fn visit_fun(&mut self, visit: Visit<'_>) {
        match self {
            Self::Fun { fun, d, s } => {
                let (files, to) = fun.files();
                for (file, reg) in files.iter().zip(s) {
                    visit(*file, Use::Read, reg);
                }
                visit(to, Use::Write, d);
            }
            Self::Convert { d, a, from_wide, to_wide, .. } => {
                visit(if *from_wide { File::D } else { File::L }, Use::Read, a);
                visit(if *to_wide { File::D } else { File::L }, Use::Write, d);
            }
            Self::SetP { fun, d, q, s, with } => {
                let (files, _) = fun.files();
                for (file, reg) in files.iter().zip(s) {
                    visit(*file, Use::Read, reg);
                }
                if let Some((_, reg, _)) = with {
                    visit(File::P, Use::Read, reg);
                }
                visit(File::P, Use::Write, d);
                if let Some(reg) = q {
                    visit(File::P, Use::Write, reg);
                }
            }
            _ => {}
        }
    }

    fn visit_move(&mut self, visit: Visit<'_>) {
        use File::{D, L, P};
        let (reads, write): (&mut [(File, &mut u32)], (File, &mut u32)) = match self {
            Self::Pred { d, a, b, .. } => (&mut [(P, a), (P, b)], (P, d)),
            Self::FromPred { d, p, .. } => (&mut [(P, p)], (L, d)),
            Self::SelL { d, a, b, p } => (&mut [(L, a), (L, b), (P, p)], (L, d)),
            Self::SelD { d, a, b, p } => (&mut [(D, a), (D, b), (P, p)], (D, d)),
            Self::MovL { d, a } => (&mut [(L, a)], (L, d)),
            Self::MovD { d, a } | Self::ToGeneric { d, a, .. } | Self::FromGeneric { d, a, .. } => {
                (&mut [(D, a)], (D, d))
            }
            Self::IsSpace { d, a, .. } => (&mut [(D, a)], (P, d)),
            Self::Clock { d, wide } => (&mut [], (if *wide { D } else { L }, d)),
            Self::BranchIndex { a, .. } => {
                visit(L, Use::Read, a);
                return;
            }
            _ => return,
        };
        for (file, reg) in reads {
            visit(*file, Use::Read, reg);
        }
        visit(write.0, Use::Write, write.1);
    }

    fn visit_memory(&mut self, visit: Visit<'_>) {
        match self {
            Self::Atomic(atomic) => {
                addr(&mut atomic.addr, visit);
                let file = if atomic.ty.bytes() == 8 { File::D } else { File::L };
                visit(file, Use::Read, &mut atomic.b);
                visit(file, Use::Read, &mut atomic.c);
                if let Some(dst) = &mut atomic.dst {
                    visit(file, Use::Write, dst);
                }
            }
            Self::Mma(mma) => {
                all(&mut mma.a, Use::Read, visit);
                all(&mut mma.b, Use::Read, visit);
                all(&mut mma.c, Use::Read, visit);
                all(&mut mma.d, Use::Write, visit);
            }
            Self::Tile(tile) => {
                addr(&mut tile.addr, visit);
                visit(File::L, Use::Read, &mut tile.stride);
                let how = if tile.store { Use::Read } else { Use::Write };
                all(&mut tile.regs, how, visit);
            }
            Self::LoadMatrix { count, regs, addr: at, .. } => {
                addr(at, visit);
                all(&mut regs[..usize::from(*count)], Use::Write, visit);
            }
            Self::MoveMatrix { d, a } => {
                visit(File::L, Use::Read, a);
                visit(File::L, Use::Write, d);
            }
            Self::Copy(copy) => {
                addr(&mut copy.dst, visit);
                addr(&mut copy.src, visit);
                if let Some(reg) = &mut copy.src_size {
                    visit(File::L, Use::Read, reg);
                }
                if let Some(reg) = &mut copy.ignore {
                    visit(File::P, Use::Read, reg);
                }
            }
            _ => {}
        }
    }

    fn visit_sync(&mut self, visit: Visit<'_>) {
        use File::{D, L, P};
        match self {
            Self::Shuffle { d, p, a, b, c, mask, .. } => {
                for reg in [a, b, c, mask] {
                    visit(L, Use::Read, reg);
                }
                visit(L, Use::Write, d);
                if let Some(reg) = p {
                    visit(P, Use::Write, reg);
                }
            }
            Self::Vote { vote, d, p, mask, .. } => {
                visit(P, Use::Read, p);
                visit(L, Use::Read, mask);
                let ballot = *vote == super::inst::Vote::Ballot;
                visit(if ballot { L } else { P }, Use::Write, d);
            }
            Self::Match { wide, d, p, a, mask, .. } => {
                visit(if *wide { D } else { L }, Use::Read, a);
                visit(L, Use::Read, mask);
                visit(L, Use::Write, d);
                if let Some(reg) = p {
                    visit(P, Use::Write, reg);
                }
            }
            Self::Redux { d, a, mask, .. } => {
                visit(L, Use::Read, a);
                visit(L, Use::Read, mask);
                visit(L, Use::Write, d);
            }
            Self::ActiveMask { d } => visit(L, Use::Write, d),
            Self::SyncWarp { mask } => visit(L, Use::Read, mask),
            Self::Barrier(barrier) => {
                visit(L, Use::Read, &mut barrier.id);
                if let Some(reg) = &mut barrier.count {
                    visit(L, Use::Read, reg);
                }
                if let Some(reduce) = &mut barrier.reduce {
                    visit(P, Use::Read, &mut reduce.src);
                    let count = reduce.vote == super::inst::BarrierVote::Count;
                    visit(if count { L } else { P }, Use::Write, &mut reduce.dst);
                }
            }
            _ => {}
        }
    }
}
