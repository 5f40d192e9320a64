//! The `fucina` command. Text and tables go to standard output, everything else to standard error.
//!
//! Each command is a file. [`exit`] holds the exit codes.

#![forbid(unsafe_code)]

mod answer;
mod args;
mod bench;
mod cache;
mod chat;
mod doctor;
mod exit;
mod inspect;
mod load;
mod models;
mod output;
mod perplexity;
mod placement;
mod printer;
mod progress;
mod prompt_cache;
mod quantize;
mod replace;
mod run;
mod signals;
mod source;
mod terminal;
mod tokenize;
mod trace;

use std::process::ExitCode;
use std::time::Instant;

use args::Command;

fn main() -> ExitCode {
    let start = Instant::now();
    let result = args::parse().and_then(|command| match command {
        Command::Run(args) => run::run(&args, start),
        Command::Chat(args) => chat::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Pull(args) => models::pull::run(&args),
        Command::List(args) => models::list::run(&args),
        Command::Rm(args) => models::rm::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    });
    exit::report(result).into()
}
