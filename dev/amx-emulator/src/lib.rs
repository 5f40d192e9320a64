//! AMX in software: tests of AMX kernels run on a CPU without AMX.
//!
//! [`install`] catches the signal that an unknown instruction raises. If the instruction is one of
//! AMX, the handler decodes it as it stands in the machine code, executes it on tiles that it keeps
//! for each thread, and resumes behind it. So the code under test is the code that ships.
//!
//! Semantics are those that the vendor documents, and stricter where a kernel could rely on luck:
//! tiles hold NaN patterns, not zeros, after a configuration or a release. What a CPU would refuse
//! ends the process with a message.
//!
//! Not here: AMX of later CPUs (fp16, complex, transposing, fp8), and restarts in the middle of a
//! tile load: memory faults end a test anyway.

mod decode;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod guarded;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod signal;
mod tiles;

pub use decode::{Instruction, Op, Registers, decode};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use guarded::Guarded;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use signal::{Counts, counts, install, is_configured};
pub use tiles::{CONFIG_BYTES, Dot, Fault, ROW_BYTES, ROWS, TILES, Tiles};
