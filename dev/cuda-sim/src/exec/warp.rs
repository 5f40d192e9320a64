//! A warp: its registers, its groups of lanes, and the loop that runs them.
//!
//! Lanes that are at the same instruction form a group. Of several groups the one that is furthest
//! back runs, so that groups meet again where their paths join; a group that needs other lanes (a
//! `.sync` mask, an aligned barrier) waits for them there.

use std::collections::VecDeque;

use super::fault::{FaultKind, Stop};
use super::inst::{D, Fun, Inst, L, LANES, Op, Program};
use super::launch::Env;
use super::local::Local;
use super::shared::{MAX_WARPS, Shared, Who};
use super::{barrier::Barriers, global::Global};

/// What a group of lanes is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// Arrived at a barrier; the instruction is behind it.
    AtBarrier,
    /// Needs other lanes at its instruction.
    NeedsLanes(FaultKind),
}

/// Lanes at one instruction.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) lanes: u32,
    pub(crate) state: State,
}

/// An asynchronous copy that nobody has waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) lane: u8,
    pub(crate) words: u8,
    pub(crate) group: u32,
    pub(crate) dst: u64,
    pub(crate) values: [u32; 4],
}

/// A warp.
pub(crate) struct Warp {
    pub(crate) l: Vec<L>,
    pub(crate) d: Vec<D>,
    pub(crate) p: Vec<u32>,
    pub(crate) groups: Vec<Group>,
    /// Lanes that have threads, and those that have not exited.
    pub(crate) threads: u32,
    pub(crate) live: u32,
    pub(crate) who: Who,
    pub(crate) local: Local,
    pub(crate) copies: VecDeque<Pending>,
    /// Groups of copies that each lane has committed.
    pub(crate) committed: [u32; LANES],
    pub(crate) stats: super::launch::Stats,
    /// Results before they are written to the active lanes.
    scratch_l: L,
    scratch_d: D,
    /// Where the last fault happened.
    pub(crate) pc: u32,
}

/// What a warp shares with the others of its block.
pub(crate) struct Block<'a> {
    pub(crate) shared: Shared,
    pub(crate) barriers: Barriers,
    pub(crate) global: Global<'a>,
    /// Threads of the block.
    pub(crate) threads: u32,
    /// Arguments of the launch.
    pub(crate) params: &'a [u8],
}

impl Block<'_> {
    /// Loads one, two, or a multiple of four bytes of the arguments.
    pub(crate) fn param(&self, lane: usize, address: u64, size: u32) -> Result<[u32; 4], Stop> {
        let outside = FaultKind::OutOfBounds { space: "param", size, write: false };
        let at = usize::try_from(address).unwrap_or(usize::MAX);
        let end = at.saturating_add(size as usize);
        let Some(found) = self.params.get(at..end) else {
            return Err(Stop::at(outside, lane, address));
        };
        if !address.is_multiple_of(u64::from(size)) {
            let kind = FaultKind::Misaligned { space: "param", align: size };
            return Err(Stop::at(kind, lane, address));
        }
        let mut out = [0; 4];
        for (word, bytes) in out.iter_mut().zip(found.chunks(4)) {
            let mut four = [0; 4];
            four[..bytes.len()].copy_from_slice(bytes);
            *word = u32::from_le_bytes(four);
        }
        Ok(out)
    }
}

/// What comes after an instruction.
pub(crate) enum Flow {
    Next,
    Jump(u32),
    /// Some lanes jump.
    Split(u32),
    /// Lanes go to different targets.
    Spread,
    /// These lanes are done.
    Exit,
    /// The group waits at this instruction.
    Wait(FaultKind),
    /// The group waits behind this instruction.
    Barrier,
}

#[inline]
pub(crate) fn write_l(to: &mut L, value: &L, lanes: u32) {
    if lanes == u32::MAX {
        *to = *value;
        return;
    }
    for lane in 0..LANES {
        let keep = (lanes >> lane & 1).wrapping_sub(1);
        to[lane] = to[lane] & keep | value[lane] & !keep;
    }
}

#[inline]
pub(crate) fn write_d(to: &mut D, value: &D, lanes: u32) {
    if lanes == u32::MAX {
        *to = *value;
        return;
    }
    for lane in 0..LANES {
        let keep = u64::from(lanes >> lane & 1).wrapping_sub(1);
        to[lane] = to[lane] & keep | value[lane] & !keep;
    }
}

/// The low half of a value.
#[expect(clippy::cast_possible_truncation, reason = "the low half is asked for")]
#[inline]
pub(crate) fn low(value: u64) -> u32 {
    value as u32
}

/// The lanes of a mask, in order.
#[inline]
pub(crate) fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros();
        mask &= mask - 1;
        Some(lane as usize)
    })
}

impl Warp {
    pub(crate) fn new(index: u32, program: &Program) -> Self {
        let file = |count: u32| vec![[super::memory::POISON; LANES]; count as usize];
        let wide = u64::from(super::memory::POISON) << 32 | u64::from(super::memory::POISON);
        Self {
            l: file(program.count_l),
            d: vec![[wide; LANES]; program.count_d as usize],
            p: vec![0; program.count_p as usize],
            groups: Vec::new(),
            threads: 0,
            live: 0,
            who: Who { warp: index, clock: 1, seen: [0; MAX_WARPS] },
            local: Local::default(),
            copies: VecDeque::new(),
            committed: [0; LANES],
            stats: super::launch::Stats::default(),
            scratch_l: [0; LANES],
            scratch_d: [0; LANES],
            pc: 0,
        }
    }

    /// Whether some lanes can go on.
    pub(crate) fn is_ready(&self) -> bool {
        self.groups.iter().any(|group| group.state == State::Ready)
    }

    /// Runs until nothing is ready or `quantum` instructions are done; gives what is left of it.
    pub(crate) fn run(
        &mut self,
        env: &Env<'_>,
        block: &mut Block<'_>,
        mut quantum: u64,
    ) -> Result<u64, Stop> {
        while quantum > 0 {
            let Some(index) = self.select()? else { return Ok(quantum) };
            quantum = self.run_group(index, env, block, quantum)?;
        }
        Ok(0)
    }

    /// Joins groups that met, and picks the ready one that is furthest back.
    fn select(&mut self) -> Result<Option<usize>, Stop> {
        if self.groups.len() > 1 {
            self.join();
        }
        let ready = self.groups.iter().enumerate().filter(|(_, g)| g.state == State::Ready);
        if let Some((index, _)) = ready.min_by_key(|(_, group)| group.pc) {
            return Ok(Some(index));
        }
        self.stuck()
    }

    fn join(&mut self) {
        let mut index = 0;
        while index < self.groups.len() {
            let (pc, at_barrier) =
                (self.groups[index].pc, self.groups[index].state == State::AtBarrier);
            let mut other = index + 1;
            while other < self.groups.len() && !at_barrier {
                let meets =
                    self.groups[other].pc == pc && self.groups[other].state != State::AtBarrier;
                if meets {
                    let more = self.groups.swap_remove(other);
                    self.groups[index].lanes |= more.lanes;
                    self.groups[index].state = State::Ready;
                } else {
                    other += 1;
                }
            }
            index += 1;
        }
    }

    /// No group is ready: done, at barriers, or waiting for lanes that will not come.
    fn stuck(&mut self) -> Result<Option<usize>, Stop> {
        let waits = |group: &&Group| matches!(group.state, State::NeedsLanes(_));
        let Some(first) = self.groups.iter().find(waits) else { return Ok(None) };
        if self.groups.iter().any(|group| group.state == State::AtBarrier) {
            return Ok(None);
        }
        // Different `bar.warp.sync` instructions may meet each other.
        if let State::NeedsLanes(FaultKind::SyncMask { mask, what: SYNC_WARP, .. }) = first.state {
            let meets = |group: &Group| {
                matches!(group.state, State::NeedsLanes(
                    FaultKind::SyncMask { mask: other, what: SYNC_WARP, .. }) if other == mask)
            };
            let mut lanes = 0;
            for group in self.groups.iter().filter(|group| meets(group)) {
                lanes |= group.lanes;
            }
            if lanes & mask == mask {
                self.who.clock += 1;
                for group in self.groups.iter_mut().filter(|group| meets(group)) {
                    group.state = State::Ready;
                    group.pc += 1;
                }
                return Ok(Some(0));
            }
        }
        let State::NeedsLanes(kind) = first.state.clone() else { return Ok(None) };
        self.pc = first.pc;
        Err(Stop::new(kind, first.lanes.trailing_zeros() as usize))
    }

    fn run_group(
        &mut self,
        index: usize,
        env: &Env<'_>,
        block: &mut Block<'_>,
        mut quantum: u64,
    ) -> Result<u64, Stop> {
        let Group { mut pc, lanes, .. } = self.groups[index];
        let alone = self.groups.len() == 1;
        let ahead = self.groups.iter().map(|group| group.pc).filter(|other| *other > pc);
        let meet = ahead.min().unwrap_or(u32::MAX);
        let insts = &env.program.insts[..];
        while quantum > 0 {
            quantum -= 1;
            let inst = &insts[pc as usize];
            let active = match inst.guard {
                Some((reg, flip)) => (self.p[reg as usize] ^ flip) & lanes,
                None => lanes,
            };
            self.stats.warp_instructions += 1;
            self.stats.thread_instructions += u64::from(active.count_ones());
            let flow = if active == 0 {
                Flow::Next
            } else {
                self.pc = pc;
                self.step(inst, active, lanes, (env, block))?
            };
            match flow {
                Flow::Next => {
                    pc += 1;
                    if pc == meet {
                        break;
                    }
                }
                Flow::Jump(target) => {
                    pc = target;
                    if !alone {
                        break;
                    }
                }
                other => {
                    self.leave_group(index, pc, active, other, inst);
                    return Ok(quantum);
                }
            }
        }
        self.groups[index].pc = pc;
        Ok(quantum)
    }

    /// Ends a group's run by anything but going on together.
    #[cold]
    fn leave_group(&mut self, index: usize, pc: u32, active: u32, flow: Flow, inst: &Inst) {
        let group = &mut self.groups[index];
        group.pc = pc;
        match flow {
            Flow::Split(target) => {
                group.pc += 1;
                group.lanes &= !active;
                self.groups.push(Group { pc: target, lanes: active, state: State::Ready });
            }
            Flow::Spread => {
                group.pc += 1;
                group.lanes &= !active;
                self.spread(active, inst);
            }
            Flow::Exit => {
                self.live &= !active;
                group.pc += 1;
                group.lanes &= !active;
                // Who waits for lanes looks again.
                for group in &mut self.groups {
                    if matches!(group.state, State::NeedsLanes(_)) {
                        group.state = State::Ready;
                    }
                }
            }
            Flow::Wait(kind) => group.state = State::NeedsLanes(kind),
            Flow::Barrier => {
                group.pc += 1;
                group.state = State::AtBarrier;
                let rest = group.lanes & !active;
                group.lanes = active;
                if rest != 0 {
                    self.groups.push(Group { pc: pc + 1, lanes: rest, state: State::Ready });
                }
            }
            Flow::Next | Flow::Jump(_) => {}
        }
        self.groups.retain(|group| group.lanes != 0);
    }

    /// Lanes of an indirect branch, by target.
    fn spread(&mut self, active: u32, inst: &Inst) {
        let Op::BranchIndex { a, targets } = &inst.op else { return };
        for lane in lanes_of(active) {
            let index = self.l[*a as usize][lane] as usize;
            let pc = targets[index];
            match self.groups.iter_mut().find(|g| g.pc == pc && g.state == State::Ready) {
                Some(group) => group.lanes |= 1 << lane,
                None => self.groups.push(Group { pc, lanes: 1 << lane, state: State::Ready }),
            }
        }
    }

    /// Executes one instruction for the lanes in `active`.
    #[inline]
    fn step(
        &mut self,
        inst: &Inst,
        active: u32,
        lanes: u32,
        (env, block): (&Env<'_>, &mut Block<'_>),
    ) -> Result<Flow, Stop> {
        match &inst.op {
            Op::Fun { fun, d, s } => self.fun(*fun, *d, *s, active),
            Op::SetP { fun, d, q, s, with } => {
                let value = self.compare(*fun, *s);
                let (mut first, mut second) = (value, !value);
                if let Some((op, reg, negated)) = with {
                    let other = self.p[*reg as usize] ^ if *negated { u32::MAX } else { 0 };
                    (first, second) = (op.of(first, other), op.of(second, other));
                }
                self.write_p(*d, first, active);
                if let Some(q) = q {
                    self.write_p(*q, second, active);
                }
            }
            Op::MovL { d, a } => {
                let value = self.l[*a as usize];
                write_l(&mut self.l[*d as usize], &value, active);
            }
            Op::MovD { d, a } => {
                let value = self.d[*a as usize];
                write_d(&mut self.d[*d as usize], &value, active);
            }
            Op::Load(load) => self.load(load, active, block)?,
            Op::Store(store) => self.store(store, active, block)?,
            Op::Branch { target } => {
                return Ok(if active == lanes {
                    Flow::Jump(*target)
                } else {
                    Flow::Split(*target)
                });
            }
            Op::Pred { op, d, a, b } => {
                let value = op.of(self.p[*a as usize], self.p[*b as usize]);
                self.write_p(*d, value, active);
            }
            Op::FromPred { .. } | Op::SelL { .. } | Op::SelD { .. } => {
                self.choose(&inst.op, active);
            }
            _ => return self.step_rare(inst, active, lanes, (env, block)),
        }
        Ok(Flow::Next)
    }

    #[inline]
    pub(crate) fn write_p(&mut self, d: u32, value: u32, active: u32) {
        let to = &mut self.p[d as usize];
        *to = *to & !active | value & active;
    }

    fn choose(&mut self, op: &Op, active: u32) {
        match op {
            Op::FromPred { d, p, bits } => {
                let p = self.p[*p as usize];
                let value = std::array::from_fn(|lane| (p >> lane & 1).wrapping_neg() & bits);
                write_l(&mut self.l[*d as usize], &value, active);
            }
            Op::SelL { d, a, b, p } => {
                let mut value = self.l[*b as usize];
                write_l(&mut value, &self.l[*a as usize], self.p[*p as usize]);
                write_l(&mut self.l[*d as usize], &value, active);
            }
            Op::SelD { d, a, b, p } => {
                let mut value = self.d[*b as usize];
                write_d(&mut value, &self.d[*a as usize], self.p[*p as usize]);
                write_d(&mut self.d[*d as usize], &value, active);
            }
            _ => {}
        }
    }

    fn compare(&self, fun: Fun, s: [u32; 2]) -> u32 {
        let [a, b] = s.map(|reg| reg as usize);
        match fun {
            Fun::LLtoP(f) => f(&self.l[a], &self.l[b]),
            Fun::DDtoP(f) => f(&self.d[a], &self.d[b]),
            Fun::LtoP(f) => f(&self.l[a]),
            Fun::DtoP(f) => f(&self.d[a]),
            _ => 0,
        }
    }

    #[inline]
    fn fun(&mut self, fun: Fun, d: u32, s: [u32; 4], active: u32) {
        let [a, b, c, e] = s.map(|reg| reg as usize);
        let (l, w, out) = (&self.l, &self.d, &mut self.scratch_l);
        match fun {
            Fun::L(f) => f(&l[a], out),
            Fun::LL(f) => f(&l[a], &l[b], out),
            Fun::LLL(f) => f(&l[a], &l[b], &l[c], out),
            Fun::LLLL(f) => f(&l[a], &l[b], &l[c], &l[e], out),
            Fun::DtoL(f) => f(&w[a], out),
            Fun::LLtoP(_) | Fun::DDtoP(_) | Fun::LtoP(_) | Fun::DtoP(_) => {
                let value = self.compare(fun, [s[0], s[1]]);
                self.write_p(d, value, active);
                return;
            }
            _ => return self.fun_wide(fun, d, [a, b, c, e], active),
        }
        write_l(&mut self.l[d as usize], &self.scratch_l, active);
    }

    #[inline]
    fn fun_wide(&mut self, fun: Fun, d: u32, [a, b, c, e]: [usize; 4], active: u32) {
        let (l, w, out) = (&self.l, &self.d, &mut self.scratch_d);
        match fun {
            Fun::D(f) => f(&w[a], out),
            Fun::DD(f) => f(&w[a], &w[b], out),
            Fun::DDD(f) => f(&w[a], &w[b], &w[c], out),
            Fun::DL(f) => f(&w[a], &l[b], out),
            Fun::DLL(f) => f(&w[a], &l[b], &l[c], out),
            Fun::DDLL(f) => f(&w[a], &w[b], &l[c], &l[e], out),
            Fun::LtoD(f) => f(&l[a], out),
            Fun::LLtoD(f) => f(&l[a], &l[b], out),
            Fun::LLDtoD(f) => f(&l[a], &l[b], &w[c], out),
            _ => return,
        }
        write_d(&mut self.d[d as usize], &self.scratch_d, active);
    }

    /// Everything that is not worth a place in the hot loop.
    #[inline(never)]
    fn step_rare(
        &mut self,
        inst: &Inst,
        active: u32,
        lanes: u32,
        (env, block): (&Env<'_>, &mut Block<'_>),
    ) -> Result<Flow, Stop> {
        match &inst.op {
            Op::Convert { convert, d, a, from_wide, to_wide } => {
                for lane in lanes_of(active) {
                    let raw = match from_wide {
                        true => self.d[*a as usize][lane],
                        false => u64::from(self.l[*a as usize][lane]),
                    };
                    let value = convert.lane(raw);
                    if *to_wide {
                        self.d[*d as usize][lane] = value;
                    } else {
                        self.l[*d as usize][lane] = low(value);
                    }
                }
            }
            Op::BranchIndex { a, targets } => {
                for lane in lanes_of(active) {
                    let index = self.l[*a as usize][lane];
                    if index as usize >= targets.len() {
                        return Err(Stop::new(FaultKind::BranchIndex { index }, lane));
                    }
                }
                return Ok(Flow::Spread);
            }
            Op::Exit => return Ok(Flow::Exit),
            Op::Trap | Op::Assert => {
                return Err(Stop::new(FaultKind::Trap, active.trailing_zeros() as usize));
            }
            Op::Fence => std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst),
            Op::Clock { d, wide } => {
                let now = self.stats.warp_instructions;
                if *wide {
                    write_d(&mut self.d[*d as usize], &[now; LANES], active);
                } else {
                    let now = [low(now); LANES];
                    write_l(&mut self.l[*d as usize], &now, active);
                }
            }
            Op::Atomic(_)
            | Op::Copy(_)
            | Op::CopyCommit
            | Op::CopyWait(_)
            | Op::IsSpace { .. }
            | Op::ToGeneric { .. }
            | Op::FromGeneric { .. } => self.step_memory(&inst.op, active, block)?,
            Op::Mma(_) | Op::Tile(_) | Op::LoadMatrix { .. } | Op::MoveMatrix { .. } => {
                return self.step_matrix(&inst.op, active, lanes, block);
            }
            _ => return self.step_sync(&inst.op, active, lanes, (env, block)),
        }
        Ok(Flow::Next)
    }
}

/// Why a group waits at `bar.warp.sync`.
pub(crate) const SYNC_WARP: &str = "lanes of bar.warp.sync are missing";
