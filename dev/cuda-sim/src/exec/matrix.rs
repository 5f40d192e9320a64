//! Matrix instructions of a warp.
//!
//! `mma`, `ldmatrix` and `movmatrix` distribute elements over lanes as PTX documents it. The
//! distribution of `wmma` is not documented, and differs between devices: here it follows memory
//! order, so a kernel that assumes another one fails. Products of 16-bit and tf32 elements are exact
//! in `f32`; they are added in `f32` in the order of k. A device adds in another order and truncates.

use super::access::resolve;
use super::fault::{FaultKind, Stop};
use super::inst::{Addr, Elem, LANES, Mma, Op, Space, Tile};
use super::num::{bf16, f16, to_f16};
use super::shared::{Kind, SOME_LANE};
use super::warp::{Block, Flow, Warp, lanes_of};

/// Most elements of an operand: 32 by 16.
const MAX: usize = 512;

/// Row and column of element `e` of register `r` of A.
fn place_a(mma: &Mma, lane: usize, r: usize, e: usize) -> (usize, usize) {
    let per = mma.a_elem.per_reg();
    if mma.wmma {
        return place_wmma(lane * mma.a.len() + r, e, (mma.m, mma.k, mma.a_row, per));
    }
    let (group, thread) = (lane / 4, lane % 4);
    (group + 8 * (r & 1), thread * per + e + 4 * per * (r >> 1))
}

/// Row and column of element `e` of register `r` of B.
fn place_b(mma: &Mma, lane: usize, r: usize, e: usize) -> (usize, usize) {
    let per = mma.b_elem.per_reg();
    if mma.wmma {
        return place_wmma(lane * mma.b.len() + r, e, (mma.k, mma.n, mma.b_row, per));
    }
    (lane % 4 * per + e + 4 * per * r, lane / 4)
}

/// Row and column of element `i` of a lane's part of C or D.
fn place_c(mma: &Mma, lane: usize, i: usize) -> (usize, usize) {
    if mma.wmma {
        let index = lane * (mma.m * mma.n / LANES) + i;
        return (index / mma.n, index % mma.n);
    }
    (lane / 4 + 8 * (i >> 1), lane % 4 * 2 + (i & 1))
}

/// Row and column of element `e` of the `slot`-th register of a warp.
fn place_wmma(
    slot: usize,
    e: usize,
    (rows, cols, row_major, per): (usize, usize, bool, usize),
) -> (usize, usize) {
    let index = (slot * per + e) % (rows * cols);
    if row_major { (index / cols, index % cols) } else { (index % rows, index / rows) }
}

/// An element of a register, as a number that is exact in `f32`.
fn real(elem: Elem, word: u32, e: usize) -> f32 {
    match elem {
        Elem::F16 => f16(word >> (16 * e) & 0xffff),
        Elem::BF16 => bf16(word >> (16 * e) & 0xffff),
        // The low bits are not looked at.
        Elem::TF32 => f32::from_bits(word & 0xffff_e000),
        _ => f32::from_bits(word),
    }
}

fn whole(elem: Elem, word: u32, e: usize) -> i32 {
    match elem {
        Elem::S8 => i32::from(word.to_le_bytes()[e].cast_signed()),
        Elem::U8 => i32::from(word.to_le_bytes()[e]),
        _ => word.cast_signed(),
    }
}

impl Warp {
    pub(crate) fn step_matrix(
        &mut self,
        op: &Op,
        active: u32,
        lanes: u32,
        block: &mut Block<'_>,
    ) -> Result<Flow, Stop> {
        if let Some(kind) = self.whole_warp(active, lanes)? {
            return Ok(Flow::Wait(kind));
        }
        match op {
            Op::Mma(mma) => {
                self.stats.products += (mma.m * mma.n * mma.k) as u64;
                self.stats.mma += 1;
                match mma.c_elem {
                    Elem::S32 => self.product_int(mma),
                    _ => self.product_real(mma),
                }
            }
            Op::Tile(tile) => self.tile(tile, block)?,
            Op::LoadMatrix { count, trans, generic, regs, addr } => {
                let regs = &regs[..usize::from(*count)];
                self.load_matrix(regs, *trans, *generic, addr, block)?;
            }
            Op::MoveMatrix { d, a } => {
                let words = self.l[*a as usize];
                for lane in 0..LANES {
                    let half = |col: usize| {
                        let row = lane / 4;
                        words[col * 4 + row / 2] >> (16 * (row % 2)) & 0xffff
                    };
                    let col = 2 * (lane % 4);
                    self.l[*d as usize][lane] = half(col) | half(col + 1) << 16;
                }
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    fn product_real(&mut self, mma: &Mma) {
        let (n, k) = (mma.n, mma.k);
        let (mut a, mut b, mut c) = ([0.0; MAX], [0.0; MAX], [0.0; MAX]);
        self.gather(&mma.a, (mma.a_elem, &mma.a_at), real, &mut a);
        self.gather(&mma.b, (mma.b_elem, &mma.b_at), real, &mut b);
        self.gather(&mma.c, (mma.c_elem, &mma.c_at), real, &mut c);
        for (sums, left) in c.chunks_exact_mut(n).zip(a.chunks_exact(k)).take(mma.m) {
            for (left, right) in left.iter().zip(b.chunks_exact(n)) {
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum += left * right;
                }
            }
        }
        let per = mma.d_elem.per_reg();
        for (reg, at) in mma.d.iter().zip(mma.d_at.chunks_exact(LANES * per)) {
            let to = &mut self.l[*reg as usize];
            for (word, at) in to.iter_mut().zip(at.chunks_exact(per)) {
                *word = match *at {
                    [low, high] => to_f16(c[usize::from(low)]) | to_f16(c[usize::from(high)]) << 16,
                    [one, ..] => c[usize::from(one)].to_bits(),
                    [] => 0,
                };
            }
        }
    }

    /// Collects a matrix from the registers of all lanes.
    #[inline]
    fn gather<T>(
        &self,
        regs: &[u32],
        (elem, at): (Elem, &[u16]),
        get: impl Fn(Elem, u32, usize) -> T,
        out: &mut [T; MAX],
    ) {
        let per = elem.per_reg();
        for (reg, at) in regs.iter().zip(at.chunks_exact(LANES * per)) {
            for (word, at) in self.l[*reg as usize].iter().zip(at.chunks_exact(per)) {
                for (e, at) in at.iter().enumerate() {
                    out[usize::from(*at)] = get(elem, *word, e);
                }
            }
        }
    }

    fn product_int(&mut self, mma: &Mma) {
        let (n, k) = (mma.n, mma.k);
        let (mut a, mut b, mut sums) = ([0_i32; MAX], [0_i32; MAX], [0_i32; MAX]);
        self.gather(&mma.a, (mma.a_elem, &mma.a_at), whole, &mut a);
        self.gather(&mma.b, (mma.b_elem, &mma.b_at), whole, &mut b);
        // At most 32 products of 255 * 255: no overflow before the addition to C.
        for (sums, left) in sums.chunks_exact_mut(n).zip(a.chunks_exact(k)).take(mma.m) {
            for (left, right) in left.iter().zip(b.chunks_exact(n)) {
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum += left * right;
                }
            }
        }
        let mut out = Vec::with_capacity(mma.d.len());
        for (reg, at) in mma.c.iter().zip(mma.c_at.chunks_exact(LANES)) {
            let mut words = self.l[*reg as usize];
            for (word, at) in words.iter_mut().zip(at) {
                let (old, sum) = (word.cast_signed(), sums[usize::from(*at)]);
                let new =
                    if mma.saturate { old.saturating_add(sum) } else { old.wrapping_add(sum) };
                *word = new.cast_unsigned();
            }
            out.push(words);
        }
        for (reg, words) in mma.d.iter().zip(out) {
            self.l[*reg as usize] = words;
        }
    }

    /// `ldmatrix`: eight rows of sixteen bytes for each matrix.
    fn load_matrix(
        &mut self,
        regs: &[u32],
        trans: bool,
        generic: bool,
        addr: &Addr,
        block: &mut Block<'_>,
    ) -> Result<(), Stop> {
        let addresses = self.addresses(addr);
        for (index, reg) in regs.iter().enumerate() {
            let mut rows = [[0_u32; 4]; 8];
            for (row, words) in rows.iter_mut().enumerate() {
                let lane = 8 * index + row;
                let space = if generic { Space::Generic } else { Space::Shared };
                let (space, address) = resolve(space, addresses[lane]);
                if space != Space::Shared {
                    let kind = FaultKind::OutOfBounds { space: "shared", size: 16, write: false };
                    return Err(Stop::at(kind, lane, addresses[lane]));
                }
                let loaded =
                    block.shared.load_words(&self.who, SOME_LANE, address, Kind::Read, words);
                loaded.map_err(|stop| stop.of_lane(lane))?;
            }
            let half = |row: usize, col: usize| rows[row][col / 2] >> (16 * (col % 2)) & 0xffff;
            for lane in 0..LANES {
                let (group, thread) = (lane / 4, lane % 4);
                self.l[*reg as usize][lane] = match trans {
                    false => rows[group][thread],
                    true => half(2 * thread, group) | half(2 * thread + 1, group) << 16,
                };
            }
        }
        Ok(())
    }

    /// `wmma.load` and `wmma.store`.
    fn tile(&mut self, tile: &Tile, block: &mut Block<'_>) -> Result<(), Stop> {
        let addresses = self.addresses(&tile.addr);
        let strides = self.l[tile.stride as usize];
        let (base, stride) = (addresses[0], u64::from(strides[0]));
        for lane in lanes_of(u32::MAX) {
            if addresses[lane] != base || strides[lane] != strides[0] {
                let active = 1 << lane;
                return Err(Stop::at(FaultKind::NotConverged { active }, lane, addresses[lane]));
            }
        }
        let bytes = u64::from(tile.elem.bytes());
        // Devices ask for 32 bytes for the tile, and 16 for each row of it.
        if !base.is_multiple_of(32) || !(stride * bytes).is_multiple_of(16) {
            let space = "tile";
            let align = if base.is_multiple_of(32) { 16 } else { 32 };
            return Err(Stop::at(FaultKind::Misaligned { space, align }, 0, base));
        }
        let per = tile.elem.per_reg();
        let whole_words = per == 1 || tile.order() == tile.row_major;
        for (reg, at) in tile.regs.iter().zip(tile.at.chunks_exact(LANES * per)) {
            for (lane, at) in at.chunks_exact(per).enumerate() {
                let place = (lane, *reg as usize);
                let address = |(major, minor): (u16, u16)| {
                    base + (u64::from(major) * stride + u64::from(minor)) * bytes
                };
                if at[0].0 == u16::MAX {
                    // Held by an earlier lane as well; filled in below.
                } else if whole_words {
                    self.tile_word(tile, place, address(at[0]), block)?;
                } else {
                    for (e, at) in at.iter().enumerate() {
                        self.tile_element(tile, place, (e, address(*at)), block)?;
                    }
                }
            }
        }
        self.copy_held_twice(tile);
        Ok(())
    }

    /// Elements that several lanes hold are loaded once.
    fn copy_held_twice(&mut self, tile: &Tile) {
        let (per, count) = (tile.elem.per_reg(), tile.regs.len());
        let distinct = tile.rows * tile.cols / per;
        for slot in distinct..LANES * count {
            let from = slot % distinct;
            let word = self.l[tile.regs[from % count] as usize][from / count];
            self.l[tile.regs[slot % count] as usize][slot / count] = word;
        }
    }

    /// Moves a register of a tile whose elements are neighbours in memory.
    fn tile_word(
        &mut self,
        tile: &Tile,
        (lane, reg): (usize, usize),
        address: u64,
        block: &mut Block<'_>,
    ) -> Result<(), Stop> {
        let (space, address) = resolve(tile.space, address);
        let (shared, who) = (&mut block.shared, &self.who);
        match (space, tile.store) {
            (Space::Shared, false) => {
                let mut word = [0];
                shared.load_words(who, SOME_LANE, address, Kind::Read, &mut word)?;
                self.l[reg][lane] = word[0];
            }
            (Space::Shared, true) => {
                let word = [self.l[reg][lane]];
                shared.store_words(who, SOME_LANE, address, Kind::Write, &word)?;
            }
            (_, false) => self.l[reg][lane] = block.global.load(lane, address, 4)?[0],
            (_, true) => {
                block.global.store(lane, address, 4, [self.l[reg][lane], 0, 0, 0])?;
            }
        }
        Ok(())
    }

    /// Moves one narrow element of a tile.
    fn tile_element(
        &mut self,
        tile: &Tile,
        (lane, reg): (usize, usize),
        (e, address): (usize, u64),
        block: &mut Block<'_>,
    ) -> Result<(), Stop> {
        let size = tile.elem.bytes();
        let (space, address) = resolve(tile.space, address);
        let (shared, who) = (&mut block.shared, &self.who);
        let shift = 8 * size as usize * e;
        let mask = ((1_u32 << (8 * size)) - 1) << shift;
        let word = &mut self.l[reg][lane];
        let value = (*word & mask) >> shift;
        let loaded = match (space, tile.store) {
            (Space::Shared, false) => {
                shared.load_narrow(who, SOME_LANE, address, Kind::Read, size)?
            }
            (Space::Shared, true) => {
                shared.store_narrow(who, SOME_LANE, address, Kind::Write, (size, value))?;
                value
            }
            (_, false) => block.global.load(lane, address, size)?[0],
            (_, true) => {
                block.global.store(lane, address, size, [value, 0, 0, 0])?;
                value
            }
        };
        *word = *word & !mask | loaded << shift & mask;
        Ok(())
    }
}

/// One entry for each element of `regs` registers, by register, lane and element.
fn table<T>(regs: usize, per: usize, at: impl Fn(usize, usize, usize) -> T) -> Vec<T> {
    let mut out = Vec::with_capacity(regs * LANES * per);
    for r in 0..regs {
        for lane in 0..LANES {
            for e in 0..per {
                out.push(at(r, lane, e));
            }
        }
    }
    out
}

fn short(value: usize) -> u16 {
    u16::try_from(value).expect("matrices are small")
}

impl Mma {
    /// Fills the tables of places.
    pub(crate) fn with_places(mut self) -> Self {
        let mma = &self;
        let (n, k) = (mma.n, mma.k);
        let a = table(mma.a.len(), mma.a_elem.per_reg(), |r, lane, e| {
            let (row, col) = place_a(mma, lane, r, e);
            short(row * k + col)
        });
        let b = table(mma.b.len(), mma.b_elem.per_reg(), |r, lane, e| {
            let (row, col) = place_b(mma, lane, r, e);
            short(row * n + col)
        });
        let result = |regs: usize, elem: Elem| {
            let per = elem.per_reg();
            table(regs, per, |r, lane, e| {
                let (row, col) = place_c(mma, lane, r * per + e);
                short(row * n + col)
            })
        };
        let c = result(mma.c.len(), mma.c_elem);
        let d = result(mma.d.len(), mma.d_elem);
        (self.a_at, self.b_at, self.c_at, self.d_at) = (a, b, c, d);
        self
    }
}

impl Tile {
    /// Whether registers hold the tile row by row.
    fn order(&self) -> bool {
        // Accumulators have one order, whatever the layout in memory.
        self.accumulator || self.row_major
    }

    /// Fills the table of places.
    pub(crate) fn with_places(mut self) -> Self {
        let (per, count, size) = (self.elem.per_reg(), self.regs.len(), self.rows * self.cols);
        self.at = table(count, per, |r, lane, e| {
            let slot = lane * count + r;
            if slot * per >= size {
                return (u16::MAX, 0);
            }
            let (row, col) = place_wmma(slot, e, (self.rows, self.cols, self.order(), per));
            if self.row_major { (short(row), short(col)) } else { (short(col), short(row)) }
        });
        self
    }
}
