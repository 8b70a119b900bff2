//! Processes that are killed and power that is cut at any access.

use crate::sim::{self, Stats};

/// `TREFOIL_TEST_JOURNAL_SEEDS=FIRST..END` for others.
const SEEDS: std::ops::Range<u64> = 0..10_000;

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("TREFOIL_TEST_JOURNAL_SEEDS") else {
        return SEEDS;
    };
    let (first, end) = text.split_once("..").expect("FIRST..END");
    let number = |text: &str| text.parse().expect("a number");
    number(first)..number(end)
}

#[test]
fn what_was_acknowledged_has_its_effect_once() {
    let seeds = seeds();
    let mut stats = Stats::default();
    for seed in seeds.clone() {
        let (of_run, violation) = sim::run(seed);
        assert!(
            violation.is_none(),
            "{violation:?}\nto see it again: TREFOIL_TEST_JOURNAL_SEEDS={seed}..{} \
             cargo test --profile tested -p trefoil-journal --test all power",
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
        ("acknowledged", stats.acknowledged),
        ("replayed", stats.replayed),
        (
            "executed, never acknowledged",
            stats.unacknowledged_executed,
        ),
        ("lost, never acknowledged", stats.lost),
        ("power cuts", stats.cuts),
        ("kills", stats.kills),
        ("failures", stats.failures),
        ("failed reads", stats.reads_failed),
        ("releases", stats.releases),
        ("laps of the ring", stats.laps),
    ] {
        assert!(times > count / 50, "{what}: {times} in {count} runs");
    }
}
