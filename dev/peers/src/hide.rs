//! Hides AVX-512, AMX and AVX-VNNI from what asks the processor at run time.
//!
//! A peer built for AVX2 may still look for more while it runs. Linux lets a thread fault on
//! `cpuid`; the handler answers in its place, without those bits.

use std::arch::x86_64::__cpuid_count;

use anyhow::{Result, ensure};

/// `arch_prctl`'s code for the state of `cpuid`: 1 executes, 0 faults.
const SET_CPUID: libc::c_int = 0x1012;
/// The instruction.
const CPUID: [u8; 2] = [0x0f, 0xa2];

/// Hidden bits of leaf 7: EBX, ECX and EDX of the first part, EAX of the second. Names and places
/// are those of the manual, volume 2, `CPUID`.
const EBX: u32 = 1 << 16 | 1 << 17 | 1 << 21 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 30 | 1 << 31;
const ECX: u32 = 1 << 1 | 1 << 6 | 1 << 11 | 1 << 12 | 1 << 14;
const EDX: u32 = 1 << 2 | 1 << 3 | 1 << 8 | 1 << 22 | 1 << 23 | 1 << 24 | 1 << 25;
const EAX_1: u32 = 1 << 4 | 1 << 5 | 1 << 21 | 1 << 22 | 1 << 23;
/// AVX10 and AVX-VNNI of more types: EDX of the second part.
const EDX_1: u32 = 1 << 4 | 1 << 5 | 1 << 8 | 1 << 10 | 1 << 19;

/// Hides them from this thread and from those that it starts. Before anyone has asked.
pub(crate) fn hide() -> Result<()> {
    // SAFETY: all zeros is a valid `sigaction`: no handler, no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = answer as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is complete, and the handler has the signature that its flags demand.
    let rc = unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) };
    ensure!(rc == 0, "the system takes no handler");
    ensure!(set_faulting(true), "this machine cannot hide what its processor has");
    ensure!(!std::arch::is_x86_feature_detected!("avx512f"), "AVX-512 was asked for before");
    Ok(())
}

fn set_faulting(faulting: bool) -> bool {
    // SAFETY: this call changes only how `cpuid` behaves in this thread, which `answer` covers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, SET_CPUID, libc::c_int::from(!faulting)) == 0 }
}

extern "C" fn answer(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the context of the interrupted thread, valid while this runs.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = &mut context.uc_mcontext.gregs;
    let at = registers[libc::REG_RIP as usize] as *const [u8; 2];
    // A jump to nowhere faults again here, which ends the process as it should: the signal is blocked.
    // SAFETY: the processor fetched an instruction from here.
    if unsafe { at.read_unaligned() } != CPUID {
        // SAFETY: the default action is always a valid one. The access faults again and ends the
        // process.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    let leaf = registers[libc::REG_RAX as usize] as u32;
    let part = registers[libc::REG_RCX as usize] as u32;
    set_faulting(false);
    let mut found = __cpuid_count(leaf, part);
    set_faulting(true);
    match (leaf, part) {
        (7, 0) => {
            found.ebx &= !EBX;
            found.ecx &= !ECX;
            found.edx &= !EDX;
        }
        (7, 1) => {
            found.eax &= !EAX_1;
            found.edx &= !EDX_1;
        }
        _ => {}
    }
    let values = [found.eax, found.ebx, found.ecx, found.edx];
    let names = [libc::REG_RAX, libc::REG_RBX, libc::REG_RCX, libc::REG_RDX];
    for (name, value) in names.into_iter().zip(values) {
        registers[name as usize] = i64::from(value);
    }
    registers[libc::REG_RIP as usize] += CPUID.len() as i64;
}
