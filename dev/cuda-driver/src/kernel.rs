//! Runs one kernel of a module.

use fucina_cuda_sim::exec::{self, Heap, Options};
use fucina_cuda_sim::ptx::Module;

use crate::sim::Launch;

/// The fault, in one line, if there is one.
pub(crate) fn run(
    module: &Module,
    name: &str,
    launch: &Launch,
    heap: &Heap,
    seed: u64,
) -> Result<(), String> {
    let function = module.function(name).ok_or_else(|| format!("there is no kernel {name}"))?;
    let launch = exec::Launch {
        function,
        grid: launch.grid,
        block: launch.block,
        dynamic_shared: launch.dynamic_shared,
        params: &launch.params,
    };
    let options = Options { seed, ..Options::default() };
    exec::launch(module, &launch, heap, &options).map(|_| ()).map_err(|fault| fault.to_string())
}
