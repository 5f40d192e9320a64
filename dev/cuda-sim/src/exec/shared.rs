//! Shared memory of a block, with everything known about each byte: whether it is initialised,
//! whether an asynchronous copy is on its way to it, and who touched it last.
//!
//! Order between warps is kept as vector clocks. A warp's clock advances at every barrier of the
//! block and at every `bar.warp.sync`; `Who::seen` says up to which clock of each other warp this
//! one is ordered. Readers are kept as a set of warps for the time since the last barrier that the
//! whole block passed; where named barriers order only some warps, a write after such a read is
//! taken as ordered once any barrier joined the two, so no report is false but one can be missed.

use super::fault::{FaultKind, Stop};
use super::inst::{D, L};
use super::warp::lanes_of;

/// First valid shared address: what lies below belongs to the system on newer devices, and a null
/// pointer must not look like data.
pub(crate) const SHARED_START: u32 = 1024;

/// Most warps of a block.
pub(crate) const MAX_WARPS: usize = 32;

/// A lane that stands for "some lane of the warp".
pub(crate) const SOME_LANE: usize = LANE_MANY as usize;

const LANE_MANY: u32 = 63;
const ATOMIC: u32 = 1 << 11;
const SPLIT: u32 = u32::MAX;

/// The accessing warp.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    pub(crate) warp: u32,
    /// Starts at 1; 0 is "never".
    pub(crate) clock: u32,
    pub(crate) seen: [u32; MAX_WARPS],
}

impl Who {
    fn tag(&self, lane: usize, atomic: bool) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a lane is below 32")]
        let lane = lane as u32;
        self.clock << 12 | if atomic { ATOMIC } else { 0 } | lane << 5 | self.warp
    }
}

/// What happened last to a word, or to a byte of a split word.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// Tag of the last write.
    write: u32,
    /// Warps that read in `epoch`.
    readers: u32,
    epoch: u32,
    /// Tag of the last read.
    read: u32,
}

/// How an access counts for races.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    /// A write of the value that is there: harmless among the lanes of one warp.
    SameWrite,
    StrongRead,
    StrongWrite,
}

/// Shared memory of one block.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    words: Vec<u32>,
    /// Low four bits: initialised bytes; high four bits: bytes with a copy in flight.
    state: Vec<u8>,
    cells: Vec<Cell>,
    bytes: Vec<[Cell; 4]>,
    end: u32,
    /// Barriers that the whole block has passed.
    pub(crate) epoch: u32,
    /// Clock of each warp when the epoch began.
    pub(crate) began: [u32; MAX_WARPS],
    pub(crate) check_races: bool,
    pub(crate) check_uninitialised: bool,
}

type Checked<T> = Result<T, Stop>;

impl Shared {
    /// Forgets everything; memory is poisoned.
    pub(crate) fn reset(&mut self, len: u32) {
        let count = len.div_ceil(4) as usize;
        self.words.clear();
        self.words.resize(count, super::memory::POISON);
        self.state.clear();
        self.state.resize(count, 0);
        self.cells.clear();
        self.cells.resize(count, Cell::default());
        self.bytes.clear();
        self.end = SHARED_START + len;
        self.epoch = 1;
        self.began = [0; MAX_WARPS];
    }

    /// Drops what is known about earlier accesses, for when clocks start again.
    pub(crate) fn forget_order(&mut self) {
        self.cells.fill(Cell::default());
        self.bytes.clear();
        self.began = [0; MAX_WARPS];
    }

    /// Byte offset of an access.
    #[inline]
    fn offset(&self, address: u64, size: u32, write: bool, lane: usize) -> Checked<usize> {
        let inside = address >= u64::from(SHARED_START)
            && address.checked_add(u64::from(size)).is_some_and(|end| end <= u64::from(self.end));
        if !inside {
            let kind = FaultKind::OutOfBounds { space: "shared", size, write };
            return Err(Stop::at(kind, lane, address));
        }
        if address & u64::from(size - 1) != 0 {
            let kind = FaultKind::Misaligned { space: "shared", align: size };
            return Err(Stop::at(kind, lane, address));
        }
        #[expect(clippy::cast_possible_truncation, reason = "the address was just checked")]
        let offset = address as usize - SHARED_START as usize;
        Ok(offset)
    }

    /// Loads `out.len()` words at a multiple of their size.
    #[inline]
    pub(crate) fn load_words(
        &mut self,
        who: &Who,
        lane: usize,
        address: u64,
        kind: Kind,
        out: &mut [u32],
    ) -> Checked<()> {
        #[expect(clippy::cast_possible_truncation, reason = "a vector has at most four words")]
        let size = out.len() as u32 * 4;
        let at = self.offset(address, size, false, lane)? / 4;
        for (index, value) in out.iter_mut().enumerate() {
            let state = self.state[at + index];
            if state != 0xf {
                self.readable(state, 0xf, lane, address + 4 * index as u64)?;
            }
            self.touch_word(who, lane, at + index, kind)?;
            *value = self.words[at + index];
        }
        Ok(())
    }

    /// Loads a word for each lane.
    pub(crate) fn load_lanes(
        &mut self,
        who: &Who,
        addresses: &D,
        active: u32,
        kind: Kind,
        out: &mut L,
    ) -> Checked<()> {
        // Neighbours often read one word.
        let (mut last, mut value) = (None, 0);
        for lane in lanes_of(active) {
            let address = addresses[lane];
            if last == Some(address) {
                out[lane] = value;
                continue;
            }
            let next = lanes_of(active & !(u32::MAX >> (31 - lane))).next();
            let shared = next.is_some_and(|next| addresses[next] == address);
            let by = if shared { SOME_LANE } else { lane };
            let mut word = [0];
            let loaded = self.load_words(who, by, address, kind, &mut word);
            loaded.map_err(|stop| stop.of_lane(lane))?;
            (last, value) = (Some(address), word[0]);
            out[lane] = value;
        }
        Ok(())
    }

    /// Stores words at a multiple of their size.
    #[inline]
    pub(crate) fn store_words(
        &mut self,
        who: &Who,
        lane: usize,
        address: u64,
        kind: Kind,
        values: &[u32],
    ) -> Checked<()> {
        #[expect(clippy::cast_possible_truncation, reason = "a vector has at most four words")]
        let size = values.len() as u32 * 4;
        let at = self.offset(address, size, true, lane)? / 4;
        for (index, value) in values.iter().enumerate() {
            let state = self.state[at + index];
            if state >> 4 != 0 {
                return Err(Stop::at(FaultKind::CopyInFlight, lane, address + 4 * index as u64));
            }
            let same = self.words[at + index] == *value && kind == Kind::Write && state == 0xf;
            let kind = if same { Kind::SameWrite } else { kind };
            self.touch_word(who, lane, at + index, kind)?;
            self.words[at + index] = *value;
            self.state[at + index] = 0xf;
        }
        Ok(())
    }

    /// Loads one or two bytes.
    pub(crate) fn load_narrow(
        &mut self,
        who: &Who,
        lane: usize,
        address: u64,
        kind: Kind,
        width: u32,
    ) -> Checked<u32> {
        let at = self.offset(address, width, false, lane)?;
        let bits = ((1_u8 << width) - 1) << (at % 4);
        self.readable(self.state[at / 4], bits, lane, address)?;
        self.touch_bytes(who, lane, at, width as usize, kind)?;
        Ok(self.words[at / 4] >> (8 * (at % 4)) & ((1 << (8 * width)) - 1))
    }

    /// Stores one or two bytes.
    pub(crate) fn store_narrow(
        &mut self,
        who: &Who,
        lane: usize,
        address: u64,
        kind: Kind,
        (width, value): (u32, u32),
    ) -> Checked<()> {
        let at = self.offset(address, width, true, lane)?;
        let bits = ((1_u8 << width) - 1) << (at % 4);
        if self.state[at / 4] >> 4 & bits != 0 {
            return Err(Stop::at(FaultKind::CopyInFlight, lane, address));
        }
        let shift = 8 * (at % 4);
        let mask = ((1_u32 << (8 * width)) - 1) << shift;
        let value = value << shift & mask;
        let written = self.state[at / 4] & bits == bits;
        let same = self.words[at / 4] & mask == value && written && kind == Kind::Write;
        let kind = if same { Kind::SameWrite } else { kind };
        self.touch_bytes(who, lane, at, width as usize, kind)?;
        let word = &mut self.words[at / 4];
        *word = *word & !mask | value;
        self.state[at / 4] |= bits;
        Ok(())
    }

    #[inline]
    fn readable(&self, state: u8, need: u8, lane: usize, address: u64) -> Checked<()> {
        if state >> 4 & need != 0 {
            return Err(Stop::at(FaultKind::CopyInFlight, lane, address));
        }
        if state & need != need && self.check_uninitialised {
            return Err(Stop::at(FaultKind::Uninitialised { space: "shared" }, lane, address));
        }
        Ok(())
    }

    /// An asynchronous copy has been issued: until it is done the bytes are nobody's.
    pub(crate) fn begin_copy(
        &mut self,
        who: &Who,
        lane: usize,
        address: u64,
        size: u32,
    ) -> Checked<()> {
        let at = self.offset(address, size, true, lane)? / 4;
        for word in at..at + size as usize / 4 {
            if self.state[word] >> 4 != 0 {
                return Err(Stop::at(FaultKind::CopyInFlight, lane, address));
            }
            self.touch_word(who, lane, word, Kind::Write)?;
            self.state[word] = 0xf0;
            self.words[word] = super::memory::POISON;
        }
        Ok(())
    }

    /// The copy is done and its issuer has waited for it: the bytes are the issuer's write.
    pub(crate) fn end_copy(
        &mut self,
        who: &Who,
        lane: usize,
        address: u64,
        values: &[u32],
    ) -> Checked<()> {
        for (index, value) in values.iter().enumerate() {
            let address = address + 4 * index as u64;
            let at = self.offset(address, 4, true, lane)? / 4;
            self.state[at] = 0;
            self.store_words(who, lane, address, Kind::Write, &[*value])?;
        }
        Ok(())
    }

    #[inline]
    fn touch_word(&mut self, who: &Who, lane: usize, word: usize, kind: Kind) -> Checked<()> {
        if !self.check_races {
            return Ok(());
        }
        let view = View { who, lane, epoch: self.epoch, began: &self.began };
        let cell = &mut self.cells[word];
        if cell.write != SPLIT {
            // Read by this warp at this clock, not written since, and not written at this clock by
            // another lane: nothing new can be said.
            let tag = who.tag(lane, false);
            let many = LANE_MANY << 5;
            let again = cell.epoch == self.epoch
                && (cell.read ^ tag) & !many == 0
                && cell.readers >> who.warp & 1 == 1
                && (cell.write ^ tag) & !(many | ATOMIC) != 0;
            if again && kind == Kind::Read {
                cell.read = if cell.read == tag { tag } else { tag | many };
                return Ok(());
            }
            let address = u64::from(SHARED_START) + 4 * word as u64;
            return view.touch(cell, kind).map_err(|race| race.on(lane, address));
        }
        let address = u64::from(SHARED_START) + 4 * word as u64;
        for cell in &mut self.bytes[word] {
            view.touch(cell, kind).map_err(|race| race.on(lane, address))?;
        }
        // All four bytes have one history again.
        if !matches!(kind, Kind::Read | Kind::StrongRead) {
            self.cells[word] = self.bytes[word][0];
        }
        Ok(())
    }

    fn touch_bytes(
        &mut self,
        who: &Who,
        lane: usize,
        at: usize,
        len: usize,
        kind: Kind,
    ) -> Checked<()> {
        if !self.check_races {
            return Ok(());
        }
        if self.bytes.is_empty() {
            self.bytes.resize(self.words.len(), [Cell::default(); 4]);
        }
        let word = at / 4;
        if self.cells[word].write != SPLIT {
            self.bytes[word] = [self.cells[word]; 4];
            self.cells[word].write = SPLIT;
        }
        let view = View { who, lane, epoch: self.epoch, began: &self.began };
        let address = u64::from(SHARED_START) + at as u64;
        for cell in &mut self.bytes[word][at % 4..at % 4 + len] {
            view.touch(cell, kind).map_err(|race| race.on(lane, address))?;
        }
        Ok(())
    }
}

/// Who looks at a cell, and when.
struct View<'a> {
    who: &'a Who,
    lane: usize,
    epoch: u32,
    began: &'a [u32; MAX_WARPS],
}

/// A race with the access of `tag`.
struct Race {
    hazard: &'static str,
    tag: u32,
    warp: u32,
}

impl Race {
    #[cold]
    fn on(self, lane: usize, address: u64) -> Stop {
        let Self { hazard, tag, warp } = self;
        let kind = if tag & 31 == warp {
            FaultKind::WarpRace { hazard, other_lane: tag >> 5 & 63 }
        } else {
            FaultKind::SharedRace { hazard, other_warp: tag & 31 }
        };
        Stop::at(kind, lane, address)
    }
}

impl View<'_> {
    /// Whether the access of `tag` happened before this one.
    #[inline]
    fn ordered(&self, tag: u32, strong: bool) -> bool {
        let (warp, clock) = (tag & 31, tag >> 12);
        if warp == self.who.warp {
            let same_lane = (tag >> 5 & 63) as usize == self.lane;
            clock < self.who.clock || same_lane || (strong && tag & ATOMIC != 0)
        } else {
            clock <= self.who.seen[warp as usize] || (strong && tag & ATOMIC != 0)
        }
    }

    #[inline]
    fn touch(&self, cell: &mut Cell, kind: Kind) -> Result<(), Race> {
        match kind {
            Kind::Read | Kind::StrongRead => self.read(cell, kind == Kind::StrongRead),
            Kind::SameWrite if cell.write & 31 == self.who.warp && cell.write != 0 => {
                cell.write = self.who.tag(LANE_MANY as usize, false);
                Ok(())
            }
            _ => self.write(cell, kind == Kind::StrongWrite),
        }
    }

    fn race<T>(&self, hazard: &'static str, tag: u32) -> Result<T, Race> {
        Err(Race { hazard, tag, warp: self.who.warp })
    }

    #[inline]
    fn read(&self, cell: &mut Cell, strong: bool) -> Result<(), Race> {
        if cell.write != 0 && !self.ordered(cell.write, strong) {
            return self.race("read after write", cell.write);
        }
        let tag = self.who.tag(self.lane, strong);
        let warp_bit = 1 << self.who.warp;
        if cell.epoch != self.epoch {
            cell.epoch = self.epoch;
            cell.readers = 0;
        }
        // Several lanes of one warp since its last synchronisation.
        let together = cell.readers & warp_bit != 0
            && cell.read & 31 == self.who.warp
            && cell.read >> 12 == self.who.clock
            && cell.read >> 5 & 63 != tag >> 5 & 63;
        cell.readers |= warp_bit;
        cell.read = if together { tag | LANE_MANY << 5 } else { tag };
        Ok(())
    }

    #[inline]
    fn write(&self, cell: &mut Cell, strong: bool) -> Result<(), Race> {
        if cell.write != 0 && !self.ordered(cell.write, strong) {
            return self.race("write after write", cell.write);
        }
        if cell.epoch == self.epoch && cell.readers != 0 {
            self.after_reads(cell, strong)?;
        }
        cell.write = self.who.tag(self.lane, strong);
        cell.readers = 0;
        Ok(())
    }

    fn after_reads(&self, cell: &Cell, strong: bool) -> Result<(), Race> {
        let both_strong = strong && cell.read & ATOMIC != 0;
        let mut others = cell.readers & !(1 << self.who.warp);
        while others != 0 && !both_strong {
            let warp = others.trailing_zeros();
            others &= others - 1;
            // Some barrier joined the two warps since the epoch began.
            if self.who.seen[warp as usize] <= self.began[warp as usize] {
                return self.race("write after read", warp);
            }
        }
        let own = cell.readers >> self.who.warp & 1 == 1 && cell.read & 31 == self.who.warp;
        if own && !self.ordered(cell.read, strong) {
            return self.race("write after read", cell.read);
        }
        Ok(())
    }
}
