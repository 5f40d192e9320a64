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
use super::shared::Kind;
use super::warp::{Block, Flow, Warp, lanes_of};

/// A lane that stands for "some lane of the warp".
const SOME_LANE: usize = 63;

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
        let (mut a, mut b) = ([0.0_f32; MAX], [0.0_f32; MAX]);
        let mut c = [0.0_f32; MAX];
        let (n, k) = (mma.n, mma.k);
        for (r, reg) in mma.a.iter().enumerate() {
            for (lane, word) in self.l[*reg as usize].iter().enumerate() {
                for e in 0..mma.a_elem.per_reg() {
                    let (row, col) = place_a(mma, lane, r, e);
                    a[row * k + col] = real(mma.a_elem, *word, e);
                }
            }
        }
        for (r, reg) in mma.b.iter().enumerate() {
            for (lane, word) in self.l[*reg as usize].iter().enumerate() {
                for e in 0..mma.b_elem.per_reg() {
                    let (row, col) = place_b(mma, lane, r, e);
                    b[row * n + col] = real(mma.b_elem, *word, e);
                }
            }
        }
        let per = mma.c_elem.per_reg();
        for (r, reg) in mma.c.iter().enumerate() {
            for (lane, word) in self.l[*reg as usize].iter().enumerate() {
                for e in 0..per {
                    let (row, col) = place_c(mma, lane, r * per + e);
                    c[row * n + col] = real(mma.c_elem, *word, e);
                }
            }
        }
        for (sums, left) in c.chunks_exact_mut(n).zip(a.chunks_exact(k)).take(mma.m) {
            for (left, right) in left.iter().zip(b.chunks_exact(n)) {
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum += left * right;
                }
            }
        }
        let per = mma.d_elem.per_reg();
        for (r, reg) in mma.d.iter().enumerate() {
            for lane in 0..LANES {
                let at = |e: usize| {
                    let (row, col) = place_c(mma, lane, r * per + e);
                    c[row * n + col]
                };
                self.l[*reg as usize][lane] = match mma.d_elem {
                    Elem::F16 => to_f16(at(0)) | to_f16(at(1)) << 16,
                    _ => at(0).to_bits(),
                };
            }
        }
    }

    fn product_int(&mut self, mma: &Mma) {
        let (mut a, mut b) = ([0_i32; MAX], [0_i32; MAX]);
        let (n, k) = (mma.n, mma.k);
        for (r, reg) in mma.a.iter().enumerate() {
            for (lane, word) in self.l[*reg as usize].iter().enumerate() {
                for e in 0..4 {
                    let (row, col) = place_a(mma, lane, r, e);
                    a[row * k + col] = whole(mma.a_elem, *word, e);
                }
            }
        }
        for (r, reg) in mma.b.iter().enumerate() {
            for (lane, word) in self.l[*reg as usize].iter().enumerate() {
                for e in 0..4 {
                    let (row, col) = place_b(mma, lane, r, e);
                    b[row * n + col] = whole(mma.b_elem, *word, e);
                }
            }
        }
        let mut out = Vec::with_capacity(mma.d.len());
        for (r, reg) in mma.c.iter().enumerate() {
            let mut words = self.l[*reg as usize];
            for (lane, word) in words.iter_mut().enumerate() {
                let (row, col) = place_c(mma, lane, r);
                let left = &a[row * k..row * k + k];
                // At most 32 products of 255 * 255: no overflow before the last addition.
                let right = b[col..].iter().step_by(n);
                let sum: i32 = left.iter().zip(right).map(|(x, y)| x * y).sum();
                let old = word.cast_signed();
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
                loaded.map_err(|stop| Stop { lane: u32::try_from(lane).unwrap_or(0), ..stop })?;
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
        let count = tile.regs.len();
        let size = tile.rows * tile.cols;
        for slot in 0..LANES * count {
            let (lane, reg) = (slot / count, tile.regs[slot % count] as usize);
            if slot * per >= size {
                // Elements that several lanes hold.
                let from = slot % (size / per);
                self.l[reg][lane] = self.l[tile.regs[from % count] as usize][from / count];
                continue;
            }
            let order = tile.order();
            let at = |e: usize| {
                let (row, col) = place_wmma(slot, e, (tile.rows, tile.cols, order, per));
                let (major, minor) = if tile.row_major { (row, col) } else { (col, row) };
                base + (major as u64 * stride + minor as u64) * bytes
            };
            if order == tile.row_major || per == 1 {
                self.tile_word(tile, (lane, reg), at(0), block)?;
            } else {
                for e in 0..per {
                    self.tile_element(tile, (lane, reg), (e, at(e)), block)?;
                }
            }
        }
        Ok(())
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

impl Tile {
    /// Whether registers hold the tile row by row.
    fn order(&self) -> bool {
        // Accumulators have one order, whatever the layout in memory.
        self.accumulator || self.row_major
    }
}
