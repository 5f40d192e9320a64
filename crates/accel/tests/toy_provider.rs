//! A complete provider in one short file: `docs/howto/add-a-provider.md` walks through it.
//!
//! Its device is a thread that multiplies f32 matrices in memory of its own.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use fucina_accel::{
    Call, CommandError, Completion, Decline, DeviceInfo, InFlight, Operand, Provider, ProviderId,
    Storage, Submission, conformance,
};
use fucina_dtype::DType;

/// A provider with one lane. The lane holds at most eight commands.
struct Toy {
    id: ProviderId,
    /// `None` once the lane is to end. The lock also orders the places in the queue.
    queue: Mutex<Option<mpsc::SyncSender<Job>>>,
    thread: Option<thread::JoinHandle<()>>,
    submitted: AtomicU64,
}

/// What the device gets: operands in its own memory, and where the result goes.
struct Job {
    lhs: Vec<f32>,
    rhs: Vec<f32>,
    sizes: [usize; 3],
    command: Arc<Command>,
}

/// What the host keeps: the result, once it is there.
#[derive(Default)]
struct Command {
    result: Mutex<Vec<f32>>,
    end: Completion,
}

impl Toy {
    fn new() -> Self {
        let (sender, receiver) = mpsc::sync_channel::<Job>(8);
        let thread = thread::spawn(move || receiver.into_iter().for_each(Job::run));
        let queue = Mutex::new(Some(sender));
        let (id, submitted) = (ProviderId::fresh(), AtomicU64::new(0));
        Self { id, queue, thread: Some(thread), submitted }
    }
}

impl Job {
    fn run(self) {
        let [m, n, k] = self.sizes;
        let mut out = Vec::with_capacity(m * n);
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let (lhs, rhs) = (&self.lhs[i * k..][..k], &self.rhs[j * k..][..k]);
            out.push(lhs.iter().zip(rhs).map(|(a, b)| a * b).sum());
        }
        *self.command.result.lock().unwrap_or_else(PoisonError::into_inner) = out;
        self.command.end.complete(Ok(()));
    }
}

/// The upload. `host` waits if another command still produces the bytes.
fn upload(operand: &Operand<'_>) -> Result<Vec<f32>, Decline> {
    if operand.dtype() != DType::F32 {
        return Err(Decline::UnsupportedFormat);
    }
    if operand.shape()[0] != 1 || !operand.is_dense() {
        return Err(Decline::UnsupportedShape);
    }
    let bytes = operand.storage().host().map_err(|_| Decline::Faulted)?;
    let (elems, _) = bytes[operand.byte_range()].as_chunks::<4>();
    Ok(elems.iter().map(|&elem| f32::from_le_bytes(elem)).collect())
}

impl Provider for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn device(&self) -> DeviceInfo {
        let (id, name) = (self.id.device(0), "toy device".to_owned());
        DeviceInfo { id, name, memory_bytes: 0, is_unified: false }
    }

    unsafe fn submit(&self, call: &Call<'_>, _out: &Storage) -> Result<Submission, Decline> {
        let Call::MatMul(op) = call else { return Err(Decline::UnsupportedOp) };
        let [_, m, n, k] = op.sizes();
        let (lhs, rhs) = (upload(&op.lhs)?, upload(&op.rhs)?);
        let command = Arc::new(Command::default());
        let job = Job { lhs, rhs, sizes: [m, n, k], command: Arc::clone(&command) };

        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = queue.as_ref().ok_or(Decline::Disabled)?;
        sender.try_send(job).map_err(|error| match error {
            mpsc::TrySendError::Full(_) => Decline::Busy,
            mpsc::TrySendError::Disconnected(_) => Decline::DeviceLost,
        })?;
        let place = self.submitted.fetch_add(1, Ordering::Relaxed);
        Ok(Submission::new(self.id.device(0).lane(0), place, command))
    }
}

// SAFETY: the device works on copies, so it never touches host memory; `publish` writes exactly
// `out`. One command is made for each call. Nothing unwinds or blocks on drop.
unsafe impl InFlight for Command {
    fn poll(&self) -> Option<Result<(), CommandError>> {
        self.end.poll()
    }

    fn retire(&self) -> Result<(), CommandError> {
        self.end.wait()
    }

    unsafe fn publish(&self, out: NonNull<[u8]>) -> Result<(), CommandError> {
        self.end.wait()?;
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = result.iter().flat_map(|elem| elem.to_le_bytes()).collect();
        if bytes.len() != out.len() {
            return Err(CommandError::Failed { code: "output of the wrong size".to_owned() });
        }
        // SAFETY: the caller owns `out` for the call, and the lengths are equal.
        unsafe { out.cast::<u8>().copy_from(NonNull::from(&*bytes).cast(), bytes.len()) };
        Ok(())
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        *self.queue.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn the_toy_conforms() {
    let report = conformance::run(&|| Arc::new(Toy::new()));
    report.assert_passed();
    assert!(report.skipped().any(|(name, why)| name == "softmax 1x1" && why.is_unsupported()));
    assert!(report.passed() > 40, "{report}");
}
