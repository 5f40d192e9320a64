//! The registry of providers: one line each.

use std::sync::Arc;

use fucina_accel::Provider;

/// One provider that this build knows.
pub struct Found {
    /// Short lower-case name.
    pub name: &'static str,
    /// The provider, or one sentence on why this machine has none.
    pub provider: Result<Arc<dyn Provider>, String>,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Found").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Every provider that this build knows, usable or not, best first.
///
/// No device provider is part of this version. The reference provider of the seam crate, which
/// computes on the CPU, is for tests.
pub fn default_providers() -> Vec<Found> {
    Vec::new()
}
