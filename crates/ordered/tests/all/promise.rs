//! What the queue promises, under random interleavings, deaths, nonsense and ends.

use crate::sim;
use crate::sim::stats::Stats;

/// `TREFOIL_TEST_ORDERED_SEEDS=FIRST..END` for others.
const SEEDS: std::ops::Range<u64> = 0..100_000;
/// Seeds under way at a time.
const THREADS: usize = 2;

/// What has happened, or the first violation and how to see it again.
fn one_after_the_other(seeds: impl Iterator<Item = u64>) -> Result<Stats, String> {
    let mut stats = Stats::default();
    for seed in seeds {
        let (of_run, violations) = sim::run(seed);
        if !violations.is_empty() {
            return Err(format!(
                "{violations:#?}\nto see it again: TREFOIL_TEST_ORDERED_SEEDS={seed}..{} \
                 cargo test --profile tested -p trefoil-ordered --test all promise",
                seed + 1
            ));
        }
        stats.add(of_run);
    }
    Ok(stats)
}

#[test]
fn order_once_and_nothing_that_was_refused() {
    let seeds = sim::seeds("TREFOIL_TEST_ORDERED_SEEDS", SEEDS);
    let mut stats = Stats::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|at| {
                let seeds = seeds.clone().skip(at).step_by(THREADS);
                scope.spawn(move || one_after_the_other(seeds))
            })
            .collect();
        for thread in threads {
            match thread.join().expect("no panic") {
                Ok(of_thread) => stats.add(of_thread),
                Err(violation) => panic!("{violation}"),
            }
        }
    });
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
        ("held up", stats.held_up),
        ("lanes removed", stats.removed),
        ("places used again", stats.reused),
    ] {
        assert!(times > count / 100, "{what}: {times} in {count} runs");
    }
}
