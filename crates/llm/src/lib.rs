//! Under construction.

pub mod tokenizer;
