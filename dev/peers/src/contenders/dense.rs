//! Products of dense matrices: the crate `gemm`, and libraries with the interface of BLAS.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use fucina_dtype::DType;
use half::f16;

use super::{Call, Out, Product};
use crate::case::Weights;
use crate::raw::{Blas, gemm_f16, gemm_f32};

struct F32 {
    copies: Rc<Vec<Vec<f32>>>,
    n: usize,
    k: usize,
    with: With,
}

/// Who multiplies.
#[derive(Clone)]
enum With {
    /// With so many threads.
    Gemm(usize),
    Blas(Arc<Blas>),
}

struct F16 {
    copies: Rc<Vec<Vec<f16>>>,
    n: usize,
    k: usize,
    threads: usize,
}

pub(super) fn gemm(threads: usize, weights: &Weights) -> Result<Box<dyn Product>> {
    let &Weights { dtype, n, k, .. } = weights;
    match dtype {
        DType::F32 => f32(weights, With::Gemm(threads)),
        DType::F16 => {
            let of: Vec<f16> = weights.decoded()?.into_iter().map(f16::from_f32).collect();
            let copies = Rc::new(vec![of; weights.copies(weights.bytes.len())]);
            Ok(Box::new(F16 { copies, n, k, threads }))
        }
        _ => bail!("it does not have {dtype}"),
    }
}

pub(super) fn blas(weights: &Weights, blas: Arc<Blas>) -> Result<Box<dyn Product>> {
    ensure!(weights.dtype == DType::F32, "it does not have {}", weights.dtype);
    f32(weights, With::Blas(blas))
}

fn f32(weights: &Weights, with: With) -> Result<Box<dyn Product>> {
    let copies = vec![weights.decoded()?; weights.copies(weights.bytes.len())];
    Ok(Box::new(F32 { copies: Rc::new(copies), n: weights.n, k: weights.k, with }))
}

impl Product for F32 {
    fn copies(&self) -> usize {
        self.copies.len()
    }

    fn kernel(&self) -> String {
        "sgemm".to_owned()
    }

    fn bind(&self, x: &[f32], m: usize) -> Result<Call> {
        let (x, copies, sizes) = (x.to_vec(), Rc::clone(&self.copies), [m, self.n, self.k]);
        let with = self.with.clone();
        Ok(Box::new(move |at| {
            let mut out = vec![0.0; sizes[0] * sizes[1]];
            match &with {
                With::Gemm(threads) => gemm_f32(sizes, &x, &copies[at], &mut out, *threads),
                With::Blas(blas) => blas.sgemm_nt(sizes, &x, &copies[at], &mut out)?,
            }
            Ok(Out::F32(out))
        }))
    }
}

impl Product for F16 {
    fn copies(&self) -> usize {
        self.copies.len()
    }

    fn kernel(&self) -> String {
        "f16".to_owned()
    }

    fn bind(&self, x: &[f32], m: usize) -> Result<Call> {
        let x: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
        let (copies, sizes, threads) = (Rc::clone(&self.copies), [m, self.n, self.k], self.threads);
        Ok(Box::new(move |at| {
            let mut out = vec![f16::ZERO; sizes[0] * sizes[1]];
            gemm_f16(sizes, &x, &copies[at], &mut out, threads);
            Ok(Out::F16(out))
        }))
    }
}
