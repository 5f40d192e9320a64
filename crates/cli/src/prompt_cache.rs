//! `--prompt-cache`: keys and values of a prompt in a file.
//!
//! The file holds every token of the prompt but the last. That one always runs, because its logits
//! choose the first token of the answer. So a run that finds its prompt in the file computes from
//! the same bits as the run that wrote it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use fucina::llm::Session;

use crate::exit::Failure;
use crate::replace::replace;

/// The flags.
#[derive(Debug, Default, Args)]
pub(crate) struct PromptCacheArgs {
    /// Keep what was computed of the prompt in FILE: the beginning that FILE has already is not
    /// computed again, and FILE is replaced once the prompt has run
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    /// Read the file of --prompt-cache, which has to be there, and leave it as it is
    #[arg(long, requires = "prompt_cache")]
    prompt_cache_ro: bool,
}

/// What happened before the last token of the prompt.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct Warm {
    /// Tokens that came from the file.
    pub(crate) restored: usize,
    /// Tokens that ran, and how long they took.
    pub(crate) run: usize,
    pub(crate) time: Duration,
    /// Why the file was not written.
    pub(crate) unsaved: Option<String>,
}

impl PromptCacheArgs {
    /// Makes the session, which holds what was restored, hold the prompt without its last token,
    /// and the file too. `go_on` gets the tokens that are done; if it returns false, the session
    /// may hold fewer. Without the flag nothing happens.
    pub(crate) fn warm(
        &self,
        session: &mut Session<'_>,
        prompt: &[u32],
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> anyhow::Result<Warm> {
        let (Some(path), Some((_, before))) = (&self.prompt_cache, prompt.split_last()) else {
            return Ok(Warm::default());
        };
        let restored = session.len();
        let mut warm = Warm { restored, ..Warm::default() };
        let rest = &before[restored..];
        if rest.is_empty() {
            return Ok(warm);
        }
        let start = Instant::now();
        let logits = session.feed_with(rest, &mut |done| go_on(restored + done))?;
        (warm.run, warm.time) = (session.len() - restored, start.elapsed());
        if logits.is_some() && !self.prompt_cache_ro {
            let saved = replace(path, |file| Ok(session.save(file)?));
            // What was computed is worth more than the file.
            warm.unsaved = saved.err().map(|error| {
                format!("could not write the prompt cache `{}`: {error:#}", path.display())
            });
        }
        Ok(warm)
    }

    /// Makes the session hold what the file has of the prompt without its last token. A file that
    /// is not there has nothing.
    pub(crate) fn restore(&self, session: &mut Session<'_>, prompt: &[u32]) -> anyhow::Result<()> {
        let (Some(path), Some((_, before))) = (&self.prompt_cache, prompt.split_last()) else {
            return Ok(());
        };
        let shown = path.display();
        let metadata = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.prompt_cache_ro => {
                return Ok(check_folder(path)?);
            }
            metadata => {
                metadata.with_context(|| format!("could not read the prompt cache `{shown}`"))?
            }
        };
        // Opening a pipe would wait for a writer.
        if !metadata.is_file() {
            let message = format!("the prompt cache `{shown}` is not a file; name another");
            return Err(Failure::usage(message).into());
        }
        let advice =
            || format!("the prompt cache `{shown}` cannot be used; remove it or name another");
        let mut file = fs::File::open(path).with_context(advice)?;
        session.restore(&mut file, Some(before)).with_context(advice)?;
        Ok(())
    }
}

/// The folder that a new file would be in has to be there before anything is computed.
fn check_folder(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_none_or(Path::is_dir) {
        return Ok(());
    }
    let shown = path.display();
    let message =
        format!("the folder of the prompt cache `{shown}` is not there; create it or name another");
    Err(Failure::usage(message))
}
