//! Gemma 3: a tiny random model against the definition in f64, and what a damaged file gives.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test: small numbers, and a panic is a failure"
)]

mod definition;
mod parity;
mod tiny;
