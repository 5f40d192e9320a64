//! What a kernel can do wrong.

use std::fmt;

/// The rule that a kernel broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// An address outside every allocation, or across the end of one.
    #[error("{}{size} bytes outside {space} memory", if *write { "writes " } else { "reads " })]
    OutOfBounds {
        /// Space of the access.
        space: &'static str,
        /// Bytes of the access.
        size: u32,
        /// Whether it writes.
        write: bool,
    },
    /// An address that is no multiple of the size of the access.
    #[error("a {space} address is no multiple of {align}")]
    Misaligned {
        /// Space of the access.
        space: &'static str,
        /// Alignment that the access needs.
        align: u32,
    },
    /// A read of bytes that nothing has written.
    #[error("reads {space} memory that nothing has written")]
    Uninitialised {
        /// Space of the access.
        space: &'static str,
    },
    /// A read or write of shared memory that an asynchronous copy has not finished with.
    #[error("touches shared memory before the asynchronous copy to it was waited for")]
    CopyInFlight,
    /// Two warps touch the same bytes of shared memory with no barrier between.
    #[error("races with warp {other_warp}: {hazard} without a barrier")]
    SharedRace {
        /// What this access does and what the other one did, like `read after write`.
        hazard: &'static str,
        /// Warp of the other access.
        other_warp: u32,
    },
    /// Two threads of a warp touch the same bytes of shared memory with no `__syncwarp` between.
    #[error("races with lane {other_lane} of its warp: {hazard} without a syncwarp")]
    WarpRace {
        /// What this access does and what the other one did.
        hazard: &'static str,
        /// Lane of the other access.
        other_lane: u32,
    },
    /// Threads of a block that cannot meet at their barriers.
    #[error("barriers cannot be met: {what}")]
    BarrierDivergence {
        /// Who waits where.
        what: String,
    },
    /// A `.sync` instruction whose mask does not fit the threads that execute it.
    #[error("mask {mask:#x} of lanes {active:#x}: {what}")]
    SyncMask {
        /// The mask.
        mask: u32,
        /// The lanes that execute the instruction.
        active: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// An instruction for the whole warp that only some lanes execute.
    #[error("only lanes {active:#x} execute an instruction for the whole warp")]
    NotConverged {
        /// The lanes that execute it.
        active: u32,
    },
    /// A write to memory that kernels may only read.
    #[error("writes memory that is read-only")]
    ReadOnly,
    /// An indirect branch outside its table.
    #[error("index {index} is outside the table of an indirect branch")]
    BranchIndex {
        /// The index.
        index: u32,
    },
    /// More instructions than the launch allows.
    #[error("more than {limit} instructions of warps in one block")]
    Budget {
        /// Warp instructions that were allowed for each block.
        limit: u64,
    },
    /// `trap`, or a failed assertion.
    #[error("traps")]
    Trap,
    /// The launch does not fit the kernel or any device.
    #[error("cannot be launched: {what}")]
    BadLaunch {
        /// What is wrong.
        what: String,
    },
}

/// A broken rule, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The rule.
    pub kind: FaultKind,
    /// Name of the entry.
    pub kernel: String,
    /// Line of the instruction in the PTX text; 0 if there is none.
    pub line: u32,
    /// The instruction's opcode.
    pub instruction: String,
    /// The block.
    pub block: [u32; 3],
    /// The thread, or the first of several.
    pub thread: [u32; 3],
    /// The address, if there is one.
    pub address: Option<u64>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, line, instruction, block, thread, .. } = self;
        write!(f, "{kernel} line {line} ({instruction}), block {block:?}, thread {thread:?}")?;
        if let Some(address) = self.address {
            write!(f, ", address {address:#x}")?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl std::error::Error for Fault {}

/// A broken rule inside a warp, before the place is known.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    pub(crate) kind: FaultKind,
    pub(crate) lane: u32,
    pub(crate) address: Option<u64>,
}

impl Stop {
    #[cold]
    pub(crate) fn new(kind: FaultKind, lane: usize) -> Self {
        Self { kind, lane: u32::try_from(lane).unwrap_or(0), address: None }
    }

    /// The same for another lane.
    #[cold]
    pub(crate) fn of_lane(self, lane: usize) -> Self {
        Self { lane: u32::try_from(lane).unwrap_or(0), ..self }
    }

    #[cold]
    pub(crate) fn at(kind: FaultKind, lane: usize, address: u64) -> Self {
        Self { kind, lane: u32::try_from(lane).unwrap_or(0), address: Some(address) }
    }
}
