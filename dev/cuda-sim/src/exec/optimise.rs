//! Passes over a decoded program that make it faster to run, not different.

use super::inst::Program;

/// The program as it will run.
pub(super) fn finish(program: Program) -> Program {
    program
}
