//! Ctrl-C: the first one asks a generation to stop, a second one ends the process.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use anyhow::Context as _;

use crate::exit::Exit;
use crate::terminal;

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
        if !ask_to_stop(&STATE) {
            terminal::restore();
            std::process::exit(Exit::Interrupted as i32);
        }
    })
    .context("could not take over Ctrl-C")
}

/// Whether it is enough to ask. If not, the process has to end.
fn ask_to_stop(state: &AtomicU8) -> bool {
    state.compare_exchange(RUNNING, STOPPING, SeqCst, SeqCst).is_ok()
}

/// From now on the first signal only asks to stop.
pub(crate) fn begin() {
    STATE.store(RUNNING, SeqCst);
}

/// From now on a signal ends the process.
pub(crate) fn idle() {
    STATE.store(IDLE, SeqCst);
}

/// Whether a signal asked to stop.
pub(crate) fn stop_asked() -> bool {
    STATE.load(SeqCst) == STOPPING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_signal_of_a_generation_is_a_request() {
        let state = AtomicU8::new(IDLE);
        assert!(!ask_to_stop(&state), "nothing to keep");
        state.store(RUNNING, SeqCst);
        assert!(ask_to_stop(&state));
        assert_eq!(state.load(SeqCst), STOPPING);
        assert!(!ask_to_stop(&state), "impatient");
    }
}
