//! `cargo xtask bench-peers`: ours and the peers that package indexes carry, in turns.
//!
//! A peer that cannot be had is a row of the record that says why, and the others run without it.

mod build;
mod cases;
mod contender;
mod models;
mod products;
mod record;
mod report;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use contender::Contender;
use record::Record;

/// What is measured, and with whom.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Few products, one round: a try
    #[arg(long)]
    quick: bool,
    /// A GGUF file to compare whole models with; may be given more than once
    #[arg(long, value_name = "FILE")]
    model: Vec<PathBuf>,
    /// No products, whole models only
    #[arg(long, requires = "model")]
    only_models: bool,
    /// Only products with weights of these formats, a list
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    format: Vec<String>,
    /// Only products with this text in their name
    #[arg(long, value_name = "TEXT")]
    shape: Option<String>,
    /// Only contenders with one of these texts in their name, a list; ours always takes part
    #[arg(long, value_name = "TEXT,..", value_delimiter = ',')]
    peer: Vec<String>,
    /// Numbers of threads, a list
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "2,1")]
    threads: Vec<usize>,
    /// Turns of each contender
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of a turn; a turn has one call at least
    #[arg(long, value_name = "MS", default_value_t = 40.0)]
    turn: f64,
    /// Start every contender with these words before it, such as `chrt -f 5`
    #[arg(long, value_name = "WORDS")]
    with: Option<String>,
    /// A library with the C interface of BLAS; may be given more than once
    #[arg(long, value_name = "FILE")]
    blas: Vec<PathBuf>,
    /// Also install MKL from the package index, several hundred megabytes
    #[arg(long)]
    mkl: bool,
    /// Use what is built, and build nothing
    #[arg(long)]
    no_build: bool,
    /// Build, and measure nothing
    #[arg(long, conflicts_with = "no_build")]
    only_build: bool,
    /// Folder of the machine below bench/record
    #[arg(long, value_name = "NAME", required_unless_present_any = ["only_build", "quick"])]
    machine: Option<String>,
    /// Date of the record; rows are added to those of the same day [default: today]
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.turn > 0.0, "there must be a round, and time for it");
    ensure!(args.threads.iter().all(|&threads| threads > 0), "a contender has a thread at least");
    let (contenders, missing) = build::contenders(args)?;
    let contenders: Vec<Contender> =
        contenders.into_iter().filter(|contender| wanted(args, contender)).collect();
    for (name, why) in &missing {
        eprintln!("bench-peers: without {name}: {why}");
    }
    if args.only_build {
        return Ok(());
    }
    let mut record = Record::open(args)?;
    for (name, why) in &missing {
        record.missing(name, why)?;
    }
    if !args.only_models {
        products::run(args, &contenders, &mut record)?;
    }
    models::run(args, &contenders, &mut record)?;
    print!("{}", report::tables(record.rows()));
    if let Some(path) = record.path() {
        eprintln!("bench-peers: the rows are in {}", path.display());
    }
    Ok(())
}

fn wanted(args: &Args, contender: &Contender) -> bool {
    let named = |text: &String| contender.name.contains(text.as_str());
    contender.is_ours() || args.peer.is_empty() || args.peer.iter().any(named)
}
