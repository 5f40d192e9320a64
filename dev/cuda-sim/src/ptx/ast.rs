//! Statements of PTX, names resolved to registers and variables.

/// Register file a register lives in. Registers of 8 and 16 bits live in 32-bit slots, zero-extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Pred,
    B16,
    B32,
    B64,
}

/// A declared register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Reg {
    pub(crate) class: Class,
    pub(crate) index: u32,
}

/// A scalar type of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ty {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    BF16,
    B32,
    U32,
    S32,
    F32,
    TF32,
    F16x2,
    BF16x2,
    B64,
    U64,
    S64,
    F64,
    B128,
}

impl Ty {
    /// The type that a dotted part of an opcode names.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "b16" => Self::B16,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "f16" => Self::F16,
            "bf16" => Self::BF16,
            "b32" => Self::B32,
            "u32" => Self::U32,
            "s32" => Self::S32,
            "f32" => Self::F32,
            "tf32" => Self::TF32,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::BF16x2,
            "b64" => Self::B64,
            "u64" => Self::U64,
            "s64" => Self::S64,
            "f64" => Self::F64,
            "b128" => Self::B128,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::Pred | Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::BF16 => 2,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            Self::B128 => 16,
            _ => 4,
        }
    }

    pub(crate) fn bits(self) -> u32 {
        self.bytes() * 8
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(
            self,
            Self::F16
                | Self::BF16
                | Self::F32
                | Self::TF32
                | Self::F16x2
                | Self::BF16x2
                | Self::F64
        )
    }

    /// Register file of a register declared with this type.
    pub(crate) fn class(self) -> Option<Class> {
        Some(match (self, self.bytes()) {
            (Self::Pred, _) => Class::Pred,
            (_, 1 | 2) => Class::B16,
            (_, 4) => Class::B32,
            (_, 8) => Class::B64,
            _ => return None,
        })
    }
}

/// Where a variable lives, and where there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// A `.global` or `.const` variable of the module, by number.
    Module(u32),
    /// A shared variable of known size, by number of the module or function.
    Shared(u32),
    /// The dynamic shared memory of the launch.
    SharedDynamic,
    /// A parameter of the entry, by byte offset.
    Param(u32),
    /// A variable in the frame of the thread, by byte offset: `.local`, or `.param` of a call.
    Local(u32),
}

/// Anything that can stand where an instruction takes an operand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Reg(Reg),
    NotPred(Reg),
    Int(u64),
    F32(u32),
    F64(u64),
    Special(String),
    Var(Place, i64),
    /// A label of the function, or a function that is called.
    Name(String),
    Vector(Vec<Self>),
    /// Two predicates, `p|q`.
    Pair(Box<Self>, Box<Self>),
    Address(Base, i64),
    /// Operands in parentheses, of a call.
    List(Vec<Self>),
    Sink,
}

/// What an address is counted from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Base {
    Reg(Reg),
    Var(Place),
    None,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stmt {
    pub(crate) line: u32,
    /// The predicate that guards it, and whether it is negated.
    pub(crate) guard: Option<(Reg, bool)>,
    pub(crate) opcode: String,
    pub(crate) operands: Vec<Operand>,
}

/// What a body consists of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    Stmt(Stmt),
    Label(String, u32),
    /// `.branchtargets`, under the name of its label.
    Targets(String, Vec<String>),
}

/// A formal parameter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Formal {
    pub(crate) name: String,
    /// Bytes of one parameter in memory.
    pub(crate) size: u32,
    pub(crate) align: u32,
    /// Where it lives: a place for `.param`, a register for `.reg`.
    pub(crate) at: FormalAt,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FormalAt {
    Place(Place),
    Reg(Reg),
}

/// An entry or a device function.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Func {
    pub(crate) name: String,
    pub(crate) line: u32,
    pub(crate) entry: bool,
    pub(crate) returns: Vec<Formal>,
    pub(crate) params: Vec<Formal>,
    /// Registers of each class: predicates, 32-bit slots, 64-bit slots.
    pub(crate) regs: [u32; 3],
    /// Bytes of the frame of one thread.
    pub(crate) frame: u32,
    pub(crate) body: Option<Vec<Item>>,
    /// `.reqntid`, or zeros.
    pub(crate) required: [u32; 3],
    /// `.maxntid`, as a number of threads, or zero.
    pub(crate) max_threads: u32,
}

/// A variable in shared memory, of fixed size.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SharedVar {
    pub(crate) name: String,
    pub(crate) size: u32,
    pub(crate) align: u32,
}
