//! The promise holds on many histories, the histories reach the rare branches,
//! and a seed replays exactly.

use crate::replay::replays;
use trefoil_client_core::get::MissReason;
use trefoil_sim::{Mark, Property, run, run_many, run_seed};

/// Seeds of one test run; `trefoil sim` and `make soak` run more.
const SEEDS: u64 = 50_000;

#[test]
fn every_history_keeps_the_promise_and_the_rare_branches_are_reached() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = run_many(0, SEEDS, threads, &|_| {});
    if let Some(violation) = report.violations.first() {
        panic!("{violation}");
    }
    let stats = &report.stats;
    assert_eq!(stats.seeds, SEEDS);
    for (mark, name) in Mark::ALL {
        assert!(stats.mark(mark) > 100, "{name} was hardly reached");
    }
    for reason in [
        MissReason::Absent,
        MissReason::Expired,
        MissReason::Inquorate,
    ] {
        assert!(stats.misses[reason as usize] > 1_000, "{reason}");
    }
    assert!(stats.hits > 10 * SEEDS && stats.stored > 10 * SEEDS);
}

#[test]
fn a_seed_replays_step_by_step() {
    replays(run_seed, run);
}

#[test]
fn a_batch_counts_every_seed_once_and_reports_progress() {
    let last = std::cell::Cell::new(0);
    let report = run_many(500, 100, 3, &|done| last.set(done));
    assert_eq!(
        (report.first, report.count, report.stats.seeds),
        (500, 100, 100)
    );
    assert_eq!(last.get(), 100);
    assert!(report.is_clean());
}

#[test]
fn properties_have_names_for_reports() {
    assert_eq!(Property::Fresh.to_string(), "fresh");
    assert_eq!(Property::Value.name(), "value");
}
