//! The handle that every tensor carries: pool, worker team, providers and gates.

use std::sync::Arc;

use bytes::Bytes;
use fucina_accel::{
    DeviceInfo, MAX_RANK, Pool, PoolConfig, Provider, Shape, Storage, Timeline, Trace,
};
use fucina_dtype::DType;
use fucina_kernels::isa::Isa;

use crate::blas::{BlasState, Library};
use crate::config::{Config, ConfigError};
use crate::cores::default_threads;
use crate::error::{Error, Result};
use crate::gates::Gates;
use crate::tensor::{DynTensor, Element};
use crate::threads::Team;

/// Memory, threads and accelerators. Clones are handles to the same runtime.
///
/// ```
/// let rt = fucina_runtime::Runtime::builder().threads(2).build()?;
/// let x = rt.tensor(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0])?;
/// assert_eq!(x.scale(2.0)?.to_vec()?, [2.0, 4.0, 6.0, 8.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    pool: Pool,
    team: Team,
    isa: Isa,
    providers: Vec<Arc<dyn Provider>>,
    /// What each provider says of its device, asked once.
    devices: Vec<DeviceInfo>,
    config: Config,
    gates: Gates,
    trace: Arc<Trace>,
    blas: Library,
}

/// Events that the trace keeps when `FUCINA_GPU_TRACE` is on. Older ones are dropped and counted.
const TRACE_EVENTS: usize = 1 << 16;

/// Collects what a [`Runtime`] is made of.
#[derive(Default)]
pub struct Builder {
    config: Config,
    providers: Vec<Arc<dyn Provider>>,
    pool: Option<PoolConfig>,
    timeline: Option<Arc<Timeline>>,
    isa: Option<Isa>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Builder {
    /// Takes every knob from `config`; see [`Config::from_env`].
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets the number of threads, the calling one included.
    #[must_use]
    pub const fn threads(mut self, threads: usize) -> Self {
        self.config.threads = Some(threads);
        self
    }

    /// Sets the instruction set of the CPU kernels, whatever the configuration says.
    #[must_use]
    pub const fn isa(mut self, isa: Isa) -> Self {
        self.isa = Some(isa);
        self
    }

    /// Adds an accelerator. Calls are offered in the order of addition.
    #[must_use]
    pub fn provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.providers.push(provider);
        self
    }

    /// Sets the pool's limits.
    #[must_use]
    pub fn pool(mut self, pool: PoolConfig) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Notes on `timeline` what happens when; see [`Trace::timeline`].
    #[must_use]
    pub fn timeline(mut self, timeline: Arc<Timeline>) -> Self {
        self.timeline = Some(timeline);
        self
    }

    /// Starts the runtime.
    ///
    /// # Errors
    ///
    /// Fails if the instruction set asked for is unknown, or if this CPU does not have it.
    pub fn build(self) -> std::result::Result<Runtime, ConfigError> {
        let Self { config, providers, pool, timeline, isa } = self;
        let isa = match (isa, &config.isa) {
            (Some(isa), _) => isa,
            (None, None) => Isa::best(),
            (None, Some(name)) => Isa::from_name(name).ok_or_else(|| ConfigError {
                name: "FUCINA_CPU_ISA",
                value: name.clone(),
                expected: "the name of an instruction set that this CPU has; see `fucina doctor`",
            })?,
        };
        let threads = config.threads.unwrap_or_else(default_threads);
        let mut pool = pool.unwrap_or_default();
        if let Some(mb) = config.pool_retention_mb {
            pool.retention_bytes = mb.saturating_mul(1 << 20);
        }
        let devices: Vec<_> = providers.iter().map(|provider| provider.device()).collect();
        if let Some(timeline) = &timeline {
            for (provider, device) in providers.iter().zip(&devices) {
                timeline.add_device(provider.name(), device);
                provider.observe(timeline);
            }
        }
        let log = if config.trace { TRACE_EVENTS } else { 0 };
        let trace = Arc::new(Trace::with_log(log).and_timeline(timeline));
        pool.trace = Some(Arc::clone(&trace));
        Ok(Runtime(Arc::new(Inner {
            pool: Pool::new(pool),
            team: Team::new(threads),
            isa,
            devices,
            providers,
            gates: Gates::new(config.gates.clone()),
            trace,
            blas: Library::new(&config),
            config,
        })))
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("threads", &self.threads())
            .field("isa", &self.isa().name())
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts to collect the parts of a runtime.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A runtime with the knobs of the environment and no accelerator.
    ///
    /// # Errors
    ///
    /// As [`Config::from_env`] and [`Builder::build`].
    pub fn new() -> std::result::Result<Self, ConfigError> {
        Self::builder().config(Config::from_env()?).build()
    }

    /// Threads that take part in heavy ops.
    pub fn threads(&self) -> usize {
        self.0.team.threads()
    }

    /// Changes the number of threads, the calling one included, for the heavy ops to come. At
    /// least one and at most 1024 take part.
    pub fn set_threads(&self, threads: usize) {
        self.0.team.set_threads(threads);
    }

    /// The instruction set of the CPU kernels.
    pub fn isa(&self) -> Isa {
        self.0.isa
    }

    /// The BLAS library that computes large f32 products on the CPU, which the first call opens.
    pub fn blas(&self) -> BlasState<'_> {
        self.0.blas.get()
    }

    /// The memory pool.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Counters, and the log if it is on, of where calls ran and why.
    pub fn trace(&self) -> &Trace {
        &self.0.trace
    }

    /// The accelerators, in the order in which calls are offered.
    pub fn providers(&self) -> &[Arc<dyn Provider>] {
        &self.0.providers
    }

    /// The accelerators with their devices.
    pub(crate) fn offers(&self) -> impl Iterator<Item = (&dyn Provider, &DeviceInfo)> {
        self.0.providers.iter().map(AsRef::as_ref).zip(&self.0.devices)
    }

    /// The knobs in force.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The thresholds in force.
    pub fn gates(&self) -> &Gates {
        &self.0.gates
    }

    /// The worker team.
    pub fn team(&self) -> &Team {
        &self.0.team
    }

    /// A tensor that holds a copy of `data`, in row-major order.
    ///
    /// # Errors
    ///
    /// Fails if `data` does not have one element for each place of `shape`, or without memory.
    pub fn tensor<T: Element>(&self, shape: &[usize], data: &[T]) -> Result<DynTensor> {
        let mut tensor = self.empty(T::DTYPE, shape, "tensor")?;
        let found = size_of_val(data);
        let shape = tensor.dims();
        if tensor.len() != data.len() {
            let expected = T::DTYPE.row_bytes(tensor.len());
            return Err(Error::Size { dtype: T::DTYPE, shape, expected, found });
        }
        tensor.data_mut::<T>()?.copy_from_slice(data);
        Ok(tensor)
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    ///
    /// Fails if the shape's size overflows or its rows are not whole blocks, or without memory.
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<DynTensor> {
        let mut tensor = self.empty(dtype, shape, "zeros")?;
        tensor.bytes_mut("zeros")?.fill(0);
        Ok(tensor)
    }

    /// A read-only tensor over bytes that somebody else owns, without a copy. Bytes that are not
    /// aligned for their type are copied after all.
    ///
    /// # Errors
    ///
    /// Fails if the bytes do not have the size of the shape, or without memory.
    pub fn tensor_from_bytes(
        &self,
        dtype: DType,
        shape: &[usize],
        bytes: Bytes,
    ) -> Result<DynTensor> {
        let (dims, expected) = sized(dtype, shape, "tensor_from_bytes")?;
        if expected != Some(bytes.len()) {
            return Err(Error::Size { dtype, shape: dims, expected, found: bytes.len() });
        }
        let tensor = DynTensor::new(self, Arc::new(Storage::from_bytes(bytes)), dtype, dims);
        if tensor.is_aligned()? { Ok(tensor) } else { tensor.copy() }
    }

    /// A tensor whose bytes are whatever the pool had.
    pub(crate) fn empty(
        &self,
        dtype: DType,
        shape: &[usize],
        op: &'static str,
    ) -> Result<DynTensor> {
        let (dims, bytes) = sized(dtype, shape, op)?;
        let Some(bytes) = bytes else {
            return Err(Error::Size { dtype, shape: dims, expected: None, found: 0 });
        };
        Ok(DynTensor::new(self, Arc::new(self.0.pool.take(bytes)?), dtype, dims))
    }
}

/// The shape, and its size in bytes if there is one.
fn sized(dtype: DType, shape: &[usize], op: &'static str) -> Result<(Shape, Option<usize>)> {
    let Some(dims) = Shape::new(shape) else {
        let shape = Shape::new(&shape[..MAX_RANK]).unwrap_or_default();
        return Err(Error::Shape { op, shape, why: "more than four axes" });
    };
    let (cols, rows) = shape.split_last().map_or((1, &[][..]), |(&cols, rows)| (cols, rows));
    let rows = rows.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim));
    let bytes = dtype.row_bytes(cols).zip(rows).and_then(|(row, rows)| row.checked_mul(rows));
    Ok((dims, bytes.filter(|_| dims.elems().is_some() && dims.dense_strides().is_some())))
}
