//! Kernels from their sources. The simulated driver runs what a real compiler writes.

mod common;

use std::io::Write as _;
use std::path::PathBuf;

use common::Rig;
use common::scenario::{Trouble, program};
use fucina_accel::{Decline, Provider as _};
use fucina_cuda::{CudaConfig, Kernels, OptionalLibrary};
use fucina_cuda_driver::control::{Config, Fail};

/// The compiler that `cargo xtask ptx` fetches into the build folder.
fn compiler() -> Option<OptionalLibrary> {
    let test = std::env::current_exe().expect("a test knows where it is");
    let folder = test.ancestors().nth(3).expect("a test lies in the build folder");
    let wheel = "cuda-tools/nvidia-cuda-nvrtc-cu12/12.0.140/unpacked";
    let path: PathBuf = folder.join(wheel).join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    if path.exists() {
        return Some(OptionalLibrary::Path(path));
    }
    // Past the capture of the test harness: a skip is loud.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let message = format!("SKIPPED {test}: run cargo xtask ptx, which gets a compiler\n");
    let _ = std::io::stderr().write_all(message.as_bytes());
    None
}

fn from_sources(nvrtc: OptionalLibrary) -> impl FnOnce(&mut CudaConfig) {
    |cuda| {
        cuda.kernels = Kernels::Sources;
        cuda.nvrtc = nvrtc;
    }
}

#[test]
fn kernels_from_their_sources_are_right() {
    for capability in [70, 80] {
        let Some(nvrtc) = compiler() else { return };
        let config = Config { capability, ..Config::default() };
        let rig = Rig::with(config, from_sources(nvrtc));
        program(&*rig.provider, 6, 24).unwrap();
        assert_eq!(rig.provider.notes()[0], "kernels from their sources, by NVRTC 12.0");
        rig.finish();
    }
}

/// Where the driver refuses what is shipped, the sources serve.
#[test]
fn modules_that_the_driver_refuses_are_compiled() {
    let Some(nvrtc) = compiler() else { return };
    let fail = Fail::new("cuModuleLoadData", 0, 222);
    let rig = Rig::with(Config { fail, ..Config::default() }, |cuda| cuda.nvrtc = nvrtc);
    program(&*rig.provider, 6, 24).unwrap();
    let notes = rig.provider.notes();
    assert_eq!(notes[0], "kernels from their sources, by NVRTC 12.0");
    rig.finish();
}

#[test]
fn without_a_compiler_calls_are_declined_and_a_note_says_why() {
    let nowhere = OptionalLibrary::Path("no-such-folder/libnvrtc.so".into());
    let other = OptionalLibrary::Path("libm.so.6".into());
    for (nvrtc, reason) in [
        (OptionalLibrary::Off, "NVRTC is switched off"),
        (nowhere, "no-such-folder/libnvrtc.so cannot be opened"),
        (other, "libm.so.6 has no entry point nvrtcVersion"),
    ] {
        let rig = Rig::with(Config::default(), from_sources(nvrtc));
        let outcome = program(&*rig.provider, 6, 24);
        assert!(matches!(outcome, Err(Trouble::Declined(Decline::Refused))), "{outcome:?}");
        let notes = rig.provider.notes().join("\n");
        assert!(
            notes.starts_with("no kernels of matmul.sm70: ") && notes.contains(reason),
            "{notes}"
        );
        rig.finish();
    }
}

#[test]
fn a_driver_that_refuses_everything_is_reported() {
    let fail = Fail::new("cuModuleLoadData", u64::MAX, 222);
    let rig = Rig::with(Config { fail, ..Config::default() }, |cuda| {
        cuda.nvrtc = OptionalLibrary::Off;
    });
    let outcome = program(&*rig.provider, 6, 24);
    assert!(matches!(outcome, Err(Trouble::Declined(Decline::Refused))), "{outcome:?}");
    let notes = rig.provider.notes().join("\n");
    assert!(notes.contains("the driver refuses it"), "{notes}");
    assert!(notes.contains("(222)), and NVRTC is switched off"), "{notes}");
    rig.finish();
}
