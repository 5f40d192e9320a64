//! Gemma 3: a tiny random model against the definition in f64, what a damaged file gives, and the
//! published model of 270 million weights against another runner.

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
mod published;
mod tiny;
