//! The suite on the reference provider, and the suite on providers that break a rule.

use std::sync::Arc;

use crate::conformance::{self, Verdict};
use crate::reference::{ManualProvider, ReferenceConfig, ReferenceProvider};

fn report(config: &ReferenceConfig) -> conformance::Report {
    let make = || Arc::new(ReferenceProvider::new(config.clone())) as _;
    conformance::run(&make)
}

#[test]
fn the_reference_provider_conforms() {
    let report = report(&ReferenceConfig::default());
    report.assert_passed();
    assert_eq!(report.skipped().count(), 0, "it offers everything");
    assert!(report.passed() > 200, "{report}");
}

#[test]
fn the_reference_provider_conforms_when_it_is_slow_and_small() {
    let config = ReferenceConfig {
        seed: 11,
        lanes: 4,
        max_in_flight: 2,
        max_delay_us: 60,
        ..ReferenceConfig::default()
    };
    report(&config).assert_passed();
}

/// A provider that computes nonsense fails every check that looks at a value.
#[test]
fn a_provider_that_computes_nonsense_does_not_conform() {
    let make = || {
        let provider = ManualProvider::default();
        provider.set_ends_at_once();
        Arc::new(provider) as _
    };
    let report = conformance::run(&make);
    let passed = report.checks.iter().filter(|(_, verdict)| *verdict == Verdict::Passed);
    for (name, _) in passed {
        // No element to compare, or no command in flight to bound.
        let empty = ["x0x", "0x3x", "1x0x", " 0x", " 0 from"];
        let is_empty = empty.iter().any(|empty| name.contains(empty));
        assert!(is_empty || name == "providers come and go", "{name}");
    }
    assert!(report.failures().any(|(name, _)| name == "a chain needs no host read"));
}

/// A provider that faults now and then fails, too: the suite does not take an error for a result.
#[test]
fn a_provider_that_faults_does_not_conform() {
    let config = ReferenceConfig { fault_percent: 30, ..ReferenceConfig::default() };
    let report = report(&config);
    assert!(report.failures().any(|(_, why)| why.contains("injected fault")), "{report}");
}
