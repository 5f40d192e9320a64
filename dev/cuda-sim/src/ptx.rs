//! PTX text: what it declares, and programs made from it.
//!
//! A module that parses can be executed: an opcode, type or modifier that the executor does not
//! know is an error here, with its line, and not a surprise during a launch.

#![forbid(unsafe_code)]

pub(crate) mod ast;
mod body;
mod error;
mod lex;
mod parse;
mod scope;

use std::sync::Arc;

pub use error::ParseError;

use crate::exec::Program;

/// Number of the register file of a class.
pub(crate) fn file_of(class: ast::Class) -> usize {
    match class {
        ast::Class::Pred => 0,
        ast::Class::B16 | ast::Class::B32 => 1,
        ast::Class::B64 => 2,
    }
}

/// State space of a variable of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Written by kernels and by the host.
    Global,
    /// Written by the host only.
    Const,
}

/// A variable that whoever loads the module has to place in device memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name in the text.
    pub name: String,
    /// Who may write it.
    pub space: Space,
    /// Length in bytes.
    pub size: u32,
    /// Alignment in bytes, a power of two.
    pub align: u32,
    /// Its bytes when the module is loaded.
    pub init: Vec<u8>,
}

/// A parameter of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Where it starts in the parameter buffer, in bytes.
    pub offset: u32,
    /// Length in bytes.
    pub size: u32,
}

/// An entry that can be launched.
#[derive(Debug, Clone)]
pub struct Function {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) static_shared: u32,
    pub(crate) required: [u32; 3],
    pub(crate) max_threads: u32,
    pub(crate) program: Arc<Program>,
}

impl Function {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where each parameter lies in the buffer that a launch takes.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Bytes of shared memory of fixed size.
    #[must_use]
    pub fn static_shared(&self) -> u32 {
        self.static_shared
    }

    /// Most threads of a block, by `.maxntid`, `.reqntid` or the limit of every device.
    #[must_use]
    pub fn max_threads(&self) -> u32 {
        match self.max_threads {
            0 => 1024,
            limit => limit.min(1024),
        }
    }

    /// Bytes of the frame of one thread.
    #[must_use]
    pub fn local_bytes(&self) -> u32 {
        self.program.frame
    }
}

/// A parsed module.
#[derive(Debug, Clone)]
pub struct Module {
    target: String,
    version: (u32, u32),
    functions: Vec<Function>,
    variables: Vec<Variable>,
}

impl Module {
    /// Parses and decodes PTX text.
    ///
    /// # Errors
    /// Text that is no PTX, or has what the executor does not know, by line and name.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let text = text.trim_end_matches('\0');
        let unit = parse::parse(text)?;
        let mut functions = Vec::new();
        for func in unit.funcs.iter().filter(|func| func.entry && func.body.is_some()) {
            functions.push(crate::exec::decode(&unit, func)?);
        }
        Ok(Self {
            target: unit.target,
            version: unit.version,
            functions,
            variables: unit.variables,
        })
    }

    /// The entry of that name.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }

    /// All entries, in the order of the text.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Variables to place in device memory; a launch takes their addresses in this order.
    #[must_use]
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// The target, like `sm_70`.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The PTX version of the text, like `(8, 0)`.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }
}

pub(crate) use parse::Unit;
