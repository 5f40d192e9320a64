//! Names and what they stand for.

use std::collections::HashMap;

use super::ast::{Class, Place, Reg};

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Named {
    Reg(Reg),
    Var(Place),
}

/// Registers declared by one `%prefix<count>`.
#[derive(Debug, Clone, Copy)]
struct Range {
    class: Class,
    first: u32,
    count: u32,
}

/// One nesting level of declarations.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    names: HashMap<String, Named>,
    ranges: HashMap<String, Range>,
}

impl Scope {
    pub(crate) fn name(&mut self, name: &str, named: Named) {
        self.names.insert(name.to_owned(), named);
    }

    pub(crate) fn range(&mut self, prefix: &str, class: Class, first: u32, count: u32) {
        self.ranges.insert(prefix.to_owned(), Range { class, first, count });
    }

    fn find(&self, name: &str) -> Option<Named> {
        if let Some(named) = self.names.get(name) {
            return Some(*named);
        }
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: u32 = name[prefix.len()..].parse().ok()?;
        // `%r01` is not a register of `%r<2>`.
        let canonical = name.len() - prefix.len() == number.to_string().len();
        let range = self.ranges.get(prefix).filter(|range| canonical && number < range.count)?;
        Some(Named::Reg(Reg { class: range.class, index: range.first + number }))
    }
}

/// The nest of scopes, innermost last.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    stack: Vec<Scope>,
}

impl Scopes {
    pub(crate) fn push(&mut self) {
        self.stack.push(Scope::default());
    }

    pub(crate) fn pop(&mut self) {
        self.stack.pop();
    }

    pub(crate) fn depth(&self) -> usize {
        self.stack.len()
    }

    pub(crate) fn inner(&mut self) -> &mut Scope {
        if self.stack.is_empty() {
            self.push();
        }
        self.stack.last_mut().expect("a scope was just made sure of")
    }

    pub(crate) fn find(&self, name: &str) -> Option<Named> {
        self.stack.iter().rev().find_map(|scope| scope.find(name))
    }
}
