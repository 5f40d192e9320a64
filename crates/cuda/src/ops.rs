//! Which kernels run a call, and with which arguments. What each kernel expects is written in
//! `kernels/README.md`; the structs there are the argument lists here, field by field.

mod attention;
mod elementwise;
mod gemm;
mod grouped;
mod int8;
mod matmul;
mod rows;

use std::cell::Cell;
use std::sync::Arc;

use fucina_accel::{Call, Decline, Operand};
use fucina_dtype::DType;

use crate::cublas::{Blas, CuBlas, Gemm};
use crate::driver::{Arguments, Entered, Launch};
use crate::inputs::{Inputs, Upload};
use crate::memory::{Buffer, WeightKey};
use crate::modules::{Image, Modules};
use crate::queue::Device;
use crate::sys::DevicePtr;
use crate::{CudaConfig, CudaDevice};

/// What the compute lane does for a command.
#[expect(clippy::large_enum_variant, reason = "nearly all steps are the large one")]
pub(crate) enum Step {
    /// One of our kernels.
    Launch(Launch),
    /// A product by cuBLAS.
    Gemm(Arc<Blas>, Gemm),
}

/// The steps of one command.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// The output and scratch memory.
    pub(crate) buffers: Vec<Arc<Buffer>>,
    /// A library has refused a step. Another plan does without libraries.
    pub(crate) library_refused: Cell<bool>,
    /// The largest weights of matrices, which the command finds and later ones can use.
    largest: Vec<(Arc<Buffer>, WeightKey, Arc<Buffer>)>,
}

impl Plan {
    /// What later commands can use, once the device has this one.
    pub(crate) fn remember(self) {
        for (weights, key, largest) in self.largest {
            weights.remember(key, largest);
        }
    }
}

/// Whether libraries may run a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Libraries {
    Welcome,
    /// Our own kernels do all of it.
    Without,
}

/// Where a call is about to run.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a, 'e> {
    pub(crate) device: &'a Device,
    pub(crate) entered: &'a Entered<'e>,
    /// The output.
    pub(crate) out: &'a Arc<Buffer>,
}

/// Chooses kernels for one device.
pub(crate) struct Planner {
    modules: Modules,
    cublas: CuBlas,
    multiprocessors: usize,
    /// Kernels for compute capability 8.0 and later run here.
    is_sm80: bool,
    config: CudaConfig,
}

impl Planner {
    pub(crate) fn new(config: &CudaConfig, about: &CudaDevice) -> Self {
        Self {
            modules: Modules::new(config, about.capability),
            cublas: CuBlas::new(config, about.capability),
            multiprocessors: about.multiprocessors.max(1) as usize,
            is_sm80: about.capability >= (8, 0),
            config: config.clone(),
        }
    }

    /// Lines for a person on what runs the calls.
    pub(crate) fn about(&self, device: &Device, entered: &Entered<'_>) -> Vec<String> {
        let mut lines = self.modules.about(entered);
        lines.push(self.cublas.about(device, entered));
        lines
    }

    /// Declines what no kernel can do, before anything moves.
    pub(crate) fn takes(&self, call: &Call<'_>) -> Result<(), Decline> {
        let out = call.out_shape().map_err(|_| Decline::InvalidCall)?;
        let small = |operand: &Operand<'_>| operand.shape().iter().all(|&size| fits(size));
        if out.contains(&0) || !call.inputs().all(small) {
            return Err(Decline::UnsupportedShape);
        }
        match call {
            Call::MatMul(op) => matmul::takes(op),
            Call::GroupedMatMul(op) => grouped::takes(op),
            Call::Attention(op) => attention::takes(op),
            Call::RmsNorm(_) | Call::Softmax(_) | Call::Rope(_) | Call::Combine(_) => Ok(()),
            Call::Rows(op) => rows::takes_rows(op),
            Call::Binary(_) | Call::Glu(_) => Ok(()),
            Call::Unary(op) => elementwise::takes_unary(op),
            _ => Err(Decline::UnsupportedOp),
        }
    }

    /// The steps of a call that [`takes`](Self::takes) has accepted.
    pub(crate) fn plan(
        &self,
        place: Place<'_, '_>,
        call: &Call<'_>,
        inputs: &mut Inputs,
        libraries: Libraries,
    ) -> Result<Plan, Decline> {
        let Place { device, entered, out } = place;
        let plan = Plan { buffers: vec![Arc::clone(out)], ..Plan::default() };
        let out = out.address();
        let mut site = Site { planner: self, device, entered, inputs, plan, out, libraries };
        match call {
            Call::MatMul(op) => matmul::plan(&mut site, op),
            Call::GroupedMatMul(op) => grouped::plan(&mut site, op),
            Call::Attention(op) => attention::plan(&mut site, op),
            Call::RmsNorm(op) => rows::rms_norm(&mut site, op),
            Call::Softmax(op) => rows::softmax(&mut site, op),
            Call::Rope(op) => rows::rope(&mut site, op),
            Call::Combine(op) => rows::combine(&mut site, op),
            Call::Rows(op) => rows::rows(&mut site, op),
            Call::Binary(op) => elementwise::binary(&mut site, op),
            Call::Glu(op) => elementwise::glu(&mut site, op),
            Call::Unary(op) => elementwise::unary(&mut site, op),
            _ => Err(Decline::UnsupportedOp),
        }?;
        Ok(site.plan)
    }
}

/// One call that is being planned.
struct Site<'a, 'e> {
    planner: &'a Planner,
    device: &'a Device,
    entered: &'a Entered<'e>,
    inputs: &'a mut Inputs,
    plan: Plan,
    /// Address of the output.
    out: DevicePtr,
    libraries: Libraries,
}

impl Site<'_, '_> {
    /// Address of the first element of an operand.
    fn input(&self, index: usize) -> DevicePtr {
        self.inputs.addresses[index]
    }

    fn launch(
        &mut self,
        kernel: Kernel,
        grid: [usize; 3],
        threads: u32,
        arguments: Arguments,
    ) -> Result<(), Decline> {
        let Kernel { image, name, shared_bytes } = kernel;
        let size = |size: usize, limit: u32| {
            u32::try_from(size).ok().filter(|&size| size <= limit).ok_or(Decline::UnsupportedShape)
        };
        let grid = [size(grid[0], 0x7fff_ffff)?, size(grid[1], 65_535)?, size(grid[2], 65_535)?];
        let modules = &self.planner.modules;
        let function = modules.function(self.entered, image, &name, shared_bytes);
        if matches!(function, Err(Decline::OutOfDeviceMemory)) {
            // The next try may find what the pool does not need.
            self.device.memory.trim();
        }
        let function = function?;
        let block = [threads, 1, 1];
        let launch = Launch { function, grid, block, shared_bytes, arguments };
        self.plan.steps.push(Step::Launch(launch));
        Ok(())
    }

    /// A product by cuBLAS, if that can be had. `false` if not.
    fn gemm(&mut self, gemm: Gemm) -> bool {
        if self.libraries == Libraries::Without {
            return false;
        }
        let Some(blas) = self.planner.cublas.get(self.device, self.entered) else { return false };
        self.plan.buffers.push(Arc::clone(blas.workspace()));
        self.plan.steps.push(Step::Gemm(blas, gemm));
        true
    }

    /// Device memory for the command alone.
    fn scratch(&mut self, len_bytes: usize) -> Result<DevicePtr, Decline> {
        let buffer = self.device.memory.take(len_bytes).ok_or(Decline::OutOfDeviceMemory)?;
        let address = buffer.address();
        self.plan.buffers.push(Arc::new(buffer));
        Ok(address)
    }

    /// Numbers that the host knows.
    fn table(&mut self, values: &[i32]) -> Result<DevicePtr, Decline> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let upload = Upload::staged(self.device, &bytes)?;
        let address = upload.buffer.address();
        self.inputs.buffers.push(Arc::clone(&upload.buffer));
        self.inputs.uploads.push(upload);
        Ok(address)
    }
}

/// A kernel of a module.
struct Kernel {
    image: Image,
    name: String,
    shared_bytes: u32,
}

impl Kernel {
    fn new(image: Image, name: impl Into<String>) -> Self {
        Self { image, name: name.into(), shared_bytes: 0 }
    }
}

/// Kernels count in 32 bits, and add the size of a tile to what they count.
fn fits(size: usize) -> bool {
    size <= 1 << 30
}

/// A size that [`fits`].
fn int(size: usize) -> i32 {
    i32::try_from(size).unwrap_or(i32::MAX)
}

/// A stride or a number of bytes.
fn long(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The name of a format in the names of kernels, if there are kernels for it.
fn block_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Q4_0 => "q4_0",
        DType::Q5_0 => "q5_0",
        DType::Q8_0 => "q8_0",
        DType::Q4_K => "q4_k",
        DType::Q5_K => "q5_k",
        DType::Q6_K => "q6_k",
        DType::TQ2_0 => "tq2_0",
        _ => return None,
    })
}

/// The same for scalar types.
fn scalar_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        _ => return None,
    })
}

/// Bytes between neighbours on an axis: of scalars, or of whole blocks.
fn stride_bytes(operand: &Operand<'_>, axis: usize) -> usize {
    let (elems, bytes) = operand.dtype().unit();
    // The stride of an axis of size 1 may be anything, and is not used.
    (operand.strides()[axis] / elems).wrapping_mul(bytes)
}
