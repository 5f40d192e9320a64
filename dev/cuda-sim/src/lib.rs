//! A stand-in for the CUDA driver that executes PTX. Not published; for tests only.
//!
//! [`ptx`] turns PTX text into programs; [`exec`] runs them, a warp at a time, on checked memory.
//! Nothing here measures speed: the simulator says what a kernel computes and which rule it breaks.

pub mod exec;
pub mod ptx;
