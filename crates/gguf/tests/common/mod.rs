//! Shared by the tests, the corpus generator and the fuzz target.

#![allow(dead_code, reason = "each user needs another part")]

pub(crate) mod cases;
pub(crate) mod exercise;
pub(crate) mod folder;
pub(crate) mod raw;
