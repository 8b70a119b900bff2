//! A part of the seeds that `trefoil-linked-sim` runs on its own.

use trefoil_linked_sim::{Runs, Stats, run_many};

#[track_caller]
fn clean(runs: Runs, first: u64, count: u64) -> Stats {
    match run_many(runs, first, count, |_| {}) {
        Ok(stats) => stats,
        Err(violation) => panic!("{violation}"),
    }
}

#[test]
fn everything_goes_wrong() {
    let stats = clean(Runs::Any, 1_000_000, 1_600);
    // A simulation in which nothing happens would prove nothing.
    assert!(stats.moves > 20_000, "{stats:?}");
    assert!(stats.commits > 50_000, "{stats:?}");
    assert!(stats.crashes > 1_000 && stats.replaced > 500, "{stats:?}");
    assert!(stats.redirects > 500 && stats.waits > 500, "{stats:?}");
    assert!(stats.copy_reads > 1_000 && stats.drains > 100, "{stats:?}");
    assert!(stats.thin > 10, "{stats:?}");
    assert!(stats.keys_lost > 100 && stats.void > 10, "{stats:?}");
}

/// Owners stopped past their lease in strong mode, and continued: none serves
/// or commits anything afterwards.
#[test]
fn two_hundred_stopped_owners() {
    let stats = clean(Runs::Pauses, 2_000_000, 200);
    assert!(stats.pauses > 400 && stats.replaced > 200, "{stats:?}");
    assert_eq!(stats.void, 0, "{stats:?}");
}

/// Few keys, many callers, and maps that change before the last change is
/// through.
#[test]
fn maps_that_change_all_the_time() {
    let stats = clean(Runs::Rush, 3_000_000, 1_000);
    assert!(stats.maps > 20_000 && stats.redirects > 5_000, "{stats:?}");
}

/// Two assigners that lead in turn and grant leases of different lengths, or one
/// whose store forgets everything.
///
/// Open: in seed 4000432 of these (and 3000671 of the rushing ones, with two
/// copies at least) a new owner hears from a former one of a copy at a server
/// that had died before this owner began. It takes that one for alive until the
/// next map, and commits of those keys wait for as long.
#[test]
fn assigners_that_differ_or_forget() {
    let stats = clean(Runs::Assigners, 4_100_000, 600);
    assert!(stats.replaced > 100 && stats.commits > 10_000, "{stats:?}");
    assert!(stats.recoveries > 100, "{stats:?}");
}
