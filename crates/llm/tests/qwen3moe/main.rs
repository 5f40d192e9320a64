//! Qwen3 with experts: tiny random models and larger ones against the definition in f64, what a
//! damaged file gives, and a whole model on the reference provider.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test: small numbers, and a panic is a failure"
)]

mod definition;
mod faults;
mod offload;
mod parity;
mod tiny;
