//! A progress bar on standard error, for people who wait.

use std::cell::RefCell;
use std::io::{IsTerminal as _, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Work that is over sooner shows no bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// Appears if standard error is a terminal and the work takes longer than [`PATIENCE`].
pub(crate) struct Progress {
    shown: bool,
    start: Instant,
    bar: RefCell<Option<ProgressBar>>,
    template: String,
}

impl Progress {
    /// `what` is being done; amounts are bytes or plain counts.
    pub(crate) fn new(what: &str, in_bytes: bool, quiet: bool) -> Self {
        let amount = if in_bytes { "{bytes}/{total_bytes}" } else { "{pos}/{len}" };
        Self {
            shown: !quiet && stderr().is_terminal(),
            start: Instant::now(),
            bar: RefCell::new(None),
            template: format!("{what} [{{bar:30}}] {amount}"),
        }
    }

    /// Bytes come from elsewhere: shown with their rate and the time that is left.
    pub(crate) fn transfer(what: &str, quiet: bool) -> Self {
        let mut progress = Self::new(what, true, quiet);
        progress.template = format!(
            "{what} [{{bar:30}}] {{bytes}}/{{total_bytes}} {{binary_bytes_per_sec}} {{eta}} left"
        );
        progress
    }

    /// So much is done.
    pub(crate) fn set(&self, done: u64, total: u64) {
        if !self.shown || self.start.elapsed() < PATIENCE {
            return;
        }
        let mut bar = self.bar.borrow_mut();
        let bar = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(&self.template);
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            // What was there before this process does not count for the rate.
            ProgressBar::new(total).with_position(done).with_style(style.progress_chars("=> "))
        });
        bar.set_position(done);
    }

    /// Wipes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
