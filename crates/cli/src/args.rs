//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use fucina::llm::sampler::{ConfigError, SamplerConfig};

use crate::bench::Calls;
use crate::cache::CacheArgs;
use crate::chat::args::{ChatArgs, TurnArgs};
use crate::exit::{Exit, Failure};
use crate::load::LoadArgs;
use crate::models::{list::ListArgs, pull::PullArgs, rm::RmArgs};
use crate::output;
use crate::perplexity::PerplexityArgs;
use crate::placement::PlacementArgs;
use crate::prompt_cache::PromptCacheArgs;
use crate::quantize::recipe::Recipe;
use crate::tokenize::TokenizeArgs;
use crate::trace::TraceArgs;

/// Run language models from GGUF files
#[derive(Parser)]
#[command(name = "fucina", version, after_help = EXAMPLES, subcommand_required = true)]
#[command(arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Without MODEL every command uses the small model that is part of the program. MODEL is a path, or the
name of a model that was pulled.

Examples:
  fucina run \"It is a truth universally acknowledged\"
  fucina run model.gguf \"Why is the sky blue?\" -n 200 --seed 7
  fucina run model.gguf - < prompt.txt
  fucina chat model.gguf --system \"Answer in one sentence.\"
  fucina bench model.gguf -p 128,512 -t 1,2
  fucina inspect model.gguf --check
  fucina pull qwen2.5-coder-0.5b
  fucina run qwen2.5-coder-0.5b \"fn main() {\" -n 32
  fucina doctor

Exit codes: 0 done, 1 failed, 2 wrong flag or environment variable, 3 model not usable,
4 prompt not usable, 130 interrupted.";

#[derive(Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Chat(ChatArgs),
    Bench(BenchArgs),
    Inspect(InspectArgs),
    Quantize(QuantizeArgs),
    Pull(PullArgs),
    List(ListArgs),
    Rm(RmArgs),
    Tokenize(TokenizeArgs),
    Perplexity(PerplexityArgs),
    Doctor(DoctorArgs),
}

/// Continue a text
///
/// Writes the prompt and then its continuation to standard output, token by token, and one line of
/// what ran where and how fast to standard error. Ctrl-C stops after the next token and keeps what
/// was written; a second one ends at once.
#[derive(Args)]
#[command(override_usage = "fucina run [OPTIONS] [MODEL] PROMPT")]
#[command(after_help = "\
Examples:
  fucina run \"It is a truth universally acknowledged\"
  fucina run model.gguf \"Once upon a time\" -n 64 --greedy
  fucina run model.gguf - --json < prompt.txt
  fucina run model.gguf --chat \"Why is the sky blue?\" --system \"Answer in one sentence.\"")]
pub(crate) struct RunArgs {
    /// The text to continue, in quotes; before it the path or name of a model, if there are two. A prompt
    /// of `-` reads standard input, without its last line break
    #[arg(required = true, num_args = 1.., value_name = "PROMPT")]
    pub(crate) words: Vec<OsString>,
    /// Most tokens to generate [default: until the text ends or the context is full; 128 for the
    /// embedded model]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    /// Tokens that the context holds [default: as many as needed, or 4096, whichever is more, as
    /// far as the model goes]
    #[arg(long, value_name = "N")]
    pub(crate) ctx: Option<usize>,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) prompt_cache: PromptCacheArgs,
    /// Threads [default: `FUCINA_THREADS`, or all CPUs that the process may use]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Read control tokens such as `<|im_end|>` in the prompt as what they stand for, not as text
    #[arg(long)]
    pub(crate) special: bool,
    /// Go on when the model ends the text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Do not write the prompt before its continuation
    #[arg(long)]
    pub(crate) no_echo: bool,
    /// Write one JSON object at the end, with text, ids, timings and why it stopped
    #[arg(long)]
    pub(crate) json: bool,
    /// Write nothing but errors to standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Take the prompt for a message to an assistant, and write its answer alone
    #[arg(long, conflicts_with_all = ["special", "prompt_cache"])]
    pub(crate) chat: bool,
    /// End before this text; may be given more than once
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) turn: TurnArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// How tokens are chosen.
#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Always take the most likely token: --temp 0 and no penalties
    #[arg(long, conflicts_with_all = ["temp", "top_k", "top_p", "min_p", "seed"])]
    pub(crate) greedy: bool,
    /// Temperature: 0 takes the most likely token, more is more varied
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    temp: f32,
    /// Choose among the K most likely tokens; 0 among all
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,
    /// Choose among the most likely tokens that have this probability together; 1 among all
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    top_p: f32,
    /// Leave out tokens less likely than this part of the most likely one's probability
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true)]
    min_p: f32,
    /// Divide the logits of recent tokens by this; 1 is off [default: 1.1; 1 with --greedy]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
    /// Lower the logits of recent tokens by this
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Lower the logits of recent tokens by this for each time they occurred
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// How many of the last tokens count as recent
    #[arg(long, value_name = "N", default_value_t = 64)]
    repeat_last_n: usize,
    /// Start of the random numbers: the same seed gives the same text [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Measure prompt processing (pp) and text generation (tg)
///
/// A test ppN runs N tokens in one go, tgN runs N tokens one by one. After one round to warm up,
/// each is repeated; t/s is the mean of the rounds ± their standard deviation.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  fucina bench
  fucina bench ops
  fucina bench account model.gguf
  fucina bench gpu-dispatch
  fucina bench model.gguf -p 128,512 -n 32 -t 1,2,4
  fucina bench model.gguf -d 1024 --json > record.json")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) calls: Option<Calls>,
    /// A GGUF file, or the name of a pulled model [default: the embedded model]
    pub(crate) model: Option<PathBuf>,
    /// Tokens of a prompt, a list; 0 leaves the test out [default: 512, or what fits the context]
    #[arg(short = 'p', long, value_name = "N,..", value_delimiter = ',')]
    pub(crate) n_prompt: Option<Vec<usize>>,
    /// Tokens to generate, a list; 0 leaves the test out [default: 128, or what fits the context]
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',')]
    pub(crate) n_gen: Option<Vec<usize>>,
    /// Rounds of each test
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = repetitions)]
    pub(crate) repetitions: usize,
    /// Threads, a list [default: `FUCINA_THREADS`, or all CPUs that the process may use]
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', value_parser = threads)]
    pub(crate) threads: Vec<usize>,
    /// Tokens in the context before each test, a list
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', default_value = "0")]
    pub(crate) depth: Vec<usize>,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// Write JSON with every sample instead of a table
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Write CSV instead of a table
    #[arg(long)]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    /// Write nothing but errors to standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Show what a GGUF file holds
///
/// Metadata, tensors with the CPU kernel that each will use, sums, and memory. Also for files whose
/// architecture cannot be run.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fucina inspect model.gguf
  fucina inspect model.gguf --check
  fucina inspect model.gguf --json > model.json")]
pub(crate) struct InspectArgs {
    /// A GGUF file, the first of a split model, or the name of a pulled one [default: the embedded
    /// model]
    pub(crate) model: Option<PathBuf>,
    /// Decode every tensor, show minimum, maximum and mean, and look for damaged values: exit code
    /// 3 if there are any
    #[arg(long)]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// Write one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Write nothing but errors to standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Write a model in another format
///
/// Matrices get the format, vectors and norms stay as they are. Names mean what they mean for
/// llama.cpp's `llama-quantize`, and the bytes are the same: `q4_k_m` keeps some matrices better
/// than `q4_k_s` does.
/// OUT is replaced when it is complete.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fucina quantize model-f16.gguf model-q4_k_m.gguf --to q4_k_m
  fucina quantize model-q8_0.gguf model-q4_0.gguf --to q4_0 --requantize")]
pub(crate) struct QuantizeArgs {
    /// A GGUF file, the first of a split model, or the name of a pulled one
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// The file to write
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// The format
    #[arg(long, value_name = "FORMAT", ignore_case = true)]
    pub(crate) to: Recipe,
    /// Every matrix in the format that the recipe is named after, without exceptions
    #[arg(long)]
    pub(crate) pure: bool,
    /// Quantize again what is quantized already
    #[arg(long)]
    pub(crate) requantize: bool,
    /// Threads [default: `FUCINA_THREADS`, or all CPUs that the process may use]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Write one JSON object with what was done
    #[arg(long)]
    pub(crate) json: bool,
    /// Write nothing but errors to standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Show what this machine offers and what will be used
///
/// CPU, threads and quota, the instruction set and why, the kernel for each format, the pool, the
/// environment variables, and which accelerators were found and why not.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Write one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=1024).contains(threads));
    threads.ok_or_else(|| "a number of threads from 1 to 1024 is expected".to_owned())
}

pub(crate) fn repetitions(text: &str) -> Result<usize, String> {
    let repetitions = text.parse().ok().filter(|rounds| (1..=1000).contains(rounds));
    repetitions.ok_or_else(|| "a number of rounds from 1 to 1000 is expected".to_owned())
}

impl SamplingArgs {
    /// The configuration, checked, with a random seed where none was asked for.
    pub(crate) fn config(
        &self,
        random_seed: impl FnOnce() -> u64,
    ) -> Result<SamplerConfig, Failure> {
        let repeat_penalty = self.repeat_penalty.unwrap_or(if self.greedy { 1.0 } else { 1.1 });
        let config = SamplerConfig {
            temperature: if self.greedy { 0.0 } else { self.temp },
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_last_n: self.repeat_last_n,
            seed: self.seed.unwrap_or_else(random_seed),
        };
        match config.validate() {
            Ok(()) => Ok(config),
            Err(ConfigError::NotAllowed { field, value, allowed }) => {
                let flag = if field == "temperature" { "temp" } else { field }.replace('_', "-");
                Err(Failure::usage(format!("--{flag} is {value}, but must be {allowed}")))
            }
            Err(error) => Err(Failure::usage(error.to_string())),
        }
    }
}

/// Reads the command line. Prints help and version itself.
///
/// # Errors
///
/// Fails with one sentence on what is wrong with it.
pub(crate) fn parse() -> anyhow::Result<Command> {
    let error = match Cli::try_parse() {
        Ok(cli) => return Ok(cli.command),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::print(&error.render().to_string())?;
            std::process::exit(Exit::Ok as i32);
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::line(error.render().to_string().trim_end());
            std::process::exit(Exit::Usage as i32);
        }
        _ => Err(Failure::usage(sentence(&error.render().to_string())).into()),
    }
}

/// The message and the tip of a parser's report, in one sentence.
fn sentence(report: &str) -> String {
    let mut paragraphs = report
        .split("\n\n")
        .map(|paragraph| paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    let first = paragraphs.next().unwrap_or_default();
    let mut sentence = first.strip_prefix("error: ").unwrap_or(&first).to_owned();
    if let Some(tip) = paragraphs.find_map(|p| p.strip_prefix("tip: ").map(str::to_owned)) {
        sentence.push_str("; ");
        sentence.push_str(&tip);
    }
    sentence.push_str("; see `fucina --help`");
    sentence
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_report_becomes_one_sentence_with_its_tip() {
        let error = Cli::try_parse_from(["fucina", "run", "--tmp", "1", "x"]).err().unwrap();
        let text = sentence(&error.render().to_string());
        assert!(text.starts_with("unexpected argument '--tmp' found; a similar"), "{text}");
        assert!(!text.contains('\n'), "{text}");
        assert!(text.ends_with("see `fucina --help`"), "{text}");
    }
}
