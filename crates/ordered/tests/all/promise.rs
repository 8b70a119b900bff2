//! What the queue promises, under random interleavings, deaths, nonsense and ends.

use crate::sim;
use crate::sim::stats::Stats;

/// `TREFOIL_TEST_ORDERED_SEEDS` for more.
const SEEDS: u64 = 20_000;

#[test]
fn order_once_and_nothing_that_was_refused() {
    let seeds = std::env::var("TREFOIL_TEST_ORDERED_SEEDS");
    let seeds = seeds.map_or(SEEDS, |text| text.parse().expect("a number"));
    let mut stats = Stats::default();
    for seed in 0..seeds {
        let (of_run, violations) = sim::run(seed);
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
        stats.add(of_run);
    }
    println!("{stats:?}");
    // What did not happen was not shown.
    for (what, count) in [
        ("committed", stats.committed),
        ("answers", stats.answers),
        ("skipped", stats.skipped),
        ("full", stats.full),
        ("closed", stats.closed),
        ("order broken", stats.order_broken),
        ("died with a claim", stats.died_claimed),
        ("died before the mark", stats.died_unmarked),
        ("skips", stats.skips),
        ("broken lanes", stats.broken),
        ("out of order", stats.out_of_order),
        ("waits", stats.waits),
    ] {
        assert!(count > seeds / 100, "{what}: {count} in {seeds} runs");
    }
}
