//! The reference provider: an accelerator in this process.
//!
//! It is as asynchronous as a device: lanes are real threads, device memory is separate from host
//! memory and poisoned, transfers are copies that happen late. Delays, declines, faults and the
//! loss of the device are injected by a seed. So the whole protocol is tested without a GPU.
//!
//! Not in it: speed. Its kernels accumulate in f64 and are written to be read.

mod chaos;
mod device;
mod kernels;
mod lane;
mod manual;
mod math;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use crate::call::Call;
use crate::error::CommandError;
use crate::id::ProviderId;
use crate::operand::Operand;
use crate::provider::{Decline, DeviceInfo, Provider, ProviderCounters};
use crate::residency::{Budget, DeviceCopy};
use crate::storage::Storage;
use crate::submission::{InFlight, Submission};

use chaos::Chaos;
use device::{Dependency, DeviceBuffer, HostBytes, Input, Job};
use kernels::Kernel;
use lane::{Lane, Shared};

#[cfg(loom)]
pub use manual::Witness;
pub use manual::{Copied, Manual, ManualProvider};

/// How a [`ReferenceProvider`] behaves. The default is a quick device without faults.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReferenceConfig {
    /// Number of lanes. Each command goes to a lane chosen by the seed.
    pub lanes: u32,
    /// Unfinished commands of one lane.
    pub max_in_flight: usize,
    /// Device memory of all unfinished commands.
    pub max_in_flight_bytes: usize,
    /// Device memory in all.
    pub memory_bytes: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Longest random delay before a transfer and before a kernel.
    pub max_delay_us: u64,
    /// Share of calls that are declined at random.
    pub decline_percent: u8,
    /// Share of commands that fault at random.
    pub fault_percent: u8,
    /// Command that faults: the first one is number 0.
    pub fault_at: Option<u64>,
    /// Command that takes the device with it.
    pub lose_at: Option<u64>,
}

impl Default for ReferenceConfig {
    fn default() -> Self {
        Self {
            lanes: 2,
            max_in_flight: 8,
            max_in_flight_bytes: 1 << 30,
            memory_bytes: 4 << 30,
            seed: 0,
            max_delay_us: 0,
            decline_percent: 0,
            fault_percent: 0,
            fault_at: None,
            lose_at: None,
        }
    }
}

/// See the module.
pub struct ReferenceProvider {
    id: ProviderId,
    config: ReferenceConfig,
    budget: Budget,
    chaos: Chaos,
    shared: Arc<Shared>,
    lanes: Vec<Arc<Lane>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl ReferenceProvider {
    /// Starts the lanes.
    ///
    /// # Panics
    ///
    /// Panics if the system has no thread for a lane, or if there is no lane.
    pub fn new(config: ReferenceConfig) -> Self {
        assert!(config.lanes > 0, "a device has at least one lane");
        let shared = Arc::new(Shared::default());
        let lanes: Vec<_> = (0..config.lanes).map(|_| Arc::new(Lane::default())).collect();
        let spawn = |lane: &Arc<Lane>| {
            let (lane, shared) = (Arc::clone(lane), Arc::clone(&shared));
            let name = "reference lane".to_owned();
            let thread = thread::Builder::new().name(name).spawn(move || lane.run(&shared));
            thread.expect("the system has a thread for each lane")
        };
        let threads = lanes.iter().map(spawn).collect();
        let budget = Budget::new(config.memory_bytes);
        let chaos = Chaos::new(&config);
        Self { id: ProviderId::fresh(), config, budget, chaos, shared, lanes, threads }
    }

    /// Stops the device before its next command, as if it were busy. Commands can be submitted.
    pub fn pause(&self) {
        self.shared.gate.set(true);
    }

    /// Undoes [`ReferenceProvider::pause`].
    pub fn resume(&self) {
        self.shared.gate.set(false);
    }

    /// Ends the thread of a lane as a bug would: its commands are lost, and no new one is taken.
    ///
    /// # Panics
    ///
    /// Panics if there is no such lane.
    pub fn kill_lane(&self, index: u32) {
        self.lanes[index as usize].kill();
    }

    /// Commands that were accepted so far. The next one has this number.
    pub fn submitted(&self) -> u64 {
        self.shared.counters.submitted.load(Ordering::Relaxed)
    }

    /// Finds or makes the device memory of each operand.
    fn inputs(&self, call: &Call<'_>) -> Result<Vec<Input>, Decline> {
        let mut inputs: Vec<(Input, &Operand<'_>)> = Vec::with_capacity(3);
        for operand in call.inputs() {
            let same = inputs.iter().find(|(_, other)| {
                std::ptr::eq(other.storage(), operand.storage())
                    && other.byte_range() == operand.byte_range()
            });
            let input = match same {
                Some((input, _)) => input.again(operand),
                None => self.input(operand)?,
            };
            inputs.push((input, operand));
        }
        Ok(inputs.into_iter().map(|(input, _)| input).collect())
    }

    fn input(&self, operand: &Operand<'_>) -> Result<Input, Decline> {
        let (storage, range) = (operand.storage(), operand.byte_range());
        let writer = storage.writer();
        if let Some(copy) = storage.device_copy(self.id.device(0), range.clone())
            && let Some(buffer) = copy.object::<DeviceBuffer>()
        {
            self.shared.counters.reused_copies.fetch_add(1, Ordering::Relaxed);
            let start = copy.range().start;
            return Ok(Input::new(buffer, operand, start, Dependency::Ready(writer)));
        }
        // A host boundary, if the bytes are pending elsewhere.
        storage.host().map_err(|_| Decline::Faulted)?;
        let buffer = self.allocate(range.len())?;
        let host = HostBytes::new(storage.as_ptr(), range.clone());
        Ok(Input::new(buffer, operand, range.start, Dependency::Upload(host)))
    }

    fn allocate(&self, len_bytes: usize) -> Result<Arc<DeviceBuffer>, Decline> {
        let charge = self.budget.charge(len_bytes).ok_or(Decline::OutOfDeviceMemory)?;
        Ok(Arc::new(DeviceBuffer::poisoned(len_bytes, charge)))
    }

    /// Lets later calls find what this command uploads.
    fn keep_uploads(&self, call: &Call<'_>, uploads: Vec<Option<(usize, Arc<DeviceBuffer>)>>) {
        for (operand, upload) in call.inputs().zip(uploads) {
            if let Some((start, buffer)) = upload {
                let range = start..start + buffer.len_bytes();
                let copy = DeviceCopy::new(self.id.device(0), range, buffer);
                self.budget.track(&copy);
                operand.storage().add_device_copy(copy);
            }
        }
    }
}

impl Provider for ReferenceProvider {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn device(&self) -> DeviceInfo {
        DeviceInfo {
            id: self.id.device(0),
            name: "reference device".to_owned(),
            memory_bytes: self.config.memory_bytes as u64,
            is_unified: false,
        }
    }

    unsafe fn submit(&self, call: &Call<'_>, _out: &Storage) -> Result<Submission, Decline> {
        if self.is_lost() {
            return Err(Decline::DeviceLost);
        }
        let kernel = Kernel::of(call).ok_or(Decline::UnsupportedOp)?;
        let plan = self.chaos.next()?;
        let lane_index = plan.lane(self.config.lanes);
        let lane = &self.lanes[lane_index as usize];
        lane.has_room(self.config.max_in_flight)?;

        let out_bytes = call.out_bytes().map_err(|_| Decline::InvalidCall)?;
        let inputs = self.inputs(call)?;
        let uploads = inputs.iter().map(Input::upload).collect();
        let out = self.allocate(out_bytes)?;
        let job = Job::new(kernel, inputs, Arc::clone(&out), plan);
        let bounds = (self.config.max_in_flight, self.config.max_in_flight_bytes);
        let place = lane.push(job, bounds, &self.shared)?;

        // The device has the command: from here on nothing declines.
        self.keep_uploads(call, uploads);
        let copy = DeviceCopy::new(self.id.device(0), 0..out_bytes, Arc::clone(&out) as _);
        self.budget.track(&copy);
        let command = Arc::new(Command { out, shared: Arc::clone(&self.shared) });
        let lane = self.id.device(0).lane(lane_index);
        Ok(Submission::new(lane, place, command).with_output_copy(copy))
    }

    fn synchronize(&self) {
        self.shared.wait_idle();
    }

    fn is_lost(&self) -> bool {
        self.shared.lost.load(Ordering::Acquire)
    }

    fn counters(&self) -> ProviderCounters {
        let mut counters = self.shared.counters.get();
        counters.in_flight = self.shared.in_flight() as u64;
        counters.evictions = self.budget.evictions();
        counters.device_bytes = self.budget.used_bytes() as u64;
        counters
    }
}

impl Drop for ReferenceProvider {
    /// Lets the lanes finish what they have, and joins them.
    fn drop(&mut self) {
        self.resume();
        for lane in &self.lanes {
            lane.close();
        }
        for thread in self.threads.drain(..) {
            // A lane that died has failed its commands already.
            let _ = thread.join();
        }
    }
}

/// The host's side of a job.
struct Command {
    out: Arc<DeviceBuffer>,
    shared: Arc<Shared>,
}

// SAFETY: a command is made once for each accepted call. The lane completes `out` after its last
// access to host memory (the uploads), in the order of its queue, and once. `publish` writes all
// of `out`. Nothing here unwinds, and dropping a command drops memory only.
unsafe impl InFlight for Command {
    fn poll(&self) -> Option<Result<(), CommandError>> {
        self.out.ready.poll()
    }

    fn retire(&self) -> Result<(), CommandError> {
        self.out.ready.wait()
    }

    unsafe fn publish(&self, out: NonNull<[u8]>) -> Result<(), CommandError> {
        self.out.ready.wait()?;
        let bytes = self.out.read();
        if bytes.len() != out.len() {
            let code = format!("output of {} bytes for {} bytes", bytes.len(), out.len());
            return Err(CommandError::Failed { code });
        }
        let device = NonNull::from(bytes.as_slice()).cast::<u8>();
        // SAFETY: the caller owns `out` for the call, and the lengths are equal; device memory
        // and host memory do not overlap.
        unsafe { out.cast::<u8>().copy_from_nonoverlapping(device, bytes.len()) };
        self.shared.counters.count_download(bytes.len());
        Ok(())
    }
}
