//! The entry points. Each locks the one simulated driver, checks what a driver checks, and returns a
//! status.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use fucina_cuda_sim::ptx::Module;

use crate::control::{Config, Report};
use crate::kernel::Loaded;
use crate::sim::{Event, Function, Launch, Op, Sim, Stream};
use crate::status::{self, Status};

static SIM: LazyLock<Mutex<Sim>> = LazyLock::new(|| {
    let mut sim = Sim::default();
    sim.configure(Config::default());
    Mutex::new(sim)
});

/// The only context: every device has the same.
const CONTEXT: usize = 0xc0de_0000;

thread_local! {
    /// How often a context was pushed on this thread.
    pub(crate) static DEPTH: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn sim() -> MutexGuard<'static, Sim> {
    SIM.lock().unwrap_or_else(PoisonError::into_inner)
}

type Result<T> = std::result::Result<T, Status>;

/// Runs an entry point that needs no context.
fn call(name: &'static str, body: impl FnOnce(&mut Sim) -> Result<()>) -> Status {
    let run = || {
        let mut sim = sim();
        if sim.begin(name)? { body(&mut sim) } else { Ok(()) }
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => status::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => status::UNKNOWN,
    }
}

/// Runs an entry point that needs a context.
fn call_in_context(name: &'static str, body: impl FnOnce(&mut Sim) -> Result<()>) -> Status {
    if DEPTH.get() == 0 {
        return status::INVALID_CONTEXT;
    }
    call(name, body)
}

/// Stores a result where the caller wants it.
pub(crate) fn store<T>(at: *mut T, value: T) -> Result<()> {
    if at.is_null() {
        return Err(status::INVALID_VALUE);
    }
    // SAFETY: the caller of every entry point passes a place for the result, or null.
    unsafe { at.write(value) };
    Ok(())
}

/// Handles are numbers that look like addresses.
pub(crate) fn pointer(handle: u64) -> *mut c_void {
    ptr::without_provenance_mut(usize::try_from(handle).unwrap_or(0))
}

pub(crate) fn number(handle: *mut c_void) -> u64 {
    handle.addr() as u64
}

/// Defines an entry point: what is before the arrow is the C signature.
macro_rules! entry {
    ($($how:ident $name:ident($($arg:ident: $type:ty),*) |$sim:ident| $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the driver's interface.")]
            // No other library defines the name for those who open this one by its path.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the names are the driver's")]
            extern "C" fn $name($($arg: $type),*) -> Status {
                $how(stringify!($name), |$sim| $body)
            }
        )*
    };
}

entry! {
    call cuInit(flags: c_uint) |sim| {
        if flags != 0 {
            return Err(status::INVALID_VALUE);
        }
        if sim.config.devices == 0 { Err(status::NO_DEVICE) } else { Ok(()) }
    }
    call cuDriverGetVersion(version: *mut c_int) |sim| { store(version, sim.config.version) }
    call cuDeviceGetCount(count: *mut c_int) |sim| { store(count, sim.config.devices) }
    call cuDeviceGet(device: *mut c_int, index: c_int) |sim| {
        if !(0..sim.config.devices).contains(&index) {
            return Err(status::INVALID_DEVICE);
        }
        store(device, index)
    }
    call cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) |_sim| {
        let text = c"Simulated CUDA device";
        let bytes = text.to_bytes_with_nul();
        if name.is_null() || usize::try_from(len).is_ok_and(|len| len < bytes.len()) {
            return Err(status::INVALID_VALUE);
        }
        // SAFETY: the caller has room for `len` bytes, which is enough.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), name, bytes.len()) };
        Ok(())
    }
    call cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) |sim| {
        store(bytes, sim.config.memory_bytes)
    }
    call cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) |sim| {
        let config = &sim.config;
        store(value, match attribute {
            16 => config.multiprocessors,
            75 => config.capability / 10,
            76 => config.capability % 10,
            97 => 96 << 10,
            _ => return Err(status::INVALID_VALUE),
        })
    }
    call cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _device: c_int) |sim| {
        sim.retained += 1;
        store(context, ptr::without_provenance_mut(CONTEXT))
    }
    call cuDevicePrimaryCtxRelease_v2(_device: c_int) |sim| {
        if sim.retained == 0 {
            sim.violation("a context was released that was not retained");
            return Err(status::INVALID_CONTEXT);
        }
        sim.retained -= 1;
        Ok(())
    }
    call_in_context cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |sim| {
        let (all, used) = (sim.config.memory_bytes, sim.heap().used_bytes());
        store(free, all.saturating_sub(used))?;
        store(total, all)
    }
    call_in_context cuMemAlloc_v2(address: *mut u64, len: usize) |sim| {
        if len == 0 {
            return Err(status::INVALID_VALUE);
        }
        let allocated = sim.heap().alloc(len).ok_or(status::OUT_OF_MEMORY)?;
        store(address, allocated)
    }
    call_in_context cuMemFree_v2(address: u64) |sim| {
        if sim.heap().free(address) {
            return Ok(());
        }
        sim.violation("device memory was freed that is not allocated");
        Err(status::INVALID_VALUE)
    }
    call_in_context cuMemHostAlloc(address: *mut *mut c_void, len: usize, _flags: c_uint) |sim| {
        let layout = std::alloc::Layout::from_size_align(len.next_multiple_of(4096), 4096);
        let layout = layout.ok().filter(|layout| layout.size() > 0).ok_or(status::INVALID_VALUE)?;
        // SAFETY: the size is not zero.
        let raw = unsafe { std::alloc::alloc(layout) };
        if raw.is_null() {
            return Err(status::OUT_OF_MEMORY);
        }
        // SAFETY: the allocation is that large. Poison shows who reads what nobody wrote.
        unsafe { raw.write_bytes(0xff, layout.size()) };
        let start = raw.expose_provenance();
        sim.host.allocated.insert(start, start + layout.size());
        store(address, raw.cast())
    }
    call_in_context cuMemFreeHost(address: *mut c_void) |sim| {
        let Some(end) = sim.host.allocated.remove(&address.addr()) else {
            sim.violation("locked host memory was freed that is not allocated");
            return Err(status::INVALID_VALUE);
        };
        let size = end - address.addr();
        let layout = std::alloc::Layout::from_size_align(size, 4096).map_err(|_| status::UNKNOWN)?;
        // SAFETY: the table says that it was allocated with this layout.
        unsafe { std::alloc::dealloc(address.cast(), layout) };
        Ok(())
    }
    call_in_context cuMemHostRegister_v2(address: *mut c_void, len: usize, _flags: c_uint) |sim| {
        let start = address.expose_provenance();
        let end = start.checked_add(len).filter(|_| len > 0).ok_or(status::INVALID_VALUE)?;
        if sim.config.refuse_registration {
            return Err(status::OUT_OF_MEMORY);
        }
        if sim.host.register(&(start..end)) {
            return Ok(());
        }
        Err(status::HOST_MEMORY_ALREADY_REGISTERED)
    }
    call_in_context cuMemHostUnregister(address: *mut c_void) |sim| {
        if sim.host.unregister(address.addr()) {
            return Ok(());
        }
        sim.violation("pages were unlocked that are not locked");
        Err(status::HOST_MEMORY_NOT_REGISTERED)
    }
    call_in_context cuMemcpyHtoDAsync_v2(
        to: u64, from: *const c_void, len: usize, stream: *mut c_void
    ) |sim| {
        let start = from.expose_provenance();
        let from = start..start.checked_add(len).ok_or(status::INVALID_VALUE)?;
        if !sim.host.is_locked(&from) {
            sim.violation("an asynchronous copy reads pageable memory");
            return Err(status::INVALID_VALUE);
        }
        sim.push(number(stream), Op::Upload { to, from })
    }
    call_in_context cuMemcpyDtoHAsync_v2(
        to: *mut c_void, from: u64, len: usize, stream: *mut c_void
    ) |sim| {
        let start = to.expose_provenance();
        let to = start..start.checked_add(len).ok_or(status::INVALID_VALUE)?;
        if !sim.host.is_locked(&to) {
            sim.violation("an asynchronous copy writes pageable memory");
            return Err(status::INVALID_VALUE);
        }
        sim.push(number(stream), Op::Download { to, from })
    }
    call_in_context cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) |sim| {
        // Not ordered with streams that do not block: what is queued has not run.
        let mut bytes = vec![0; len];
        let read = sim.heap().download(from, &mut bytes);
        if let Err(error) = read {
            sim.violation(format!("a copy reads device memory: {error}"));
            return Err(status::INVALID_VALUE);
        }
        sim.report.downloads += 1;
        sim.report.downloaded_bytes += len as u64;
        // SAFETY: the caller has room for the bytes, and nothing else accesses them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), len) };
        Ok(())
    }
    call_in_context cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) |sim| {
        if flags != 1 {
            sim.violation("a stream blocks with the default stream");
        }
        let handle = sim.handle();
        sim.streams.insert(handle, Stream::default());
        store(stream, pointer(handle))
    }
    call_in_context cuStreamDestroy_v2(stream: *mut c_void) |sim| {
        match sim.streams.get_mut(&number(stream)) {
            Some(found) if !found.destroyed => {
                found.destroyed = true;
                Ok(())
            }
            _ => Err(status::INVALID_HANDLE),
        }
    }
    call_in_context cuStreamSynchronize(stream: *mut c_void) |sim| {
        sim.sync_stream(number(stream))
    }
    call_in_context cuStreamWaitEvent(
        stream: *mut c_void, event: *mut c_void, _flags: c_uint
    ) |sim| {
        sim.wait(number(stream), number(event))
    }
    call_in_context cuEventCreate(event: *mut *mut c_void, flags: c_uint) |sim| {
        let handle = sim.handle();
        sim.events.insert(handle, Event::new(flags & 2 == 0));
        store(event, pointer(handle))
    }
    call_in_context cuEventDestroy_v2(event: *mut c_void) |sim| {
        match sim.events.get_mut(&number(event)) {
            Some(found) if !found.destroyed => {
                found.destroyed = true;
                Ok(())
            }
            _ => Err(status::INVALID_HANDLE),
        }
    }
    call_in_context cuEventRecord(event: *mut c_void, stream: *mut c_void) |sim| {
        sim.record(number(event), number(stream))
    }
    call_in_context cuEventQuery(event: *mut c_void) |sim| {
        if sim.query(number(event))? { Ok(()) } else { Err(status::NOT_READY) }
    }
    call_in_context cuEventElapsedTime(ms: *mut f32, start: *mut c_void, end: *mut c_void) |sim| {
        let elapsed = sim.elapsed_ms(number(start), number(end))?;
        store(ms, elapsed)
    }
    call_in_context cuEventSynchronize(event: *mut c_void) |sim| {
        sim.sync_event(number(event))
    }
    call_in_context cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) |sim| {
        if image.is_null() {
            return Err(status::INVALID_VALUE);
        }
        // SAFETY: PTX is a terminated text, and the simulator takes nothing else.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        let text = text.to_str().map_err(|_| status::INVALID_PTX)?;
        let parsed = match Module::parse(text) {
            Ok(parsed) => parsed,
            Err(error) => {
                sim.violation(format!("a module is not valid PTX: {error}"));
                return Err(status::INVALID_PTX);
            }
        };
        let variables = sim.heap().place(parsed.variables()).ok_or(status::OUT_OF_MEMORY)?;
        let handle = sim.handle();
        sim.modules.insert(handle, Arc::new(Loaded { module: parsed, variables }));
        store(module, pointer(handle))
    }
    call_in_context cuModuleUnload(module: *mut c_void) |sim| {
        let handle = number(module);
        sim.functions.retain(|_, function| function.module != handle);
        match sim.modules.remove(&handle) {
            Some(module) => {
                sim.heap().remove(&module.variables);
                Ok(())
            }
            None => Err(status::INVALID_HANDLE),
        }
    }
    call_in_context cuModuleGetFunction(
        function: *mut *mut c_void, module: *mut c_void, name: *const c_char
    ) |sim| {
        if name.is_null() {
            return Err(status::INVALID_VALUE);
        }
        // SAFETY: the caller passes a terminated name.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let module = number(module);
        let found = sim.modules.get(&module).ok_or(status::INVALID_HANDLE)?;
        if found.module.function(&name).is_none() {
            return Err(status::NOT_FOUND);
        }
        let handle = sim.handle();
        sim.functions.insert(handle, Function { module, name, max_dynamic_shared: 48 << 10 });
        store(function, pointer(handle))
    }
    call_in_context cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int) |sim| {
        let found = sim.functions.get_mut(&number(function)).ok_or(status::INVALID_HANDLE)?;
        match (attribute, u32::try_from(value)) {
            (8, Ok(bytes)) if bytes <= 96 << 10 => {
                found.max_dynamic_shared = bytes;
                Ok(())
            }
            _ => Err(status::INVALID_VALUE),
        }
    }
    call_in_context cuLaunchKernel(
        function: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint,
        bz: c_uint, shared: c_uint, stream: *mut c_void, params: *mut *mut c_void,
        _extra: *mut *mut c_void
    ) |sim| {
        let (grid, block) = ([gx, gy, gz], [bx, by, bz]);
        check_geometry(grid, block)?;
        let function = number(function);
        let found = sim.functions.get(&function).ok_or(status::INVALID_HANDLE)?.clone();
        if shared > found.max_dynamic_shared {
            return Err(status::INVALID_VALUE);
        }
        let module = sim.modules.get(&found.module).ok_or(status::INVALID_HANDLE)?;
        let kernel = module.module.function(&found.name).ok_or(status::NOT_FOUND)?;
        let mut bytes = Vec::new();
        for (index, param) in kernel.params().iter().enumerate() {
            let (offset, len) = (param.offset as usize, param.size as usize);
            bytes.resize(offset + len, 0);
            // SAFETY: the caller passes one address for each parameter of the kernel.
            let at = unsafe { params.add(index) };
            // SAFETY: as above.
            let from = unsafe { at.read() };
            let to = bytes[offset..].as_mut_ptr();
            // SAFETY: each address is that of a value of the parameter's size.
            unsafe { ptr::copy_nonoverlapping(from.cast(), to, len) };
        }
        let launch = Launch { function, grid, block, dynamic_shared: shared, params: bytes };
        sim.push(number(stream), Op::Launch(launch))
    }
}

/// The limits of every device that is supported.
fn check_geometry(grid: [u32; 3], block: [u32; 3]) -> Result<()> {
    let threads: u64 = block.iter().map(|&size| u64::from(size)).product();
    let good = grid.iter().chain(&block).all(|&size| size > 0)
        && grid[0] <= i32::MAX.cast_unsigned()
        && grid[1] <= 65_535
        && grid[2] <= 65_535
        && block[2] <= 64
        && threads <= 1024;
    if good { Ok(()) } else { Err(status::INVALID_VALUE) }
}

/// `cuCtxPushCurrent_v2` of the driver's interface.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the names are the driver's")]
extern "C" fn cuCtxPushCurrent_v2(context: *mut c_void) -> Status {
    if context.addr() != CONTEXT {
        return status::INVALID_CONTEXT;
    }
    DEPTH.set(DEPTH.get() + 1);
    status::SUCCESS
}

/// `cuCtxPopCurrent_v2` of the driver's interface.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the names are the driver's")]
extern "C" fn cuCtxPopCurrent_v2(context: *mut *mut c_void) -> Status {
    let Some(depth) = DEPTH.get().checked_sub(1) else { return status::INVALID_CONTEXT };
    DEPTH.set(depth);
    match store(context, ptr::without_provenance_mut(CONTEXT)) {
        Ok(()) => status::SUCCESS,
        Err(code) => code,
    }
}

/// `cuGetErrorName` of the driver's interface.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the names are the driver's")]
extern "C" fn cuGetErrorName(code: Status, name: *mut *const c_char) -> Status {
    match status::name(code).map(|text| store(name, text.as_ptr())) {
        Some(Ok(())) => status::SUCCESS,
        _ => status::INVALID_VALUE,
    }
}

/// Starts anew.
///
/// # Safety
///
/// `config` is a valid configuration, and no object of the driver is in use.
#[unsafe(no_mangle)]
unsafe extern "C" fn fucina_sim_configure(config: *const Config) {
    // SAFETY: passed on to the caller.
    sim().configure(unsafe { config.read() });
}

/// Runs what is queued, and reports.
#[unsafe(no_mangle)]
extern "C" fn fucina_sim_report(report: *mut Report) {
    let mut sim = sim();
    // A broken context has said so already.
    let _ = sim.drain();
    let count = |len: usize| len as u64;
    let now = Report {
        live_allocations: count(sim.heap.as_ref().map_or(0, |heap| heap.live())),
        live_registrations: count(sim.host.registered.len()),
        live_host_allocations: count(sim.host.allocated.len()),
        live_events: count(sim.events.values().filter(|event| !event.destroyed).count()),
        live_streams: count(sim.streams.values().filter(|stream| !stream.destroyed).count()),
        live_modules: count(sim.modules.len()),
        live_contexts: sim.retained,
        live_blas_handles: count(sim.blas.len()),
        ..sim.report
    };
    let _ = store(report, now);
}

/// How often an entry point was called.
///
/// # Safety
///
/// `name` is a text of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn fucina_sim_calls(name: *const u8, len: usize) -> u64 {
    // SAFETY: passed on to the caller.
    let name = unsafe { std::slice::from_raw_parts(name, len) };
    std::str::from_utf8(name).map_or(0, |name| sim().calls(name))
}

/// Copies the list of violations, one line each, and returns its length.
///
/// # Safety
///
/// There is room for `capacity` bytes at `text`.
#[unsafe(no_mangle)]
unsafe extern "C" fn fucina_sim_violations(text: *mut c_char, capacity: usize) -> usize {
    let list = sim().violations.join("\n");
    let len = list.len().min(capacity);
    // SAFETY: the caller has room for as many bytes.
    unsafe { ptr::copy_nonoverlapping(list.as_ptr(), text.cast(), len) };
    len
}
