//! Time that does not depend on what else the machine does.

use std::time::Duration;

/// Processor time of the calling thread. `None` where the system does not tell it.
#[cfg(unix)]
pub fn thread_time() -> Option<Duration> {
    let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
    nix::time::clock_gettime(clock).ok().map(Duration::from)
}

/// Processor time of the calling thread. `None` where the system does not tell it.
#[cfg(not(unix))]
pub fn thread_time() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_takes_no_time_and_work_takes_some() {
        let Some(before) = thread_time() else { return };
        std::thread::sleep(Duration::from_millis(50));
        let slept = thread_time().unwrap();
        assert!(slept - before < Duration::from_millis(40), "{before:?} {slept:?}");
        let mut sum = 0u64;
        for at in 0..1_000_000 {
            sum = std::hint::black_box(sum + at);
        }
        assert!(thread_time().unwrap() > slept, "{sum}");
    }
}
