//! Matrix products: which of the kernels, by format, rows and strides.

use std::ffi::c_int;

use fucina_accel::{Decline, MatMul, Operand};
use fucina_dtype::DType;

use super::elementwise::dense_f32;
use super::gemm::{self, Product, Weights};
use super::{Kernel, Site, block_name, fits, int, long, scalar_name, stride_bytes};
use crate::cublas::{Gemm, Matrix};
use crate::driver::Arguments;
use crate::modules::MATMUL;
use crate::sys::DevicePtr;

/// Products with a smaller size are over before a library has chosen its kernel. An estimate.
const MIN_LIBRARY_SIZE: usize = 16;

/// Matrices of quantized weights that one call may have, each with launches of its own.
const MAX_MATRICES: usize = 64;

pub(super) fn takes(op: &MatMul<'_>) -> Result<(), Decline> {
    let [b, m, _, k] = op.sizes();
    let rhs = &op.rhs;
    let rows_fit = b.checked_mul(m).is_some_and(fits);
    if k == 0 || !rows_fit || op.lhs.elems().checked_mul(4).is_none() {
        return Err(Decline::UnsupportedShape);
    }
    if rhs.dtype().is_block() {
        block_name(rhs.dtype()).ok_or(Decline::UnsupportedFormat)?;
        if matrices(rhs) > MAX_MATRICES {
            return Err(Decline::UnsupportedShape);
        }
    } else {
        scalar_name(rhs.dtype()).ok_or(Decline::UnsupportedFormat)?;
    }
    Ok(())
}

/// Different matrices of weights: a stride of 0 repeats one.
fn matrices(rhs: &Operand<'_>) -> usize {
    if rhs.strides()[0] == 0 { 1 } else { rhs.shape()[0] }
}

pub(super) fn plan(site: &mut Site<'_, '_>, op: &MatMul<'_>) -> Result<(), Decline> {
    if library(site, op) {
        return Ok(());
    }
    let [b, m, n, k] = op.sizes();
    let x = dense_f32(site, 0, &op.lhs)?;
    let one = matrices(&op.rhs) == 1;
    let (batches, rows) = if one { (1, b * m) } else { (b, m) };
    let rhs = &op.rhs;
    let tensor_cores = rows > gemm::MAX_VECTOR_ROWS
        && matches!(rhs.dtype(), DType::F16 | DType::BF16)
        && rhs.strides()[2] == 1
        && site.planner.config.quant_mma
        && batches <= MAX_MATRICES;
    if !rhs.dtype().is_block() && !tensor_cores {
        return dense(site, op, x, [batches, rows, n, k]);
    }
    for batch in 0..batches {
        let offset = (batch * stride_bytes(rhs, 0)) as u64;
        let weights = Weights {
            operand: 1,
            dtype: rhs.dtype(),
            address: site.input(1) + offset,
            row_bytes: stride_bytes(rhs, 1),
            expert_bytes: 0,
            rows: n,
            k,
        };
        let x = x + (4 * batch * rows * k) as u64;
        let out = site.out + (4 * batch * rows * n) as u64;
        gemm::product(site, &Product { x, rows, out, weights })?;
    }
    Ok(())
}

/// A product of f32 matrices by cuBLAS, if it is large enough and of a shape that cuBLAS knows.
fn library(site: &mut Site<'_, '_>, op: &MatMul<'_>) -> bool {
    let Some(gemm) = gemm_of(op, site.input(0), site.input(1), site.out) else { return false };
    site.gemm(gemm)
}

fn gemm_of(op: &MatMul<'_>, lhs: DevicePtr, rhs: DevicePtr, out: DevicePtr) -> Option<Gemm> {
    let [mut b, mut m, n, k] = op.sizes();
    let (mut lhs, mut rhs) = (matrix(&op.lhs, lhs)?, matrix(&op.rhs, rhs)?);
    if op.rhs.shape()[0] == 1 {
        // One matrix for all: the stride of that axis is not used.
        rhs.step = 0;
    }
    // One matrix of weights for rows that follow one another: one product.
    let follows = lhs.along_k && lhs.step == i64::from(lhs.stride) * long(m);
    if b > 1 && rhs.step == 0 && follows {
        (b, m, lhs.step) = (1, b * m, 0);
    }
    if m.min(n).min(k) < MIN_LIBRARY_SIZE {
        return None;
    }
    let int = |size| c_int::try_from(size).ok();
    Some(Gemm { lhs, rhs, out, batch: int(b)?, m: int(m)?, n: int(n)?, k: int(k)? })
}

/// An operand as cuBLAS takes it: f32, its rows or its columns dense, none over another.
fn matrix(operand: &Operand<'_>, address: DevicePtr) -> Option<Matrix> {
    let (shape, strides) = (operand.shape(), operand.strides());
    let (along_k, stride, least) = match (strides[1], strides[2]) {
        (stride, 1) => (true, stride, shape[2]),
        (1, stride) => (false, stride, shape[1]),
        _ => return None,
    };
    if operand.dtype() != DType::F32 || stride < least {
        return None;
    }
    let stride = c_int::try_from(stride).ok()?;
    Some(Matrix { address, along_k, stride, step: long(strides[0]) })
}

/// f32, f16 and bf16 weights of any strides, in f32 arithmetic.
fn dense(
    site: &mut Site<'_, '_>,
    op: &MatMul<'_>,
    x: u64,
    [batch, m, n, k]: [usize; 4],
) -> Result<(), Decline> {
    let strides = op.rhs.strides();
    let ty = scalar_name(op.rhs.dtype()).ok_or(Decline::UnsupportedFormat)?;
    let mut arguments = Arguments::new().ptr(x).ptr(site.input(1)).ptr(site.out);
    for stride in [m * k, k, 1, strides[0], strides[1], strides[2]] {
        arguments = arguments.long(long(stride));
    }
    for size in [batch, m, n, k] {
        arguments = arguments.int(int(size));
    }
    let z = batch.min(65_535);
    let (name, grid, threads) = if m <= 8 && strides[2] == 1 {
        let rows = [1, 4, 8].into_iter().find(|&rows| m <= rows).unwrap_or(8);
        (format!("matvec_nt_{ty}_r{rows}"), [n.div_ceil(4), m.div_ceil(rows), z], 128)
    } else if m <= 8 {
        let rows = if m == 1 { 1 } else { 8 };
        (format!("matvec_nn_{ty}_r{rows}"), [n.div_ceil(32), m.div_ceil(rows), z], 256)
    } else {
        let blocks = m.div_ceil(128) * n.div_ceil(128) * batch;
        let tile = if blocks >= site.planner.multiprocessors { 128 } else { 64 };
        let grid = [m.div_ceil(tile) * n.div_ceil(tile), 1, z];
        (format!("matmul_{ty}_t{tile}"), grid, 256)
    };
    site.launch(Kernel::new(MATMUL, name), grid, threads, arguments)
}
