//! What a machine with a CUDA device runs to show that the kernels do on it what they do on the
//! simulated driver: `dev/device-check/run.sh` calls it. It needs no cargo and no files.
//!
//! - `about`: the device, in one line.
//! - `conformance`: the suite of the seam, protocol included.
//! - `parity [--quick]`: products, experts and attention at the edges of tiles and of the range of
//!   f16, with every switch that chooses other kernels, against sums in f64.
//!
//! Each check is a line; the last one counts. The exit code is 1 if a check failed, and 2 without a
//! device.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool prints")]

mod cases;
mod data;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use fucina_accel::conformance::{self, Verdict};
use fucina_accel::{Pool, PoolConfig, Provider};
use fucina_cuda::{CudaConfig, CudaProvider};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["about"] => about(),
        ["conformance"] => run_conformance(),
        ["parity"] => parity(false),
        ["parity", "--quick"] => parity(true),
        _ => Err("usage: device_check about | conformance | parity [--quick]".to_owned()),
    };
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(why) => {
            eprintln!("device_check: {why}");
            ExitCode::from(2)
        }
    }
}

/// The variables of the environment, and a switch.
fn open(adjust: impl FnOnce(&mut CudaConfig)) -> Result<CudaProvider, String> {
    let mut config = CudaConfig::from_env().map_err(|error| error.to_string())?;
    adjust(&mut config);
    CudaProvider::open(&config).map_err(|error| error.to_string())
}

fn about() -> Result<usize, String> {
    let provider = open(|_| ())?;
    let about = provider.about();
    let (major, minor) = about.capability;
    let gib = about.memory_bytes >> 30;
    let (name, parts) = (&about.name, about.multiprocessors);
    println!("{name}, compute capability {major}.{minor}, {parts} multiprocessors, {gib} GiB");
    Ok(0)
}

fn run_conformance() -> Result<usize, String> {
    open(|_| ())?;
    // Products round operands to f16.
    let exactness = conformance::Config { operand_rounding: 2.0_f64.powi(-11) };
    let make =
        || -> Arc<dyn Provider> { Arc::new(open(|_| ()).expect("it has been opened before")) };
    let report = conformance::run_with(&make, exactness);
    for (name, verdict) in &report.checks {
        match verdict {
            Verdict::Passed => println!("ok      {name}"),
            Verdict::Skipped(why) => println!("skipped {name}: {why}"),
            Verdict::Failed(why) => println!("FAILED  {name}: {why}"),
            _ => println!("FAILED  {name}: an unknown verdict"),
        }
    }
    let failed = report.failures().count();
    let skipped = report.skipped().count();
    println!("conformance: {} passed, {skipped} skipped, {failed} failed", report.passed());
    Ok(if report.passed() == 0 { 1 } else { failed })
}

/// A change of the configuration that chooses other kernels.
type Switch = (&'static str, fn(&mut CudaConfig));

/// Rounds activations to 8 bits, which has a bound of its own.
const EIGHT_BITS: &str = "8-bit activations";

const SWITCHES: [Switch; 4] = [
    (EIGHT_BITS, |config| config.quant_int8 = true),
    ("default", |_| ()),
    ("without splits", |config| config.quant_split_k = false),
    ("without tensor cores", |config| config.quant_mma = false),
];

fn parity(quick: bool) -> Result<usize, String> {
    let start = Instant::now();
    let (mut passed, mut failed) = (0, 0);
    // What nobody wrote is NaN.
    let pool = Pool::new(PoolConfig { poison: true, ..PoolConfig::default() });
    for (switch, adjust) in SWITCHES {
        let provider = open(adjust)?;
        for case in cases::all(quick, switch == "default", switch == EIGHT_BITS) {
            let begin = Instant::now();
            let outcome = case.run(&provider, &pool);
            let ms = begin.elapsed().as_millis();
            match outcome {
                Ok(of_bound) => {
                    passed += 1;
                    println!(
                        "ok      {} ({switch}): {of_bound:.3} of the bound, {ms} ms",
                        case.name
                    );
                }
                Err(why) => {
                    failed += 1;
                    println!("FAILED  {} ({switch}): {why}", case.name);
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("parity: {passed} passed, {failed} failed, {seconds:.1} s");
    Ok(if passed == 0 { 1 } else { failed })
}
