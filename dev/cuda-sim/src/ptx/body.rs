//! From tokens to functions and variables: inside a body.

use super::ast::{Base, Item, Operand, Place, Reg, Stmt};
use super::error::ParseError;
use super::lex::Tok;
use super::parse::Parser;
use super::scope::Named;

/// Deepest nesting of braces; real code has two or three levels.
const MAX_DEPTH: usize = 64;

impl<'a> Parser<'a> {
    /// Everything up to the brace that ends the function; its opening brace has been read.
    pub(super) fn body(&mut self) -> Result<Vec<Item>, ParseError> {
        let outer = self.scopes.depth();
        let mut items = Vec::new();
        self.scopes.push();
        while self.scopes.depth() > outer {
            self.item(&mut items)?;
        }
        Ok(items)
    }

    fn item(&mut self, items: &mut Vec<Item>) -> Result<(), ParseError> {
        let line = self.line();
        match self.take()? {
            Tok::Punct(b'{') if self.scopes.depth() < MAX_DEPTH => self.scopes.push(),
            Tok::Punct(b'}') => self.scopes.pop(),
            Tok::Punct(b';') => {}
            Tok::Punct(b'@') => {
                let negated = self.accept(b'!');
                let name = self.word()?;
                let guard = self.register(name)?;
                let opcode = self.word()?;
                items.push(Item::Stmt(self.statement(line, opcode, Some((guard, negated)))?));
            }
            Tok::Word(word) if self.accept(b':') => self.label(word, line, items)?,
            Tok::Word(word) if word.starts_with('.') => self.directive(word)?,
            Tok::Word(word) => items.push(Item::Stmt(self.statement(line, word, None)?)),
            other => return self.fail(format!("unexpected {other:?}")),
        }
        Ok(())
    }

    fn label(&mut self, name: &str, line: u32, items: &mut Vec<Item>) -> Result<(), ParseError> {
        if !self.accept_word(".branchtargets") {
            items.push(Item::Label(name.to_owned(), line));
            return Ok(());
        }
        let mut targets = Vec::new();
        loop {
            targets.push(self.word()?.to_owned());
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b';')?;
        items.push(Item::Targets(name.to_owned(), targets));
        Ok(())
    }

    fn directive(&mut self, word: &str) -> Result<(), ParseError> {
        match word {
            ".reg" => self.registers(),
            ".local" | ".param" => self.local_variable(),
            ".shared" => self.shared_variable(),
            ".loc" => {
                // `.loc file line column`, and after a comma where it was inlined.
                for _ in 0..3 {
                    self.int()?;
                }
                while self.accept(b',') {
                    while matches!(self.peek(), Some(Tok::Word(word)) if !is_opcode(word))
                        || matches!(self.peek(), Some(Tok::Int(_) | Tok::Punct(b'+')))
                    {
                        self.skip(1);
                    }
                }
                Ok(())
            }
            ".pragma" => self.skip_statement(),
            other => self.fail(format!("unknown directive {other}")),
        }
    }

    fn registers(&mut self) -> Result<(), ParseError> {
        let mut ty = None;
        loop {
            let decl = match ty {
                None => self.decl()?,
                Some(ty) => {
                    let (name, range) = (self.word()?, self.range()?);
                    super::parse::Decl { name, ty, align: 1, count: Some(1), range }
                }
            };
            let reg = self.new_regs(decl.ty, decl.range.unwrap_or(1))?;
            ty = Some(decl.ty);
            match decl.range {
                Some(count) => {
                    let count = u32::try_from(count).unwrap_or(u32::MAX);
                    self.scopes.inner().range(decl.name, reg.class, reg.index, count);
                }
                None => self.scopes.inner().name(decl.name, Named::Reg(reg)),
            }
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b';')
    }

    fn local_variable(&mut self) -> Result<(), ParseError> {
        let line = self.line();
        let decl = self.decl()?;
        self.expect(b';')?;
        let offset = self.new_local(decl.bytes(line)?, decl.align)?;
        self.scopes.inner().name(decl.name, Named::Var(Place::Local(offset)));
        Ok(())
    }

    fn statement(
        &mut self,
        line: u32,
        opcode: &str,
        guard: Option<(Reg, bool)>,
    ) -> Result<Stmt, ParseError> {
        let mut operands = Vec::new();
        while !self.accept(b';') {
            operands.push(self.operand(0)?);
            if !self.accept(b',') {
                self.expect(b';')?;
                break;
            }
        }
        Ok(Stmt { line, guard, opcode: opcode.to_owned(), operands })
    }

    fn register(&self, name: &str) -> Result<Reg, ParseError> {
        match self.scopes.find(name) {
            Some(Named::Reg(reg)) => Ok(reg),
            _ => self.fail(format!("{name} is no register")),
        }
    }

    fn operand(&mut self, depth: usize) -> Result<Operand, ParseError> {
        match self.take()? {
            Tok::Punct(b'{') if depth == 0 => Ok(Operand::Vector(self.sequence(b'}')?)),
            Tok::Punct(b'(') if depth == 0 => Ok(Operand::List(self.sequence(b')')?)),
            Tok::Punct(b'[') => self.address(),
            Tok::Punct(b'!') => {
                let name = self.word()?;
                Ok(Operand::NotPred(self.register(name)?))
            }
            Tok::Punct(b'-') => Ok(match self.take()? {
                Tok::Int(value) => Operand::Int(value.wrapping_neg()),
                Tok::F32(bits) => Operand::F32(bits ^ 1 << 31),
                Tok::F64(bits) => Operand::F64(bits ^ 1 << 63),
                other => return self.fail(format!("unexpected -{other:?}")),
            }),
            Tok::Int(value) => Ok(Operand::Int(value)),
            Tok::F32(bits) => Ok(Operand::F32(bits)),
            Tok::F64(bits) => Ok(Operand::F64(bits)),
            Tok::Word("_") => self.maybe_pair(Operand::Sink),
            Tok::Word(word) => self.named(word),
            other => self.fail(format!("unexpected operand {other:?}")),
        }
    }

    fn sequence(&mut self, end: u8) -> Result<Vec<Operand>, ParseError> {
        let mut out = Vec::new();
        while !self.accept(end) {
            out.push(self.operand(1)?);
            if !self.accept(b',') {
                self.expect(end)?;
                break;
            }
        }
        Ok(out)
    }

    fn maybe_pair(&mut self, first: Operand) -> Result<Operand, ParseError> {
        if !self.accept(b'|') {
            return Ok(first);
        }
        let second = match self.word()? {
            "_" => Operand::Sink,
            name => Operand::Reg(self.register(name)?),
        };
        Ok(Operand::Pair(Box::new(first), Box::new(second)))
    }

    fn named(&mut self, word: &'a str) -> Result<Operand, ParseError> {
        match self.scopes.find(word) {
            Some(Named::Reg(reg)) => self.maybe_pair(Operand::Reg(reg)),
            Some(Named::Var(place)) => Ok(Operand::Var(place, self.offset()?)),
            None if word.starts_with('%') => Ok(Operand::Special(word[1..].to_owned())),
            None if word == "WARP_SZ" => Ok(Operand::Int(32)),
            None => Ok(Operand::Name(word.to_owned())),
        }
    }

    /// `+ 4`, `- 4`, `+ -4`, or nothing.
    fn offset(&mut self) -> Result<i64, ParseError> {
        let negative = match self.peek() {
            Some(Tok::Punct(b'+')) => {
                self.skip(1);
                self.accept(b'-')
            }
            Some(Tok::Punct(b'-')) => {
                self.skip(1);
                true
            }
            _ => return Ok(0),
        };
        let value = self.int()?.cast_signed();
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    fn address(&mut self) -> Result<Operand, ParseError> {
        let base = match self.peek() {
            Some(Tok::Word(word)) => {
                self.skip(1);
                match self.scopes.find(word) {
                    Some(Named::Reg(reg)) => Base::Reg(reg),
                    Some(Named::Var(place)) => Base::Var(place),
                    None => return self.fail(format!("{word} is not declared")),
                }
            }
            Some(Tok::Int(value)) => {
                self.skip(1);
                self.expect(b']')?;
                return Ok(Operand::Address(Base::None, value.cast_signed()));
            }
            other => return self.fail(format!("address {other:?}")),
        };
        let offset = self.offset()?;
        self.expect(b']')?;
        Ok(Operand::Address(base, offset))
    }
}

/// Whether a word can start a statement, as opposed to the names after `.loc`.
fn is_opcode(word: &str) -> bool {
    !matches!(word, "function_name" | "inlined_at") && !word.starts_with('$')
}
