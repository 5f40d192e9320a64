//! `cargo xtask`: the checks and generators of this repository, one command each.
//!
//! A check lives in its own file and returns the list of what is wrong, so that one run shows all of
//! it. Nothing here is published, and no crate depends on it.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool prints")]

mod arch;
mod ci;
mod cited;
mod coverage;
mod device_check;
mod knobs;
mod lexer;
mod licences;
mod links;
mod neon;
mod peers;
mod process;
mod ptx;
mod synth;
mod tools;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks and generators of the Fucina repository")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must pass before a change lands
    Ci {
        /// Stop after the tests: no loom, no docs, no benchmarks
        #[arg(long)]
        quick: bool,
    },
    /// Dependency edges, where unsafe may be, file sizes, where the environment is read
    Arch,
    /// Compare the knobs in the code with the rows of docs/env.md
    Knobs,
    /// Compare the licences of all dependencies with deny.toml
    Licences,
    /// Follow the links between the Markdown pages
    Links,
    /// Print which kernel exists for which instruction set
    Coverage,
    /// Compile the CUDA kernels to the PTX that is committed, and assemble it for every chip
    Ptx(ptx::Args),
    /// Build what a machine with a GPU needs to check the kernels, or check the check here
    DeviceCheck(device_check::Args),
    /// Compare ours with the peers that package indexes carry, in turns
    BenchPeers(peers::Args),
    /// Write a model of random weights in the shape of a real one
    SynthModel(synth::Args),
    /// Run every loom model
    Loom,
    /// Run every fuzz target for a while
    Fuzz {
        /// Seconds for each target
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Run the tests of the crates with unsafe code under a sanitizer
    Sanitize {
        /// Which one
        #[arg(value_enum, default_value = "address")]
        which: tools::Sanitizer,
    },
    /// Run the tests of the lower crates under Miri, where it is installed
    Miri,
    /// Run the command on emulated processors without AVX, and without AVX-512
    OldCpus,
    /// Run the tests of the kernels for Arm on emulated processors
    Neon(neon::Args),
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Ci { quick } => ci::run(quick),
        Command::Arch => arch::run(),
        Command::Knobs => knobs::run(),
        Command::Licences => licences::run(),
        Command::Links => links::run(),
        Command::Coverage => coverage::run(),
        Command::Ptx(args) => ptx::run(&args),
        Command::DeviceCheck(args) => device_check::run(&args),
        Command::BenchPeers(args) => peers::run(&args),
        Command::SynthModel(args) => synth::run(&args),
        Command::Loom => tools::loom(),
        Command::Fuzz { seconds } => tools::fuzz(seconds),
        Command::Sanitize { which } => tools::sanitize(which),
        Command::Miri => tools::miri(),
        Command::OldCpus => tools::old_cpus(),
        Command::Neon(args) => neon::run(&args),
    }
}
