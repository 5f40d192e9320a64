//! Internal to Fucina; the `fucina` crate is its public face. Eager tensors whose ops may run on
//! an accelerator.
//!
//! An op that returns has computed, or its command is on a device queue. Nothing is recorded for
//! later. A result is an ordinary tensor: the host waits where it reads the bytes, and nowhere
//! else.
//!
//! - [`Tensor`] names its axes in its type; [`DynTensor`] has a rank of run time.
//! - [`Runtime`] holds the pool, the worker team, the providers and the gates.
//! - [`route::decide`] is the whole decision of where a call runs.
//!
//! `unsafe` is in `threads.rs` and `threads_matrix.rs` only.

#![deny(unsafe_code)]

mod axes;
mod blas;
mod ceiling;
mod config;
mod cores;
mod error;
mod gates;
mod kv_cache;
mod limits;
mod ops;
pub mod route;
mod runtime;
mod scratch;
mod shadow;
mod shape;
mod sync;
mod tensor;
#[expect(unsafe_code, reason = "borrowed closures and disjoint tiles cross threads here")]
mod threads;
#[expect(unsafe_code, reason = "a tile becomes an operand of the kernels here")]
mod threads_matrix;
mod weight;

pub use axes::{Axes, Axis, EndsWith, Join, Tensor, Without};
pub use blas::BlasState;
pub use ceiling::Ceilings;
pub use config::{BlasChoice, Config, ConfigError, F32_SHADOW_MIN_M, GateOverrides, Offload};
pub use error::{Error, Result};
pub use fucina_accel as accel;
pub use fucina_blas::{Blas, Kind as BlasKind, NoBlas};
pub use fucina_dtype::DType;
pub use fucina_kernels::attention::Params as AttentionParams;
pub use fucina_kernels::elementwise::UnaryOp;
pub use fucina_kernels::glu::Activation;
pub use fucina_kernels::isa::{AmxState, Isa};
pub use fucina_kernels::rope::{Pairing, RopeConfig, Scaling};
pub use gates::{Gates, Memory, THRESHOLDS};
pub use kv_cache::{CacheType, KvCache, KvShape};
pub use limits::{cpu_quota, free_memory_bytes};
pub use ops::{GroupRows, Groups, RopeTable};
pub use runtime::{Builder, Runtime};
pub use tensor::{DynTensor, Element};
pub use threads::{Team, TileMut};
pub use weight::{DevicePlace, Place, RowKernel, cpu_kernel, cpu_row_kernels, packed_bytes};
