//! Loads, stores, address conversions and asynchronous copies of a warp.

use super::decode::{LOCAL_WINDOW, SHARED_WINDOW};
use super::fault::{FaultKind, Stop};
use super::inst::{Access, Addr, AddrReg, CopyAsync, D, LANES, Op, Space};
use super::shared::Kind;
use super::warp::{Block, Pending, Warp, lanes_of, low, write_d};

/// Length of a window of generic addresses.
const WINDOW: u64 = 1 << 32;

/// The space that a generic address means, and the address there.
#[inline]
pub(crate) fn resolve(space: Space, address: u64) -> (Space, u64) {
    if space != Space::Generic {
        (space, address)
    } else if address.wrapping_sub(SHARED_WINDOW) < WINDOW {
        (Space::Shared, address - SHARED_WINDOW)
    } else if address.wrapping_sub(LOCAL_WINDOW) < WINDOW {
        (Space::Local, address - LOCAL_WINDOW)
    } else {
        (Space::Global, address)
    }
}

impl Warp {
    /// The addresses of all lanes.
    #[inline]
    pub(crate) fn addresses(&self, addr: &Addr) -> D {
        let mut out = [0; LANES];
        match addr.reg {
            AddrReg::D(reg) => {
                for (out, base) in out.iter_mut().zip(&self.d[reg as usize]) {
                    *out = base.wrapping_add_signed(addr.offset);
                }
            }
            AddrReg::L(reg) => {
                for (out, base) in out.iter_mut().zip(&self.l[reg as usize]) {
                    *out = u64::from(*base).wrapping_add_signed(addr.offset);
                }
            }
        }
        out
    }

    pub(crate) fn load(
        &mut self,
        load: &Access,
        active: u32,
        block: &mut Block<'_>,
    ) -> Result<(), Stop> {
        let addresses = self.addresses(&load.addr);
        let size = u32::from(load.width) * u32::from(load.count);
        let kind = if load.strong { Kind::StrongRead } else { Kind::Read };
        self.stats.loads += 1;
        if load.width == 4 && load.count == 1 && load.space == Space::Shared {
            let to = &mut self.l[load.regs[0] as usize];
            return block.shared.load_lanes(&self.who, &addresses, active, kind, to);
        }
        if load.width == 4 && load.count == 1 && load.space == Space::Global {
            let to = &mut self.l[load.regs[0] as usize];
            return block.global.load_lanes(&addresses, active, to);
        }
        for lane in lanes_of(active) {
            let (space, address) = resolve(load.space, addresses[lane]);
            let words = match space {
                Space::Shared => {
                    let mut out = [0; 4];
                    if size < 4 {
                        let who = &self.who;
                        out[0] = block.shared.load_narrow(who, lane, address, kind, size)?;
                    } else {
                        let part = &mut out[..size as usize / 4];
                        block.shared.load_words(&self.who, lane, address, kind, part)?;
                    }
                    out
                }
                Space::Local => self.local.load(lane, address, size)?,
                Space::Param => block.param(lane, address, size)?,
                _ => block.global.load(lane, address, size)?,
            };
            self.spread_words(load, lane, words);
        }
        Ok(())
    }

    /// Puts loaded words into the registers of a lane.
    #[inline]
    fn spread_words(&mut self, load: &Access, lane: usize, words: [u32; 4]) {
        let count = usize::from(load.count);
        match load.width {
            4 => {
                for (reg, word) in load.regs[..count].iter().zip(words) {
                    self.l[*reg as usize][lane] = word;
                }
            }
            8 => {
                for (index, reg) in load.regs[..count].iter().enumerate() {
                    let (low, high) = (words[2 * index], words[2 * index + 1]);
                    self.d[*reg as usize][lane] = u64::from(high) << 32 | u64::from(low);
                }
            }
            width => {
                let width = usize::from(width);
                let bits = 8 * u32::from(load.width);
                for (index, reg) in load.regs[..count].iter().enumerate() {
                    let at = index * width;
                    let value = words[at / 4] >> (8 * (at % 4)) & ((1 << bits) - 1);
                    let unused = 32 - bits;
                    self.l[*reg as usize][lane] = match load.extend {
                        0 => value,
                        to => {
                            let wide = ((value << unused).cast_signed() >> unused).cast_unsigned();
                            wide & (u32::MAX >> (32 - u32::from(to)))
                        }
                    };
                }
            }
        }
    }

    pub(crate) fn store(
        &mut self,
        store: &Access,
        active: u32,
        block: &mut Block<'_>,
    ) -> Result<(), Stop> {
        let addresses = self.addresses(&store.addr);
        let size = u32::from(store.width) * u32::from(store.count);
        let kind = if store.strong { Kind::StrongWrite } else { Kind::Write };
        self.stats.stores += 1;
        for lane in lanes_of(active) {
            let words = self.gather_words(store, lane);
            let (space, address) = resolve(store.space, addresses[lane]);
            match space {
                Space::Shared if size < 4 => {
                    let value = (size, words[0]);
                    block.shared.store_narrow(&self.who, lane, address, kind, value)?;
                }
                Space::Shared => {
                    let part = &words[..size as usize / 4];
                    block.shared.store_words(&self.who, lane, address, kind, part)?;
                }
                Space::Local => self.local.store(lane, address, size, words)?,
                Space::Param => return Err(Stop::at(FaultKind::ReadOnly, lane, address)),
                _ => block.global.store(lane, address, size, words)?,
            }
        }
        Ok(())
    }

    /// The words that a lane stores.
    #[inline]
    fn gather_words(&self, store: &Access, lane: usize) -> [u32; 4] {
        let mut words = [0; 4];
        let count = usize::from(store.count);
        match store.width {
            4 => {
                for (reg, word) in store.regs[..count].iter().zip(&mut words) {
                    *word = self.l[*reg as usize][lane];
                }
            }
            8 => {
                for (index, reg) in store.regs[..count].iter().enumerate() {
                    let value = self.d[*reg as usize][lane];
                    words[2 * index] = low(value);
                    words[2 * index + 1] = (value >> 32) as u32;
                }
            }
            width => {
                let width = usize::from(width);
                let mask = (1 << (8 * width)) - 1;
                for (index, reg) in store.regs[..count].iter().enumerate() {
                    let at = index * width;
                    let value = self.l[*reg as usize][lane] & mask;
                    words[at / 4] |= value << (8 * (at % 4));
                }
            }
        }
        words
    }

    pub(crate) fn step_memory(
        &mut self,
        op: &Op,
        active: u32,
        block: &mut Block<'_>,
    ) -> Result<(), Stop> {
        match op {
            Op::Atomic(atomic) => self.atomic(atomic, active, block)?,
            Op::Copy(copy) => self.copy(copy, active, block)?,
            Op::CopyCommit => {
                for lane in lanes_of(active) {
                    self.committed[lane] += 1;
                }
            }
            Op::CopyWait(keep) => self.copy_wait(*keep, active, block)?,
            Op::IsSpace { d, a, space } => {
                let mut value = 0;
                for (lane, address) in self.d[*a as usize].iter().enumerate() {
                    value |= u32::from(resolve(Space::Generic, *address).0 == *space) << lane;
                }
                self.write_p(*d, value, active);
            }
            Op::ToGeneric { d, a, base } => {
                let value = self.d[*a as usize].map(|address| address.wrapping_add(*base));
                write_d(&mut self.d[*d as usize], &value, active);
            }
            Op::FromGeneric { d, a, space } => {
                // An address of another space gives one that no access accepts.
                let value = self.d[*a as usize].map(|address| {
                    let (found, inside) = resolve(Space::Generic, address);
                    if found == *space { inside } else { u64::MAX >> 1 }
                });
                write_d(&mut self.d[*d as usize], &value, active);
            }
            _ => {}
        }
        Ok(())
    }

    /// Issues copies. The source is read now; the destination is nobody's until a wait.
    fn copy(&mut self, copy: &CopyAsync, active: u32, block: &mut Block<'_>) -> Result<(), Stop> {
        let (dst, src) = (self.addresses(&copy.dst), self.addresses(&copy.src));
        let size = u32::from(copy.size);
        self.stats.copies += 1;
        for lane in lanes_of(active) {
            let (_, to) = resolve(Space::Shared, dst[lane]);
            let mut take = copy.src_size.map_or(size, |reg| self.l[reg as usize][lane]);
            if copy.ignore.is_some_and(|reg| self.p[reg as usize] >> lane & 1 == 1) {
                take = 0;
            }
            if take > size {
                let kind = FaultKind::OutOfBounds { space: "global", size: take, write: false };
                return Err(Stop::at(kind, lane, src[lane]));
            }
            let mut values = [0; 4];
            if take == size {
                values = block.global.load(lane, src[lane], size)?;
            } else {
                if src[lane] & u64::from(size - 1) != 0 {
                    let kind = FaultKind::Misaligned { space: "global", align: size };
                    return Err(Stop::at(kind, lane, src[lane]));
                }
                for byte in 0..take {
                    let value = block.global.load(lane, src[lane] + u64::from(byte), 1)?[0];
                    values[byte as usize / 4] |= value << (8 * (byte % 4));
                }
            }
            block.shared.begin_copy(&self.who, lane, to, size)?;
            self.copies.push_back(Pending {
                lane: u8::try_from(lane).expect("a lane is below 32"),
                words: copy.size / 4,
                group: self.committed[lane],
                dst: to,
                values,
            });
        }
        Ok(())
    }

    /// Makes copies visible: all but the newest `keep` groups of each lane, or everything.
    fn copy_wait(
        &mut self,
        keep: Option<u32>,
        active: u32,
        block: &mut Block<'_>,
    ) -> Result<(), Stop> {
        let mut rest = std::collections::VecDeque::new();
        while let Some(pending) = self.copies.pop_front() {
            let lane = usize::from(pending.lane);
            let done = match keep {
                Some(keep) => pending.group.saturating_add(keep) < self.committed[lane],
                None => true,
            };
            if active >> lane & 1 == 1 && done {
                let values = &pending.values[..usize::from(pending.words)];
                block.shared.end_copy(&self.who, lane, pending.dst, values)?;
            } else {
                rest.push_back(pending);
            }
        }
        self.copies = rest;
        Ok(())
    }
}
