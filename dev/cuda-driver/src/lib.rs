//! A stand-in for `libcuda.so.1`: the C entry points that Fucina's CUDA provider uses, on the CPU.
//!
//! The provider opens it by its path, as it opens the real driver. [`control::Driver`] makes a
//! private copy for a test, steers it, and asks it what happened.
//!
//! Simulated are: contexts, streams, events, device memory apart from the host's, locked pages and
//! their rules, modules of PTX, launches. Not simulated is time. The same library stands in for
//! `libcublas`: f32 products that run in the streams of this driver.

mod blas;
pub mod control;
mod entry;
mod heap;
mod host;
mod kernel;
mod sim;
mod status;
