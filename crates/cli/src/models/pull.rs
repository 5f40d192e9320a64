//! `fucina pull`: a model by name, into the folder of models.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use fucina_hub::{Config, Event, Licence, Plan, Pulled, Reference, Store, free_bytes};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::output;
use crate::progress::Progress;

/// Fetch a model
///
/// Goes on where an earlier pull broke off. The file is compared with the source's sum where it gives
/// one, and has its name only when it is complete. Writes the path of the file to standard output.
#[derive(Args)]
#[command(after_help = "\
NAME is one of `fucina list --available`, or of the Hugging Face hub:
  hf:OWNER/REPO:FILE   a file, or a part of its name that no other file of the repository has
  hf:OWNER/REPO        the only GGUF file; if there are several, they are listed

Examples:
  fucina pull qwen2.5-coder-0.5b
  fucina pull gemma-3-270m --yes
  fucina pull hf:Qwen/Qwen3-0.6B-GGUF:Q8_0")]
pub(crate) struct PullArgs {
    /// The model
    pub(crate) name: String,
    /// Accept the licence
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Write one JSON object instead of the path
    #[arg(long)]
    pub(crate) json: bool,
    /// Write nothing but errors and terms to standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    name: &'a str,
    path: String,
    bytes: u64,
    licence: &'a Licence,
    /// Null if it was there before.
    source: Option<&'a str>,
    already: bool,
    /// The sums were compared with what a source says, not only the lengths.
    verified: bool,
    seconds: f64,
}

pub(crate) fn run(args: &PullArgs) -> anyhow::Result<Exit> {
    let start = Instant::now();
    let config = Config::from_env()?;
    let plan = Plan::of(&Reference::parse(&args.name)?, &config)?;
    if !is_here(&plan, &config) && !accepted(&plan, args)? {
        output::error("the terms were not accepted; nothing was pulled");
        return Ok(Exit::Failed);
    }
    if !args.quiet {
        say_room(&plan, &config);
    }
    let pulled = pull(&plan, &config, args.quiet)?;
    if args.json {
        output::print_json(&Report {
            name: &plan.name,
            path: pulled.path.display().to_string(),
            bytes: pulled.bytes,
            licence: &plan.licence,
            source: (!pulled.already).then_some(&*pulled.source),
            already: pulled.already,
            verified: pulled.verified,
            seconds: start.elapsed().as_secs_f64(),
        })?;
    } else {
        output::print(&format!("{}\n", pulled.path.display()))?;
    }
    if !args.quiet {
        output::line(&summary(&plan, &pulled, start.elapsed()));
    }
    Ok(Exit::Ok)
}

/// Whether the terms were accepted already: the model was pulled before.
fn is_here(plan: &Plan, config: &Config) -> bool {
    let store = Store::new(config.models.clone());
    let contents = store.contents().unwrap_or_default();
    contents.models.iter().any(|model| model.name == plan.name && model.record.is_some())
}

/// Shows the licence, and asks if it wants a decision.
fn accepted(plan: &Plan, args: &PullArgs) -> anyhow::Result<bool> {
    let licence = &plan.licence;
    let (name, url) = (output::plain(&licence.name), output::plain(&licence.url));
    if !licence.open || !args.quiet {
        let title = output::plain(&plan.title);
        output::line(&format!("{title} · licence: {name}, {url}"));
    }
    if licence.open || args.yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let message = format!(
            "{} is not under an open licence but under {name}; read {url} and say --yes to accept",
            plan.name
        );
        return Err(Failure::usage(message).into());
    }
    let mut stderr = io::stderr().lock();
    // If nobody can see the question, the answer is no.
    write!(stderr, "Do you accept these terms? [y/N] ").and_then(|()| stderr.flush())?;
    let mut answer = String::new();
    io::stdin().lock().take(64).read_line(&mut answer)?;
    Ok(matches!(&*answer.trim().to_ascii_lowercase(), "y" | "yes"))
}

/// Says what will be fetched, and how much room there is.
fn say_room(plan: &Plan, config: &Config) {
    let needed = plan.needed_bytes(config);
    if needed == 0 {
        return;
    }
    let folder = config.models.display().to_string();
    // The folder need not exist yet.
    let free = config.models.ancestors().find_map(free_bytes);
    let free = free.map_or(String::new(), |free| format!(", {} free", output::bytes(free)));
    output::line(&format!("{} into {}{free}", output::bytes(needed), output::plain(&folder)));
}

/// Fetches with a progress bar.
fn pull(plan: &Plan, config: &Config, quiet: bool) -> Result<Pulled, fucina_hub::Error> {
    let progress = Progress::transfer("pulling", quiet);
    let checking = Progress::new("checking", true, quiet);
    plan.pull(config, &mut |event| match event {
        Event::Progress { done_bytes, total_bytes } => {
            checking.finish();
            progress.set(done_bytes, total_bytes.unwrap_or(done_bytes));
        }
        Event::Checking { done_bytes, total_bytes } => checking.set(done_bytes, total_bytes),
        Event::Retry { error, wait } if !quiet => {
            progress.finish();
            let wait = output::duration(wait);
            output::warning(&format!("{error}; trying again in {wait}"));
        }
        Event::SourceFailed { name, error } if !quiet => {
            progress.finish();
            output::warning(&format!("{name}: {error}; trying the next source"));
        }
        _ => {}
    })
}

fn summary(plan: &Plan, pulled: &Pulled, took: Duration) -> String {
    let (name, size) = (output::plain(&plan.name), output::bytes(pulled.bytes));
    if pulled.already {
        return format!("{name} · {size} · was there already");
    }
    let (source, took) = (output::plain(&pulled.source), output::duration(took));
    let checked = if pulled.verified { "sum" } else { "length" };
    format!("{name} · {size} · {source} · {checked} checked · {took}")
}
