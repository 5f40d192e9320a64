//! A device to launch kernels on.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "tests panic when something is wrong, and sizes are small"
)]
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::sync::Arc;

use fucina_cuda_sim::exec::{DeviceMemory, Fault, Launch, Options, Region, Stats, launch};
use fucina_cuda_sim::ptx::Module;

/// Memory and the arguments of a launch.
pub(crate) struct Device {
    pub(crate) memory: DeviceMemory,
    pub(crate) options: Options,
}

/// An argument of a kernel.
pub(crate) enum Arg<'a> {
    Buffer(&'a Region),
    Address(u64),
    U32(u32),
    F32(f32),
}

impl Device {
    pub(crate) fn new() -> Self {
        let options = Options { budget: 1 << 24, ..Options::default() };
        Self { memory: DeviceMemory::new(1 << 30), options }
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> Arc<Region> {
        let region = self.memory.allocate(bytes.len() as u64).unwrap();
        region.write(region.base(), bytes);
        region
    }

    pub(crate) fn f32s(&self, values: &[f32]) -> Arc<Region> {
        self.bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn u32s(&self, values: &[u32]) -> Arc<Region> {
        self.bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn f16s(&self, values: &[f32]) -> Arc<Region> {
        let halves = values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes());
        self.bytes(&halves.collect::<Vec<_>>())
    }

    pub(crate) fn poisoned(&self, len: u64) -> Arc<Region> {
        self.memory.allocate(len).unwrap()
    }

    pub(crate) fn launch(
        &self,
        module: &Module,
        name: &str,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
        args: &[Arg<'_>],
    ) -> Result<Stats, Box<Fault>> {
        let function = module.function(name).expect("the kernel is there");
        let mut params = Vec::new();
        for (arg, param) in args.iter().zip(function.params()) {
            params.resize(param.offset as usize, 0);
            match arg {
                Arg::Buffer(region) => params.extend(region.base().to_le_bytes()),
                Arg::Address(address) => params.extend(address.to_le_bytes()),
                Arg::U32(value) => params.extend(value.to_le_bytes()),
                Arg::F32(value) => params.extend(value.to_le_bytes()),
            }
        }
        assert_eq!(args.len(), function.params().len(), "one argument for each parameter");
        let variables: Vec<u64> =
            module.variables().iter().map(|variable| self.bytes(&variable.init).base()).collect();
        let launched = Launch {
            function,
            grid,
            block,
            dynamic_shared: shared,
            params: &params,
            variables: &variables,
        };
        launch(&launched, &self.options, &self.memory)
    }
}

pub(crate) fn read_u32s(region: &Region) -> Vec<u32> {
    let mut bytes = vec![0; region.len_bytes() as usize];
    region.read(region.base(), &mut bytes);
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

pub(crate) fn read_f32s(region: &Region) -> Vec<f32> {
    read_u32s(region).into_iter().map(f32::from_bits).collect()
}

pub(crate) mod snippet;
