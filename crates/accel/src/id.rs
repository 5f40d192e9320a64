//! Names of providers, devices and lanes. An id is never used twice in one process.

use std::sync::atomic::{AtomicU32, Ordering};

/// One provider instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderId(u32);

impl ProviderId {
    /// A new id. A provider takes one when it is created.
    ///
    /// # Panics
    ///
    /// Panics after 2^32 providers: a reused id would let one provider take another's objects
    /// for its own.
    pub fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1));
        Self(next.expect("a process makes fewer than 2^32 providers"))
    }

    /// The device with number `index` of this provider.
    pub fn device(self, index: u32) -> DeviceId {
        DeviceId { provider: self, index }
    }
}

/// One device (a card) of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// Provider of the device.
    pub provider: ProviderId,
    /// Number of the device within its provider.
    pub index: u32,
}

impl DeviceId {
    /// The lane with number `index` of this device.
    pub fn lane(self, index: u32) -> LaneId {
        LaneId { device: self, index }
    }
}

/// One in-order queue of a device. Commands of one lane run in the order of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId {
    /// Device of the lane.
    pub device: DeviceId,
    /// Number of the lane within its device.
    pub index: u32,
}
