//! Whether this process may use AMX.
//!
//! The CPU shows the feature and the shape of its tiles, the system shows that it saves them, and
//! Linux wants to be asked: only then it makes room for 8 KiB of tiles in each thread.

use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max, _xgetbv};
use std::sync::OnceLock;

use super::AmxState;

/// Bits of leaf 7, edx: products of bf16, tiles, products of 8-bit integers.
const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
/// Bits of the first extended control register: configuration and data of tiles.
const STATE: u64 = 1 << 17 | 1 << 18;

/// The answer for this process. The first call asks.
pub(super) fn state() -> AmxState {
    static STATE: OnceLock<AmxState> = OnceLock::new();
    *STATE.get_or_init(|| {
        if !cpu_has_it() {
            AmxState::Absent
        } else if !system_saves_it() {
            AmxState::NotEnabled
        } else {
            ask()
        }
    })
}

fn cpu_has_it() -> bool {
    let (max, _) = __get_cpuid_max(0);
    if max < 0x1d || __cpuid_count(7, 0).edx & FEATURES != FEATURES {
        return false;
    }
    // Palette 1: 8 tiles of 16 rows of 64 bytes.
    let palette = __cpuid_count(0x1d, 1);
    palette.ebx >> 16 >= 8 && palette.ebx & 0xffff == 64 && palette.ecx & 0xffff == 16
}

fn system_saves_it() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: the system has enabled `xgetbv`, as the caller checked.
        unsafe { _xgetbv(0) }
    }
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    // SAFETY: a CPU on which the system uses XSAVE has it.
    unsafe { enabled() & STATE == STATE }
}

/// Asks Linux. The permission holds for all threads of the process, and for no other program.
#[cfg(target_os = "linux")]
fn ask() -> AmxState {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: the call takes two numbers and touches no memory of this process; the registers that
    // a system call changes are listed.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    match i32::try_from(-result) {
        Ok(0) => AmxState::Usable,
        code => AmxState::Refused { code: code.unwrap_or(i32::MAX) },
    }
}

#[cfg(not(target_os = "linux"))]
fn ask() -> AmxState {
    AmxState::OtherSystem
}

/// AMX for tests: that of this CPU, or else in software. `None`, and a word about it, on a CPU
/// without the AVX-512 that the kernels need besides.
#[cfg(all(test, target_os = "linux"))]
#[expect(clippy::print_stdout, reason = "a test that does not run says so")]
pub(crate) fn for_tests() -> Option<super::Isa> {
    let best = super::Isa::best();
    if best.name() == "avx512-amx" {
        return Some(best);
    }
    fucina_amx_emulator::install();
    // SAFETY: from here on the emulator executes what the CPU does not.
    let isa = unsafe { super::Isa::with_emulated_amx() };
    if isa.is_none() {
        println!("SKIPPED: AMX kernels need a CPU with AVX-512 VNNI and BF16");
    }
    isa
}
