//! `fucina bench ops`: single calls on the CPU, as a program makes them, against what the machine
//! does at most.
//!
//! Each call goes through the public tensors, its allocation and the worker team included. Weights
//! are packed as a model packs them, and by default a call does not meet the weights of the call
//! before in a cache: it goes through copies of them in turns, as a model goes through its layers.

pub(crate) mod args;
mod attention;
mod cases;
mod light;
mod linear;
mod measure;
mod report;
mod row;

use fucina::{Ceilings, Config, Offload, Runtime};

use crate::exit::Exit;
use crate::output;
use args::OpsArgs;
use linear::Shelf;
use report::Report;

/// Bytes of weights that calls go through before they meet the first again, at least. Also the
/// size of the reads that tell the memory's bandwidth.
const CYCLE_BYTES: usize = 256 << 20;

pub(crate) fn run(args: &OpsArgs) -> anyhow::Result<Exit> {
    let cases = cases::chosen(args)?;
    let threads: Vec<Option<usize>> = if args.threads.is_empty() {
        vec![None]
    } else {
        args.threads.iter().copied().map(Some).collect()
    };
    let mut report = Report::new(args);
    for threads in threads {
        let rt = runtime(threads)?;
        let ceilings = rt.ceilings(CYCLE_BYTES)?;
        head(&rt, &ceilings, args);
        let mut shelf = Shelf::new(args.weights);
        for case in &cases {
            report.add(measure::row(&rt, &ceilings, case, args, &mut shelf)?)?;
        }
    }
    report.finish()?;
    Ok(Exit::Ok)
}

/// A runtime with the knobs of the environment and no accelerator.
fn runtime(threads: Option<usize>) -> anyhow::Result<Runtime> {
    let mut config = Config::from_env()?;
    config.offload = Offload::Off;
    let mut builder = Runtime::builder().config(config);
    if let Some(threads) = threads {
        builder = builder.threads(threads);
    }
    Ok(builder.build()?)
}

/// What runs and the ceilings, in one line for people.
fn head(rt: &Runtime, ceilings: &Ceilings, args: &OpsArgs) {
    if args.quiet {
        return;
    }
    let giga = |rate: f64| rate / 1e9;
    output::line(&format!(
        "ops · {}, {} · weights {} · at most {:.1} GB/s from memory, {:.1} GB/s from cache, \
         {:.0} GFLOP/s in f32, {:.0} GOP/s in 8 bits",
        rt.isa().name(),
        output::plural(rt.threads(), "thread"),
        args.weights.name(),
        giga(ceilings.memory),
        giga(ceilings.cache),
        giga(ceilings.f32),
        giga(ceilings.int8),
    ));
}
