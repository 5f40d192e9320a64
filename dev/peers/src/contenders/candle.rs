//! As candle's models do it: block weights through `QMatMul`, others as tensors of one type.

use std::borrow::Cow;
use std::rc::Rc;

use anyhow::{Result, bail};
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType as Element, Device, Module as _, Tensor};
use fucina_dtype::DType;

use super::{Call, Out, Product};
use crate::case::Weights;

struct Blocks {
    copies: Rc<Vec<QMatMul>>,
    k: usize,
}

struct Dense {
    copies: Rc<Vec<Tensor>>,
    element: Element,
    k: usize,
}

pub(super) fn take(weights: &Weights) -> Result<Box<dyn Product>> {
    let &Weights { dtype, n, k, .. } = weights;
    let count = weights.copies(weights.bytes.len());
    let format = match dtype {
        DType::Q4_0 => GgmlDType::Q4_0,
        DType::Q4_1 => GgmlDType::Q4_1,
        DType::Q5_0 => GgmlDType::Q5_0,
        DType::Q5_1 => GgmlDType::Q5_1,
        DType::Q8_0 => GgmlDType::Q8_0,
        DType::Q2_K => GgmlDType::Q2K,
        DType::Q3_K => GgmlDType::Q3K,
        DType::Q4_K => GgmlDType::Q4K,
        DType::Q5_K => GgmlDType::Q5K,
        DType::Q6_K => GgmlDType::Q6K,
        DType::F32 => return dense(weights, Element::F32, count),
        DType::F16 => return dense(weights, Element::F16, count),
        DType::BF16 => return dense(weights, Element::BF16, count),
        _ => bail!("it does not have {dtype}"),
    };
    let mut copies = Vec::with_capacity(count);
    for _ in 0..count {
        let storage = QStorage::from_data(Cow::Borrowed(&weights.bytes), &Device::Cpu, format)?;
        copies.push(QMatMul::from_qtensor(QTensor::new(storage, (n, k))?)?);
    }
    Ok(Box::new(Blocks { copies: Rc::new(copies), k }))
}

fn dense(weights: &Weights, element: Element, count: usize) -> Result<Box<dyn Product>> {
    let of = Tensor::from_vec(weights.decoded()?, (weights.n, weights.k), &Device::Cpu)?;
    let of = of.to_dtype(element)?;
    let mut copies = Vec::with_capacity(count);
    for _ in 0..count {
        copies.push(of.copy()?.t()?);
    }
    Ok(Box::new(Dense { copies: Rc::new(copies), element, k: weights.k }))
}

impl Product for Blocks {
    fn copies(&self) -> usize {
        self.copies.len()
    }

    fn kernel(&self) -> String {
        "QMatMul".to_owned()
    }

    fn bind(&self, x: &[f32], m: usize) -> Result<Call> {
        let x = Tensor::from_slice(x, (m, self.k), &Device::Cpu)?;
        let copies = Rc::clone(&self.copies);
        Ok(Box::new(move |at| Ok(Out::Candle(copies[at].forward(&x)?))))
    }
}

impl Product for Dense {
    fn copies(&self) -> usize {
        self.copies.len()
    }

    fn kernel(&self) -> String {
        format!("Tensor {}", self.element.as_str())
    }

    fn bind(&self, x: &[f32], m: usize) -> Result<Call> {
        let x = Tensor::from_slice(x, (m, self.k), &Device::Cpu)?.to_dtype(self.element)?;
        let copies = Rc::clone(&self.copies);
        Ok(Box::new(move |at| Ok(Out::Candle(x.matmul(&copies[at])?))))
    }
}
