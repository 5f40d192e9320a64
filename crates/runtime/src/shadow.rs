//! An f32 copy of 16-bit weights, for products of many rows on a CPU without a kernel for 16 bits.
//!
//! The copy is made at the first such product, belongs to the weights' storage, and goes with it or
//! with the next write. It has all elements of the storage, so that every view of it, at any offset
//! and strides, is the same view of the copy.

use std::sync::Arc;

use fucina_accel::Storage;
use fucina_dtype::DType;
use fucina_kernels::dense::{self, Split};

use crate::config::F32_SHADOW_MIN_M;
use crate::error::Result;
use crate::limits::free_memory_bytes;
use crate::ops;
use crate::runtime::Runtime;
use crate::tensor::DynTensor;

const OP: &str = "f32_shadow";

/// Elements of a task: a quarter of a MiB is written.
const TASK_ELEMS: usize = 1 << 16;

/// Part of the free memory, in eighths, that one copy may take. As for packed weights, the rest is
/// for results and others.
const EIGHTHS: u64 = 7;

/// What a product does about the copy.
pub(crate) enum Shadow {
    /// It is not for this product.
    Unwanted,
    /// It was wanted, and why there is none.
    Declined(&'static str),
    /// The right operand on the copy.
    Ready(DynTensor),
}

/// What the storage keeps.
enum Kept {
    Copy {
        /// Of the elements.
        dtype: DType,
        elems: Arc<Storage>,
        len_bytes: usize,
    },
    /// The memory did not suffice. It is not tried again with every product.
    Refused,
}

/// The f32 copy for a product of `rows` rows with `rhs`, a view or a copy of the caller's `weight`.
pub(crate) fn of(rt: &Runtime, rhs: &DynTensor, weight: &DynTensor, rows: usize) -> Result<Shadow> {
    let config = rt.config();
    let dtype = rhs.dtype();
    let wanted = config.f32_shadow && matches!(dtype, DType::F16 | DType::BF16);
    if !wanted || rows < config.f32_shadow_min_m.unwrap_or(F32_SHADOW_MIN_M) || rhs.is_empty() {
        return Ok(Shadow::Unwanted);
    }
    if Split::new(rt.isa(), dtype, rows).is_some() {
        return Ok(Shadow::Declined("no f32 shadow: this CPU has a kernel for 16 bits"));
    }
    if !Arc::ptr_eq(rhs.storage(), weight.storage()) {
        return Ok(Shadow::Declined("no f32 shadow: the weights were copied for this call"));
    }
    let storage = rhs.storage();
    if rhs.len() < storage.len_bytes() / 4 {
        return Ok(Shadow::Declined("no f32 shadow: less than half of the storage is used"));
    }
    let kept = storage.derive(|| widen(rt, storage, dtype, free_memory_bytes()))?;
    Ok(match &*kept {
        Kept::Copy { dtype: of, elems, .. } if *of == dtype => {
            Shadow::Ready(rhs.on_storage(Arc::clone(elems), DType::F32))
        }
        Kept::Copy { .. } => Shadow::Declined("no f32 shadow: the storage has one of another type"),
        Kept::Refused => Shadow::Declined("no f32 shadow: it does not fit the free memory"),
    })
}

/// Decodes all of a storage.
fn widen(rt: &Runtime, storage: &Storage, dtype: DType, free_bytes: Option<u64>) -> Result<Kept> {
    let len = storage.len_bytes() / 2;
    let len_bytes = len.saturating_mul(4);
    // Where it is not known, the system says when it is enough.
    if free_bytes.is_some_and(|free| len_bytes as u64 > free / 8 * EIGHTHS) {
        return Ok(Kept::Refused);
    }
    let Ok(mut copy) = rt.pool().take(len_bytes) else { return Ok(Kept::Refused) };
    copy.prefer_large_pages();
    let raw = storage.host()?;
    let elems: &mut [f32] = ops::elems_mut(&mut copy, len_bytes, (OP, DType::F32))?;
    rt.team().for_each_chunk(elems, TASK_ELEMS, |task, out| {
        let first = task * TASK_ELEMS * 2;
        dense::decode_row(rt.isa(), dtype, &raw[first..first + out.len() * 2], out);
    });
    Ok(Kept::Copy { dtype, elems: Arc::new(copy), len_bytes })
}

impl DynTensor {
    /// Bytes of the f32 copy that the storage keeps for products of many rows. Zero without one;
    /// see `FUCINA_CPU_F32_SHADOW`.
    pub fn f32_shadow_bytes(&self) -> usize {
        match self.storage().derived::<Kept>().as_deref() {
            Some(Kept::Copy { len_bytes, .. }) => *len_bytes,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Runtime};

    #[test]
    fn a_copy_that_does_not_fit_is_refused_and_takes_nothing() {
        let rt = Runtime::builder().config(Config::default()).threads(1).build().unwrap();
        let w = rt.zeros(DType::BF16, &[64, 64]).unwrap();
        let live = rt.pool().stats().live_bytes;
        let widen = |free| widen(&rt, w.storage(), DType::BF16, free).unwrap();
        // 16 KiB fit seven eighths of 18728 bytes and not of eight bytes less.
        assert!(matches!(widen(Some(18_728)), Kept::Copy { len_bytes: 16_384, .. }));
        assert!(matches!(widen(Some(18_720)), Kept::Refused));
        assert!(matches!(widen(Some(0)), Kept::Refused));
        assert!(matches!(widen(None), Kept::Copy { .. }));
        assert_eq!(rt.pool().stats().live_bytes, live, "nobody holds a copy");
    }
}
