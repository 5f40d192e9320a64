//! CUDA devices as callable accelerators.
//!
//! Nothing of CUDA is needed to build this. The driver is opened when the provider is; a machine
//! without one, or with one that is too old, gets a sentence that says so. What a call needs of the
//! device is in three places: `queue` puts commands into the lanes, `inputs` gets operands to
//! the device, `ops` matches calls to kernels.
//!
//! How far it is verified: see `docs/cuda.md`.

mod config;
mod cublas;
mod driver;
mod flight;
mod inputs;
mod memory;
mod modules;
mod nvrtc;
mod ops;
mod pages;
mod queue;
mod retry;
mod sources;
mod staging;
mod sys;
mod timing;

use std::path::Path;
use std::sync::{Arc, Weak};

use fucina_accel::{
    Budget, Call, Decline, DeviceCopy, DeviceInfo, Provider, ProviderCounters, Storage, Submission,
    Timeline,
};

pub use config::{CudaConfig, Kernels, OptionalLibrary, WrongVariable};

use driver::{CuError, Cuda};
use flight::Command;
use inputs::Inputs;
use memory::DevicePool;
use ops::{Libraries, Place, Planner};
use queue::{COMPUTE_LANE, Device};

/// Names of the driver's library. Without a version it would be the stub of a toolkit.
const LIBRARIES: [&str; 1] = ["libcuda.so.1"];

/// Oldest driver whose PTX the kernels are: 12.0, of the driver series 525.
const MIN_DRIVER: i32 = 12_000;

/// Oldest compute capability that the kernels run on.
const MIN_CAPABILITY: (i32, i32) = (7, 0);

/// Why this machine has no CUDA device to call. One line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
#[non_exhaustive]
pub struct Unavailable {
    /// What is missing, or too old, or wrong.
    pub reason: String,
}

impl From<String> for Unavailable {
    fn from(reason: String) -> Self {
        Self { reason }
    }
}

/// A device that the driver shows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaDevice {
    /// Its number, for [`CudaConfig::device`].
    pub index: u32,
    /// The product's name.
    pub name: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Compute capability, such as (9, 0).
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

/// The devices that the driver shows, without starting any of them.
///
/// # Errors
///
/// Says why there is no driver.
pub fn devices(config: &CudaConfig) -> Result<Vec<CudaDevice>, Unavailable> {
    let cuda = open(config)?;
    let count = cuda.device_count().map_err(failed("cannot count devices"))?;
    (0..count).map(|index| describe(&cuda, index)).collect()
}

/// Opens the driver and checks its version.
fn open(config: &CudaConfig) -> Result<Cuda, Unavailable> {
    let named = config.library.as_deref();
    let cuda = match named {
        Some(path) => Cuda::open(&[path])?,
        None => Cuda::open(&LIBRARIES.map(Path::new))?,
    };
    let version = cuda.version().map_err(failed("has no version"))?;
    if version < MIN_DRIVER {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        let reason = format!("the CUDA driver is for {major}.{minor}; 12.0 or newer is needed");
        return Err(Unavailable { reason });
    }
    Ok(cuda)
}

fn describe(cuda: &Cuda, index: i32) -> Result<CudaDevice, Unavailable> {
    let describe = || -> Result<_, CuError> {
        let card = cuda.device(index)?;
        let number = |attribute| card.attribute(attribute);
        Ok(CudaDevice {
            index: u32::try_from(index).unwrap_or(0),
            name: card.name()?,
            memory_bytes: card.memory_bytes()? as u64,
            capability: (number(sys::ATTR_CC_MAJOR)?, number(sys::ATTR_CC_MINOR)?),
            multiprocessors: u32::try_from(number(sys::ATTR_SM_COUNT)?).unwrap_or(1),
        })
    };
    describe().map_err(failed("cannot describe a device"))
}

fn failed(what: &'static str) -> impl Fn(CuError) -> Unavailable {
    move |error| Unavailable { reason: format!("the CUDA driver {what}: {error}") }
}

/// One CUDA device.
pub struct CudaProvider {
    /// Before the device: its library's handle goes before the lanes do.
    planner: Planner,
    device: Arc<Device>,
    about: CudaDevice,
}

impl std::fmt::Debug for CudaProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaProvider").field("about", &self.about).finish_non_exhaustive()
    }
}

impl CudaProvider {
    /// Opens the driver and starts the device that `config` names.
    ///
    /// # Errors
    ///
    /// Says in one line why that is not possible here.
    pub fn open(config: &CudaConfig) -> Result<Self, Unavailable> {
        let cuda = open(config)?;
        let count = cuda.device_count().map_err(failed("cannot count devices"))?;
        let index = i32::try_from(config.device).unwrap_or(i32::MAX);
        if index >= count {
            let reason =
                format!("there is no CUDA device {}: the driver shows {count}", config.device);
            return Err(Unavailable { reason });
        }
        let about = describe(&cuda, index)?;
        if about.capability < MIN_CAPABILITY {
            let ((major, minor), name) = (about.capability, &about.name);
            let reason =
                format!("{name} has compute capability {major}.{minor}; 7.0 or newer is needed");
            return Err(Unavailable { reason });
        }
        let device = start(&cuda, index, config).map_err(failed("cannot start the device"))?;
        let planner = Planner::new(config, &about);
        Ok(Self { device: Arc::new(device), planner, about })
    }

    /// What the device is.
    pub fn about(&self) -> &CudaDevice {
        &self.about
    }
}

fn start(cuda: &Cuda, index: i32, config: &CudaConfig) -> Result<Device, CuError> {
    let context = cuda.device(index)?.context()?;
    let free = context.enter()?.free_bytes()?;
    let limit = config.memory_bytes.unwrap_or(free / 5 * 4);
    let memory = DevicePool::new(&context, Budget::new(limit));
    Device::new(&context, memory, config.in_flight)
}

impl Provider for CudaProvider {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> DeviceInfo {
        DeviceInfo {
            id: self.device.provider.device(0),
            name: self.about.name.clone(),
            memory_bytes: self.about.memory_bytes,
            is_unified: false,
        }
    }

    unsafe fn submit(&self, call: &Call<'_>, out: &Storage) -> Result<Submission, Decline> {
        let device = &self.device;
        if device.is_lost() {
            return Err(Decline::DeviceLost);
        }
        self.planner.takes(call)?;
        let out_bytes = call.out_bytes().map_err(|_| Decline::InvalidCall)?;
        let entered = device.context.enter().map_err(|_| Decline::DeviceLost)?;
        device.has_room(&entered)?;
        // SAFETY: passed on to the caller.
        let mut inputs = unsafe { Inputs::of(device, &entered, call) }?;
        let buffer = device.memory.take(out_bytes).ok_or(Decline::OutOfDeviceMemory)?;
        let buffer = Arc::new(buffer);
        let place = Place { device, entered: &entered, out: &buffer };
        let mut plan = self.planner.plan(place, call, &mut inputs, Libraries::Welcome)?;
        let target = (out.capacity_bytes() >= pages::MIN_BYTES)
            .then(|| inputs::locked(device, out))
            .flatten()
            .map_or_else(Weak::new, |locked| Arc::downgrade(&locked));
        let mut queued = device.enqueue(&entered, &mut inputs, &plan);
        if matches!(queued, Err(Decline::Refused)) && plan.library_refused.get() {
            // Our own kernels do it. Nothing of the first attempt is left.
            plan = self.planner.plan(place, call, &mut inputs, Libraries::Without)?;
            queued = device.enqueue(&entered, &mut inputs, &plan);
        }
        let (place, done) = queued?;

        // The device has the command: from here on nothing declines.
        inputs.keep(device, call);
        plan.remember();
        let id = device.provider.device(0);
        let copy = DeviceCopy::new(id, 0..out_bytes, Arc::clone(&buffer) as Arc<_>);
        device.memory.budget().track(&copy);
        let device = Arc::clone(device);
        let coming = std::sync::Mutex::default();
        let command = Command { device, done, place, out: buffer, target, coming };
        let lane = id.lane(COMPUTE_LANE);
        Ok(Submission::new(lane, place, Arc::new(command)).with_output_copy(copy))
    }

    fn notes(&self) -> Vec<String> {
        match self.device.context.enter() {
            Ok(entered) => self.planner.about(&self.device, &entered),
            Err(error) => vec![format!("the device cannot be used: {error}")],
        }
    }

    fn synchronize(&self) {
        self.device.drain();
    }

    fn observe(&self, timeline: &Arc<Timeline>) {
        self.device.observe(timeline);
    }

    fn is_lost(&self) -> bool {
        self.device.is_lost()
    }

    fn counters(&self) -> ProviderCounters {
        self.device.totals()
    }
}

impl Drop for CudaProvider {
    /// Lets the device finish what it has. Results live on; their commands keep the device.
    fn drop(&mut self) {
        self.device.drain();
        self.device.memory.trim();
    }
}
