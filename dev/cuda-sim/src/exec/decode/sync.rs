//! Barriers and exchanges between lanes.

use super::{Decoder, Result};
use crate::exec::inst::{Barrier, BarrierReduce, BarrierVote, File, Op, Redux, Shuffle, Vote};
use crate::ptx::ast::{Operand, Ty};

impl Decoder<'_> {
    /// Decodes a synchronising instruction; `false` if it is none.
    pub(super) fn sync(&mut self, parts: &[&str], operands: &[Operand]) -> Result<bool> {
        match (parts, operands) {
            (["bar", "warp", "sync"], [mask]) => {
                let mask = self.l(mask, Ty::U32)?;
                self.push(Op::SyncWarp { mask })?;
            }
            (["bar" | "barrier", rest @ ..], _) => return self.barrier(parts[0], rest, operands),
            (["shfl", "sync", how, "b32"], [dst, a, b, c, mask]) => {
                return self.shuffle(how, dst, [a, b, c, mask]);
            }
            (["vote", "sync", how, "pred" | "b32"], [dst, p, mask]) => {
                return self.vote(how, dst, p, mask);
            }
            (["match", how, "sync", ty], [dst, a, mask]) => {
                return self.matching(how, ty, dst, a, mask);
            }
            (["redux", "sync", name, ty], [dst, a, mask]) => {
                return self.redux(name, ty, dst, a, mask);
            }
            (["activemask", "b32"], [dst]) => {
                let d = self.result(dst, File::L, Ty::B32)?;
                self.push_last(Op::ActiveMask { d })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier(&mut self, name: &str, parts: &[&str], operands: &[Operand]) -> Result<bool> {
        let aligned = name == "bar" || parts.contains(&"aligned");
        let parts: Vec<&str> =
            parts.iter().copied().filter(|part| !matches!(*part, "cta" | "aligned")).collect();
        match (&parts[..], operands) {
            (["sync" | "arrive"], [id, rest @ ..]) if rest.len() < 2 => {
                let wait = parts == ["sync"];
                let id = self.l(id, Ty::U32)?;
                let count = rest.first().map(|count| self.l(count, Ty::U32)).transpose()?;
                if count.is_none() && !wait {
                    return Ok(false);
                }
                let barrier = Barrier { id, count, wait, aligned, reduce: None };
                self.push(Op::Barrier(Box::new(barrier)))?;
            }
            (["red", vote, _], [dst, id, rest @ .., source]) if rest.len() < 2 => {
                let (vote, file) = match *vote {
                    "popc" => (BarrierVote::Count, File::L),
                    "and" => (BarrierVote::And, File::P),
                    "or" => (BarrierVote::Or, File::P),
                    _ => return Ok(false),
                };
                let id = self.l(id, Ty::U32)?;
                let count = rest.first().map(|count| self.l(count, Ty::U32)).transpose()?;
                let (src, negate) = self.p(source)?;
                let dst = self.result(dst, file, Ty::U32)?;
                let reduce = Some(BarrierReduce { vote, dst, src, negate });
                let barrier = Barrier { id, count, wait: true, aligned, reduce };
                self.push_last(Op::Barrier(Box::new(barrier)))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn shuffle(&mut self, how: &str, dst: &Operand, sources: [&Operand; 4]) -> Result<bool> {
        let how = match how {
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "bfly" => Shuffle::Butterfly,
            "idx" => Shuffle::Index,
            _ => return Ok(false),
        };
        let [a, b, c, mask] = sources;
        let (a, b) = (self.l(a, Ty::B32)?, self.l(b, Ty::B32)?);
        let (c, mask) = (self.l(c, Ty::B32)?, self.l(mask, Ty::B32)?);
        let (dst, p) = match dst {
            Operand::Pair(dst, p) if **p != Operand::Sink => {
                (&**dst, Some(self.result(p, File::P, Ty::Pred)?))
            }
            Operand::Pair(dst, _) => (&**dst, None),
            one => (one, None),
        };
        let d = self.result(dst, File::L, Ty::B32)?;
        self.push_last(Op::Shuffle { how, d, p, a, b, c, mask })?;
        Ok(true)
    }

    fn vote(&mut self, how: &str, dst: &Operand, p: &Operand, mask: &Operand) -> Result<bool> {
        let (vote, file) = match how {
            "all" => (Vote::All, File::P),
            "any" => (Vote::Any, File::P),
            "uni" => (Vote::Uniform, File::P),
            "ballot" => (Vote::Ballot, File::L),
            _ => return Ok(false),
        };
        let (p, negate) = self.p(p)?;
        let mask = self.l(mask, Ty::B32)?;
        let d = self.result(dst, file, Ty::B32)?;
        self.push_last(Op::Vote { vote, d, p, negate, mask })?;
        Ok(true)
    }

    fn matching(
        &mut self,
        how: &str,
        ty: &str,
        dst: &Operand,
        a: &Operand,
        mask: &Operand,
    ) -> Result<bool> {
        let (all, wide) = match (how, ty) {
            ("all", "b32") => (true, false),
            ("all", "b64") => (true, true),
            ("any", "b32") => (false, false),
            ("any", "b64") => (false, true),
            _ => return Ok(false),
        };
        let a = if wide { self.d(a)? } else { self.l(a, Ty::B32)? };
        let mask = self.l(mask, Ty::B32)?;
        let (dst, p) = match dst {
            Operand::Pair(dst, p) => (&**dst, Some(self.result(p, File::P, Ty::Pred)?)),
            one => (one, None),
        };
        let d = self.result(dst, File::L, Ty::B32)?;
        self.push_last(Op::Match { all, wide, d, p, a, mask })?;
        Ok(true)
    }

    fn redux(
        &mut self,
        name: &str,
        ty: &str,
        dst: &Operand,
        a: &Operand,
        mask: &Operand,
    ) -> Result<bool> {
        let redux = match (name, ty) {
            ("add", "u32" | "s32") => Redux::Add,
            ("min", "u32") => Redux::MinU,
            ("max", "u32") => Redux::MaxU,
            ("min", "s32") => Redux::MinS,
            ("max", "s32") => Redux::MaxS,
            ("and", "b32") => Redux::And,
            ("or", "b32") => Redux::Or,
            ("xor", "b32") => Redux::Xor,
            _ => return Ok(false),
        };
        let (a, mask) = (self.l(a, Ty::B32)?, self.l(mask, Ty::B32)?);
        let d = self.result(dst, File::L, Ty::B32)?;
        self.push_last(Op::Redux { redux, d, a, mask })?;
        Ok(true)
    }
}
