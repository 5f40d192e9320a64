//! Executes decoded kernels, a warp at a time.
//!
//! Faults are the point: accesses outside allocations, misaligned ones, reads of bytes that nothing
//! has written, races on shared memory, barriers that cannot be met, masks that do not fit. What is
//! not modelled: caches and the weak memory model between blocks, clusters, and time.

#![forbid(unsafe_code)]

mod access;
mod atomic;
mod barrier;
mod convert;
mod decode;
mod exchange;
mod fault;
mod float;
mod global;
mod inst;
mod int;
mod lanes;
mod launch;
mod local;
mod matrix;
mod memory;
mod num;
mod optimise;
mod shared;
mod visit;
mod warp;

pub use fault::{Fault, FaultKind};
pub use launch::{Launch, Options, Stats, launch};
pub use memory::{DeviceMemory, Memory, OutOfMemory, POISON, Region};

pub(crate) use decode::decode;
pub(crate) use inst::Program;
