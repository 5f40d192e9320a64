//! Flags of the benchmark of ops.

use clap::{Args, ValueEnum};

use crate::args::threads;
use crate::bench::gpu::args::{dim, within};

/// Most samples of a figure.
const MAX_ITERS: usize = 1000;

/// Measure single calls on the CPU: products, attention, norms, selection
///
/// Prints median and spread, rates, the share of what this machine does at most, measured in the
/// same run, and the error against f64. The time of a call includes all that a program waits for.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fucina bench ops
  fucina bench ops --section linear --format q4_k,q8_0 -t 1,2
  fucina bench ops --shape 128x4096x4096 --json
  fucina bench ops --format f16 --dims 32 4096 1024 --weights cached")]
pub(crate) struct OpsArgs {
    /// Which groups of calls, a list
    #[arg(long, value_enum, value_name = "NAME,..", value_delimiter = ',')]
    #[arg(default_value = "all")]
    pub(crate) section: Vec<Section>,
    /// Formats of the weights, a list [default: all that have rows in the tables]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) format: Vec<String>,
    /// Calls whose name has this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) shape: Option<String>,
    /// One product of these sizes in each format: rows, columns of the result, contracted size
    #[arg(long, num_args = 3, value_names = ["M", "N", "K"], value_parser = dim)]
    #[arg(conflicts_with_all = ["shape", "section"])]
    pub(crate) dims: Option<Vec<usize>>,
    /// Where a call finds its weights
    #[arg(long, value_enum, value_name = "WHERE", default_value = "cycled")]
    pub(crate) weights: Place,
    /// Samples of each call, up to 1000 [default: as many as take 0.2 s, 5 to 63]
    #[arg(long, value_name = "N", value_parser = iters)]
    pub(crate) iters: Option<usize>,
    /// Threads, a list [default: `FUCINA_THREADS`, or all CPUs that the process may use]
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', value_parser = threads)]
    pub(crate) threads: Vec<usize>,
    /// Write JSON with every sample instead of a table
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Write CSV instead of a table
    #[arg(long)]
    pub(crate) csv: bool,
    /// Write nothing but errors to standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Groups of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Section {
    /// All of them
    All,
    /// Products with weights of ten formats, for 1 to 512 rows
    Linear,
    /// The other products of the design's source document
    Source,
    /// Attention over keys and values of 16 and 8 bits
    Attention,
    /// Products with an expert for each row
    Moe,
    /// Norms, `RoPE`, softmax, selection and what else reads each element a few times
    Light,
}

/// Where weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// In memory: calls go through distinct copies in turns, 256 MiB of them at least
    Cycled,
    /// In whatever cache holds them: every call has the same ones
    Cached,
}

impl Place {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cycled => "cycled",
            Self::Cached => "cached",
        }
    }
}

fn iters(text: &str) -> Result<usize, String> {
    within(text, MAX_ITERS, "samples")
}
