//! The client's own driver keeps the promise on many histories, and leaks nothing.

use crate::replay::replays;
use trefoil_sim::whole::{Count, Scene, run, run_many, run_scene, run_seed};

/// Seeds of one test run; `trefoil sim --whole` and `make soak` run more.
const SEEDS: u64 = 100_000;
/// The same of runs in which backends move; `make soak` gives more.
const SEEDS_OF_MOVES: u64 = 2_000;
const MOVE_SEEDS: &str = "TREFOIL_TEST_MOVE_SEEDS";

#[test]
fn the_driver_keeps_the_promise_and_the_rare_events_are_reached() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = run_many(0, SEEDS, threads, &|_| {});
    if let Some(violation) = report.violations.first() {
        panic!("{violation}");
    }
    assert_eq!(report.stats.get(Count::Seeds), SEEDS);
    for (count, name) in Count::ALL {
        if matches!(count, Count::Moved | Count::MovesGivenUp) {
            continue;
        }
        let reached = report.stats.get(*count);
        assert!(reached > 100, "{name} was hardly reached: {reached}");
    }
    assert!(report.stats.get(Count::Hits) > 5 * SEEDS);
    assert!(report.stats.get(Count::Stored) > 5 * SEEDS);
}

#[test]
fn a_seed_replays_event_by_event() {
    replays(run_seed, run);
}

#[test]
fn a_cell_that_was_started_anew_is_found_whatever_carries_its_clients() {
    let report = run_scene(Scene::SmallerCell, 0, 400, 2);
    if let Some(violation) = report.violations.first() {
        panic!("{violation}");
    }
}

#[test]
fn backends_move_while_others_are_killed() {
    let seeds = std::env::var(MOVE_SEEDS).ok();
    let seeds = seeds.map_or(SEEDS_OF_MOVES, |seeds| seeds.parse().unwrap());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = run_scene(Scene::Moves, 0, seeds, threads);
    if let Some(violation) = report.violations.first() {
        panic!("{violation}");
    }
    for count in [
        Count::Moved,
        Count::MovesGivenUp,
        Count::Killed,
        Count::ShardsRecovered,
    ] {
        let reached = report.stats.get(count);
        assert!(reached > seeds / 20, "{count:?}: {reached}");
    }
}
