//! The ops. Each one validates, decides where to run, takes an output from the pool, and then
//! either submits one command or computes on the worker team, before it returns.
//!
//! To add one: a scalar kernel in the kernel crate, a file here, and, for a provider to take it, a
//! variant of [`Call`].

mod attention;
mod blas;
mod convert;
mod few;
mod gemm;
mod grouped;
mod light;
mod matmul;
mod panels;
mod select;
mod split;

use std::sync::Arc;

use fucina_accel::{
    self as accel, Call, CommandId, CpuReason, Decision, DeviceInfo, OffloadReason, Outcome,
    Record, Storage, StorageError, Ticket, thread_number,
};
use fucina_dtype::DType;
use zerocopy::{FromBytes, IntoBytes};

pub use grouped::{GroupRows, Groups};
pub use light::RopeTable;

use crate::error::{Error, Result};
use crate::gates::Memory;
use crate::route::{self, Kind, Query};
use crate::runtime::Runtime;
use crate::tensor::DynTensor;

pub(crate) const TO_F32: &str = "to_f32";

/// What computed a call on the CPU, for the trace.
pub(crate) trait Ran {
    /// Its name, where it was a choice.
    fn kernel(self) -> Option<&'static str>;
}

impl Ran for () {
    fn kernel(self) -> Option<&'static str> {
        None
    }
}

impl Ran for Option<&'static str> {
    fn kernel(self) -> Self {
        self
    }
}

/// Runs a call, whose result is f32: on the first provider that is worth it and takes it, else
/// with `cpu`, which gets the elements of the output. A call that is not valid is an error.
pub(crate) fn run<R: Ran>(
    rt: &Runtime,
    call: &Call<'_>,
    cpu: impl FnOnce(&mut [f32]) -> Result<R>,
) -> Result<DynTensor> {
    let (shape, bytes) = (call.out_shape()?, call.out_bytes()?);
    let start_ns = rt.trace().timeline().map_or(0, |timeline| timeline.now_ns());
    let mut out = rt.pool().take(bytes)?;
    let mut outcome = Outcome::Cpu { reason: CpuReason::NoProvider };
    let mut offered = None;
    for (provider, device) in rt.offers() {
        let query = query(call, device);
        outcome = match route::decide_why(&query, rt.config().offload, rt.gates()) {
            Err(reason) => Outcome::Cpu { reason },
            Ok(why) => {
                offered = Some(why);
                match accel::submit(provider, call, out) {
                    Ok(storage) => {
                        let provider = provider.name();
                        let command = storage.writer().as_ref().map(Ticket::id);
                        let decision = Decision::new(call, Outcome::Offloaded { provider });
                        note(rt, call, decision, (start_ns, offered, command));
                        return Ok(DynTensor::new(rt, Arc::new(storage), DType::F32, shape));
                    }
                    Err((reason, storage)) => {
                        out = storage;
                        Outcome::Declined { provider: provider.name(), reason }
                    }
                }
            }
        };
    }
    let ran = accel::reading(call.op_name(), || {
        // What is on devices comes together, with one wait.
        Storage::fetch(call.inputs().map(|input| input.storage()))?;
        write_output(&mut out, bytes, cpu)
    });
    let kernel = ran.as_ref().ok().copied().flatten();
    let decision = Decision::new(call, outcome).with_kernel(kernel);
    note(rt, call, decision, (start_ns, offered, None));
    ran?;
    Ok(DynTensor::new(rt, Arc::new(out), DType::F32, shape))
}

/// Counts where a call ran, for its weights too, and notes when.
fn note(
    rt: &Runtime,
    call: &Call<'_>,
    decision: Decision,
    (start_ns, offered, command): (u64, Option<OffloadReason>, Option<CommandId>),
) {
    rt.trace().record(decision);
    if !rt.providers().is_empty() {
        for weight in call.inputs().filter(|input| input.storage().is_read_only()) {
            weight.storage().count_reading(decision.op, decision.outcome);
        }
    }
    if let Some(timeline) = rt.trace().timeline() {
        let (thread, span) = (thread_number(), timeline.since(start_ns));
        timeline.record(Record::Call { thread, span, decision, offered, command });
    }
}

fn write_output<R: Ran>(
    out: &mut Storage,
    bytes: usize,
    cpu: impl FnOnce(&mut [f32]) -> Result<R>,
) -> Result<Option<&'static str>> {
    cpu(elems_mut(out, bytes, ("output", DType::F32))?).map(Ran::kernel)
}

/// The first bytes of a storage, which has them, as elements. An op and a type for errors.
pub(crate) fn elems_mut<'a, T: FromBytes + IntoBytes>(
    storage: &'a mut Storage,
    len_bytes: usize,
    (op, dtype): (&'static str, DType),
) -> Result<&'a mut [T]> {
    let host = storage.host_mut().map_err(|error| storage_error(error, op))?;
    <[T]>::mut_from_bytes(&mut host[..len_bytes]).map_err(|_| Error::Unaligned { op, dtype })
}

/// What the gates need to know of a call.
fn query(call: &Call<'_>, device: &DeviceInfo) -> Query {
    // Also of a command that has finished: its bytes are on the device until somebody reads them.
    let pending_input = call
        .inputs()
        .any(|input| input.storage().writer().is_some_and(|by| by.lane().device == device.id));
    let kind = match call {
        Call::MatMul(matmul) => {
            let [b, m, n, k] = matmul.sizes();
            let rhs = &matmul.rhs;
            let resident = rhs.storage().device_copy(device.id, rhs.byte_range()).is_some();
            Kind::MatMul { m: b.saturating_mul(m), n, k, rhs: rhs.dtype(), resident }
        }
        Call::GroupedMatMul(grouped) => {
            let [rows, _, n, k] = grouped.sizes();
            Kind::GroupedMatMul { rows, n, k, tiles: grouped.tiles(route::TILE_ROWS) }
        }
        Call::Attention(_) => Kind::Attention { work: call.work() },
        _ => Kind::Light,
    };
    let memory = if device.is_unified { Memory::Unified } else { Memory::Discrete };
    Query { kind, memory, pending_input }
}

/// Why the host cannot write a storage, in the words of this crate.
pub(crate) fn storage_error(error: StorageError, op: &'static str) -> Error {
    match error {
        StorageError::ReadOnly => Error::ReadOnly { op },
        StorageError::Device(error) => Error::Device(error),
        StorageError::Alloc(error) => Error::Alloc(error),
        other => Error::Storage(Box::new(other)),
    }
}
