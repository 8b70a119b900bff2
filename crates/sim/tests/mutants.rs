//! Every safety rule is broken once, and the simulator must notice, within a
//! bounded number of seeds, by a property that the rule protects.
#![cfg(feature = "mutants")]

use trefoil_client_core::mutants::Mutant as Core;
use trefoil_sim::mutants::{Rule, hunt};
use trefoil_store::mutants::Mutant as Stored;

#[test]
fn explore() {
    let rules = [
        Rule::Store(Stored::BoundIgnored),
        Rule::Store(Stored::TombstoneForgottenSilently),
        Rule::Store(Stored::EvictionForgotten),
        Rule::Store(Stored::ExpiryForgotten),
        Rule::Store(Stored::CasNotExact),
        Rule::Store(Stored::PublishedBeforeData),
        Rule::Store(Stored::ChecksumUnbound),
        Rule::Store(Stored::OverflowUnflagged),
        Rule::Client(Core::AcksAcrossEpochs),
        Rule::Client(Core::VotesAcrossEpochs),
        Rule::Client(Core::CasResent),
        Rule::Client(Core::OneRefusalFails),
        Rule::Client(Core::OneApplicationStores),
        Rule::Client(Core::VoteOfOne),
        Rule::Client(Core::AckOfOne),
        Rule::Client(Core::ChecksumIgnored),
        Rule::Client(Core::StabilityIgnored),
        Rule::Client(Core::ConfigIgnored),
    ];
    for rule in rules {
        let start = std::time::Instant::now();
        let report = hunt(rule, 0, 40_000, 2);
        let found: Vec<String> = report
            .violations
            .iter()
            .map(|v| format!("{}@{}", v.property, v.seed))
            .collect();
        println!(
            "{rule:?}: {found:?} after {} seeds {:.1} s",
            report.stats.seeds,
            start.elapsed().as_secs_f64()
        );
    }
}
