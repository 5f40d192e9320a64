//! Passes over a decoded program that make it faster to run, not different.
//!
//! Moves of constants disappear, and registers whose values are never needed at the same time share
//! a place, so that the registers of a warp stay in the host's cache. Lanes that part do not disturb
//! each other: every write is for the active lanes only, and each lane follows the control flow for
//! which the register was free.

use super::inst::{File, Inst, Op, Program};
use super::visit::Use;

/// Programs whose sets of live registers would take more words than this stay as they are.
const MAX_WORDS: usize = 1 << 24;

/// The program as it will run.
pub(super) fn finish(mut program: Program) -> Program {
    forward_constants(&mut program);
    let sizes = [program.count_p, program.count_l, program.count_d];
    let firsts = [0, constants(&program.consts_l), constants(&program.consts_d)];
    let blocks = blocks(&program.insts);
    let registers: usize = sizes.iter().map(|size| *size as usize).sum();
    if blocks.len().saturating_mul(registers / 64 + 3) > MAX_WORDS {
        return program;
    }
    let ranges = ranges(&mut program.insts, &blocks, sizes);
    for (number, ranges) in ranges.into_iter().enumerate() {
        let (places, count) = share(&ranges, firsts[number]);
        for inst in &mut program.insts {
            inst.visit(&mut |file, _, reg| {
                if number_of(file) == number {
                    *reg = places[*reg as usize];
                }
            });
        }
        match number {
            0 => program.count_p = count,
            1 => program.count_l = count,
            _ => program.count_d = count,
        }
    }
    program
}

fn constants<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).expect("programs are bounded")
}

fn number_of(file: File) -> usize {
    match file {
        File::P => 0,
        File::L => 1,
        File::D => 2,
    }
}

/// Uses of a register that is only ever a copy of a constant use the constant.
fn forward_constants(program: &mut Program) {
    let firsts = [0, constants(&program.consts_l), constants(&program.consts_d)];
    let sizes = [program.count_p, program.count_l, program.count_d];
    let mut writes = sizes.map(|size| vec![0_u8; size as usize]);
    for inst in &mut program.insts {
        inst.visit(&mut |file, how, reg| {
            if how == Use::Write {
                let count = &mut writes[number_of(file)][*reg as usize];
                *count = count.saturating_add(1);
            }
        });
    }
    let mut instead: [Vec<u32>; 3] = sizes.map(|size| (0..size).collect());
    let mut keep = vec![true; program.insts.len()];
    for (inst, keep) in program.insts.iter().zip(&mut keep) {
        let (number, d, a) = match inst.op {
            Op::MovL { d, a } => (1, d, a),
            Op::MovD { d, a } => (2, d, a),
            _ => continue,
        };
        if inst.guard.is_none() && a < firsts[number] && writes[number][d as usize] == 1 {
            instead[number][d as usize] = a;
            *keep = false;
        }
    }
    for inst in &mut program.insts {
        inst.visit(&mut |file, how, reg| {
            if how == Use::Read {
                *reg = instead[number_of(file)][*reg as usize];
            }
        });
    }
    remove(program, &keep);
}

/// Removes instructions; branches to one go to the next that is kept.
fn remove(program: &mut Program, keep: &[bool]) {
    let mut to = Vec::with_capacity(keep.len() + 1);
    let mut next = 0;
    for keep in keep {
        to.push(next);
        next += u32::from(*keep);
    }
    to.push(next);
    for inst in &mut program.insts {
        match &mut inst.op {
            Op::Branch { target } => *target = to[*target as usize],
            Op::BranchIndex { targets, .. } => {
                for target in targets {
                    *target = to[*target as usize];
                }
            }
            _ => {}
        }
    }
    let mut flags = keep.iter();
    program.insts.retain(|_| *flags.next().expect("one flag for each"));
    let mut flags = keep.iter();
    program.names.retain(|_| *flags.next().expect("one flag for each"));
}

/// A stretch of instructions that is entered at its start only.
#[derive(Debug)]
struct Block {
    start: usize,
    end: usize,
    next: Vec<usize>,
}

fn blocks(insts: &[Inst]) -> Vec<Block> {
    let mut starts = vec![false; insts.len() + 1];
    starts[0] = true;
    for (at, inst) in insts.iter().enumerate() {
        match &inst.op {
            Op::Branch { target } => {
                starts[*target as usize] = true;
                starts[at + 1] = true;
            }
            Op::BranchIndex { targets, .. } => {
                for target in targets {
                    starts[*target as usize] = true;
                }
                starts[at + 1] = true;
            }
            Op::Exit => starts[at + 1] = true,
            _ => {}
        }
    }
    let bounds: Vec<usize> = (0..insts.len()).filter(|at| starts[*at]).collect();
    let find = |at: usize| bounds.binary_search(&at).ok();
    let mut out = Vec::with_capacity(bounds.len());
    for (index, start) in bounds.iter().enumerate() {
        let end = bounds.get(index + 1).copied().unwrap_or(insts.len());
        let last = &insts[end - 1];
        let guarded = last.guard.is_some();
        let mut next = Vec::new();
        let falls = match &last.op {
            Op::Branch { target } => {
                next.extend(find(*target as usize));
                guarded
            }
            Op::BranchIndex { targets, .. } => {
                next.extend(targets.iter().filter_map(|target| find(*target as usize)));
                guarded
            }
            Op::Exit => guarded,
            _ => true,
        };
        if falls {
            next.extend(find(end));
        }
        out.push(Block { start: *start, end, next });
    }
    out
}

/// A set of registers of all files.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn contains(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.len() * 64).filter(|at| self.contains(*at))
    }
}

/// Where a register is needed, from its first to its last place; `None` if it never is. Reads are
/// at even places and writes at the odd ones after them.
type Range = Option<(usize, usize)>;

/// The stretch of instructions over which each register of each file is needed.
fn ranges(insts: &mut [Inst], blocks: &[Block], sizes: [u32; 3]) -> [Vec<Range>; 3] {
    let offsets = [0, sizes[0] as usize, (sizes[0] + sizes[1]) as usize];
    let total = sizes.iter().map(|size| *size as usize).sum();
    let mut out: Vec<Range> = vec![None; total];
    let widen = |range: &mut Range, at: usize| {
        *range = Some(range.map_or((at, at), |(from, to)| (from.min(at), to.max(at))));
    };
    // What a block reads before it writes it, and what it writes.
    let mut reads: Vec<Set> = vec![Set::new(total); blocks.len()];
    let mut writes = reads.clone();
    for (number, block) in blocks.iter().enumerate() {
        let inside = insts[block.start..block.end].iter_mut();
        for (at, inst) in (block.start..).zip(inside) {
            let guarded = inst.guard.is_some();
            inst.visit(&mut |file, how, reg| {
                let reg = offsets[number_of(file)] + *reg as usize;
                // A guarded write leaves the old value of other lanes.
                let read = how == Use::Read || guarded;
                if read && !writes[number].contains(reg) {
                    reads[number].insert(reg);
                }
                if how == Use::Write {
                    writes[number].insert(reg);
                }
                widen(&mut out[reg], 2 * at + usize::from(!read));
                widen(&mut out[reg], 2 * at + usize::from(how == Use::Write));
            });
        }
    }
    let entry = live(blocks, &reads, &writes);
    for (block, live) in blocks.iter().zip(&entry) {
        for reg in live.iter() {
            widen(&mut out[reg], 2 * block.start);
        }
        for next in &block.next {
            for reg in entry[*next].iter() {
                widen(&mut out[reg], 2 * block.end - 1);
            }
        }
    }
    let third = out.split_off(offsets[2]);
    let second = out.split_off(offsets[1]);
    [out, second, third]
}

/// Registers that are needed at the start of each block.
fn live(blocks: &[Block], reads: &[Set], writes: &[Set]) -> Vec<Set> {
    let mut entry = reads.to_vec();
    let mut changed = true;
    while changed {
        changed = false;
        for number in (0..blocks.len()).rev() {
            for next in &blocks[number].next {
                for word in 0..reads[number].0.len() {
                    let more = entry[*next].0[word] & !writes[number].0[word];
                    let old = entry[number].0[word];
                    entry[number].0[word] |= more;
                    changed |= entry[number].0[word] != old;
                }
            }
        }
    }
    entry
}

/// Gives registers that are not needed together one place. Constants, the first ones, stay.
fn share(ranges: &[Range], constants: u32) -> (Vec<u32>, u32) {
    let mut places: Vec<u32> = (0..).take(ranges.len()).collect();
    let mut order: Vec<(usize, usize, usize)> = Vec::new();
    for (reg, range) in ranges.iter().enumerate().skip(constants as usize) {
        // A register that is never used has no place; nothing refers to it.
        if let Some((from, to)) = range {
            order.push((*from, *to, reg));
        }
    }
    order.sort_unstable();
    let mut busy: std::collections::BinaryHeap<std::cmp::Reverse<(usize, u32)>> =
        std::collections::BinaryHeap::new();
    let mut free: Vec<u32> = Vec::new();
    let mut count = constants;
    for (from, to, reg) in order {
        while let Some(std::cmp::Reverse((end, place))) = busy.peek().copied()
            && end < from
        {
            busy.pop();
            free.push(place);
        }
        let place = free.pop().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        places[reg] = place;
        busy.push(std::cmp::Reverse((to, place)));
    }
    (places, count)
}
