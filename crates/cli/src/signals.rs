//! Ctrl-C: the first one asks a generation to stop, a second one ends the process.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use anyhow::Context as _;

use crate::exit::Exit;

/// Nothing is under way that is worth finishing: a signal ends the process.
const IDLE: u8 = 0;
/// A generation runs.
const RUNNING: u8 = 1;
/// It was asked to stop.
const STOPPING: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// Takes over SIGINT, SIGTERM and SIGHUP.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if STATE.compare_exchange(RUNNING, STOPPING, SeqCst, SeqCst).is_err() {
            std::process::exit(Exit::Interrupted as i32);
        }
    })
    .context("could not take over Ctrl-C")
}

/// From now on the first signal only asks to stop.
pub(crate) fn begin() {
    STATE.store(RUNNING, SeqCst);
}

/// Whether a signal asked to stop.
pub(crate) fn stop_asked() -> bool {
    STATE.load(SeqCst) == STOPPING
}
