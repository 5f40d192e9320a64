//! Matrix instructions.

use super::{Decoder, Result};
use crate::exec::inst::{Elem, File, Mma, Op, Role, Space, Tile};
use crate::ptx::ast::{Operand, Ty};

fn elem(name: &str) -> Option<Elem> {
    Some(match name {
        "f16" => Elem::F16,
        "bf16" => Elem::BF16,
        "tf32" => Elem::TF32,
        "u8" => Elem::U8,
        "s8" => Elem::S8,
        "f32" => Elem::F32,
        "s32" => Elem::S32,
        _ => return None,
    })
}

/// `m16n8k16` as three numbers.
fn shape(name: &str) -> Option<[usize; 3]> {
    let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
}

/// Shapes of `wmma` for an element type of A and B.
fn is_wmma_shape(shape: [usize; 3], a: Elem) -> bool {
    match a {
        Elem::TF32 => shape == [16, 16, 8],
        Elem::F16 | Elem::BF16 | Elem::U8 | Elem::S8 => {
            matches!(shape, [16, 16, 16] | [32, 8, 16] | [8, 32, 16])
        }
        _ => false,
    }
}

/// Shapes of `mma` for an element type of A and B.
fn is_mma_shape(shape: [usize; 3], a: Elem) -> bool {
    match a {
        Elem::F16 | Elem::BF16 => matches!(shape, [16, 8, 8 | 16]),
        Elem::TF32 => matches!(shape, [16, 8, 4 | 8]),
        Elem::U8 | Elem::S8 => matches!(shape, [16, 8, 16 | 32] | [8, 8, 16]),
        _ => false,
    }
}

fn is_result(a: Elem, c: Elem) -> bool {
    match a {
        Elem::F16 => matches!(c, Elem::F16 | Elem::F32),
        Elem::BF16 | Elem::TF32 => c == Elem::F32,
        _ => c == Elem::S32,
    }
}

impl Decoder<'_> {
    /// Decodes a matrix instruction; `false` if it is none.
    pub(super) fn matrix(&mut self, parts: &[&str], operands: &[Operand]) -> Result<bool> {
        match (parts, operands) {
            (["wmma", "load", role, "sync", "aligned", rest @ ..], [data, at, stride @ ..]) => {
                self.tile(role, rest, (data, at, stride), false)
            }
            (["wmma", "store", "d", "sync", "aligned", rest @ ..], [at, data, stride @ ..]) => {
                self.tile("d", rest, (data, at, stride), true)
            }
            (["wmma", "mma", "sync", "aligned", rest @ ..], [d, a, b, c]) => {
                self.wmma(rest, [d, a, b, c])
            }
            (["mma", "sync", "aligned", rest @ ..], [d, a, b, c]) => self.mma(rest, [d, a, b, c]),
            (["ldmatrix", "sync", "aligned", "m8n8", rest @ ..], [data, at]) => {
                self.load_matrix(rest, data, at)
            }
            (["movmatrix", "sync", "aligned", "m8n8", "trans", "b16"], [dst, src]) => {
                let a = self.l(src, Ty::B32)?;
                let d = self.result(dst, File::L, Ty::B32)?;
                self.push_last(Op::MoveMatrix { d, a })?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn vector(&mut self, operand: &Operand, write: bool) -> Result<Vec<u32>> {
        let single = std::slice::from_ref(operand);
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            _ => single,
        };
        let mut out = Vec::with_capacity(parts.len());
        for part in parts {
            out.push(match write {
                true => self.result(part, File::L, Ty::B32)?,
                false => self.l(part, Ty::B32)?,
            });
        }
        if self.after.is_empty() { Ok(out) } else { self.unknown() }
    }

    fn load_matrix(&mut self, parts: &[&str], data: &Operand, at: &Operand) -> Result<bool> {
        let (count, trans) = match parts {
            ["x1", rest @ ..] => (1, rest.contains(&"trans")),
            ["x2", rest @ ..] => (2, rest.contains(&"trans")),
            ["x4", rest @ ..] => (4, rest.contains(&"trans")),
            _ => return Ok(false),
        };
        if parts.last() != Some(&"b16") {
            return Ok(false);
        }
        let (addr, space) = self.matrix_address(parts, at)?;
        let list = self.vector(data, true)?;
        if list.len() != usize::from(count) {
            return Ok(false);
        }
        let mut regs = [0; 4];
        regs[..list.len()].copy_from_slice(&list);
        let generic = space == Space::Generic;
        self.push_last(Op::LoadMatrix { count, trans, generic, regs, addr })?;
        Ok(true)
    }

    fn tile(
        &mut self,
        role: &str,
        parts: &[&str],
        (data, at, stride): (&Operand, &Operand, &[Operand]),
        store: bool,
    ) -> Result<bool> {
        // Devices' assemblers take the parts in any order.
        let Some(layout) = parts.iter().find(|part| matches!(**part, "row" | "col")) else {
            return Ok(false);
        };
        let shape = parts.iter().find_map(|part| shape(part));
        let (Some(shape), Some(elem)) = (shape, parts.last().and_then(|part| elem(part))) else {
            return Ok(false);
        };
        let [m, n, k] = shape;
        let (role, rows, cols) = match role {
            "a" => (Role::A, m, k),
            "b" => (Role::B, k, n),
            "c" | "d" => (Role::C, m, n),
            _ => return Ok(false),
        };
        let (addr, space) = self.matrix_address(parts, at)?;
        let regs = self.vector(data, !store)?;
        let row_major = *layout == "row";
        // Without a stride the rows (or columns) follow each other.
        let stride = match stride {
            [operand] => self.l(operand, Ty::U32)?,
            _ => {
                let step = if row_major { cols } else { rows };
                self.bits(u32::try_from(step).unwrap_or(u32::MAX))
            }
        };
        let held = regs.len() * elem.per_reg() * 32;
        if held == 0 || held % (rows * cols) != 0 || (role == Role::C && held != rows * cols) {
            return Ok(false);
        }
        let accumulator = role == Role::C;
        let at = Vec::new();
        let tile =
            Tile { store, space, elem, rows, cols, row_major, accumulator, at, addr, stride, regs };
        self.push_last(Op::Tile(Box::new(tile.with_places())))?;
        Ok(true)
    }

    fn wmma(&mut self, parts: &[&str], operands: [&Operand; 4]) -> Result<bool> {
        let saturate = parts.contains(&"satfinite");
        let rows: Vec<bool> = parts
            .iter()
            .filter(|part| matches!(**part, "row" | "col"))
            .map(|part| *part == "row")
            .collect();
        let types: Vec<Elem> = parts.iter().filter_map(|part| elem(part)).collect();
        let known = rows.len() + types.len() + 1 + usize::from(saturate) == parts.len();
        let (Some(shape), [a_row, b_row], true) =
            (parts.iter().find_map(|part| shape(part)), &rows[..], known)
        else {
            return Ok(false);
        };
        // With `f16` only the types of D and C are written.
        let [d, a, b, c] = match types[..] {
            [d, c] => [d, Elem::F16, Elem::F16, c],
            [d, a, b, c] => [d, a, b, c],
            _ => return Ok(false),
        };
        if !is_wmma_shape(shape, a) || !is_result(a, c) || !is_result(a, d) {
            return Ok(false);
        }
        let layouts = Some((*a_row, *b_row));
        self.product(layouts, shape, [d, a, b, c], saturate, operands)
    }

    fn mma(&mut self, parts: &[&str], operands: [&Operand; 4]) -> Result<bool> {
        let [dims, "row", "col", types @ ..] = parts else { return Ok(false) };
        let saturate = types.contains(&"satfinite");
        let types: Option<Vec<Elem>> =
            types.iter().filter(|part| **part != "satfinite").map(|part| elem(part)).collect();
        let (Some(shape), Some(types)) = (shape(dims), types) else { return Ok(false) };
        let [d, a, b, c] = types[..] else { return Ok(false) };
        if !is_mma_shape(shape, a) || !is_result(a, c) || !is_result(a, d) {
            return Ok(false);
        }
        self.product(None, shape, [d, a, b, c], saturate, operands)
    }

    fn product(
        &mut self,
        layouts: Option<(bool, bool)>,
        [m, n, k]: [usize; 3],
        [d_elem, a_elem, b_elem, c_elem]: [Elem; 4],
        saturate: bool,
        [d, a, b, c]: [&Operand; 4],
    ) -> Result<bool> {
        let wmma = layouts.is_some();
        let (a_row, b_row) = layouts.unwrap_or((true, false));
        let (a, b, c) = (self.vector(a, false)?, self.vector(b, false)?, self.vector(c, false)?);
        let d = self.vector(d, true)?;
        let held = |regs: &[u32], elem: Elem| regs.len() * elem.per_reg() * 32;
        let same = matches!(a_elem, Elem::U8 | Elem::S8) == matches!(b_elem, Elem::U8 | Elem::S8);
        let paired = a_elem == b_elem || (a_elem.bytes() == 1 && b_elem.bytes() == 1);
        let fits = |held: usize, size: usize| {
            held == size || (wmma && held > 0 && held.is_multiple_of(size))
        };
        let right = same
            && paired
            && fits(held(&a, a_elem), m * k)
            && fits(held(&b, b_elem), k * n)
            && held(&c, c_elem) == m * n
            && held(&d, d_elem) == m * n;
        if !right {
            return Ok(false);
        }
        let mma = Mma {
            wmma,
            m,
            n,
            k,
            a_elem,
            b_elem,
            c_elem,
            d_elem,
            saturate,
            a_row,
            b_row,
            a,
            b,
            c,
            d,
            a_at: Vec::new(),
            b_at: Vec::new(),
            c_at: Vec::new(),
            d_at: Vec::new(),
        };
        self.push_last(Op::Mma(Box::new(mma.with_places())))?;
        Ok(true)
    }
}
