//! Launches: blocks over host threads, warps of a block in a seeded order.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::barrier::{Barriers, Release};
use super::fault::{Fault, FaultKind, Stop};
use super::global::Global;
use super::inst::{BarrierVote, Const, LANES, LaneMask, Program, Special};
use super::memory::Memory;
use super::shared::{MAX_WARPS, SHARED_START, Shared};
use super::warp::{Block, Group, State, Warp, low, write_l};
use crate::ptx::Function;

/// A kernel with its arguments.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The entry.
    pub function: &'a Function,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Arguments, each at the offset that [`Function::params`] gives.
    pub params: &'a [u8],
    /// Addresses of the module's variables, in the module's order.
    pub variables: &'a [u64],
}

/// How a launch runs, and what it checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Chooses among the legal orders of warps and blocks.
    pub seed: u64,
    /// Host threads that run blocks.
    pub threads: usize,
    /// Most warp instructions of one block.
    pub budget: u64,
    /// Report races on shared memory.
    pub races: bool,
    /// Report reads of bytes that nothing has written.
    pub uninitialised: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, threads: 2, budget: 1 << 27, races: true, uninitialised: true }
    }
}

/// What a launch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Blocks run.
    pub blocks: u64,
    /// Instructions, counted once for a warp.
    pub warp_instructions: u64,
    /// Instructions, counted for each lane that executes them.
    pub thread_instructions: u64,
    /// Load instructions of warps.
    pub loads: u64,
    /// Store instructions of warps.
    pub stores: u64,
    /// Atomic instructions of warps.
    pub atomics: u64,
    /// Asynchronous copy instructions of warps.
    pub copies: u64,
    /// Matrix products of warps.
    pub mma: u64,
    /// Multiplications in matrix products.
    pub products: u64,
    /// Arrivals of warps at barriers.
    pub barriers: u64,
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.warp_instructions += other.warp_instructions;
        self.thread_instructions += other.thread_instructions;
        self.loads += other.loads;
        self.stores += other.stores;
        self.atomics += other.atomics;
        self.copies += other.copies;
        self.mma += other.mma;
        self.products += other.products;
        self.barriers += other.barriers;
    }
}

/// What all warps of a launch see.
pub(crate) struct Env<'a> {
    pub(crate) program: &'a Program,
    launch: &'a Launch<'a>,
    /// Address of dynamic shared memory, and bytes of all shared memory.
    dynamic: u32,
    shared: u32,
}

/// Largest shared memory of a block on any device, without what the system keeps.
const MAX_SHARED: u32 = 227 * 1024;

/// Runs every block of a launch.
///
/// # Errors
/// The first rule that the kernel broke; with several host threads, one of the first.
pub fn launch(
    launch: &Launch<'_>,
    options: &Options,
    memory: &dyn Memory,
) -> Result<Stats, Box<Fault>> {
    let env = prepare(launch).map_err(|what| {
        Box::new(Fault {
            kind: FaultKind::BadLaunch { what },
            kernel: launch.function.name.clone(),
            line: 0,
            instruction: String::new(),
            block: [0; 3],
            thread: [0; 3],
            address: None,
        })
    })?;
    let blocks: u64 = launch.grid.iter().map(|dim| u64::from(*dim)).product();
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let result = Mutex::new((Stats::default(), None::<(u64, Box<Fault>)>));
    let work = || {
        let mut worker = Worker::new(&env, options, memory);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= blocks || stop.load(Ordering::Relaxed) {
                break;
            }
            if let Err(fault) = worker.run(&env, options, order(number, blocks, options.seed)) {
                stop.store(true, Ordering::Relaxed);
                let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
                if result.1.as_ref().is_none_or(|(earlier, _)| number < *earlier) {
                    result.1 = Some((number, fault));
                }
                break;
            }
        }
        result.lock().unwrap_or_else(PoisonError::into_inner).0 += worker.stats();
    };
    let threads = u64::try_from(options.threads).unwrap_or(u64::MAX).clamp(1, blocks);
    if threads == 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
    }
    let (stats, fault) = result.into_inner().unwrap_or_else(PoisonError::into_inner);
    match fault {
        Some((_, fault)) => Err(fault),
        None => Ok(stats),
    }
}

/// The `number`-th block to run: any order is legal.
fn order(number: u64, blocks: u64, seed: u64) -> u64 {
    match seed % 3 {
        0 => number,
        1 => blocks - 1 - number,
        _ => {
            // From both ends in turn.
            if number.is_multiple_of(2) { number / 2 } else { blocks - 1 - number / 2 }
        }
    }
}

fn prepare<'a>(launch: &'a Launch<'a>) -> Result<Env<'a>, String> {
    let function = launch.function;
    let program = &*function.program;
    let [x, y, z] = launch.block;
    let threads = [x, y, z].iter().try_fold(1_u32, |product, dim| product.checked_mul(*dim));
    let limit = function.max_threads();
    let Some(threads @ 1..=1024) = threads else {
        return Err(format!("a block of {x} by {y} by {z} threads"));
    };
    if threads > limit || z > 64 {
        return Err(format!("a block of {x} by {y} by {z} threads; the kernel takes {limit}"));
    }
    if function.required != [0; 3] && function.required != launch.block {
        return Err(format!("blocks of {:?}, not {:?}", launch.block, function.required));
    }
    let [x, y, z] = launch.grid;
    if x == 0 || y == 0 || z == 0 || x > 0x7fff_ffff || y > 65535 || z > 65535 {
        return Err(format!("a grid of {x} by {y} by {z} blocks"));
    }
    if launch.params.len() < program.param_bytes as usize {
        let (have, want) = (launch.params.len(), program.param_bytes);
        return Err(format!("{have} bytes of parameters, not {want}"));
    }
    let uses = |list: &[Const]| {
        let numbers = list.iter().filter_map(|value| match value {
            Const::Module(number, _) => Some(*number as usize + 1),
            _ => None,
        });
        numbers.max().unwrap_or(0)
    };
    if launch.variables.len() < uses(&program.consts_d) {
        return Err("too few addresses of variables".to_owned());
    }
    let start = match launch.dynamic_shared {
        0 => program.static_shared,
        _ => program.static_shared.next_multiple_of(program.dynamic_align),
    };
    let shared = start.checked_add(launch.dynamic_shared).filter(|all| *all <= MAX_SHARED);
    let Some(shared) = shared else {
        return Err(format!(
            "{} and {} bytes of shared memory",
            program.static_shared, launch.dynamic_shared
        ));
    };
    Ok(Env { program, launch, dynamic: SHARED_START + start, shared })
}

/// Runs blocks, one after the other, on one host thread.
struct Worker<'a> {
    warps: Vec<Warp>,
    block: Block<'a>,
    blocks: u64,
    random: u64,
}

fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 31)
}

impl<'a> Worker<'a> {
    fn new(env: &Env<'a>, options: &Options, memory: &'a dyn Memory) -> Self {
        let threads: u32 = env.launch.block.iter().product();
        let warps = threads.div_ceil(32);
        let mut shared = Shared::default();
        shared.check_races = options.races && warps > 0;
        shared.check_uninitialised = options.uninitialised;
        let mut worker = Self {
            warps: (0..warps).map(|index| Warp::new(index, env.program)).collect(),
            block: Block {
                shared,
                barriers: Barriers::new(),
                global: Global::new(memory, options.uninitialised),
                threads,
                params: env.launch.params,
            },
            blocks: 0,
            random: options.seed,
        };
        for warp in &mut worker.warps {
            warp.local.check_uninitialised = options.uninitialised;
            warp.fill(env);
        }
        worker
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats { blocks: self.blocks, ..Stats::default() };
        for warp in &self.warps {
            stats += warp.stats;
        }
        stats
    }

    fn run(&mut self, env: &Env<'_>, options: &Options, number: u64) -> Result<(), Box<Fault>> {
        let ctaid = coordinates(number, env.launch.grid);
        self.block.shared.reset(env.shared);
        self.block.barriers.reset(u32::try_from(self.warps.len()).expect("at most 32"));
        for warp in &mut self.warps {
            warp.start(env, self.block.threads, ctaid);
        }
        self.random = options.seed ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d);
        self.blocks += 1;
        self.schedule(env, options).map_err(|(warp, stop)| self.report(env, ctaid, warp, stop))
    }

    /// Runs warps in turn until all are done.
    fn schedule(&mut self, env: &Env<'_>, options: &Options) -> Result<(), (usize, Stop)> {
        let mut left = options.budget;
        loop {
            let ready = self.warps.iter().filter(|warp| warp.is_ready()).count() as u64;
            if ready == 0 {
                return self.finished();
            }
            if left == 0 {
                let index = self.warps.iter().position(Warp::is_ready).unwrap_or(0);
                return Err((index, Stop::new(FaultKind::Budget { limit: options.budget }, 0)));
            }
            let random = next(&mut self.random);
            let pick = usize::try_from(random % ready).expect("at most 32");
            let mut indices = (0..self.warps.len()).filter(|index| self.warps[*index].is_ready());
            let index = indices.nth(pick).expect("as many as were counted");
            // Short turns now and then, so that warps overtake each other anywhere.
            let quantum = match random >> 32 & 7 {
                0 => 1 + (random >> 40 & 15),
                1 => 1 + (random >> 40 & 255),
                _ => 1 << 14,
            };
            let quantum = quantum.min(left);
            let rest = self.warps[index].run(env, &mut self.block, quantum);
            left -= quantum - rest.map_err(|stop| (index, stop))?;
            self.release();
        }
    }

    /// Nothing is ready: all threads have exited, or some wait for ever.
    fn finished(&self) -> Result<(), (usize, Stop)> {
        let waits = |warp: &&Warp| !warp.groups.is_empty();
        let Some(warp) = self.warps.iter().find(waits) else { return Ok(()) };
        let exited =
            self.block.threads - self.warps.iter().map(|w| w.live.count_ones()).sum::<u32>();
        let what = format!("{}{exited} threads have exited", self.block.barriers.describe());
        let lane = warp.groups[0].lanes.trailing_zeros() as usize;
        let index = warp.who.warp as usize;
        Err((index, Stop::new(FaultKind::BarrierDivergence { what }, lane)))
    }

    /// Wakes what complete barriers let go.
    fn release(&mut self) {
        let shared = &mut self.block.shared;
        if let Some(joined) = self.block.barriers.everyone.take() {
            shared.epoch += 1;
            shared.began = joined;
        }
        for release in self.block.barriers.released.drain(..) {
            self.warps[release.warp as usize].wake(&release);
        }
        if self.warps.iter().any(|warp| warp.who.clock >= CLOCK_LIMIT) {
            shared.forget_order();
            for warp in &mut self.warps {
                warp.who.clock = 1;
                warp.who.seen = [0; MAX_WARPS];
            }
        }
    }

    #[cold]
    fn report(&self, env: &Env<'_>, ctaid: [u32; 3], index: usize, stop: Stop) -> Box<Fault> {
        let warp = &self.warps[index];
        let waits = matches!(stop.kind, FaultKind::BarrierDivergence { .. });
        let pc = match warp.groups.first() {
            // A barrier that is waited for lies before the group's place.
            Some(group) if waits && group.state == State::AtBarrier => group.pc - 1,
            _ => warp.pc,
        } as usize;
        let thread = u64::try_from(index * LANES).unwrap_or(0) + u64::from(stop.lane.min(31));
        Box::new(Fault {
            kind: stop.kind,
            kernel: env.launch.function.name.clone(),
            line: env.program.insts[pc].line,
            instruction: env.program.names[pc].to_string(),
            block: ctaid,
            thread: coordinates(thread, env.launch.block),
            address: stop.address,
        })
    }
}

/// Clocks at which the history of shared memory is dropped, before they overflow their field.
const CLOCK_LIMIT: u32 = (1 << 19) - 64;

fn coordinates(number: u64, dims: [u32; 3]) -> [u32; 3] {
    let [x, y, _] = dims.map(u64::from);
    let cut = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    [cut(number % x), cut(number / x % y), cut(number / x / y)]
}

impl Warp {
    /// Fills constant registers and puts all lanes at the start.
    fn start(&mut self, env: &Env<'_>, threads: u32, ctaid: [u32; 3]) {
        let first = self.who.warp * 32;
        self.threads = match threads - first {
            count @ 0..32 => (1 << count) - 1,
            _ => u32::MAX,
        };
        self.live = self.threads;
        self.groups.clear();
        self.groups.push(Group { pc: 0, lanes: self.threads, state: State::Ready });
        self.who.clock = 1;
        self.who.seen = [0; MAX_WARPS];
        self.local.reset(env.program.frame);
        self.copies.clear();
        self.committed = [0; LANES];
        for (index, value) in env.changing(&env.program.consts_l) {
            self.l[index] =
                std::array::from_fn(|lane| low(env.constant(value, first, lane, ctaid)));
        }
        for (index, value) in env.changing(&env.program.consts_d) {
            self.d[index] = std::array::from_fn(|lane| env.constant(value, first, lane, ctaid));
        }
    }

    /// Fills constants that are the same for every block.
    fn fill(&mut self, env: &Env<'_>) {
        let first = self.who.warp * 32;
        for (index, value) in env.program.consts_l.iter().enumerate() {
            self.l[index] =
                std::array::from_fn(|lane| low(env.constant(*value, first, lane, [0; 3])));
        }
        for (index, value) in env.program.consts_d.iter().enumerate() {
            self.d[index] = std::array::from_fn(|lane| env.constant(*value, first, lane, [0; 3]));
        }
    }

    /// A barrier is complete.
    fn wake(&mut self, release: &Release) {
        for (seen, joined) in self.who.seen.iter_mut().zip(&release.joined) {
            *seen = (*seen).max(*joined);
        }
        if let Some((reduce, value)) = release.result {
            if reduce.vote == BarrierVote::Count {
                let to = &mut self.l[reduce.dst as usize];
                write_l(to, &[value; LANES], release.lanes);
            } else {
                self.write_p(reduce.dst, value.wrapping_neg(), release.lanes);
            }
        }
        let waits =
            |group: &&mut Group| group.state == State::AtBarrier && group.lanes == release.lanes;
        if let Some(group) = self.groups.iter_mut().find(waits) {
            group.state = State::Ready;
        }
    }
}

impl Env<'_> {
    /// Constants that differ between blocks, with their registers.
    fn changing<'a>(&self, list: &'a [Const]) -> impl Iterator<Item = (usize, Const)> + use<'a> {
        let changes = |value: &Const| matches!(value, Const::Special(Special::Ctaid(_)));
        list.iter().copied().enumerate().filter(move |(_, value)| changes(value))
    }

    fn constant(&self, value: Const, first: u32, lane: usize, ctaid: [u32; 3]) -> u64 {
        match value {
            Const::Bits(bits) => bits,
            Const::Param(at, bytes, signed) => self.param(at, bytes, signed),
            Const::Module(number, offset) => {
                self.launch.variables[number as usize].wrapping_add_signed(offset)
            }
            Const::Special(special) => {
                let lane = u32::try_from(lane).expect("a lane is below 32");
                u64::from(self.special(special, first + lane, ctaid))
            }
        }
    }

    fn param(&self, at: u32, bytes: u8, signed: bool) -> u64 {
        let (at, len) = (at as usize, usize::from(bytes));
        let mut word = [0; 8];
        // Reading past the parameters gives zeros; the decoder has checked declared offsets.
        let end = (at + len).min(self.launch.params.len());
        if let Some(found) = self.launch.params.get(at..end) {
            word[..found.len()].copy_from_slice(found);
        }
        let value = u64::from_le_bytes(word);
        let unused = 64 - 8 * u32::from(bytes);
        if signed {
            (value << unused).cast_signed().wrapping_shr(unused).cast_unsigned()
        } else {
            value
        }
    }

    fn special(&self, special: Special, thread: u32, ctaid: [u32; 3]) -> u32 {
        let (block, grid) = (self.launch.block, self.launch.grid);
        let lane = thread % 32;
        let threads: u32 = block.iter().product();
        match special {
            Special::Tid(axis) => coordinates(u64::from(thread), block)[usize::from(axis)],
            Special::Ntid(axis) => block[usize::from(axis)],
            Special::Ctaid(axis) => ctaid[usize::from(axis)],
            Special::Nctaid(axis) => grid[usize::from(axis)],
            Special::LaneId => lane,
            Special::WarpId => thread / 32,
            Special::NwarpId => threads.div_ceil(32),
            Special::SmId | Special::GridId => 0,
            Special::NsmId => 1,
            Special::LaneMask(LaneMask::Eq) => 1 << lane,
            Special::LaneMask(LaneMask::Lt) => (1 << lane) - 1,
            Special::LaneMask(LaneMask::Le) => u32::MAX >> (31 - lane),
            Special::LaneMask(LaneMask::Gt) => !(u32::MAX >> (31 - lane)),
            Special::LaneMask(LaneMask::Ge) => !((1 << lane) - 1),
            Special::DynamicShared => self.dynamic,
            Special::TotalShared => self.shared,
        }
    }
}
