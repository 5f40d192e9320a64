//! `fucina rm`: deletes models from the folder.

use clap::Args;
use fucina_hub::{Contents, Error, Reference, Store};

use super::store;
use crate::exit::Exit;
use crate::output;

/// Delete models
///
/// Deletes the files, and what a broken pull left of them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fucina rm gemma-3-270m
  fucina rm hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf
  fucina rm --leftovers")]
pub(crate) struct RmArgs {
    /// Names, as `fucina list` shows them
    #[arg(required_unless_present_any = ["all", "leftovers"], value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Delete every model that was pulled, and all leftovers; files that were put into the folder
    /// by hand stay
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
    /// Delete what broken pulls left
    #[arg(long, conflicts_with_all = ["names", "all"])]
    pub(crate) leftovers: bool,
    /// Write nothing but errors to standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

pub(crate) fn run(args: &RmArgs) -> anyhow::Result<Exit> {
    let store = store()?;
    let mut freed = 0;
    let mut say = |name: &str, bytes: u64| {
        freed += bytes;
        if !args.quiet {
            output::line(&format!("deleted {}, {}", output::plain(name), output::bytes(bytes)));
        }
    };
    if args.names.is_empty() {
        let Contents { models, leftovers, skipped, .. } = store.contents()?;
        for reason in skipped.iter().filter(|_| !args.quiet) {
            output::warning(&output::plain(&reason.to_string()));
        }
        for model in models.iter().filter(|_| args.all) {
            if model.record.is_some() {
                say(&model.name, store.remove(model)?);
            } else if !args.quiet {
                let path = model.path.display().to_string();
                output::warning(&format!("{path} was not pulled and stays"));
            }
        }
        for left in leftovers.iter().filter(|left| !left.busy) {
            // One that went with its model is gone.
            match store.remove_leftover(left)? {
                0 => {}
                bytes => say(&left.name, bytes),
            }
        }
    }
    for name in &args.names {
        say(name, remove(&store, name)?);
    }
    if !args.quiet && args.names.len() != 1 {
        output::line(&format!("{} freed", output::bytes(freed)));
    }
    Ok(Exit::Ok)
}

/// Deletes the model of a name, or what is left of it.
fn remove(store: &Store, name: &str) -> anyhow::Result<u64> {
    let reference = Reference::parse(name)?;
    if let Some(model) = store.find(&reference)? {
        return Ok(store.remove(&model)?);
    }
    let contents = store.contents()?;
    if let Some(left) = contents.leftovers.iter().find(|left| left.name == name) {
        return Ok(store.remove_leftover(left)?);
    }
    let known = "`fucina list` shows what is there".to_owned();
    Err(Error::Unknown { name: name.to_owned(), known }.into())
}
