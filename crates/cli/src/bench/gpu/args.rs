//! Flags of the benchmarks of devices.

use clap::{Args, Subcommand, ValueEnum};

use crate::args::threads;

/// Most calls of the queue test, which is how many a provider has in flight.
pub(super) const MAX_QUEUE: usize = 8;

/// Most samples of a figure.
const MAX_ITERS: usize = 64;

/// Largest size that `--dims` takes.
const MAX_DIM: usize = 1 << 20;

/// Benchmarks of single calls on a device.
#[derive(Subcommand)]
pub(crate) enum GpuBench {
    GpuDispatch(DispatchArgs),
    GpuFormats(FormatsArgs),
}

/// Measure f32 products on a device against the CPU
///
/// Each shape is run on both sides in turns. `sync` lets the device finish and then reads, `async`
/// reads at once, `submit` stops before the result is there; the queue has several calls in flight,
/// and in a chain each call reads the one before, and the host only the last. Weights are on the
/// device, and activations are brought there for every call. Results are compared: exit code 1 if
/// one is wrong.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fucina bench gpu-dispatch
  fucina bench gpu-dispatch --shape 'gemm 1024^3' --iters 63 --crossover
  fucina bench gpu-dispatch --dims 32 4096 1024 --json")]
pub(crate) struct DispatchArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// The first three shapes only
    #[arg(long)]
    pub(crate) quick: bool,
}

/// Measure products with 16-bit and quantized weights on a device against the CPU
///
/// As `gpu-dispatch`, with the weights of the formats that files have. The CPU multiplies with
/// packed weights, as models do.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fucina bench gpu-formats
  fucina bench gpu-formats --section quant --shape prefill
  fucina bench gpu-formats --format tq2_0 --dims 64 4096 4096")]
pub(crate) struct FormatsArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Which formats
    #[arg(long, value_enum, default_value = "all")]
    pub(crate) section: Section,
    /// One format only; also one that the sections do not have, such as `bf16` or `q4_0`
    #[arg(long, value_name = "NAME")]
    pub(crate) format: Option<String>,
    /// Bring 16-bit weights to the device for every call
    #[arg(long)]
    pub(crate) transient: bool,
}

/// Groups of formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Section {
    /// Both
    All,
    /// f16
    F16,
    /// `Q4_K`, `Q5_K`, `Q6_K`, `Q8_0`
    Quant,
}

/// What both benchmarks take.
#[derive(Args)]
pub(crate) struct CommonArgs {
    /// Samples of each figure, up to 64 [default: fewer for larger shapes]
    #[arg(long, value_name = "N", value_parser = iters)]
    pub(crate) iters: Option<usize>,
    /// Calls in flight, and in a chain, up to 8
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = queue)]
    pub(crate) queue: usize,
    /// Shapes whose name has this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) shape: Option<String>,
    /// One shape of these sizes: rows, columns of the result, contracted size
    #[arg(long, num_args = 3, value_names = ["M", "N", "K"], value_parser = dim)]
    #[arg(conflicts_with = "shape")]
    pub(crate) dims: Option<Vec<usize>>,
    /// Add a line with p10, p50 and p90
    #[arg(long)]
    pub(crate) detail: bool,
    /// Add a line with CPU time over device time, pair by pair
    #[arg(long)]
    pub(crate) crossover: bool,
    /// Threads of the CPU side [default: `FUCINA_THREADS`, or all CPUs that the process may use]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Run on a simulated device, too: results are compared, and no time is shown
    #[arg(long)]
    pub(crate) allow_simulated: bool,
    /// Write JSON with every sample instead of a table
    #[arg(long, conflicts_with_all = ["csv", "detail", "crossover"])]
    pub(crate) json: bool,
    /// Write CSV instead of a table
    #[arg(long, conflicts_with_all = ["detail", "crossover"])]
    pub(crate) csv: bool,
    /// Write nothing but errors to standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

pub(in crate::bench) fn within(text: &str, most: usize, what: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("a number of {what} from 1 to {most} is expected"))
}

fn iters(text: &str) -> Result<usize, String> {
    within(text, MAX_ITERS, "samples")
}

fn queue(text: &str) -> Result<usize, String> {
    within(text, MAX_QUEUE, "calls")
}

pub(in crate::bench) fn dim(text: &str) -> Result<usize, String> {
    within(text, MAX_DIM, "elements")
}
