//! A stand-in for a BLAS library with the C interface: sums in f64, one element after another.
//!
//! It is opened by its path, as a real one is. [`control::Double`] makes a private copy of the
//! library for a test, decides what it passes for, and asks it what happened. What the interface
//! forbids is counted, and what a real library would do with several threads as well.

pub mod control;
mod entry;
mod real;

pub use real::libraries;
