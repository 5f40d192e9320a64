//! Products with one of several matrices for each row.

use fucina_accel::{Decline, GroupedMatMul};
use fucina_dtype::DType;

use super::elementwise::dense_f32;
use super::gemm::{self, Named, Product, Tiles, Weights};
use super::{Site, block_name, int8, stride_bytes};

/// Up to so many rows for each expert that has any, rows are multiplied one by one.
const MAX_SINGLE_ROWS: usize = 2;

pub(super) fn takes(op: &GroupedMatMul<'_>) -> Result<(), Decline> {
    let [_, experts, n, k] = op.sizes();
    let weights = &op.weights;
    let known = block_name(weights.dtype()).is_some()
        || matches!(weights.dtype(), DType::F32 | DType::F16 | DType::BF16);
    if !known {
        return Err(Decline::UnsupportedFormat);
    }
    let dense = weights.has_dense_rows()
        && (experts <= 1 || weights.strides()[0] == n * weights.strides()[1]);
    if k == 0 || !dense {
        return Err(Decline::UnsupportedShape);
    }
    Ok(())
}

pub(super) fn plan(site: &mut Site<'_, '_>, op: &GroupedMatMul<'_>) -> Result<(), Decline> {
    let [rows, experts, n, k] = op.sizes();
    let x = dense_f32(site, 0, &op.x)?;
    let weights = Weights {
        operand: 1,
        dtype: op.weights.dtype(),
        address: site.input(1),
        row_bytes: stride_bytes(&op.weights, 1),
        expert_bytes: stride_bytes(&op.weights, 0),
        rows: experts * n,
        k,
    };
    weights.check()?;
    let row_ids = op.row_ids.map_or(Ok(0), |ids| site.table(ids))?;
    let groups: Vec<_> = (0..experts).map(|expert| op.group(expert)).collect();
    let busy = groups.iter().filter(|group| !group.is_empty()).count();
    if weights.dtype.is_block() && rows <= MAX_SINGLE_ROWS * busy {
        let mut experts = Vec::with_capacity(rows);
        for (expert, group) in groups.iter().enumerate() {
            experts.extend(group.clone().map(|_| super::int(expert)));
        }
        let named = Named { experts: site.table(&experts)?, row_ids, n };
        let product = Product { x, rows, out: site.out, weights };
        if site.planner.config.quant_int8 {
            let x = int8::quantize(site, x, op.x.shape()[0], k)?;
            return int8::vectors(site, &x, &product, Some(named));
        }
        return gemm::vectors(site, &product, Some(named));
    }
    let tiles = Tiles { table: Some(&groups), row_ids, out: site.out, rows, n };
    if site.planner.config.quant_int8 && weights.dtype.is_block() {
        let x = int8::quantize(site, x, op.x.shape()[0], k)?;
        return int8::tiled(site, &x, &weights, &tiles);
    }
    // Tensor cores have no f32.
    if !site.planner.config.quant_mma || weights.dtype == DType::F32 {
        return gemm::scalar(site, x, &weights, &tiles);
    }
    let packed = gemm::pack(site, x, op.x.shape()[0], k)?;
    gemm::tensor(site, &packed, &weights, &tiles)
}
