//! When to try again what failed for want of memory: memory may have been freed since, but trying
//! takes time, so the tries become rarer.

/// Most tries after which the pauses still grow.
const MAX_DOUBLINGS: u32 = 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    failures: u32,
    /// Calls that still do without.
    pause: u32,
}

impl Retry {
    /// Whether this call is to try.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        is_due
    }

    /// Notes that the try has failed: the next call tries again, and from then on the pauses
    /// double.
    pub(crate) fn failed(&mut self) {
        self.pause = (1 << self.failures.min(MAX_DOUBLINGS)) - 1;
        self.failures = self.failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let mut retry = Retry::default();
        let mut tries = Vec::new();
        for call in 0..10_000 {
            if retry.is_due() {
                tries.push(call);
                retry.failed();
            }
        }
        assert_eq!(tries[..6], [0, 1, 3, 7, 15, 31]);
        assert!(tries.windows(2).all(|pair| pair[1] - pair[0] <= 1 << MAX_DOUBLINGS), "{tries:?}");
        assert!(tries[tries.len() - 1] > 8000, "{tries:?}");
    }
}
