//! Modules and their kernels.

use fucina_cuda_sim::exec::{self, Options};
use fucina_cuda_sim::ptx::Module;

use crate::heap::Heap;
use crate::sim::Launch;

/// A module with its variables in device memory.
pub(crate) struct Loaded {
    pub(crate) module: Module,
    pub(crate) variables: Vec<u64>,
}

impl Loaded {
    /// Runs a kernel. The fault, in one line, if there is one.
    pub(crate) fn run(
        &self,
        name: &str,
        launch: &Launch,
        heap: &Heap,
        seed: u64,
    ) -> Result<(), String> {
        let function = self.module.function(name);
        let function = function.ok_or_else(|| format!("there is no kernel {name}"))?;
        let launch = exec::Launch {
            function,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            params: &launch.params,
            variables: &self.variables,
        };
        let options = Options { seed, ..Options::default() };
        let ran = exec::launch(&launch, &options, &heap.memory);
        ran.map(|_| ()).map_err(|fault| fault.to_string())
    }
}
