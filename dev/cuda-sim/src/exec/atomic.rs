//! Atomic read-modify-writes.

#![expect(
    clippy::cast_possible_truncation,
    reason = "an operand of up to 32 bits is the low part of its register"
)]

use super::access::resolve;
use super::fault::{FaultKind, Stop};
use super::inst::{Atomic, Rmw, Space};
use super::num::{bf16, f16, to_bf16, to_f16};
use super::shared::Kind;
use super::warp::{Block, Warp, lanes_of};
use crate::ptx::ast::Ty;

/// Whether the pair exists.
pub(crate) fn is_known(rmw: Rmw, ty: Ty) -> bool {
    match rmw {
        Rmw::And | Rmw::Or | Rmw::Xor | Rmw::Exch => matches!(ty, Ty::B32 | Ty::B64),
        Rmw::Cas => matches!(ty, Ty::B16 | Ty::B32 | Ty::B64),
        Rmw::Add => matches!(
            ty,
            Ty::U32
                | Ty::S32
                | Ty::U64
                | Ty::S64
                | Ty::F32
                | Ty::F64
                | Ty::F16
                | Ty::F16x2
                | Ty::BF16
                | Ty::BF16x2
        ),
        Rmw::Inc | Rmw::Dec => ty == Ty::U32,
        Rmw::Min | Rmw::Max => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64),
    }
}

fn sum(ty: Ty, a: u64, b: u64) -> u64 {
    let (x, y) = (a as u32, b as u32);
    let half = |value: u32, other: u32| to_f16(f16(value) + f16(other));
    let brain = |value: u32, other: u32| to_bf16(bf16(value) + bf16(other));
    match ty {
        Ty::F32 => u64::from((f32::from_bits(x) + f32::from_bits(y)).to_bits()),
        Ty::F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        Ty::F16 => u64::from(half(x, y)),
        Ty::BF16 => u64::from(brain(x, y)),
        Ty::F16x2 => {
            let low = half(x & 0xffff, y & 0xffff);
            u64::from(low | half(x >> 16, y >> 16) << 16)
        }
        Ty::BF16x2 => {
            let low = brain(x & 0xffff, y & 0xffff);
            u64::from(low | brain(x >> 16, y >> 16) << 16)
        }
        _ => a.wrapping_add(b),
    }
}

/// The new value, given the old one.
fn apply(rmw: Rmw, ty: Ty, old: u64, b: u64, c: u64) -> u64 {
    let less = match ty {
        Ty::S32 => (old as u32).cast_signed() < (b as u32).cast_signed(),
        Ty::S64 => old.cast_signed() < b.cast_signed(),
        _ => old < b,
    };
    match rmw {
        Rmw::And => old & b,
        Rmw::Or => old | b,
        Rmw::Xor => old ^ b,
        Rmw::Exch => b,
        Rmw::Cas if old == b => c,
        Rmw::Cas => old,
        Rmw::Add => sum(ty, old, b),
        Rmw::Inc if old >= b => 0,
        Rmw::Inc => old + 1,
        Rmw::Dec if old == 0 || old > b => b,
        Rmw::Dec => old - 1,
        Rmw::Min if less => old,
        Rmw::Max if !less => old,
        Rmw::Min | Rmw::Max => b,
    }
}

impl Warp {
    /// One lane after the other, as in some order on a device.
    pub(crate) fn atomic(
        &mut self,
        atomic: &Atomic,
        active: u32,
        block: &mut Block<'_>,
    ) -> Result<(), Stop> {
        let addresses = self.addresses(&atomic.addr);
        let wide = atomic.ty.bytes() == 8;
        self.stats.atomics += 1;
        for lane in lanes_of(active) {
            let (space, address) = resolve(atomic.space, addresses[lane]);
            let operand = |reg: u32| match wide {
                true => self.d[reg as usize][lane],
                false => u64::from(self.l[reg as usize][lane]),
            };
            let (b, c) = (operand(atomic.b), operand(atomic.c));
            let cut = u64::MAX >> (64 - atomic.ty.bits());
            let update = |old: u64| apply(atomic.rmw, atomic.ty, old, b & cut, c & cut) & cut;
            let old = match space {
                Space::Shared => self.atomic_shared(atomic.ty, lane, address, block, update)?,
                Space::Global | Space::Generic => {
                    atomic_global(atomic.ty, lane, address, block, update)?
                }
                _ => {
                    let kind = FaultKind::OutOfBounds { space: "local", size: 4, write: true };
                    return Err(Stop::at(kind, lane, address));
                }
            };
            match atomic.dst {
                Some(reg) if wide => self.d[reg as usize][lane] = old,
                Some(reg) => self.l[reg as usize][lane] = old as u32,
                None => {}
            }
        }
        Ok(())
    }

    fn atomic_shared(
        &self,
        ty: Ty,
        lane: usize,
        address: u64,
        block: &mut Block<'_>,
        update: impl Fn(u64) -> u64,
    ) -> Result<u64, Stop> {
        let (shared, who) = (&mut block.shared, &self.who);
        if ty.bytes() == 2 {
            let old = shared.load_narrow(who, lane, address, Kind::StrongRead, 2)?;
            let new = update(u64::from(old)) as u32;
            shared.store_narrow(who, lane, address, Kind::StrongWrite, (2, new))?;
            return Ok(u64::from(old));
        }
        let mut words = [0; 2];
        let words = &mut words[..ty.bytes() as usize / 4];
        shared.load_words(who, lane, address, Kind::StrongRead, words)?;
        let high = words.get(1).copied().unwrap_or(0);
        let old = u64::from(high) << 32 | u64::from(words[0]);
        let new = update(old);
        words[0] = new as u32;
        if let Some(high) = words.get_mut(1) {
            *high = (new >> 32) as u32;
        }
        shared.store_words(who, lane, address, Kind::StrongWrite, words)?;
        Ok(old)
    }
}

fn atomic_global(
    ty: Ty,
    lane: usize,
    address: u64,
    block: &mut Block<'_>,
    update: impl Fn(u64) -> u64,
) -> Result<u64, Stop> {
    let check = block.global.check_uninitialised;
    let unwritten = || Stop::at(FaultKind::Uninitialised { space: "global" }, lane, address);
    let size = ty.bytes();
    if size == 8 {
        // Two words: other pairs are kept out by a lock.
        let (region, _) = block.global.find(lane, address, 8, true)?;
        let mut bytes = [0; 8];
        let guard = region.lock_pairs();
        if check && region.first_uninitialised(address, 8).is_some() {
            return Err(unwritten());
        }
        region.read(address, &mut bytes);
        let old = u64::from_le_bytes(bytes);
        region.write(address, &update(old).to_le_bytes());
        drop(guard);
        return Ok(old);
    }
    let (region, at) = block.global.find(lane, address, size, true)?;
    if check && region.first_uninitialised(address, u64::from(size)).is_some() {
        return Err(unwritten());
    }
    let (shift, mask) = match size {
        2 => (8 * (at % 4), 0xffff),
        _ => (0, u32::MAX),
    };
    let old = region.update(at, |old| {
        let part = old >> shift & mask;
        let new = update(u64::from(part)) as u32;
        old & !(mask << shift) | (new & mask) << shift
    });
    Ok(u64::from(old >> shift & mask))
}
