//! Exchanges between the lanes of a warp, and its arrivals at barriers.

use super::barrier::Arrival;
use super::fault::{FaultKind, Stop};
use super::inst::{Barrier, D, L, LANES, Op, Redux, Shuffle, Vote};
use super::launch::Env;
use super::warp::{Block, Flow, SYNC_WARP, Warp, lanes_of, write_l};

const MISSING: &str = "lanes of the mask do not come to this instruction";

impl Warp {
    /// Checks the mask of a `.sync` instruction; `Some` says what the group has to wait for.
    fn sync_mask(
        &self,
        masks: &L,
        active: u32,
        lanes: u32,
        what: &'static str,
    ) -> Result<Option<FaultKind>, Stop> {
        let mut named = 0;
        for lane in lanes_of(active) {
            let mask = masks[lane];
            if mask >> lane & 1 == 0 {
                let what = "the executing lane is not in the mask";
                return Err(Stop::new(FaultKind::SyncMask { mask, active, what }, lane));
            }
            named |= mask;
        }
        let missing = named & !active;
        if missing == 0 {
            return Ok(None);
        }
        let first = active.trailing_zeros() as usize;
        let mask = masks[first];
        if missing & !self.live != 0 {
            let what = "the mask names lanes that have exited";
            return Err(Stop::new(FaultKind::SyncMask { mask, active, what }, first));
        }
        if missing & lanes != 0 {
            let what = "the mask names lanes that skip the instruction";
            return Err(Stop::new(FaultKind::SyncMask { mask, active, what }, first));
        }
        Ok(Some(FaultKind::SyncMask { mask, active, what }))
    }

    /// What to do when an instruction for the whole warp is met by `active`.
    pub(crate) fn whole_warp(&self, active: u32, lanes: u32) -> Result<Option<FaultKind>, Stop> {
        let kind = FaultKind::NotConverged { active };
        if active == u32::MAX {
            return Ok(None);
        }
        // Other lanes may still come, unless they do not exist or skip the instruction.
        if self.live == u32::MAX && lanes == active {
            return Ok(Some(kind));
        }
        Err(Stop::new(kind, active.trailing_zeros() as usize))
    }

    pub(crate) fn step_sync(
        &mut self,
        op: &Op,
        active: u32,
        lanes: u32,
        (env, block): (&Env<'_>, &mut Block<'_>),
    ) -> Result<Flow, Stop> {
        let (mask, what) = match op {
            Op::Shuffle { mask, .. }
            | Op::Vote { mask, .. }
            | Op::Match { mask, .. }
            | Op::Redux { mask, .. } => (*mask, MISSING),
            Op::SyncWarp { mask } => (*mask, SYNC_WARP),
            Op::ActiveMask { d } => {
                write_l(&mut self.l[*d as usize], &[active; LANES], active);
                return Ok(Flow::Next);
            }
            Op::Barrier(barrier) => return self.barrier(barrier, active, lanes, env, block),
            _ => return Ok(Flow::Next),
        };
        let masks = self.l[mask as usize];
        if let Some(kind) = self.sync_mask(&masks, active, lanes, what)? {
            return Ok(Flow::Wait(kind));
        }
        match op {
            Op::Shuffle { how, d, p, a, b, c, .. } => {
                self.shuffle(*how, [*d, *a, *b, *c], *p, active);
            }
            Op::Vote { vote, d, p, negate, .. } => {
                let set = self.p[*p as usize] ^ if *negate { u32::MAX } else { 0 };
                self.vote(*vote, *d, set, &masks, active);
            }
            Op::Match { all, wide, d, p, a, .. } => {
                let values: D = match wide {
                    true => self.d[*a as usize],
                    false => self.l[*a as usize].map(u64::from),
                };
                self.matching(*all, (*d, *p), &values, &masks, active);
            }
            Op::Redux { redux, d, a, .. } => self.redux(*redux, *d, *a, &masks, active),
            Op::SyncWarp { .. } => self.who.clock += 1,
            _ => {}
        }
        Ok(Flow::Next)
    }

    fn shuffle(&mut self, how: Shuffle, [d, a, b, c]: [u32; 4], p: Option<u32>, active: u32) {
        let [values, by, clamp] = [a, b, c].map(|reg| self.l[reg as usize]);
        let mut out = [super::memory::POISON; LANES];
        let mut inside = 0;
        for (lane, out) in out.iter_mut().enumerate() {
            let at = u32::try_from(lane).expect("a lane is below 32");
            let (by, segment) = (by[lane] & 31, clamp[lane] >> 8 & 31);
            let last = at & segment | clamp[lane] & 31 & !segment;
            let (from, ok) = match how {
                Shuffle::Up => {
                    (at.wrapping_sub(by), at.cast_signed() - by.cast_signed() >= last.cast_signed())
                }
                Shuffle::Down => (at + by, at + by <= last),
                Shuffle::Butterfly => (at ^ by, at ^ by <= last),
                Shuffle::Index => {
                    let from = at & segment | by & !segment;
                    (from, from <= last)
                }
            };
            let from = if ok { from } else { at };
            inside |= u32::from(ok) << lane;
            // A lane that does not take part has no value to give.
            if active >> (from & 31) & 1 == 1 {
                *out = values[(from & 31) as usize];
            }
        }
        write_l(&mut self.l[d as usize], &out, active);
        if let Some(p) = p {
            self.write_p(p, inside, active);
        }
    }

    fn vote(&mut self, vote: Vote, d: u32, set: u32, masks: &L, active: u32) {
        let (mut flags, mut ballots) = (0, [0; LANES]);
        for lane in lanes_of(active) {
            let mask = masks[lane];
            let here = set & mask;
            ballots[lane] = here;
            let flag = match vote {
                Vote::All => here == mask,
                Vote::Any => here != 0,
                Vote::Uniform => here == 0 || here == mask,
                Vote::Ballot => false,
            };
            flags |= u32::from(flag) << lane;
        }
        if vote == Vote::Ballot {
            write_l(&mut self.l[d as usize], &ballots, active);
        } else {
            self.write_p(d, flags, active);
        }
    }

    fn matching(
        &mut self,
        all: bool,
        (d, p): (u32, Option<u32>),
        values: &D,
        masks: &L,
        active: u32,
    ) {
        let (mut out, mut flags) = ([0; LANES], 0);
        for lane in lanes_of(active) {
            let mut same = 0;
            for other in lanes_of(masks[lane]) {
                same |= u32::from(values[other] == values[lane]) << other;
            }
            let everyone = same == masks[lane];
            flags |= u32::from(everyone) << lane;
            out[lane] = if all && !everyone { 0 } else { same };
        }
        write_l(&mut self.l[d as usize], &out, active);
        if let Some(p) = p {
            self.write_p(p, flags, active);
        }
    }

    fn redux(&mut self, redux: Redux, d: u32, a: u32, masks: &L, active: u32) {
        let values = self.l[a as usize];
        let signed = |value: u32| value.cast_signed();
        let mut out = [0; LANES];
        for lane in lanes_of(active) {
            let picked = lanes_of(masks[lane]).map(|other| values[other]);
            out[lane] = match redux {
                Redux::Add => picked.fold(0, u32::wrapping_add),
                Redux::And => picked.fold(u32::MAX, |a, b| a & b),
                Redux::Or => picked.fold(0, |a, b| a | b),
                Redux::Xor => picked.fold(0, |a, b| a ^ b),
                Redux::MinU => picked.min().unwrap_or(0),
                Redux::MaxU => picked.max().unwrap_or(0),
                Redux::MinS => picked.map(signed).min().unwrap_or(0).cast_unsigned(),
                Redux::MaxS => picked.map(signed).max().unwrap_or(0).cast_unsigned(),
            };
        }
        write_l(&mut self.l[d as usize], &out, active);
    }

    fn barrier(
        &mut self,
        barrier: &Barrier,
        active: u32,
        lanes: u32,
        env: &Env<'_>,
        block: &mut Block<'_>,
    ) -> Result<Flow, Stop> {
        let first = active.trailing_zeros() as usize;
        let id = self.l[barrier.id as usize][first];
        let stop = |what: String| Stop::new(FaultKind::BarrierDivergence { what }, first);
        if barrier.aligned && active != self.live {
            let what = format!("lanes {active:#x} of {:#x} at barrier {id}", self.live);
            if active != lanes {
                return Err(stop(what));
            }
            return Ok(Flow::Wait(FaultKind::BarrierDivergence { what }));
        }
        let (weight, expected) = match barrier.count {
            Some(reg) => {
                let count = self.l[reg as usize][first];
                if !count.is_multiple_of(32) {
                    return Err(stop(format!("barrier {id} of {count} threads")));
                }
                (if barrier.aligned { 32 } else { active.count_ones() }, count)
            }
            None => (active.count_ones(), block.threads),
        };
        let reduce = barrier.reduce.map(|reduce| {
            let set = self.p[reduce.src as usize] ^ if reduce.negate { u32::MAX } else { 0 };
            (reduce, set)
        });
        let arrival = Arrival {
            id,
            warp: self.who.warp,
            lanes: active,
            weight,
            expected,
            wait: barrier.wait,
            reduce,
        };
        self.stats.barriers += 1;
        let arrived = block.barriers.arrive(arrival, &mut self.who);
        arrived.map_err(|kind| Stop::new(kind, first))?;
        let _ = env;
        Ok(if barrier.wait { Flow::Barrier } else { Flow::Next })
    }
}
