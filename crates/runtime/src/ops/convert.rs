//! Element types: conversion to f32, and raw access for kernels.

use fucina_dtype::DType;
use fucina_kernels::{dense, reduce};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::error::{Error, Result};
use crate::ops;
use crate::tensor::DynTensor;

/// Elements of one task.
const CHUNK: usize = 1 << 14;

impl DynTensor {
    /// The tensor in f32. The same one if it is f32 already. Block formats are decoded.
    ///
    /// # Errors
    ///
    /// Fails for an integer that f32 does not hold exactly, or with the device's fault.
    pub fn to_f32(&self) -> Result<Self> {
        let op = "to_f32";
        if self.dtype() == DType::F32 {
            return Ok(self.clone());
        }
        let src = self.contiguous()?;
        let rt = self.runtime();
        let mut out = rt.empty(DType::F32, self.shape(), op)?;
        let to = out.data_mut::<f32>()?;
        match self.dtype() {
            DType::I32 => {
                for (to, &value) in to.iter_mut().zip(src.data::<i32>()?) {
                    *to = exact(value)?;
                }
            }
            DType::U8 => {
                for (to, &value) in to.iter_mut().zip(src.data::<u8>()?) {
                    *to = f32::from(value);
                }
            }
            dtype => {
                let (unit, unit_bytes) = dtype.unit();
                let raw = src.bytes(op)?;
                rt.team().for_each_chunk(to, CHUNK, |index, to| {
                    let start = index * CHUNK / unit * unit_bytes;
                    let raw = &raw[start..][..to.len() / unit * unit_bytes];
                    dense::decode_row(rt.isa(), dtype, raw, to);
                });
            }
        }
        Ok(out)
    }

    /// Reports whether no element is NaN or infinite. Waits for the elements.
    ///
    /// # Errors
    ///
    /// As [`to_f32`](Self::to_f32).
    pub fn is_finite(&self) -> Result<bool> {
        let tensor = self.to_f32()?.contiguous()?;
        Ok(!reduce::has_non_finite(self.runtime().isa(), tensor.data()?))
    }

    /// The elements of a view with any strides: from its first element to the end of its last.
    pub(crate) fn elems<T: FromBytes + Immutable>(&self, op: &'static str) -> Result<&[T]> {
        let last: usize = self
            .shape()
            .iter()
            .zip(self.strides())
            .map(|(dim, stride)| (dim.max(&1) - 1) * stride)
            .sum();
        let len = if self.is_empty() { 0 } else { last + 1 };
        let bytes = self.span(len * size_of::<T>())?;
        <[T]>::ref_from_bytes(bytes).map_err(|_| Error::Unaligned { op, dtype: self.dtype() })
    }

    /// As [`elems`](Self::elems), of a tensor in blocks of type `B`.
    pub(crate) fn blocks<B: FromBytes + Immutable + KnownLayout + Unaligned>(
        &self,
        op: &'static str,
    ) -> Result<&[B]> {
        let (unit, unit_bytes) = self.dtype().unit();
        assert_eq!(size_of::<B>(), unit_bytes, "{op}: the blocks of another type");
        let axes = self.shape().iter().zip(self.strides());
        let last: usize = axes.map(|(dim, stride)| (dim.max(&1) - 1) * stride).sum();
        let len = if self.is_empty() { 0 } else { last / unit + 1 };
        let bytes = self.span(len * unit_bytes)?;
        <[B]>::ref_from_bytes(bytes).map_err(|_| Error::Unaligned { op, dtype: self.dtype() })
    }

    /// As [`elems`](Self::elems), of an f32 tensor.
    pub(crate) fn elems_f32(&self, op: &'static str) -> Result<&[f32]> {
        if self.dtype() != DType::F32 {
            return Err(Error::DType { op, expected: "f32", found: self.dtype() });
        }
        self.elems(op)
    }
}

fn exact(value: i32) -> Result<f32> {
    #[expect(clippy::cast_precision_loss, reason = "checked on the next line")]
    let float = value as f32;
    if f64::from(float) == f64::from(value) {
        return Ok(float);
    }
    // f32 holds every integer up to 2^24.
    Err(Error::OutOfRange { op: ops::TO_F32, index: value.into(), limit: 1 << 24 })
}
