//! From tokens to functions and variables: the module level.

use super::ast::{Formal, FormalAt, Func, Place, Reg, SharedVar, Ty};
use super::error::ParseError;
use super::lex::{Tok, Token, tokens};
use super::scope::{Named, Scopes};
use super::{Space, Variable};

/// Largest variable or frame; far above what a device has for one.
const MAX_BYTES: u64 = 1 << 30;

/// What a module's text declares.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub(crate) target: String,
    pub(crate) version: (u32, u32),
    pub(crate) funcs: Vec<Func>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) shared: Vec<SharedVar>,
    /// Largest alignment asked for dynamic shared memory.
    pub(crate) dynamic_align: u32,
}

/// A declaration like `.align 16 .b8 name[32]`.
#[derive(Debug)]
pub(super) struct Decl<'a> {
    pub(super) name: &'a str,
    pub(super) ty: Ty,
    pub(super) align: u32,
    /// Number of elements; `None` for `[]`.
    pub(super) count: Option<u64>,
    /// The name ends in `<count>`: a range of registers.
    pub(super) range: Option<u64>,
}

impl Decl<'_> {
    pub(super) fn bytes(&self, line: u32) -> Result<u32, ParseError> {
        let bytes = self.count.unwrap_or(0).checked_mul(u64::from(self.ty.bytes()));
        bytes
            .filter(|bytes| *bytes <= MAX_BYTES)
            .and_then(|bytes| u32::try_from(bytes).ok())
            .ok_or_else(|| ParseError::new(line, format!("variable {} is too large", self.name)))
    }
}

pub(super) struct Parser<'a> {
    toks: Vec<Token<'a>>,
    at: usize,
    pub(super) scopes: Scopes,
    pub(super) unit: Unit,
    /// Of the function at hand.
    pub(super) regs: [u32; 3],
    pub(super) frame: u32,
}

/// Parses the text of a module.
pub(crate) fn parse(text: &str) -> Result<Unit, ParseError> {
    let mut parser = Parser {
        toks: tokens(text)?,
        at: 0,
        scopes: Scopes::default(),
        unit: Unit { dynamic_align: 16, ..Unit::default() },
        regs: [0; 3],
        frame: 0,
    };
    parser.scopes.push();
    while parser.at < parser.toks.len() {
        parser.top()?;
    }
    Ok(parser.unit)
}

impl<'a> Parser<'a> {
    pub(super) fn line(&self) -> u32 {
        self.toks.get(self.at).or(self.toks.last()).map_or(1, |token| token.line)
    }

    pub(super) fn fail<T>(&self, what: impl Into<String>) -> Result<T, ParseError> {
        Err(ParseError::new(self.line(), what))
    }

    pub(super) fn peek(&self) -> Option<Tok<'a>> {
        self.toks.get(self.at).map(|token| token.tok)
    }

    pub(super) fn take(&mut self) -> Result<Tok<'a>, ParseError> {
        let Some(tok) = self.peek() else { return self.fail("the text ends too early") };
        self.at += 1;
        Ok(tok)
    }

    pub(super) fn skip(&mut self, count: usize) {
        self.at += count;
    }

    pub(super) fn accept(&mut self, punct: u8) -> bool {
        let found = self.peek() == Some(Tok::Punct(punct));
        self.at += usize::from(found);
        found
    }

    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(Tok::Word(word));
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, punct: u8) -> Result<(), ParseError> {
        if self.accept(punct) {
            return Ok(());
        }
        self.fail(format!("expected '{}', found {:?}", char::from(punct), self.peek()))
    }

    pub(super) fn word(&mut self) -> Result<&'a str, ParseError> {
        match self.peek() {
            Some(Tok::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            other => self.fail(format!("expected a name, found {other:?}")),
        }
    }

    pub(super) fn int(&mut self) -> Result<u64, ParseError> {
        match self.peek() {
            Some(Tok::Int(value)) => {
                self.at += 1;
                Ok(value)
            }
            other => self.fail(format!("expected an integer, found {other:?}")),
        }
    }

    fn int_u32(&mut self) -> Result<u32, ParseError> {
        let value = self.int()?;
        u32::try_from(value).or_else(|_| self.fail(format!("{value} is too large")))
    }

    fn top(&mut self) -> Result<(), ParseError> {
        match self.word()? {
            ".version" => self.version(),
            ".target" => self.target(),
            ".address_size" => match self.int()? {
                64 => Ok(()),
                other => self.fail(format!("address size {other}; only 64 is supported")),
            },
            ".visible" | ".extern" | ".weak" | ".common" => Ok(()),
            ".global" => self.module_variable(Space::Global),
            ".const" => self.module_variable(Space::Const),
            ".shared" => self.shared_variable(),
            ".entry" => self.function(true),
            ".func" => self.function(false),
            ".file" => self.file(),
            ".section" => self.section(),
            ".pragma" => self.skip_statement(),
            other => self.fail(format!("unknown directive {other}")),
        }
    }

    pub(super) fn skip_statement(&mut self) -> Result<(), ParseError> {
        while self.take()? != Tok::Punct(b';') {}
        Ok(())
    }

    fn version(&mut self) -> Result<(), ParseError> {
        let text = match self.take()? {
            Tok::F64(bits) => format!("{:.1}", f64::from_bits(bits)),
            other => return self.fail(format!("version {other:?}")),
        };
        let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
        self.unit.version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        Ok(())
    }

    fn target(&mut self) -> Result<(), ParseError> {
        self.unit.target = self.word()?.to_owned();
        while self.accept(b',') {
            self.word()?;
        }
        Ok(())
    }

    fn file(&mut self) -> Result<(), ParseError> {
        self.int()?;
        self.take()?;
        while self.accept(b',') {
            self.int()?;
        }
        Ok(())
    }

    fn section(&mut self) -> Result<(), ParseError> {
        while self.take()? != Tok::Punct(b'{') {}
        while self.take()? != Tok::Punct(b'}') {}
        Ok(())
    }

    /// `.align N .type name[count]` and its shorter forms; the space has been read.
    pub(super) fn decl(&mut self) -> Result<Decl<'a>, ParseError> {
        let mut align = None;
        let mut ty = None;
        loop {
            match self.peek() {
                Some(Tok::Word(".align")) => {
                    self.at += 1;
                    align = Some(self.int_u32()?);
                }
                Some(Tok::Word(".ptr")) => self.at += 1,
                Some(Tok::Word(".global" | ".shared" | ".const" | ".local")) if ty.is_some() => {
                    self.at += 1;
                }
                Some(Tok::Word(word)) if word.starts_with('.') => {
                    self.at += 1;
                    let found = Ty::parse(&word[1..]);
                    ty = found.or(ty);
                    if found.is_none() && !matches!(word, ".v2" | ".v4") {
                        return self.fail(format!("unknown type {word}"));
                    }
                }
                _ => break,
            }
        }
        let Some(ty) = ty else { return self.fail("a declaration without a type") };
        let name = self.word()?;
        let align = align.unwrap_or(ty.bytes());
        if !align.is_power_of_two() || align > 1 << 16 {
            return self.fail(format!("alignment {align} of {name}"));
        }
        let range = self.range()?;
        let count = self.dimensions()?;
        Ok(Decl { name, ty, align, count, range })
    }

    /// `<count>`, if there is one.
    pub(super) fn range(&mut self) -> Result<Option<u64>, ParseError> {
        if !self.accept(b'<') {
            return Ok(None);
        }
        let count = self.int()?;
        self.expect(b'>')?;
        Ok(Some(count))
    }

    fn dimensions(&mut self) -> Result<Option<u64>, ParseError> {
        let mut count = Some(1_u64);
        while self.accept(b'[') {
            if self.accept(b']') {
                count = None;
                continue;
            }
            let size = self.int()?;
            self.expect(b']')?;
            count = match count {
                Some(count) => match count.checked_mul(size) {
                    Some(product) => Some(product),
                    None => return self.fail("array dimensions overflow"),
                },
                None => None,
            };
        }
        Ok(count)
    }

    fn module_variable(&mut self, space: Space) -> Result<(), ParseError> {
        let line = self.line();
        let decl = self.decl()?;
        let size = decl.bytes(line)?;
        let init = if self.accept(b'=') { Some(self.initializer(&decl, size)?) } else { None };
        self.expect(b';')?;
        let number = u32::try_from(self.unit.variables.len()).expect("fewer variables than bytes");
        self.scopes.inner().name(decl.name, Named::Var(Place::Module(number)));
        self.unit.variables.push(Variable {
            name: decl.name.to_owned(),
            space,
            size,
            align: decl.align,
            init: init.unwrap_or_else(|| vec![0; size as usize]),
        });
        Ok(())
    }

    fn initializer(&mut self, decl: &Decl<'_>, size: u32) -> Result<Vec<u8>, ParseError> {
        let mut bytes = Vec::new();
        let mut depth = 0_u32;
        let width = decl.ty.bytes() as usize;
        loop {
            match self.take()? {
                Tok::Punct(b'{') => depth += 1,
                Tok::Punct(b'}') => depth = depth.saturating_sub(1),
                Tok::Punct(b',') => {}
                tok => {
                    let negative = tok == Tok::Punct(b'-');
                    let value = match if negative { self.take()? } else { tok } {
                        Tok::Int(value) => value,
                        Tok::F32(bits) => u64::from(bits),
                        Tok::F64(bits) => bits,
                        other => {
                            let name = decl.name;
                            return self.fail(format!("initializer {other:?} of {name}"));
                        }
                    };
                    let value = if negative { value.wrapping_neg() } else { value };
                    bytes.extend_from_slice(&value.to_le_bytes()[..width.min(8)]);
                }
            }
            if depth == 0 {
                break;
            }
        }
        if bytes.len() > size as usize {
            return self.fail(format!("too many initializers of {}", decl.name));
        }
        bytes.resize(size as usize, 0);
        Ok(bytes)
    }

    /// `.shared`, in the module or in a function.
    pub(super) fn shared_variable(&mut self) -> Result<(), ParseError> {
        let line = self.line();
        let decl = self.decl()?;
        self.expect(b';')?;
        let place = if decl.count.is_none_or(|count| count == 0) {
            self.unit.dynamic_align = self.unit.dynamic_align.max(decl.align);
            Place::SharedDynamic
        } else {
            let number = u32::try_from(self.unit.shared.len()).expect("fewer variables than bytes");
            let size = decl.bytes(line)?;
            let name = decl.name.to_owned();
            self.unit.shared.push(SharedVar { name, size, align: decl.align });
            Place::Shared(number)
        };
        self.scopes.inner().name(decl.name, Named::Var(place));
        Ok(())
    }

    fn function(&mut self, entry: bool) -> Result<(), ParseError> {
        self.regs = [0; 3];
        self.frame = 0;
        self.scopes.push();
        let line = self.line();
        while matches!(self.peek(), Some(Tok::Word(".noreturn"))) {
            self.at += 1;
        }
        let returns = if self.accept(b'(') { self.formals(false)? } else { Vec::new() };
        let name = self.word()?.to_owned();
        let params = if self.accept(b'(') { self.formals(entry)? } else { Vec::new() };
        let mut func = Func {
            name,
            line,
            entry,
            returns,
            params,
            regs: [0; 3],
            frame: 0,
            body: None,
            required: [0; 3],
            max_threads: 0,
        };
        self.performance(&mut func)?;
        if !self.accept(b';') {
            self.expect(b'{')?;
            func.body = Some(self.body()?);
        }
        func.regs = self.regs;
        func.frame = self.frame;
        self.scopes.pop();
        // A definition replaces its forward declaration.
        self.unit.funcs.retain(|other| other.name != func.name || other.body.is_some());
        self.unit.funcs.push(func);
        Ok(())
    }

    /// Directives between the parameters and the body.
    fn performance(&mut self, func: &mut Func) -> Result<(), ParseError> {
        while let Some(Tok::Word(word)) = self.peek() {
            self.at += 1;
            match word {
                ".maxntid" => func.max_threads = self.dims()?.iter().product(),
                ".reqntid" => func.required = self.dims()?,
                ".minnctapersm" | ".maxnreg" | ".maxnctapersm" => {
                    self.int()?;
                }
                ".noreturn" => {}
                ".pragma" => self.skip_statement()?,
                other => return self.fail(format!("unknown directive {other}")),
            }
        }
        Ok(())
    }

    fn dims(&mut self) -> Result<[u32; 3], ParseError> {
        let mut dims = [1; 3];
        for (index, dim) in dims.iter_mut().enumerate() {
            if index == 0 || self.accept(b',') {
                *dim = self.int_u32()?.min(1 << 16);
            }
        }
        Ok(dims)
    }

    fn formals(&mut self, entry: bool) -> Result<Vec<Formal>, ParseError> {
        let mut out = Vec::new();
        let mut offset = 0_u32;
        while !self.accept(b')') {
            let line = self.line();
            let space = self.word()?;
            let decl = self.decl()?;
            self.accept(b',');
            let size = decl.bytes(line)?;
            let align = decl.align.max(decl.ty.bytes());
            let at = if space == ".reg" {
                FormalAt::Reg(self.new_reg(decl.ty)?)
            } else if entry {
                offset = offset.next_multiple_of(align);
                let place = Place::Param(offset);
                offset = offset.saturating_add(size);
                FormalAt::Place(place)
            } else {
                FormalAt::Place(Place::Local(self.new_local(size, align)?))
            };
            let named = match at {
                FormalAt::Place(place) => Named::Var(place),
                FormalAt::Reg(reg) => Named::Reg(reg),
            };
            self.scopes.inner().name(decl.name, named);
            out.push(Formal { name: decl.name.to_owned(), size, align, at });
        }
        Ok(out)
    }

    pub(super) fn new_reg(&mut self, ty: Ty) -> Result<Reg, ParseError> {
        self.new_regs(ty, 1)
    }

    pub(super) fn new_regs(&mut self, ty: Ty, count: u64) -> Result<Reg, ParseError> {
        let Some(class) = ty.class() else { return self.fail(format!("registers of {ty:?}")) };
        let file = &mut self.regs[super::file_of(class)];
        let index = *file;
        // Files of more than a million registers are not programs.
        match u32::try_from(count).ok().and_then(|count| index.checked_add(count)) {
            Some(end) if end <= 1 << 20 => *file = end,
            _ => return self.fail("too many registers"),
        }
        Ok(Reg { class, index })
    }

    pub(super) fn new_local(&mut self, size: u32, align: u32) -> Result<u32, ParseError> {
        let offset = self.frame.next_multiple_of(align.max(1));
        match offset.checked_add(size) {
            Some(end) if end <= 1 << 24 => self.frame = end,
            _ => return self.fail("a frame of more than 16 MiB"),
        }
        Ok(offset)
    }
}
