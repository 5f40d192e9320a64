//! Weights in the layout of the CPU kernels.
//!
//! A block-quantized matrix, or one for each expert, is repacked once, at load, into panels of columns. The packed bytes
//! sit beside the tensor's own bytes: a mapped file keeps those in the page cache, where the
//! system can drop them, so the weights are held in memory once.

use std::sync::Arc;

use fucina_accel::Storage;
use fucina_dtype::DType;
use fucina_kernels::isa::Isa;
use fucina_kernels::quant::{PANEL_COLS, PackLayout, pack_panel};

use crate::error::{Error, Result};
use crate::tensor::DynTensor;

/// A matrix `[n, k]`, or one for each expert, as panels. See [`PackLayout`].
pub(crate) struct Packed {
    /// Of one matrix.
    layout: PackLayout,
    matrices: usize,
    panels: Storage,
}

impl Packed {
    pub(crate) fn layout(&self) -> &PackLayout {
        &self.layout
    }

    /// The panels, one after the other, matrix after matrix.
    pub(crate) fn panels(&self) -> Result<&[u8]> {
        Ok(&self.panels.host()?[..self.len_bytes()])
    }

    fn len_bytes(&self) -> usize {
        self.layout.total_bytes() * self.matrices
    }
}

/// Name of the kernel that multiplies with weights of a type on the CPU, for people.
pub fn cpu_kernel(dtype: DType, isa: Isa) -> String {
    if let Some(layout) = PackLayout::new(dtype, PANEL_COLS, dtype.unit().0) {
        return layout.kernel_name(isa).to_owned();
    }
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => format!("rows/{}", isa.name()),
        _ => "decoded to f32".to_owned(),
    }
}

/// Bytes that [`DynTensor::pack`] makes of a weight `[n, k]`. `None` if the weight stays as it is.
pub fn packed_bytes(dtype: DType, n: usize, k: usize) -> Option<usize> {
    PackLayout::new(dtype, n, k).map(|layout| layout.total_bytes())
}

impl DynTensor {
    /// Repacks a block-quantized weight `[n, k]`, or the weights `[experts, n, k]`, for the CPU
    /// kernels. Other types stay as they are: their kernels read rows. Views of the tensor do not
    /// keep the packed bytes.
    ///
    /// # Errors
    ///
    /// Fails if the tensor is not contiguous or has other axes, or without memory.
    pub fn pack(&mut self) -> Result<()> {
        let op = "pack";
        let (matrices, n, k) = match *self.shape() {
            [n, k] => (1, n, k),
            [experts, n, k] => (experts, n, k),
            _ => {
                let why = "neither a matrix nor one for each expert";
                return Err(Error::Shape { op, shape: self.dims(), why });
            }
        };
        let Some(layout) = PackLayout::new(self.dtype(), n, k) else { return Ok(()) };
        let Some(len_bytes) = layout.total_bytes().checked_mul(matrices) else { return Ok(()) };
        let rt = self.runtime().clone();
        let mut panels = rt.pool().take(len_bytes)?;
        let raw = self.bytes(op)?;
        let row_bytes = layout.row_bytes();
        let out = panels.host_mut().map_err(|error| crate::ops::storage_error(error, op))?;
        let out = &mut out[..len_bytes];
        if !out.is_empty() {
            rt.team().for_each_chunk(out, layout.panel_bytes(), |panel, out| {
                let (matrix, panel) = (panel / layout.panels(), panel % layout.panels());
                let first = panel * PANEL_COLS;
                let rows = PANEL_COLS.min(n - first);
                pack_panel(
                    &layout,
                    &raw[(matrix * n + first) * row_bytes..][..rows * row_bytes],
                    out,
                );
            });
        }
        self.set_packed(Arc::new(Packed { layout, matrices, panels }));
        Ok(())
    }

    /// Bytes that the packed form takes. Zero without one.
    pub fn packed_bytes(&self) -> usize {
        self.packed().map_or(0, |packed| packed.len_bytes())
    }
}
