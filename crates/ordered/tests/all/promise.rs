//! What the queue promises, under random interleavings, deaths, nonsense and ends.

use crate::sim;
use crate::sim::stats::Stats;

/// `TREFOIL_TEST_ORDERED_SEEDS=FIRST..END` for others.
const SEEDS: std::ops::Range<u64> = 0..100_000;

#[test]
fn order_once_and_nothing_that_was_refused() {
    let seeds = sim::seeds("TREFOIL_TEST_ORDERED_SEEDS", SEEDS);
    let mut stats = Stats::default();
    for seed in seeds.clone() {
        let (of_run, violations) = sim::run(seed);
        assert!(
            violations.is_empty(),
            "{violations:#?}\nto see it again: TREFOIL_TEST_ORDERED_SEEDS={seed}..{} \
             cargo test --profile tested -p trefoil-ordered --test all promise",
            seed + 1
        );
        stats.add(of_run);
    }
    println!("{stats:?}");
    let count = seeds.end - seeds.start;
    if count < SEEDS.end {
        return;
    }
    // What did not happen was not shown.
    for (what, times) in [
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
        ("taken", stats.taken),
        ("lanes removed", stats.removed),
        ("places used again", stats.reused),
    ] {
        assert!(times > count / 100, "{what}: {times} in {count} runs");
    }
}
