//! The signal handler: from an unknown instruction to its effect on software tiles.
//!
//! The signal is synchronous: its handler runs on the thread, and at the point, of the instruction,
//! which a kernel reaches outside of any lock or allocation. The handler itself takes no lock and
//! does not allocate.

use std::cell::UnsafeCell;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::decode::{Instruction, MAX_LEN, Op, Registers, decode};
use crate::tiles::{CONFIG_BYTES, Dot, Fault, Tiles};

thread_local! {
    /// No destructor and no lazy start: an access is a plain one, also inside the handler.
    static TILES: UnsafeCell<Tiles> = const { UnsafeCell::new(Tiles::poisoned()) };
}

static BF16_PRODUCTS: AtomicU64 = AtomicU64::new(0);
static INT8_PRODUCTS: AtomicU64 = AtomicU64::new(0);

/// Tile products that this process has executed in software.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Of bf16.
    pub bf16: u64,
    /// Of 8-bit integers.
    pub int8: u64,
}

/// What was executed so far, on all threads.
pub fn counts() -> Counts {
    Counts { bf16: BF16_PRODUCTS.load(Relaxed), int8: INT8_PRODUCTS.load(Relaxed) }
}

/// Whether this thread has a configuration loaded in software: a kernel that returned left none.
pub fn is_configured() -> bool {
    // SAFETY: the handler, the only other access of this thread, does not run in the meantime:
    // no instruction here is unknown.
    TILES.with(|tiles| unsafe { &*tiles.get() }.is_configured())
}

/// Catches AMX instructions in this process from now on. A CPU that has AMX executes them itself;
/// one that lacks FMA is not supported.
///
/// # Panics
///
/// Panics if the system refuses the handler, or if the CPU has no FMA.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        assert!(std::arch::is_x86_feature_detected!("fma"), "the emulator needs a CPU with FMA");
        // SAFETY: all zeros is a valid `sigaction`: no handler, no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the action is complete, and the handler has the signature that its flags demand.
        let rc = unsafe { libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) };
        assert_eq!(rc, 0, "the system takes a handler for SIGILL");
    });
}

extern "C" fn handle(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the context of the interrupted thread, valid while this runs.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let machine = &mut context.uc_mcontext.gregs;
    let registers = registers(machine);
    // SAFETY: the CPU fetched the instruction from here. An AMX instruction has as many bytes, or
    // others follow it: code never ends at the end of a page, as every function returns or traps.
    let code = unsafe { std::slice::from_raw_parts(registers.rip as *const u8, MAX_LEN) };
    let outcome = match decode(code, &registers) {
        Some(instruction) => {
            execute(&instruction).map(|()| instruction.len).map_err(Fault::message)
        }
        None => Err("the instruction is none of AMX"),
    };
    match outcome {
        Ok(len) => {
            let next = registers.rip.wrapping_add(len as u64).cast_signed();
            machine[index(libc::REG_RIP)] = next;
        }
        Err(why) => die(why),
    }
}

#[expect(clippy::cast_sign_loss, reason = "the numbers of registers are small and positive")]
const fn index(register: libc::c_int) -> usize {
    register as usize
}

fn registers(machine: &[libc::greg_t; 23]) -> Registers {
    use libc::{
        REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP,
        REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP,
    };
    let order = [
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9,
        REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
    ];
    let value = |register| machine[index(register)].cast_unsigned();
    Registers { general: order.map(value), rip: value(REG_RIP) }
}

fn execute(instruction: &Instruction) -> Result<(), Fault> {
    TILES.with(|tiles| {
        // SAFETY: the cell belongs to this thread, and nothing below runs unknown instructions.
        let tiles = unsafe { &mut *tiles.get() };
        match instruction.op {
            Op::LoadConfig => {
                let mut config = [0; CONFIG_BYTES];
                read(instruction, 0, &mut config);
                tiles.load_config(&config)
            }
            Op::StoreConfig => {
                write(instruction, 0, &tiles.store_config());
                Ok(())
            }
            Op::Release => {
                tiles.release();
                Ok(())
            }
            Op::Zero { tile } => tiles.zero(tile),
            Op::Load { tile } => tiles.load(tile, |row, bytes| read(instruction, row, bytes)),
            Op::Store { tile } => tiles.store(tile, |row, bytes| write(instruction, row, bytes)),
            Op::Dot { kind, dest, a, b } => {
                let count = if kind == Dot::Bf16 { &BF16_PRODUCTS } else { &INT8_PRODUCTS };
                count.fetch_add(1, Relaxed);
                tiles.dot(kind, dest, a, b)
            }
        }
    })
}

fn row_address(instruction: &Instruction, row: usize) -> u64 {
    instruction.address.wrapping_add(instruction.stride.wrapping_mul(row as u64))
}

fn read(instruction: &Instruction, row: usize, bytes: &mut [u8]) {
    let from = row_address(instruction, row) as *const u8;
    // SAFETY: the instruction reads these bytes: that they are there is the burden of the code
    // under test. If not, this faults as the instruction would.
    unsafe { from.copy_to(bytes.as_mut_ptr(), bytes.len()) }
}

fn write(instruction: &Instruction, row: usize, bytes: &[u8]) {
    let to = row_address(instruction, row) as *mut u8;
    // SAFETY: as for `read`: the instruction writes these bytes.
    unsafe { to.copy_from(bytes.as_ptr(), bytes.len()) }
}

/// Says why and lets the instruction end the process.
fn die(why: &str) {
    for text in ["amx-emulator: ", why, "\n"] {
        // SAFETY: the text is valid for reads of its length, and `write` may be called in a
        // handler.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: may be called in a handler. The instruction runs again, now with the default action.
    unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
}
