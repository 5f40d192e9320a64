use std::rc::Rc;

use anyhow::Result;
use bytes::Bytes;
use fucina_runtime::{DynTensor, Runtime, cpu_kernel};

use super::{Call, Out, Product};
use crate::case::Weights;

struct Ours {
    rt: Runtime,
    copies: Rc<Vec<DynTensor>>,
    k: usize,
}

pub(super) fn take(rt: &Runtime, weights: &Weights) -> Result<Box<dyn Product>> {
    let &Weights { dtype, n, k, .. } = weights;
    let raw = Bytes::from(weights.bytes.clone());
    let packed = |raw: &Bytes| -> Result<DynTensor> {
        let mut weights = rt.tensor_from_bytes(dtype, &[n, k], raw.clone())?;
        weights.pack()?;
        Ok(weights)
    };
    let mut copies = vec![packed(&raw)?];
    let is_packed = copies[0].packed_bytes() > 0;
    let bytes = if is_packed { copies[0].packed_bytes() } else { raw.len() };
    while copies.len() < weights.copies(bytes) {
        // What is not packed is read where it lies.
        let raw = if is_packed { raw.clone() } else { Bytes::from(weights.bytes.clone()) };
        copies.push(packed(&raw)?);
    }
    Ok(Box::new(Ours { rt: rt.clone(), copies: Rc::new(copies), k }))
}

impl Product for Ours {
    fn copies(&self) -> usize {
        self.copies.len()
    }

    fn kernel(&self) -> String {
        let weights = &self.copies[0];
        cpu_kernel(weights.dtype(), self.rt.isa(), weights.packed_bytes() > 0)
    }

    fn bind(&self, x: &[f32], m: usize) -> Result<Call> {
        let x = self.rt.tensor(&[m, self.k], x)?;
        let copies = Rc::clone(&self.copies);
        Ok(Box::new(move |at| {
            let out = x.matmul_t(&copies[at])?;
            out.wait()?;
            Ok(Out::Ours(out))
        }))
    }
}
