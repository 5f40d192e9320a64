//! Barriers of a block.

use super::fault::FaultKind;
use super::inst::{BarrierReduce, BarrierVote};
use super::shared::{MAX_WARPS, Who};

/// Barriers that a block has.
const BARRIERS: usize = 16;

/// Lanes that wait for a barrier.
#[derive(Debug, Clone, Copy)]
struct Waiter {
    warp: u32,
    lanes: u32,
    reduce: Option<BarrierReduce>,
}

/// One barrier.
#[derive(Debug, Clone)]
struct State {
    arrived: u32,
    expected: u32,
    /// Up to which clock of each warp the barrier orders.
    joined: [u32; MAX_WARPS],
    waiting: Vec<Waiter>,
    /// Lanes whose predicate was set, and how many came.
    set: u32,
    voters: u32,
}

impl State {
    const fn new() -> Self {
        Self {
            arrived: 0,
            expected: 0,
            joined: [0; MAX_WARPS],
            waiting: Vec::new(),
            set: 0,
            voters: 0,
        }
    }
}

/// A barrier that is complete releases these.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Release {
    pub(crate) warp: u32,
    pub(crate) lanes: u32,
    pub(crate) joined: [u32; MAX_WARPS],
    /// Where the result of a reduction goes, and the result.
    pub(crate) result: Option<(BarrierReduce, u32)>,
}

/// What arrives at a barrier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) id: u32,
    pub(crate) warp: u32,
    pub(crate) lanes: u32,
    /// Threads that this counts as, and that the barrier waits for.
    pub(crate) weight: u32,
    pub(crate) expected: u32,
    pub(crate) wait: bool,
    pub(crate) reduce: Option<(BarrierReduce, u32)>,
}

/// All barriers of a block.
#[derive(Debug)]
pub(crate) struct Barriers {
    states: Vec<State>,
    /// Lanes to wake; the block's loop takes them.
    pub(crate) released: Vec<Release>,
    /// The last complete barrier was passed by every warp.
    pub(crate) everyone: Option<[u32; MAX_WARPS]>,
    warps: u32,
}

fn divergence(what: String) -> FaultKind {
    FaultKind::BarrierDivergence { what }
}

impl Barriers {
    pub(crate) fn new() -> Self {
        let states = vec![State::new(); BARRIERS];
        Self { states, released: Vec::new(), everyone: None, warps: 0 }
    }

    pub(crate) fn reset(&mut self, warps: u32) {
        self.states.fill(State::new());
        self.released.clear();
        self.everyone = None;
        self.warps = warps;
    }

    /// Counts an arrival; the warp's clock advances.
    pub(crate) fn arrive(&mut self, arrival: Arrival, who: &mut Who) -> Result<(), FaultKind> {
        let Arrival { id, warp, lanes, weight, expected, wait, reduce } = arrival;
        let Some(state) = self.states.get_mut(id as usize) else {
            return Err(divergence(format!("barrier {id}; there are {BARRIERS}")));
        };
        if expected == 0 || (state.arrived > 0 && state.expected != expected) {
            return Err(divergence(format!(
                "barrier {id} waits for {} threads and warp {warp} says {expected}",
                state.expected
            )));
        }
        state.expected = expected;
        state.arrived += weight;
        for (joined, seen) in state.joined.iter_mut().zip(&who.seen) {
            *joined = (*joined).max(*seen);
        }
        state.joined[warp as usize] = who.clock;
        who.clock += 1;
        if let Some((_, set)) = reduce {
            state.set += (set & lanes).count_ones();
            state.voters += lanes.count_ones();
        }
        if wait {
            let reduce = reduce.map(|(reduce, _)| reduce);
            state.waiting.push(Waiter { warp, lanes, reduce });
        }
        if state.arrived > state.expected {
            let arrived = state.arrived;
            return Err(divergence(format!(
                "{arrived} of {expected} threads came to barrier {id}"
            )));
        }
        if state.arrived == state.expected {
            self.complete(id as usize);
        }
        Ok(())
    }

    fn complete(&mut self, id: usize) {
        let state = std::mem::replace(&mut self.states[id], State::new());
        let mut warps = 0_u32;
        for waiter in &state.waiting {
            warps |= 1 << waiter.warp;
            let result = waiter.reduce.map(|reduce| {
                let value = match reduce.vote {
                    BarrierVote::Count => state.set,
                    BarrierVote::And => u32::from(state.set == state.voters),
                    BarrierVote::Or => u32::from(state.set > 0),
                };
                (reduce, value)
            });
            self.released.push(Release {
                warp: waiter.warp,
                lanes: waiter.lanes,
                joined: state.joined,
                result,
            });
        }
        if warps.count_ones() == self.warps {
            self.everyone = Some(state.joined);
        }
    }

    /// Who waits where, for a report.
    pub(crate) fn describe(&self) -> String {
        let mut out = String::new();
        for (id, state) in self.states.iter().enumerate().filter(|(_, state)| state.arrived > 0) {
            let warps: Vec<u32> = state.waiting.iter().map(|waiter| waiter.warp).collect();
            out.push_str(&format!(
                "barrier {id}: {} of {} threads, warps {warps:?} wait; ",
                state.arrived, state.expected
            ));
        }
        out
    }
}
