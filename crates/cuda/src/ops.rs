//! Which kernels run a call, and with which arguments.

use std::sync::Arc;

use fucina_accel::{Call, Decline};

use crate::driver::{Entered, Launch};
use crate::inputs::Inputs;
use crate::memory::Buffer;
use crate::modules::Modules;
use crate::queue::Device;
use crate::{CudaConfig, CudaDevice};

/// The launches of one command.
pub(crate) struct Plan {
    pub(crate) launches: Vec<Launch>,
    /// The output and scratch memory.
    pub(crate) buffers: Vec<Arc<Buffer>>,
}

/// Chooses kernels for one device.
pub(crate) struct Planner {
    modules: Modules,
    multiprocessors: u32,
    config: CudaConfig,
}

impl Planner {
    pub(crate) fn new(config: &CudaConfig, about: &CudaDevice) -> Self {
        Self {
            modules: Modules::default(),
            multiprocessors: about.multiprocessors,
            config: config.clone(),
        }
    }

    /// Declines what no kernel can do, before anything moves.
    pub(crate) fn takes(&self, call: &Call<'_>) -> Result<(), Decline> {
        let _ = (call, &self.modules, self.multiprocessors, &self.config);
        Err(Decline::UnsupportedOp)
    }

    pub(crate) fn plan(
        &self,
        _device: &Device,
        _entered: &Entered<'_>,
        _call: &Call<'_>,
        _inputs: &mut Inputs,
        out: &Arc<Buffer>,
    ) -> Result<Plan, Decline> {
        Ok(Plan { launches: Vec::new(), buffers: vec![Arc::clone(out)] })
    }
}
