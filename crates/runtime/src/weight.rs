//! Weights in the layout of the CPU kernels.
//!
//! A block-quantized matrix, or one for each expert, is repacked once, at load, into panels of columns. The packed bytes
//! sit beside the tensor's own bytes: a mapped file keeps those in the page cache, where the
//! system can drop them, so the weights are held in memory once.

use std::sync::Arc;

use fucina_accel::{Reading, Storage};
use fucina_dtype::DType;
use fucina_kernels::dense::{SPLIT_ROWS, Split};
use fucina_kernels::isa::Isa;
use fucina_kernels::quant::{PANEL_COLS, PackLayout, pack_panel, row_ranges};

use crate::error::{Error, Result};
use crate::tensor::DynTensor;

/// What is packed before [`DynTensor::pack_in_windows`] tells: milliseconds of work for a team,
/// and little beside any model that is short of memory.
const WINDOW_BYTES: usize = 4 << 20;

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

/// Name of the kernel that multiplies with weights of a type on the CPU, packed or as the file has
/// them, for people.
pub fn cpu_kernel(dtype: DType, isa: Isa, packed: bool) -> String {
    if packed && PackLayout::new(dtype, PANEL_COLS, dtype.unit().0).is_some() {
        return format!("panel16/{}", isa.name());
    }
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => format!("rows/{}", isa.name()),
        _ => "decoded to f32".to_owned(),
    }
}

/// Rows of activations and the kernel that multiplies them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowKernel {
    /// The least number of rows.
    pub first: usize,
    /// The greatest. `None`: any number.
    pub last: Option<usize>,
    /// Name of the kernel, for people.
    pub kernel: &'static str,
}

/// The kernels for weights of a type, packed if the type can be, by the number of rows, as the plans
/// of products have them. Empty for a type without kernels of its own.
pub fn cpu_row_kernels(dtype: DType, isa: Isa) -> Vec<RowKernel> {
    let ranges = row_ranges(isa, dtype).into_iter();
    let packed = ranges.map(|(first, last, plan)| RowKernel { first, last, kernel: plan.name() });
    let mut kernels: Vec<_> = packed.collect();
    if matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        let split = Split::new(isa, dtype, SPLIT_ROWS);
        let kernel = if isa.name() == "avx512-amx" { "avx512" } else { isa.name() };
        kernels.push(RowKernel { first: 1, last: split.map(|_| SPLIT_ROWS - 1), kernel });
        kernels.extend(split.map(|split| RowKernel {
            first: SPLIT_ROWS,
            last: None,
            kernel: split.name(),
        }));
    }
    kernels
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
        self.pack_in_windows(|_| ())
    }

    /// Does what [`pack`](Self::pack) does, and calls `packed` now and then with how many of the
    /// tensor's bytes, from its first, are packed. Their file pages can go then, so that no more
    /// than a window of the weight is in memory twice. Not called if the weight stays as it is.
    ///
    /// # Errors
    ///
    /// Those of [`pack`](Self::pack).
    pub fn pack_in_windows(&mut self, mut packed: impl FnMut(usize)) -> Result<()> {
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
        panels.prefer_large_pages();
        let raw = self.bytes(op)?;
        let row_bytes = layout.row_bytes();
        // Where the rows of a panel are among all bytes. The last panel of a matrix has fewer.
        let rows_of = |panel: usize| {
            let (matrix, panel) = (panel / layout.panels(), panel % layout.panels());
            let first = matrix * n + panel * PANEL_COLS;
            let end = (matrix * n + n).min(first + PANEL_COLS);
            first * row_bytes..end * row_bytes
        };
        let out = panels.host_mut().map_err(|error| crate::ops::storage_error(error, op))?;
        let panel_bytes = layout.panel_bytes();
        // A weight without elements has no panels, or panels without bytes.
        let panels_at_once = (WINDOW_BYTES / panel_bytes.max(1)).max(1);
        for (window, out) in
            out[..len_bytes].chunks_mut(panels_at_once * panel_bytes.max(1)).enumerate()
        {
            let first = window * panels_at_once;
            rt.team().for_each_chunk(out, panel_bytes, |panel, out| {
                pack_panel(&layout, &raw[rows_of(first + panel)], out);
            });
            packed(rows_of(first + out.len() / panel_bytes - 1).end);
        }
        self.set_packed(Arc::new(Packed { layout, matrices, panels }));
        Ok(())
    }

    /// Bytes that the packed form takes. Zero without one.
    pub fn packed_bytes(&self) -> usize {
        self.packed().map_or(0, |packed| packed.len_bytes())
    }
}

/// What a device has of a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevicePlace {
    /// Name of the provider.
    pub provider: &'static str,
    /// The product's name.
    pub device: String,
    /// Bytes that are there now.
    pub resident_bytes: usize,
    /// Times that the weight was copied there.
    pub uploads: u64,
}

/// Where a weight is, and where the calls ran that read it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Its bytes, as they are in the file.
    pub bytes: usize,
    /// One for each accelerator of the runtime.
    pub devices: Vec<DevicePlace>,
    /// The calls by op and outcome. Empty without an accelerator, and for what was copied from the
    /// file, such as the weights of norms.
    pub readings: Vec<Reading>,
}

impl DynTensor {
    /// Where the bytes are now, and where the calls ran that have read them.
    pub fn place(&self) -> Place {
        let rt = self.runtime();
        let devices = rt.offers().map(|(provider, info)| {
            let residency = self.storage().residency(info.id);
            DevicePlace {
                provider: provider.name(),
                device: info.name.clone(),
                resident_bytes: residency.bytes,
                uploads: residency.uploads,
            }
        });
        Place {
            bytes: self.storage().len_bytes(),
            devices: devices.collect(),
            readings: self.storage().readings(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Runtime;

    /// Some bytes: neither scales nor quants need to mean anything.
    fn raw(len: usize) -> Vec<u8> {
        (0u32..).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).take(len).collect()
    }

    fn panels(rt: &Runtime, shape: &[usize], raw: &[u8], told: &mut Vec<usize>) -> Vec<u8> {
        let raw = raw.to_vec().into();
        let mut weight = rt.tensor_from_bytes(DType::Q8_0, shape, raw).unwrap();
        weight.pack_in_windows(|end| told.push(end)).unwrap();
        weight.packed().unwrap().panels().unwrap().to_vec()
    }

    #[test]
    fn windows_change_nothing_and_tell_how_far_they_are() {
        let rt = Runtime::builder().threads(2).build().unwrap();
        // 4104 rows of 1088 bytes are more than a window, and 1368 are not whole panels.
        let (experts, n, k) = (3, 1368, 1024);
        let raw = raw(experts * n * 1088);
        let mut told = Vec::new();
        let all = panels(&rt, &[experts, n, k], &raw, &mut told);
        assert!(told.len() >= 2 && told.is_sorted(), "{told:?}");
        assert!(told[0] >= WINDOW_BYTES / 2 && told[0] <= WINDOW_BYTES, "{told:?}");
        assert_eq!(*told.last().unwrap(), raw.len());
        let each = raw.chunks(n * 1088).flat_map(|raw| {
            let mut told = Vec::new();
            let panels = panels(&rt, &[n, k], raw, &mut told);
            assert_eq!(told, [raw.len()]);
            panels
        });
        assert!(all.into_iter().eq(each));
    }

    #[test]
    fn nothing_is_told_of_what_is_not_packed() {
        let rt = Runtime::builder().threads(1).build().unwrap();
        let empty = [(DType::Q8_0, [0, 64]), (DType::Q8_0, [4, 0]), (DType::F32, [4, 4])];
        for (dtype, shape) in empty {
            let mut weight = rt.zeros(dtype, &shape).unwrap();
            weight.pack_in_windows(|end| panic!("{dtype} {shape:?}: {end}")).unwrap();
        }
    }
}
