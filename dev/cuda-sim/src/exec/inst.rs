//! The register machine that a warp runs.
//!
//! A register is an array of 32 lanes. Immediates, addresses of variables, special registers and
//! parameters are registers too, filled before a warp starts, so an instruction has no other kind
//! of operand.

use super::convert::Convert;

/// Threads of a warp.
pub(crate) const LANES: usize = 32;
/// A register of up to 32 bits; narrower values are zero-extended.
pub(crate) type L = [u32; LANES];
/// A register of 64 bits.
pub(crate) type D = [u64; LANES];

/// A function on whole registers. The letters give the register files of its sources, last the
/// result's, where it differs: L 32 bits, D 64 bits, P predicate.
#[expect(clippy::upper_case_acronyms, reason = "each letter is a register file")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fun {
    L(fn(&L, &mut L)),
    LL(fn(&L, &L, &mut L)),
    LLL(fn(&L, &L, &L, &mut L)),
    LLLL(fn(&L, &L, &L, &L, &mut L)),
    D(fn(&D, &mut D)),
    DD(fn(&D, &D, &mut D)),
    DDD(fn(&D, &D, &D, &mut D)),
    DL(fn(&D, &L, &mut D)),
    DLL(fn(&D, &L, &L, &mut D)),
    DDLL(fn(&D, &D, &L, &L, &mut D)),
    LtoD(fn(&L, &mut D)),
    LLtoD(fn(&L, &L, &mut D)),
    LLDtoD(fn(&L, &L, &D, &mut D)),
    DtoL(fn(&D, &mut L)),
    LtoP(fn(&L) -> u32),
    LLtoP(fn(&L, &L) -> u32),
    DtoP(fn(&D) -> u32),
    DDtoP(fn(&D, &D) -> u32),
}

/// A register file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum File {
    P,
    L,
    D,
}

impl Fun {
    /// Register files of the sources, and of the result.
    pub(crate) fn files(self) -> (&'static [File], File) {
        use File::{D, L, P};
        match self {
            Self::L(_) => (&[L], L),
            Self::LL(_) => (&[L, L], L),
            Self::LLL(_) => (&[L, L, L], L),
            Self::LLLL(_) => (&[L, L, L, L], L),
            Self::D(_) => (&[D], D),
            Self::DD(_) => (&[D, D], D),
            Self::DDD(_) => (&[D, D, D], D),
            Self::DL(_) => (&[D, L], D),
            Self::DLL(_) => (&[D, L, L], D),
            Self::DDLL(_) => (&[D, D, L, L], D),
            Self::LtoD(_) => (&[L], D),
            Self::LLtoD(_) => (&[L, L], D),
            Self::LLDtoD(_) => (&[L, L, D], D),
            Self::DtoL(_) => (&[D], L),
            Self::LtoP(_) => (&[L], P),
            Self::LLtoP(_) => (&[L, L], P),
            Self::DtoP(_) => (&[D], P),
            Self::DDtoP(_) => (&[D, D], P),
        }
    }
}

/// A boolean function of two predicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bool {
    And,
    Or,
    Xor,
    /// The first one.
    First,
    /// Not the first one.
    Not,
}

impl Bool {
    #[inline]
    pub(crate) fn of(self, a: u32, b: u32) -> u32 {
        match self {
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
            Self::First => a,
            Self::Not => !a,
        }
    }
}

/// Where an access goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// The register that holds an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddrReg {
    L(u32),
    D(u32),
}

/// An address operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addr {
    pub(crate) reg: AddrReg,
    pub(crate) offset: i64,
}

/// A load or store of one to four elements a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) space: Space,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub(crate) width: u8,
    pub(crate) count: u8,
    /// Narrow elements are sign-extended to this many bits (0: zero-extended).
    pub(crate) extend: u8,
    /// Elements live in 64-bit registers.
    pub(crate) wide: bool,
    /// Volatile, relaxed, acquire or release: not a race.
    pub(crate) strong: bool,
    pub(crate) regs: [u32; 4],
    pub(crate) addr: Addr,
}

/// A read-modify-write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rmw {
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Add,
    Inc,
    Dec,
    Min,
    Max,
}

/// An atomic access.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Atomic {
    pub(crate) space: Space,
    pub(crate) rmw: Rmw,
    pub(crate) ty: crate::ptx::ast::Ty,
    /// Where the old value goes, if anywhere.
    pub(crate) dst: Option<u32>,
    pub(crate) addr: Addr,
    pub(crate) b: u32,
    pub(crate) c: u32,
}

/// How `shfl` picks the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What `vote`, `match` and `redux` compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// A reduction over the lanes of a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redux {
    Add,
    MinS,
    MaxS,
    MinU,
    MaxU,
    And,
    Or,
    Xor,
}

/// Element types of matrix operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Elem {
    F16,
    BF16,
    TF32,
    U8,
    S8,
    F32,
    S32,
}

impl Elem {
    /// Bytes of an element in memory.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::TF32 | Self::F32 | Self::S32 => 4,
            Self::U8 | Self::S8 => 1,
        }
    }

    /// Elements of one 32-bit register.
    pub(crate) fn per_reg(self) -> usize {
        4 / self.bytes() as usize
    }
}

/// Which operand of a matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    A,
    B,
    C,
}

/// A matrix product; `wmma` says that the distribution over lanes is ours, not the documented one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mma {
    pub(crate) wmma: bool,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a_elem: Elem,
    pub(crate) b_elem: Elem,
    pub(crate) c_elem: Elem,
    pub(crate) d_elem: Elem,
    pub(crate) saturate: bool,
    /// Layouts that `wmma` names.
    pub(crate) a_row: bool,
    pub(crate) b_row: bool,
    pub(crate) a: Vec<u32>,
    pub(crate) b: Vec<u32>,
    pub(crate) c: Vec<u32>,
    pub(crate) d: Vec<u32>,
    /// Where each element of a register goes in the matrix, row by row: by register, lane, element.
    pub(crate) a_at: Vec<u16>,
    pub(crate) b_at: Vec<u16>,
    pub(crate) c_at: Vec<u16>,
    pub(crate) d_at: Vec<u16>,
}

/// `wmma.load` and `wmma.store`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) store: bool,
    pub(crate) space: Space,
    pub(crate) elem: Elem,
    /// Rows and columns of the operand.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Elements of a row are neighbours in memory.
    pub(crate) row_major: bool,
    /// C or D, not A or B.
    pub(crate) accumulator: bool,
    pub(crate) addr: Addr,
    /// Distance along the stride, and within it, of each element: by register, lane, element.
    /// Elements that an earlier lane holds too are at (`u16::MAX`, 0).
    pub(crate) at: Vec<(u16, u16)>,
    /// Register with the distance of rows (or columns), in elements.
    pub(crate) stride: u32,
    pub(crate) regs: Vec<u32>,
}

/// `cp.async`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyAsync {
    pub(crate) size: u8,
    pub(crate) dst: Addr,
    pub(crate) src: Addr,
    /// Bytes to take from the source; the rest is zeros.
    pub(crate) src_size: Option<u32>,
    /// Ignore the source when this predicate is set.
    pub(crate) ignore: Option<u32>,
}

/// A barrier of the block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Barrier {
    pub(crate) id: u32,
    /// Register with the number of threads, if given.
    pub(crate) count: Option<u32>,
    /// Whether the thread waits.
    pub(crate) wait: bool,
    /// All threads of the warp must execute it together.
    pub(crate) aligned: bool,
    pub(crate) reduce: Option<BarrierReduce>,
}

/// The reduction of `bar.red`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BarrierReduce {
    pub(crate) vote: BarrierVote,
    pub(crate) dst: u32,
    pub(crate) src: u32,
    pub(crate) negate: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierVote {
    Count,
    And,
    Or,
}

/// What an instruction does.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Fun {
        fun: Fun,
        d: u32,
        s: [u32; 4],
    },
    Convert {
        convert: Convert,
        d: u32,
        a: u32,
        from_wide: bool,
        to_wide: bool,
    },
    /// `d = f(first set, p)`, `q = f(not first set, p)`.
    SetP {
        fun: Fun,
        d: u32,
        q: Option<u32>,
        s: [u32; 2],
        with: Option<(Bool, u32, bool)>,
    },
    Pred {
        op: Bool,
        d: u32,
        a: u32,
        b: u32,
    },
    /// Predicate to 0 or `bits`.
    FromPred {
        d: u32,
        p: u32,
        bits: u32,
    },
    SelL {
        d: u32,
        a: u32,
        b: u32,
        p: u32,
    },
    SelD {
        d: u32,
        a: u32,
        b: u32,
        p: u32,
    },
    MovL {
        d: u32,
        a: u32,
    },
    MovD {
        d: u32,
        a: u32,
    },
    Load(Access),
    Store(Access),
    Atomic(Box<Atomic>),
    Shuffle {
        how: Shuffle,
        d: u32,
        p: Option<u32>,
        a: u32,
        b: u32,
        c: u32,
        mask: u32,
    },
    Vote {
        vote: Vote,
        d: u32,
        p: u32,
        negate: bool,
        mask: u32,
    },
    Match {
        all: bool,
        wide: bool,
        d: u32,
        p: Option<u32>,
        a: u32,
        mask: u32,
    },
    Redux {
        redux: Redux,
        d: u32,
        a: u32,
        mask: u32,
    },
    ActiveMask {
        d: u32,
    },
    SyncWarp {
        mask: u32,
    },
    Barrier(Box<Barrier>),
    Fence,
    Mma(Box<Mma>),
    Tile(Box<Tile>),
    LoadMatrix {
        count: u8,
        trans: bool,
        generic: bool,
        regs: [u32; 4],
        addr: Addr,
    },
    MoveMatrix {
        d: u32,
        a: u32,
    },
    Copy(Box<CopyAsync>),
    CopyCommit,
    /// Waits until at most this many groups are pending; `None`: for everything.
    CopyWait(Option<u32>),
    IsSpace {
        d: u32,
        a: u32,
        space: Space,
    },
    /// Between generic and window addresses: adds `base`, after a check on the way back.
    ToGeneric {
        d: u32,
        a: u32,
        base: u64,
    },
    FromGeneric {
        d: u32,
        a: u32,
        space: Space,
    },
    Clock {
        d: u32,
        wide: bool,
    },
    Branch {
        target: u32,
    },
    BranchIndex {
        a: u32,
        targets: Box<[u32]>,
    },
    Exit,
    Trap,
    /// Of a device function that is only declared, like a failed assertion's.
    Assert,
}

/// One instruction.
#[derive(Debug, Clone)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    /// Guard: predicate register, and what to exclusive-or it with.
    pub(crate) guard: Option<(u32, u32)>,
    pub(crate) line: u32,
}

/// A register that is filled before the warp runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Const {
    Bits(u64),
    /// A parameter: offset, bytes, and whether it is sign-extended.
    Param(u32, u8, bool),
    /// The address of a variable of the module, plus an offset.
    Module(u32, i64),
    Special(Special),
}

/// A special register that does not change while a thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NwarpId,
    SmId,
    NsmId,
    GridId,
    LaneMask(LaneMask),
    DynamicShared,
    TotalShared,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LaneMask {
    Eq,
    Le,
    Lt,
    Ge,
    Gt,
}

/// A decoded entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub(crate) insts: Vec<Inst>,
    /// Constant registers come first in their files.
    pub(crate) consts_l: Vec<Const>,
    pub(crate) consts_d: Vec<Const>,
    pub(crate) count_p: u32,
    pub(crate) count_l: u32,
    pub(crate) count_d: u32,
    /// Bytes of a thread's frame.
    pub(crate) frame: u32,
    pub(crate) static_shared: u32,
    pub(crate) dynamic_align: u32,
    pub(crate) param_bytes: u32,
    /// Source text of each opcode, by instruction, for reports.
    pub(crate) names: Vec<std::sync::Arc<str>>,
}
