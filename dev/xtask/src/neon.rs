//! `cargo xtask neon`: the code for Arm, checked here and run on emulated processors.
//!
//! It proves results, not speed: an emulator says nothing about time.

mod text;
mod toolchain;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::process::{self, Tests};
use toolchain::{EMULATOR, SYSROOT, TARGET};

/// What to check.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check types and lints only: nothing is linked or run
    #[arg(long, conflicts_with_all = ["cpu", "models", "text"])]
    check: bool,
    /// Run on this processor only
    #[arg(long, value_enum)]
    cpu: Option<Cpu>,
    /// Also run the tests of the tensors, and models against their exact logits
    #[arg(long)]
    models: bool,
    /// Also let the command write a text on each processor, and compare it with the exact one
    #[arg(long)]
    text: bool,
}

/// A processor that the emulator knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Cpu {
    /// Everything the emulator has: dot products and matrix products of bytes
    Max,
    /// Dot products of bytes, no matrix products
    NeoverseN1,
    /// Neither
    CortexA72,
}

impl Cpu {
    const ALL: [Self; 3] = [Self::Max, Self::NeoverseN1, Self::CortexA72];

    /// The emulator's name.
    const fn name(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::NeoverseN1 => "neoverse-n1",
            Self::CortexA72 => "cortex-a72",
        }
    }

    /// Every instruction set that must be found, best last.
    const fn isas(self) -> &'static [&'static str] {
        match self {
            Self::Max => &["scalar", "neon", "neon-dotprod", "neon-i8mm"],
            Self::NeoverseN1 => &["scalar", "neon", "neon-dotprod"],
            Self::CortexA72 => &["scalar", "neon"],
        }
    }

    /// Modules of the kernels whose tests run, all if none. The first processor runs every version
    /// of every kernel, so the others only ask whether a version needs more than they have: those
    /// with leaves on the weakest, and on the one between those with a version for it.
    const fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Max => &[],
            Self::NeoverseN1 => &["isa", "probe", "quant"],
            Self::CortexA72 => &["attention", "convert", "dense", "isa", "probe", "quant"],
        }
    }

    /// What runs a program.
    fn emulator(self) -> [&'static str; 5] {
        [EMULATOR, "-cpu", self.name(), "-L", SYSROOT]
    }
}

/// Checks the code for Arm, and unless told otherwise runs the tests of its kernels.
pub(crate) fn run(args: &Args) -> Result<()> {
    let missing = if args.check { toolchain::missing_to_check() } else { toolchain::missing() };
    if let Some(missing) = missing {
        bail!("NOTHING WAS CHECKED: {missing}");
    }
    println!("neon: {}", toolchain::check()?);
    if args.check {
        return Ok(());
    }
    let cpus = args.cpu.as_ref().map_or(&Cpu::ALL[..], std::slice::from_ref);
    let mut total = test(cpus[0], FORMATS)?;
    for cpu in cpus {
        eprintln!("\n== {}: {}", cpu.name(), cpu.isas().join(", "));
        total.add(kernels(*cpu)?);
    }
    if args.models {
        total.add(test(cpus[0], TENSORS)?);
        for cpu in cpus {
            total.add(test(*cpu, MODELS)?);
        }
    }
    println!("neon: {} processors, {}", cpus.len(), total.summary());
    if args.text {
        println!("neon: {}", text::compare(cpus)?);
    }
    Ok(())
}

/// What `ci` runs: the check of types and lints where its tools are, else a line that says so.
pub(crate) fn ci() -> Result<String> {
    if let Some(missing) = toolchain::missing_to_check() {
        return Ok(format!("NOT CHECKED: {missing}"));
    }
    match toolchain::check() {
        // A later compiler may need a later cargo for its library: nothing that a change did.
        Err(error) if !toolchain::is_known() => Ok(format!("NOT CHECKED: {error}")),
        said => said,
    }
}

/// Tests below the kernels: no instruction set changes what they run.
const FORMATS: &str = "-p fucina-dtype --lib";

/// Tests above the kernels.
const TENSORS: &str = "-p fucina-runtime --lib --tests";

/// The models of the repository against exact logits and exact greedy tokens: each processor runs
/// its best version of every kernel that a model needs.
const MODELS: &str =
    "-p fucina-llm --test parity -- the_models_in_the_repository_match_the_exact_forward_pass";

/// The tests of the kernels on a processor, built the same for each.
fn kernels(cpu: Cpu) -> Result<Tests> {
    let modules: Vec<String> = cpu.modules().iter().map(|module| format!("{module}::")).collect();
    test(cpu, &format!("-p fucina-kernels --lib -- {}", modules.join(" ")))
}

/// `cargo test <args>` on a processor.
fn test(cpu: Cpu, args: &str) -> Result<Tests> {
    let runner = format!("CARGO_TARGET_{}_RUNNER", TARGET.replace('-', "_").to_uppercase());
    let mut command = toolchain::build("test", args);
    command.env(runner, cpu.emulator().join(" ")).env("FUCINA_REQUIRE_ISA", cpu.isas().join(","));
    process::run_tests(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn each_processor_has_what_the_weaker_one_has() {
        for pair in Cpu::ALL.windows(2) {
            assert!(pair[0].isas().starts_with(pair[1].isas()));
            assert!(pair[0].isas().len() > pair[1].isas().len());
        }
    }

    /// A filter that matches no test says nothing, so a module that is gone must be found here; and
    /// a new one with a leaf of its own belongs to the lists.
    #[test]
    fn every_module_with_a_leaf_for_arm_runs_on_the_processors_without_more() {
        let kernels = root().join("crates/kernels/src");
        for cpu in Cpu::ALL {
            for module in cpu.modules() {
                assert!(kernels.join(format!("{module}.rs")).is_file(), "no module {module}");
            }
        }
        let sources = crate::workspace::sources(&["crates/kernels/src"]).unwrap();
        for source in &sources {
            let Some((module, _)) = source.path["crates/kernels/src/".len()..].split_once('/')
            else {
                continue;
            };
            let runs_on = |cpu: Cpu| cpu.modules().contains(&module);
            match source.stem() {
                "neon" => assert!(runs_on(Cpu::CortexA72), "{}", source.path),
                "neon_dotprod" => assert!(runs_on(Cpu::NeoverseN1), "{}", source.path),
                _ => (),
            }
        }
    }
}
