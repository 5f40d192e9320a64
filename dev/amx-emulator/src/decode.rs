//! From machine code to an instruction. All AMX instructions have this form:
//!
//! ```text
//! c4   R' X' B' 00010   0 vvvv' 0 pp   opcode   modrm   [sib]   [displacement]
//! ```
//!
//! R, X, B and vvvv are stored inverted; 00010 is the map 0F38; the bits before `pp` say 128 bits.

use crate::tiles::Dot;

/// What an instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `ldtilecfg [address]`
    LoadConfig,
    /// `sttilecfg [address]`
    StoreConfig,
    /// `tilerelease`
    Release,
    /// `tilezero tile`
    Zero {
        /// The tile.
        tile: usize,
    },
    /// `tileloadd tile, [address + row * stride]`, or `tileloaddt1`, its form for data used once.
    Load {
        /// The tile.
        tile: usize,
    },
    /// `tilestored [address + row * stride], tile`
    Store {
        /// The tile.
        tile: usize,
    },
    /// `dest += a * b`
    Dot {
        /// Types of the elements.
        kind: Dot,
        /// The sums.
        dest: usize,
        /// The left factor, rows of `k`.
        a: usize,
        /// The right factor, `k` by columns, in groups of 4 bytes.
        b: usize,
    },
}

/// A decoded instruction with its operand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub op: Op,
    /// Address of the operand, or of its first row. Zero without one.
    pub address: u64,
    /// Bytes from one row to the next. Zero if there are no rows.
    pub stride: u64,
    /// Bytes of the instruction.
    pub len: usize,
}

/// What addresses are made of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Registers {
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15: the order of the encoding.
    pub general: [u64; 16],
    /// Address of the instruction.
    pub rip: u64,
}

/// Longest form: three bytes of prefix, opcode, modrm, sib and a displacement of four bytes.
#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) const MAX_LEN: usize = 10;

/// Decodes the instruction that `code` starts with. `None` if it is not one of AMX.
pub fn decode(code: &[u8], registers: &Registers) -> Option<Instruction> {
    let &[0xc4, first, second, opcode, modrm, ..] = code else { return None };
    let w_and_length = second & 0x84;
    if first & 0x1f != 2 || w_and_length != 0 {
        return None;
    }
    let memory = modrm >> 6 != 3;
    let (reg, rm) = (usize::from(modrm >> 3 & 7), usize::from(modrm & 7));
    let vvvv = usize::from(!second >> 3 & 15);
    // Tiles have no fourth bit; R, and B for a tile in `rm`, must say so.
    let r = first & 0x80 == 0;
    let b = first & 0x20 == 0;
    let simple = |op, len| Some(Instruction { op, address: 0, stride: 0, len });
    let at_address = |op| {
        let operand = Operand::decode(code, registers)?;
        let (address, len) = (operand.base.wrapping_add(operand.index), operand.len);
        Some(Instruction { op, address, stride: 0, len })
    };
    let rows = |op| {
        let operand = Operand::decode(code, registers).filter(|operand| operand.has_sib)?;
        let (address, stride, len) = (operand.base, operand.index, operand.len);
        Some(Instruction { op, address, stride, len })
    };
    let unused = vvvv == 0;
    match (opcode, second & 3, memory) {
        (0x49, 0, true) if reg == 0 && unused && !r => at_address(Op::LoadConfig),
        (0x49, 1, true) if reg == 0 && unused && !r => at_address(Op::StoreConfig),
        (0x49, 0, false) if modrm == 0xc0 && unused && !r => simple(Op::Release, 5),
        (0x49, 3, false) if rm == 0 && unused && !r => simple(Op::Zero { tile: reg }, 5),
        (0x4b, 1 | 3, true) if unused && !r => rows(Op::Load { tile: reg }),
        (0x4b, 2, true) if unused && !r => rows(Op::Store { tile: reg }),
        (0x5c, 2, false) | (0x5e, _, false) if !r && !b && vvvv < 8 => {
            let kind = match (opcode, second & 3) {
                (0x5c, _) => Dot::Bf16,
                (_, 0) => Dot::I8 { a_signed: false, b_signed: false },
                (_, 1) => Dot::I8 { a_signed: false, b_signed: true },
                (_, 2) => Dot::I8 { a_signed: true, b_signed: false },
                _ => Dot::I8 { a_signed: true, b_signed: true },
            };
            simple(Op::Dot { kind, dest: reg, a: rm, b: vvvv }, 5)
        }
        _ => None,
    }
}

/// The memory operand. For tile rows, `index` is the stride and not part of the address.
struct Operand {
    base: u64,
    index: u64,
    has_sib: bool,
    len: usize,
}

impl Operand {
    fn decode(code: &[u8], registers: &Registers) -> Option<Self> {
        let (first, modrm) = (*code.get(1)?, *code.get(4)?);
        let extend = |bit: u8| if first & bit == 0 { 8 } else { 0 };
        let (mode, rm) = (modrm >> 6, usize::from(modrm & 7));
        let has_sib = rm == 4;
        let mut len = 5;
        let (mut index, mut base_register) = (0, Some(rm + extend(0x20)));
        if has_sib {
            let sib = *code.get(5)?;
            len = 6;
            let number = usize::from(sib >> 3 & 7) + extend(0x40);
            // Index 4 means none.
            if number != 4 {
                index = registers.general[number] << (sib >> 6);
            }
            base_register = Some(usize::from(sib & 7) + extend(0x20));
        }
        let no_base = mode == 0 && base_register.is_some_and(|number| number % 8 == 5);
        if no_base {
            base_register = None;
        }
        let displacement = match mode {
            1 => i64::from(code.get(len)?.cast_signed()),
            2 => displacement(code, len)?,
            _ if no_base => displacement(code, len)?,
            _ => 0,
        };
        len += match mode {
            1 => 1,
            2 => 4,
            _ if no_base => 4,
            _ => 0,
        };
        let base = match base_register {
            Some(number) => registers.general[number],
            None if has_sib => 0,
            // Relative to the next instruction.
            None => registers.rip.wrapping_add(len as u64),
        };
        Some(Self { base: base.wrapping_add_signed(displacement), index, has_sib, len })
    }
}

fn displacement(code: &[u8], at: usize) -> Option<i64> {
    let bytes = code.get(at..)?.first_chunk()?;
    Some(i64::from(i32::from_le_bytes(*bytes)))
}

#[cfg(test)]
mod tests;
