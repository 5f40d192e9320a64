//! Checked calls of the driver, and owners of its objects. What holds for every call: a context is
//! current on the calling thread (an [`Entered`] proves it), and every status is looked at.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys::{self, DevicePtr, Driver, Handle, Opaque, Ordinal, Status};

/// A status of the driver that is not success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CuError {
    pub(crate) code: Status,
    name: String,
}

impl fmt::Display for CuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.code)
    }
}

impl CuError {
    /// The status of a library that works on the driver.
    pub(crate) fn of_library(code: Status, name: impl Into<String>) -> Self {
        Self { code, name: name.into() }
    }

    /// Memory was short, of the device or of the driver: the same may work later.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == sys::OUT_OF_MEMORY
    }

    /// What a process that was forked after the driver had started is told: the driver does not
    /// work there.
    pub(crate) fn forked() -> Self {
        Self { code: sys::NO_DEVICE, name: "the process was forked after CUDA had started".into() }
    }
}

type Result<T> = std::result::Result<T, CuError>;

impl Driver {
    fn check(&self, code: Status) -> Result<()> {
        if code == sys::SUCCESS { Ok(()) } else { Err(self.error(code)) }
    }

    fn error(&self, code: Status) -> CuError {
        let mut name = ptr::null();
        // SAFETY: the driver stores the address of a static string, or null for an unknown code.
        let status = unsafe { (self.error_name)(code, &raw mut name) };
        if status != sys::SUCCESS || name.is_null() {
            return CuError { code, name: "unknown CUDA error".to_owned() };
        }
        // SAFETY: the driver has returned a static string.
        let name = unsafe { CStr::from_ptr(name) };
        CuError { code, name: name.to_string_lossy().into_owned() }
    }
}

/// The driver, started.
#[derive(Clone)]
pub(crate) struct Cuda {
    driver: Arc<Driver>,
}

impl Cuda {
    /// Opens and starts the driver. The error is one line that says why there is none.
    pub(crate) fn open(names: &[&Path]) -> std::result::Result<Self, String> {
        let driver =
            Driver::open(names).map_err(|why| format!("there is no CUDA driver: {why}"))?;
        // SAFETY: the flags must be 0.
        let status = unsafe { (driver.init)(0) };
        match driver.check(status) {
            Ok(()) => Ok(Self { driver: Arc::new(driver) }),
            Err(error) if error.code == sys::STUB_LIBRARY => {
                Err("the CUDA driver is a stub that only serves to link programs".to_owned())
            }
            Err(error) if error.code == sys::NO_DEVICE => {
                Err("the CUDA driver finds no device".to_owned())
            }
            Err(error) => Err(format!("the CUDA driver does not start: {error}")),
        }
    }

    /// Version of the driver's interface, such as 12040 for 12.4.
    pub(crate) fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: the driver stores an integer.
        self.driver.check(unsafe { (self.driver.driver_version)(&raw mut version) })?;
        Ok(version)
    }

    pub(crate) fn device_count(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: the driver stores an integer.
        self.driver.check(unsafe { (self.driver.device_count)(&raw mut count) })?;
        Ok(count)
    }

    /// The device with this number, which is less than the count.
    pub(crate) fn device(&self, index: i32) -> Result<Card> {
        let mut ordinal = 0;
        // SAFETY: the driver stores an integer, and refuses an index that it does not know.
        self.driver.check(unsafe { (self.driver.device_get)(&raw mut ordinal, index) })?;
        Ok(Card { cuda: self.clone(), ordinal })
    }
}

/// A device, without a context.
pub(crate) struct Card {
    cuda: Cuda,
    ordinal: Ordinal,
}

impl Card {
    pub(crate) fn name(&self) -> Result<String> {
        let driver = &self.cuda.driver;
        let mut name = [0; 256];
        // SAFETY: the driver writes at most the given number of bytes, a terminator included.
        let status = unsafe { (driver.device_name)(name.as_mut_ptr(), 256, self.ordinal) };
        driver.check(status)?;
        // A C character is signed on x86 and not on Arm.
        let bytes: Vec<u8> = name.iter().flat_map(|c| c.to_ne_bytes()).collect();
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or(c"CUDA device");
        Ok(text.to_string_lossy().into_owned())
    }

    pub(crate) fn memory_bytes(&self) -> Result<usize> {
        let driver = &self.cuda.driver;
        let mut bytes = 0;
        // SAFETY: the driver stores a size.
        driver.check(unsafe { (driver.device_total_mem)(&raw mut bytes, self.ordinal) })?;
        Ok(bytes)
    }

    pub(crate) fn attribute(&self, attribute: c_int) -> Result<c_int> {
        let driver = &self.cuda.driver;
        let mut value = 0;
        // SAFETY: the driver stores an integer, and refuses an attribute that it does not know.
        let status = unsafe { (driver.device_attribute)(&raw mut value, attribute, self.ordinal) };
        driver.check(status)?;
        Ok(value)
    }

    /// The device's primary context, which all users of the device in this process share.
    pub(crate) fn context(self) -> Result<Arc<Context>> {
        let driver = Arc::clone(&self.cuda.driver);
        let mut raw = ptr::null_mut();
        // SAFETY: the driver stores a handle, and counts the reference until it is released.
        driver.check(unsafe { (driver.context_retain)(&raw mut raw, self.ordinal) })?;
        let handle = handle(&driver, raw)?;
        let (ordinal, pid) = (self.ordinal, std::process::id());
        Ok(Arc::new(Context { driver, ordinal, handle, pid }))
    }
}

/// A handle that the driver has just stored; null would break its promise.
fn handle(driver: &Driver, raw: *mut Opaque) -> Result<Handle> {
    Handle::new(raw).ok_or_else(|| driver.error(999))
}

/// A retained primary context.
pub(crate) struct Context {
    driver: Arc<Driver>,
    ordinal: Ordinal,
    handle: Handle,
    /// Process that started the driver. A forked child has its memory, but not its driver.
    pid: u32,
}

impl Context {
    pub(crate) fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Makes the context current on this thread, until the result is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Entered<'_>> {
        if self.is_forked() {
            return Err(CuError::forked());
        }
        // SAFETY: the context is retained.
        let status = unsafe { (self.driver.context_push)(self.handle.raw()) };
        self.driver.check(status)?;
        Ok(Entered { context: self, not_send: std::marker::PhantomData })
    }

    /// Runs a destructor of the driver with the context current. Nobody is there to be told of a
    /// failure; in a forked child nothing runs at all.
    fn destroy(self: &Arc<Self>, destructor: impl FnOnce(&Driver) -> Status) {
        if let Ok(entered) = self.enter() {
            let _ = destructor(&entered.context.driver);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_forked() {
            // SAFETY: the context was retained once, and every object in it has gone: each of
            // them holds a reference to this owner.
            let _ = unsafe { (self.driver.context_release)(self.ordinal) };
        }
    }
}

/// Proof that a context is current on this thread.
pub(crate) struct Entered<'c> {
    context: &'c Arc<Context>,
    /// What is current belongs to the thread.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: the driver stores a handle, which is that of the context pushed by `enter`.
        let _ = unsafe { (self.context.driver.context_pop)(&raw mut popped) };
    }
}

impl Entered<'_> {
    fn driver(&self) -> &Driver {
        &self.context.driver
    }

    /// Free memory of the device.
    pub(crate) fn free_bytes(&self) -> Result<usize> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver stores two sizes.
        let status = unsafe { (self.driver().mem_info)(&raw mut free, &raw mut total) };
        self.driver().check(status)?;
        Ok(free)
    }

    pub(crate) fn alloc(&self, len_bytes: usize) -> Result<DeviceMemory> {
        let mut address = 0;
        // SAFETY: the driver stores an address.
        let status = unsafe { (self.driver().mem_alloc)(&raw mut address, len_bytes) };
        self.driver().check(status)?;
        Ok(DeviceMemory { context: Arc::clone(self.context), address, len_bytes })
    }

    /// Page-locked memory of the driver.
    pub(crate) fn alloc_host(&self, len_bytes: usize) -> Result<HostMemory> {
        let mut address = ptr::null_mut();
        let flags = sys::HOST_ALLOC_PORTABLE;
        // SAFETY: the driver stores an address.
        let status = unsafe { (self.driver().host_alloc)(&raw mut address, len_bytes, flags) };
        self.driver().check(status)?;
        let start = NonNull::new(address.cast()).ok_or_else(|| self.driver().error(999))?;
        Ok(HostMemory { context: Arc::clone(self.context), start, len_bytes })
    }

    /// Locks the pages `start..start + len_bytes`.
    ///
    /// # Safety
    ///
    /// The pages are mapped, and stay mapped until the result is dropped.
    pub(crate) unsafe fn register(&self, start: usize, len_bytes: usize) -> Result<LockedPages> {
        let address: *mut c_void = ptr::with_exposed_provenance_mut(start);
        let flags = sys::HOST_REGISTER_PORTABLE;
        // SAFETY: the caller vouches for the pages.
        let status = unsafe { (self.driver().host_register)(address, len_bytes, flags) };
        self.driver().check(status)?;
        Ok(LockedPages { context: Arc::clone(self.context), start })
    }

    pub(crate) fn stream(&self) -> Result<Stream> {
        let mut raw = ptr::null_mut();
        let flags = sys::STREAM_NON_BLOCKING;
        // SAFETY: the driver stores a handle.
        let status = unsafe { (self.driver().stream_create)(&raw mut raw, flags) };
        self.driver().check(status)?;
        let handle = handle(self.driver(), raw)?;
        Ok(Stream { context: Arc::clone(self.context), handle })
    }

    fn event(&self, timed: bool) -> Result<Handle> {
        let mut raw = ptr::null_mut();
        let timing = if timed { 0 } else { sys::EVENT_DISABLE_TIMING };
        let flags = sys::EVENT_BLOCKING_SYNC | timing;
        // SAFETY: the driver stores a handle.
        let status = unsafe { (self.driver().event_create)(&raw mut raw, flags) };
        self.driver().check(status)?;
        handle(self.driver(), raw)
    }

    /// Loads PTX, which the driver compiles for the device.
    pub(crate) fn module(&self, ptx: &CStr) -> Result<Module> {
        let mut raw = ptr::null_mut();
        // SAFETY: the image is a terminated text, which is how the driver knows PTX.
        let status = unsafe { (self.driver().module_load)(&raw mut raw, ptx.as_ptr().cast()) };
        self.driver().check(status)?;
        let handle = handle(self.driver(), raw)?;
        Ok(Module { context: Arc::clone(self.context), handle })
    }

    /// Starts a copy to the device.
    ///
    /// # Safety
    ///
    /// `from` is `len_bytes` of page-locked memory that nothing writes or frees, and `to` is
    /// device memory of that size that nothing frees, until the stream has passed the copy.
    pub(crate) unsafe fn upload(
        &self,
        stream: &Stream,
        to: DevicePtr,
        from: NonNull<u8>,
        len_bytes: usize,
    ) -> Result<()> {
        let from = from.as_ptr().cast_const().cast();
        // SAFETY: passed on to the caller.
        let status =
            unsafe { (self.driver().copy_to_device)(to, from, len_bytes, stream.handle.raw()) };
        self.driver().check(status)
    }

    /// Starts a copy to the host.
    ///
    /// # Safety
    ///
    /// `to` is `len_bytes` of page-locked memory that nothing reads, writes or frees, and `from`
    /// is device memory of that size that nothing frees, until the stream has passed the copy.
    pub(crate) unsafe fn download(
        &self,
        stream: &Stream,
        to: NonNull<u8>,
        from: DevicePtr,
        len_bytes: usize,
    ) -> Result<()> {
        let to = to.as_ptr().cast();
        // SAFETY: passed on to the caller.
        let status =
            unsafe { (self.driver().copy_to_host)(to, from, len_bytes, stream.handle.raw()) };
        self.driver().check(status)
    }

    /// Copies to the host, by way of the driver's own memory, and waits for it.
    ///
    /// # Safety
    ///
    /// `to` is `len_bytes` that nothing else accesses meanwhile, and `from` is device memory of
    /// that size, whose last command has finished.
    pub(crate) unsafe fn download_now(
        &self,
        to: NonNull<u8>,
        from: DevicePtr,
        len_bytes: usize,
    ) -> Result<()> {
        let to = to.as_ptr().cast();
        // SAFETY: passed on to the caller.
        let status = unsafe { (self.driver().copy_to_host_now)(to, from, len_bytes) };
        self.driver().check(status)
    }

    /// Notes the place of an event in a stream.
    pub(crate) fn record(&self, event: &Event, stream: &Stream) -> Result<()> {
        let (event, stream) = (event.handle.raw(), stream.handle.raw());
        // SAFETY: both objects are alive.
        self.driver().check(unsafe { (self.driver().event_record)(event, stream) })
    }

    /// Lets a stream wait for an event.
    pub(crate) fn wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        let (event, stream) = (event.handle.raw(), stream.handle.raw());
        // SAFETY: both objects are alive; the driver keeps what it needs of the event.
        self.driver().check(unsafe { (self.driver().stream_wait)(stream, event, 0) })
    }

    /// Reports whether the device has passed the event.
    pub(crate) fn has_passed(&self, event: &Event) -> Result<bool> {
        // SAFETY: the event is alive.
        match unsafe { (self.driver().event_query)(event.handle.raw()) } {
            sys::NOT_READY => Ok(false),
            code => self.driver().check(code).map(|()| true),
        }
    }

    /// Parks the thread until the device has passed the event.
    pub(crate) fn await_event(&self, event: &Event) -> Result<()> {
        // SAFETY: the event is alive.
        self.driver().check(unsafe { (self.driver().event_sync)(event.handle.raw()) })
    }

    /// Milliseconds from one event to another. Both tell the time, and the device has passed them.
    pub(crate) fn elapsed_ms(&self, start: &Event, end: &Event) -> Result<f64> {
        let (start, end, mut ms) = (start.handle.raw(), end.handle.raw(), 0.0);
        // SAFETY: both events are alive; the driver stores a number.
        let status = unsafe { (self.driver().event_elapsed)(&raw mut ms, start, end) };
        self.driver().check(status).map(|()| f64::from(ms))
    }

    /// Parks the thread until a stream is empty.
    pub(crate) fn drain(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the stream is alive.
        self.driver().check(unsafe { (self.driver().stream_sync)(stream.handle.raw()) })
    }

    /// Starts a kernel.
    ///
    /// # Safety
    ///
    /// The arguments are the fields of the one struct that the kernel declares. Device memory
    /// that they refer to is large enough for what the kernel reads and writes, and nothing frees
    /// it until the stream has passed the kernel.
    pub(crate) unsafe fn launch(&self, stream: &Stream, launch: &Launch) -> Result<()> {
        let mut arguments = launch.arguments;
        let mut pointers: [*mut c_void; 1] = [ptr::from_mut(&mut arguments).cast()];
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let (function, shared) = (launch.function.handle.raw(), launch.shared_bytes);
        let (stream, none) = (stream.handle.raw(), ptr::null_mut());
        let start = self.driver().launch;
        // SAFETY: the caller vouches for the arguments; the driver copies them before it returns.
        let status = unsafe {
            start(function, gx, gy, gz, bx, by, bz, shared, stream, pointers.as_mut_ptr(), none)
        };
        self.driver().check(status)
    }
}

/// One start of a kernel.
pub(crate) struct Launch {
    pub(crate) function: Arc<Function>,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) arguments: Arguments,
}

/// The one argument of a kernel: a struct of plain fields, laid out as C does.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Arguments {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl Arguments {
    const MAX: usize = 256;

    pub(crate) const fn new() -> Self {
        Self { bytes: [0; Self::MAX], len: 0 }
    }

    /// Adds a field, after padding to its size.
    fn push<const N: usize>(mut self, field: [u8; N]) -> Self {
        let at = self.len.next_multiple_of(N);
        self.bytes[at..at + N].copy_from_slice(&field);
        self.len = at + N;
        self
    }

    pub(crate) fn ptr(self, address: DevicePtr) -> Self {
        self.push(address.to_ne_bytes())
    }

    pub(crate) fn int(self, value: i32) -> Self {
        self.push(value.to_ne_bytes())
    }

    pub(crate) fn long(self, value: i64) -> Self {
        self.push(value.to_ne_bytes())
    }

    pub(crate) fn float(self, value: f32) -> Self {
        self.push(value.to_ne_bytes())
    }
}

/// A queue of the device.
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: Handle,
}

impl Stream {
    /// For a library that queues work of its own.
    pub(crate) const fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let raw = self.handle.raw();
        // SAFETY: this is the owner. The driver finishes what is queued, and then frees it.
        self.context.destroy(|driver| unsafe { (driver.stream_destroy)(raw) });
    }
}

/// Events that are kept for reuse.
pub(crate) struct Events {
    context: Arc<Context>,
    free: Mutex<Vec<Handle>>,
    /// They tell the time, which costs the device a little.
    timed: bool,
}

impl Events {
    pub(crate) fn new(context: &Arc<Context>, timed: bool) -> Arc<Self> {
        Arc::new(Self { context: Arc::clone(context), free: Mutex::default(), timed })
    }

    pub(crate) fn take(self: &Arc<Self>, entered: &Entered<'_>) -> Result<Event> {
        let free = held(&self.free).pop();
        let handle = free.map_or_else(|| entered.event(self.timed), Ok)?;
        Ok(Event { events: Arc::clone(self), handle })
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for handle in held(&self.free).drain(..) {
            // SAFETY: this is the owner of the free events.
            self.context.destroy(|driver| unsafe { (driver.event_destroy)(handle.raw()) });
        }
    }
}

/// A mark in a stream.
pub(crate) struct Event {
    events: Arc<Events>,
    handle: Handle,
}

impl Drop for Event {
    fn drop(&mut self) {
        // Streams that wait for it keep what they need of it.
        held(&self.events.free).push(self.handle);
    }
}

/// Memory of the device.
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    address: DevicePtr,
    len_bytes: usize,
}

impl DeviceMemory {
    pub(crate) const fn address(&self) -> DevicePtr {
        self.address
    }

    pub(crate) const fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let address = self.address;
        // SAFETY: this is the owner, and its user has waited for the commands that use it.
        self.context.destroy(|driver| unsafe { (driver.mem_free)(address) });
    }
}

/// Page-locked memory of the host.
pub(crate) struct HostMemory {
    context: Arc<Context>,
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the memory is plain bytes with one owner.
unsafe impl Send for HostMemory {}
// SAFETY: as above; a shared reference gives out nothing but the address.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Copies bytes of the host into the front.
    ///
    /// # Panics
    ///
    /// Panics if they do not fit.
    ///
    /// # Safety
    ///
    /// `from` is readable for `len_bytes` and nothing writes it meanwhile; no command uses this
    /// memory.
    pub(crate) unsafe fn fill(&mut self, from: NonNull<u8>, len_bytes: usize) {
        assert!(len_bytes <= self.len_bytes, "staging memory is large enough");
        // SAFETY: the caller vouches for the source; the target is this memory, which does not
        // overlap it, and is large enough.
        unsafe { self.start.copy_from_nonoverlapping(from, len_bytes) };
    }

    /// Copies the front to bytes of the host.
    ///
    /// # Panics
    ///
    /// Panics if there are not as many.
    ///
    /// # Safety
    ///
    /// `to` is writable for `len_bytes` and nothing else accesses it meanwhile; no command uses
    /// this memory.
    pub(crate) unsafe fn copy_out(&self, to: NonNull<u8>, len_bytes: usize) {
        assert!(len_bytes <= self.len_bytes, "staging memory is large enough");
        // SAFETY: as in `fill`.
        unsafe { to.copy_from_nonoverlapping(self.start, len_bytes) };
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let raw = self.start.as_ptr().cast();
        // SAFETY: this is the owner, and its user has waited for the commands that use it.
        self.context.destroy(|driver| unsafe { (driver.host_free)(raw) });
    }
}

/// Pages that are locked until this is dropped.
pub(crate) struct LockedPages {
    context: Arc<Context>,
    start: usize,
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        let raw: *mut c_void = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the pages were registered under this address.
        self.context.destroy(|driver| unsafe { (driver.host_unregister)(raw) });
    }
}

/// Compiled kernels.
pub(crate) struct Module {
    context: Arc<Context>,
    handle: Handle,
}

impl Module {
    pub(crate) fn function(
        self: &Arc<Self>,
        entered: &Entered<'_>,
        name: &str,
    ) -> Result<Function> {
        let driver = entered.driver();
        let Ok(name) = CString::new(name) else { return Err(driver.error(500)) };
        let (mut raw, module) = (ptr::null_mut(), self.handle.raw());
        // SAFETY: the module is alive and the name is terminated; the driver stores a handle.
        let status = unsafe { (driver.module_function)(&raw mut raw, module, name.as_ptr()) };
        driver.check(status)?;
        Ok(Function { handle: handle(driver, raw)?, _module: Arc::clone(self) })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let raw = self.handle.raw();
        // SAFETY: this is the owner; functions hold a reference to it.
        self.context.destroy(|driver| unsafe { (driver.module_unload)(raw) });
    }
}

/// A kernel.
pub(crate) struct Function {
    handle: Handle,
    _module: Arc<Module>,
}

impl Function {
    /// Lets the kernel have this much dynamic shared memory.
    pub(crate) fn allow_shared(&self, entered: &Entered<'_>, bytes: c_int) -> Result<()> {
        let driver = entered.driver();
        let (raw, attribute) = (self.handle.raw(), sys::FUNC_MAX_DYNAMIC_SHARED);
        // SAFETY: the function is alive.
        driver.check(unsafe { (driver.function_attribute)(raw, attribute, bytes) })
    }
}

/// Part of a range, in bytes of host memory.
pub(crate) fn sub(start: NonNull<u8>, range: &Range<usize>) -> NonNull<u8> {
    // Without `unsafe`: the address is followed only by a copy, whose caller vouches for it.
    NonNull::new(start.as_ptr().wrapping_add(range.start)).unwrap_or(start)
}

pub(crate) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
