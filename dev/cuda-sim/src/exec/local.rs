//! Frames of the threads of a warp.

use super::fault::{FaultKind, Stop};
use super::inst::LANES;

/// Frames of a warp; the words of the lanes are interleaved.
#[derive(Debug, Default)]
pub(crate) struct Local {
    words: Vec<u32>,
    written: Vec<u8>,
    frame: u32,
    pub(crate) check_uninitialised: bool,
}

impl Local {
    /// Forgets everything.
    pub(crate) fn reset(&mut self, frame: u32) {
        let count = frame.div_ceil(4) as usize * LANES;
        self.words.clear();
        self.words.resize(count, super::memory::POISON);
        self.written.clear();
        self.written.resize(count, 0);
        self.frame = frame;
    }

    fn check(&self, lane: usize, address: u64, size: u32, write: bool) -> Result<usize, Stop> {
        let inside =
            address.checked_add(u64::from(size)).is_some_and(|end| end <= u64::from(self.frame));
        if !inside {
            let kind = FaultKind::OutOfBounds { space: "local", size, write };
            return Err(Stop::at(kind, lane, address));
        }
        if address & u64::from(size - 1) != 0 {
            let kind = FaultKind::Misaligned { space: "local", align: size };
            return Err(Stop::at(kind, lane, address));
        }
        Ok(usize::try_from(address).expect("frames are bounded"))
    }

    /// Loads one, two, or a multiple of four bytes.
    pub(crate) fn load(&self, lane: usize, address: u64, size: u32) -> Result<[u32; 4], Stop> {
        let at = self.check(lane, address, size, false)?;
        let mut out = [0; 4];
        let mut whole = true;
        if size < 4 {
            let slot = at / 4 * LANES + lane;
            let need = (1_u8 << size) - 1;
            whole = self.written[slot] >> (at % 4) & need == need;
            out[0] = self.words[slot] >> (8 * (at % 4)) & ((1 << (8 * size)) - 1);
        } else {
            for (index, out) in out[..size as usize / 4].iter_mut().enumerate() {
                let slot = (at / 4 + index) * LANES + lane;
                *out = self.words[slot];
                whole &= self.written[slot] == 0xf;
            }
        }
        if self.check_uninitialised && !whole {
            return Err(Stop::at(FaultKind::Uninitialised { space: "local" }, lane, address));
        }
        Ok(out)
    }

    /// Stores one, two, or a multiple of four bytes.
    pub(crate) fn store(
        &mut self,
        lane: usize,
        address: u64,
        size: u32,
        values: [u32; 4],
    ) -> Result<(), Stop> {
        let at = self.check(lane, address, size, true)?;
        if size < 4 {
            let slot = at / 4 * LANES + lane;
            let shift = 8 * (at % 4);
            let mask = ((1_u32 << (8 * size)) - 1) << shift;
            self.words[slot] = self.words[slot] & !mask | values[0] << shift & mask;
            self.written[slot] |= ((1 << size) - 1) << (at % 4);
            return Ok(());
        }
        for (index, value) in values[..size as usize / 4].iter().enumerate() {
            let slot = (at / 4 + index) * LANES + lane;
            self.words[slot] = *value;
            self.written[slot] = 0xf;
        }
        Ok(())
    }
}
