//! The suite on the reference provider, and the suite on providers that break a rule.

use std::sync::Arc;

use crate::conformance;
use crate::reference::{ReferenceConfig, ReferenceProvider};

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
