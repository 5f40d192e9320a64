//! A simulated device with the shipped modules.

use std::sync::Arc;

use fucina_cuda_sim::exec::{DeviceMemory, Fault, Launch, Options, Region, launch};
use fucina_cuda_sim::ptx::Module;
use fucina_testkit::repository_root;

/// A shipped module.
pub(crate) struct Kernels {
    name: String,
    module: Module,
}

impl Kernels {
    pub(crate) fn load(name: &str) -> Self {
        Self::parse(name, &Self::text(name))
    }

    fn text(name: &str) -> String {
        let path = repository_root().join("crates/cuda/ptx").join(format!("{name}.ptx"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn parse(name: &str, text: &str) -> Self {
        let module = Module::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name: name.to_owned(), module }
    }

    /// The module without one barrier, or one wait for copies, of a kernel: once for each.
    pub(crate) fn without_each_barrier(name: &str, kernel: &str) -> Vec<(String, Self)> {
        let text = Self::text(name);
        let start = text.find(&format!(".entry {kernel}(")).expect("the kernel is there");
        let end = text[start + 1..].find(".entry ").map_or(text.len(), |at| start + 1 + at);
        let mut mutants = Vec::new();
        for (at, line) in text[start..end].match_indices('\n').map(|(at, _)| {
            let rest = &text[start + at + 1..];
            (start + at + 1, rest.split('\n').next().unwrap_or_default())
        }) {
            if line.starts_with("bar.sync") || line.starts_with("cp.async.wait_group") {
                let number = text[..at].matches('\n').count() + 1;
                let without = format!("{}{}", &text[..at], &text[at + line.len()..]);
                mutants.push((format!("{kernel} without line {number}: {line}"), {
                    Self::parse(name, &without)
                }));
            }
        }
        assert!(!mutants.is_empty(), "{kernel} has no barrier");
        mutants
    }
}

/// Whether `check` fails.
pub(crate) fn fails(check: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err()
}

/// The one parameter of a kernel: a struct with C layout.
#[derive(Default)]
pub(crate) struct Params(Vec<u8>);

impl Params {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn put<const N: usize>(mut self, bytes: [u8; N]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(N), 0);
        self.0.extend(bytes);
        self
    }

    pub(crate) fn buffer(self, region: &Region) -> Self {
        self.address(region.base())
    }

    pub(crate) fn address(self, address: u64) -> Self {
        self.put(address.to_le_bytes())
    }

    pub(crate) fn null(self) -> Self {
        self.address(0)
    }

    pub(crate) fn long(self, value: usize) -> Self {
        self.put((value as i64).to_le_bytes())
    }

    pub(crate) fn longs(self, values: &[usize]) -> Self {
        values.iter().fold(self, |params, &value| params.long(value))
    }

    pub(crate) fn int(self, value: usize) -> Self {
        self.put(i32::try_from(value).unwrap().to_le_bytes())
    }

    pub(crate) fn ints(self, values: &[usize]) -> Self {
        values.iter().fold(self, |params, &value| params.int(value))
    }

    pub(crate) fn float(self, value: f32) -> Self {
        self.put(value.to_le_bytes())
    }
}

/// Grid, threads of a block, and bytes of dynamic shared memory.
pub(crate) type Shape = ([usize; 3], usize, usize);

/// Device memory, and the order in which warps run.
pub(crate) struct Gpu {
    memory: DeviceMemory,
    options: Options,
}

impl Gpu {
    pub(crate) fn new(seed: u64) -> Self {
        let options = Options { seed, threads: 1, budget: 1 << 24, ..Options::default() };
        Self { memory: DeviceMemory::new(1 << 30), options }
    }

    /// Memory that nothing has written: reading it is a fault, and it holds NaN.
    pub(crate) fn floats(&self, len: usize) -> Arc<Region> {
        self.memory.allocate(len.max(1) as u64 * 4).unwrap()
    }

    pub(crate) fn halves(&self, len: usize) -> Arc<Region> {
        self.memory.allocate(len.max(1) as u64 * 2).unwrap()
    }

    pub(crate) fn upload(&self, bytes: &[u8]) -> Arc<Region> {
        let region = self.memory.allocate(bytes.len().max(1) as u64).unwrap();
        region.write(region.base(), bytes);
        region
    }

    pub(crate) fn upload_f32(&self, values: &[f32]) -> Arc<Region> {
        self.upload(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn upload_i32(&self, values: &[i32]) -> Arc<Region> {
        self.upload(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn try_launch(
        &self,
        kernels: &Kernels,
        name: &str,
        (grid, threads, dynamic_shared): Shape,
        params: &Params,
    ) -> Result<(), Box<Fault>> {
        let function = kernels
            .module
            .function(name)
            .unwrap_or_else(|| panic!("{} has no kernel {name}", kernels.name));
        let [param] = function.params() else { panic!("{name} takes one parameter") };
        let mut bytes = params.0.clone();
        // The struct's own padding.
        assert!(
            bytes.len().next_multiple_of(8) == param.size as usize,
            "{name}: size of its struct"
        );
        bytes.resize(param.size as usize, 0);
        let variables = kernels.module.variables().iter();
        let variables: Vec<u64> =
            variables.map(|variable| self.upload(&variable.init).base()).collect();
        let launched = Launch {
            function,
            grid: grid.map(|dim| dim as u32),
            block: [threads as u32, 1, 1],
            dynamic_shared: dynamic_shared as u32,
            params: &bytes,
            variables: &variables,
        };
        launch(&launched, &self.options, &self.memory).map(|_| ())
    }

    pub(crate) fn launch(&self, kernels: &Kernels, name: &str, shape: Shape, params: &Params) {
        if let Err(fault) = self.try_launch(kernels, name, shape, params) {
            panic!("{name}: {fault}");
        }
    }
}

/// What a region holds; every byte must have been written.
pub(crate) fn read_bytes(region: &Region, len: usize) -> Vec<u8> {
    let hole = region.first_uninitialised(region.base(), len as u64);
    assert_eq!(hole, None, "a byte of the output was not written");
    let mut bytes = vec![0; len];
    region.read(region.base(), &mut bytes);
    bytes
}

pub(crate) fn read_f32(region: &Region, len: usize) -> Vec<f32> {
    let bytes = read_bytes(region, len * 4);
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
