//! The client's own driver keeps the promise on many histories, and leaks nothing.

use crate::replay::replays;
use trefoil_sim::whole::{Count, Scene, run, run_many, run_scene, run_seed};

/// Seeds of one test run; `trefoil sim --whole` and `make soak` run more.
const SEEDS: u64 = 50_000;
/// The same of runs of a scene; `make soak` gives more.
const SEEDS_OF_SCENE: u64 = 2_000;
/// Each of these starts some twenty backends.
const SEEDS_OF_RESIZES: u64 = 500;
const MOVE_SEEDS: &str = "TREFOIL_TEST_MOVE_SEEDS";
const RESIZE_SEEDS: &str = "TREFOIL_TEST_RESIZE_SEEDS";
const REPLACE_SEEDS: &str = "TREFOIL_TEST_REPLACE_SEEDS";
/// What only scenes reach.
const OF_SCENES: [Count; 10] = [
    Count::Moved,
    Count::MovesGivenUp,
    Count::Resized,
    Count::ResizesGivenUp,
    Count::ResizedLate,
    Count::BrokenOff,
    Count::RetiredByKill,
    Count::Replaced,
    Count::BegunLate,
    Count::RaisesRefused,
];

#[test]
fn the_driver_keeps_the_promise_and_the_rare_events_are_reached() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = run_many(0, SEEDS, threads, &|_| {});
    if let Some(violation) = report.violations.first() {
        panic!("{violation}");
    }
    assert_eq!(report.stats.get(Count::Seeds), SEEDS);
    for (count, name) in Count::ALL {
        if OF_SCENES.contains(count) {
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
    let reached = [
        Count::Moved,
        Count::MovesGivenUp,
        Count::Killed,
        Count::ShardsRecovered,
    ];
    keeps_the_promise(Scene::Moves, (MOVE_SEEDS, SEEDS_OF_SCENE), &reached);
}

#[test]
fn a_cell_gets_another_size_while_its_backends_are_killed_and_hang() {
    let reached = [
        Count::Resized,
        Count::ResizesGivenUp,
        Count::ResizedLate,
        Count::BrokenOff,
        Count::Killed,
        Count::Stopped,
        Count::StaleReplies,
    ];
    keeps_the_promise(Scene::Resizes, (RESIZE_SEEDS, SEEDS_OF_RESIZES), &reached);
}

#[test]
fn places_are_given_away_while_those_that_had_them_live() {
    let reached = [
        Count::Replaced,
        Count::BegunLate,
        Count::RaisesRefused,
        Count::Killed,
        Count::ShardsRecovered,
        Count::StaleReplies,
    ];
    keeps_the_promise(Scene::Replaces, (REPLACE_SEEDS, SEEDS_OF_SCENE), &reached);
}

/// As many seeds as the variable says, or so many; these events have to be reached.
#[track_caller]
fn keeps_the_promise(scene: Scene, (variable, usual): (&str, u64), events: &[Count]) {
    let seeds = std::env::var(variable).ok();
    let seeds = seeds.map_or(usual, |seeds| seeds.parse().unwrap());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = run_scene(scene, 0, seeds, threads);
    if let Some(violation) = report.violations.first() {
        panic!("{violation}");
    }
    for count in events {
        let reached = report.stats.get(*count);
        assert!(reached > seeds / 20, "{count:?}: {reached}");
    }
}
