//! From names in a file to typed tensors of checked shapes.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use fucina_gguf::{File, Metadata, TensorInfo};
use fucina_runtime::{Axis, DType, DynTensor, Runtime, Tensor};

use crate::error::{Error, Result};
use crate::models::blocks::Linear;
use crate::pack::PackPlan;

/// The smallest page that a system has.
const PAGE_BYTES: usize = 4096;
/// What a thread reads at a time.
const TOUCH_BYTES: usize = 1 << 20;

/// Reads the tensors of one file. Remembers which were used.
pub(crate) struct Loader<'a> {
    rt: &'a Runtime,
    file: &'a File,
    arch: &'a str,
    used: RefCell<HashSet<&'a str>>,
    done_bytes: Cell<u64>,
    progress: &'a dyn Fn(u64, u64),
    plan: PackPlan,
    memory: Cell<Memory>,
    weights: RefCell<Vec<Weight>>,
}

/// A tensor that a model has loaded.
#[derive(Debug, Clone)]
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) tensor: DynTensor,
}

/// What the weights take in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that stay in the file: mapped, or lent by the caller.
    pub in_file: u64,
    /// Bytes repacked for the CPU kernels.
    pub packed: u64,
    /// Bytes copied.
    pub copied: u64,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        rt: &'a Runtime,
        file: &'a File,
        arch: &'a str,
        plan: PackPlan,
        progress: &'a dyn Fn(u64, u64),
    ) -> Self {
        Self {
            rt,
            file,
            arch,
            used: RefCell::default(),
            done_bytes: Cell::new(0),
            progress,
            plan,
            memory: Cell::default(),
            weights: RefCell::default(),
        }
    }

    pub(crate) fn metadata(&self) -> &'a Metadata {
        self.file.metadata()
    }

    /// The name of a key of this architecture.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// A required count that is not zero.
    pub(crate) fn count(&self, name: &str) -> Result<usize> {
        let key = self.key(name);
        nonzero(&key, self.metadata().usize(&key)?)
    }

    /// An optional count that is not zero.
    pub(crate) fn count_or(&self, name: &str, default: usize) -> Result<usize> {
        let key = self.key(name);
        nonzero(&key, self.metadata().usize_or(&key, default)?)
    }

    /// An optional number that is positive and finite.
    pub(crate) fn positive_opt(&self, name: &str) -> Result<Option<f32>> {
        let present = self.metadata().contains(&self.key(name));
        if present { self.positive_or(name, 1.0).map(Some) } else { Ok(None) }
    }

    /// A number that is positive and finite.
    pub(crate) fn positive_or(&self, name: &str, default: f32) -> Result<f32> {
        let key = self.key(name);
        let value = self.metadata().f32_or(&key, default)?;
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        let why = "a positive number is expected";
        Err(Error::Metadata { key, value: value.to_string(), why })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.tensor_opt(name).is_some()
    }

    /// Tensors that nothing asked for.
    pub(crate) fn unused(&self) -> Vec<String> {
        let used = self.used.borrow();
        let unused = self.file.tensors().iter().map(TensorInfo::name);
        unused.filter(|name| !used.contains(name)).map(str::to_owned).collect()
    }

    /// What was loaded, in order.
    pub(crate) fn into_weights(self) -> Vec<Weight> {
        self.weights.into_inner()
    }

    fn keep(&self, name: &str, tensor: &DynTensor) {
        let (name, tensor) = (name.to_owned(), tensor.clone());
        self.weights.borrow_mut().push(Weight { name, tensor });
    }

    pub(crate) fn memory(&self) -> Memory {
        self.memory.get()
    }

    fn account(&self, add: impl FnOnce(&mut Memory)) {
        let mut memory = self.memory.get();
        add(&mut memory);
        self.memory.set(memory);
    }

    fn info(&self, name: &str, shape: &[usize]) -> Result<&'a TensorInfo> {
        let info = self.file.tensor(name)?;
        self.used.borrow_mut().insert(info.name());
        let found = info.shape_row_major();
        if found == shape {
            return Ok(info);
        }
        Err(Error::TensorShape { name: name.to_owned(), expected: shape.to_vec(), found })
    }

    fn loaded(&self, info: &TensorInfo) {
        self.done_bytes.set(self.done_bytes.get() + info.len_bytes() as u64);
        (self.progress)(self.done_bytes.get(), self.file.tensor_bytes());
    }

    fn read(&self, info: &TensorInfo, shape: &[usize]) -> Result<DynTensor> {
        let bytes = self.file.tensor_data(info)?;
        Ok(self.rt.tensor_from_bytes(info.dtype()?, shape, bytes)?)
    }

    /// A vector, as f32.
    pub(crate) fn vector<X: Axis>(&self, name: &str, len: usize) -> Result<Tensor<(X,)>> {
        let info = self.info(name, &[len])?;
        if info.dtype()?.unit().0 > 1 || matches!(info.dtype()?, DType::I32 | DType::U8) {
            let (name, found) = (name.to_owned(), info.type_name());
            return Err(Error::TensorType { name, found });
        }
        // Vectors are small; a copy makes them aligned and warm.
        let vector = self.read(info, &[len])?.to_f32()?.copy()?;
        self.account(|memory| memory.copied += 4 * len as u64);
        self.loaded(info);
        self.keep(name, &vector);
        Ok(Tensor::from_dyn(vector)?)
    }

    /// A matrix of any type, packed for products if the plan says so.
    pub(crate) fn matrix<N: Axis, K: Axis>(
        &self,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Tensor<(N, K)>> {
        Ok(Tensor::from_dyn(self.packed(name, &shape)?)?)
    }

    /// A matrix for each expert, packed like one.
    pub(crate) fn experts<E: Axis, N: Axis, K: Axis>(
        &self,
        name: &str,
        shape: [usize; 3],
    ) -> Result<Tensor<(E, N, K)>> {
        Ok(Tensor::from_dyn(self.packed(name, &shape)?)?)
    }

    fn packed(&self, name: &str, shape: &[usize]) -> Result<DynTensor> {
        let info = self.info(name, shape)?;
        let mut matrix = self.read(info, shape)?;
        if self.plan.packed_bytes(name).is_some() {
            // The packed form serves from now on; the file's pages need not stay in memory too.
            matrix.pack_in_windows(|len_bytes| self.file.release(info, len_bytes))?;
        } else if self.plan.fits() {
            self.touch(info)?;
        }
        self.account(|memory| match matrix.packed_bytes() {
            0 => memory.in_file += info.len_bytes() as u64,
            packed => memory.packed += packed as u64,
        });
        self.loaded(info);
        self.keep(name, &matrix);
        Ok(matrix)
    }

    /// Reads a byte of each page of a matrix that stays in the file, on all threads, so that the wait
    /// for the disk is here, where progress is shown, and not in the first tokens.
    fn touch(&self, info: &TensorInfo) -> Result<()> {
        let bytes = self.file.tensor_data(info)?;
        let blocks = bytes.len().div_ceil(TOUCH_BYTES);
        self.rt.team().run(blocks, |block| {
            let start = block * TOUCH_BYTES;
            let pages =
                bytes[start..bytes.len().min(start + TOUCH_BYTES)].iter().step_by(PAGE_BYTES);
            std::hint::black_box(pages.fold(0, |all, &byte| all | byte));
        });
        Ok(())
    }

    /// A table whose rows are looked up, and which is not multiplied with: never packed.
    pub(crate) fn table<N: Axis, K: Axis>(
        &self,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Tensor<(N, K)>> {
        let info = self.info(name, &shape)?;
        let table = self.read(info, &shape)?;
        self.account(|memory| memory.in_file += info.len_bytes() as u64);
        self.loaded(info);
        self.keep(name, &table);
        Ok(Tensor::from_dyn(table)?)
    }

    /// `prefix.weight`, and `prefix.bias` if the file has one.
    pub(crate) fn linear<N: Axis, K: Axis>(
        &self,
        prefix: &str,
        shape: [usize; 2],
    ) -> Result<Linear<N, K>> {
        let weight = self.matrix(&format!("{prefix}.weight"), shape)?;
        let bias = format!("{prefix}.bias");
        let bias = if self.has(&bias) { Some(self.vector(&bias, shape[0])?) } else { None };
        Ok(Linear::new(weight, bias))
    }
}

fn nonzero(key: &str, value: usize) -> Result<usize> {
    if value > 0 {
        return Ok(value);
    }
    let why = "at least one is expected";
    Err(Error::Metadata { key: key.to_owned(), value: value.to_string(), why })
}
