//! A part of the seeds that `trefoil-linked-sim` runs on its own.

use trefoil_linked_sim::{Ends, Runs, Stats, run_many, run_seed};

#[track_caller]
fn clean(runs: Runs, first: u64, count: u64) -> Stats {
    match run_many(runs, first, count, |_| {}) {
        Ok(stats) => stats,
        Err(violation) => panic!("{violation}"),
    }
}

#[test]
fn everything_goes_wrong() {
    let stats = clean(Runs::Any, 1_000_000, 56_350);
    // A simulation in which nothing happens would prove nothing.
    assert!(stats.moves > 610_000, "{stats:?}");
    assert!(stats.commits > 1_680_000, "{stats:?}");
    assert!(
        stats.crashes > 46_500 && stats.replaced > 9_300,
        "{stats:?}"
    );
    assert!(
        stats.redirects > 45_000 && stats.waits > 70_000,
        "{stats:?}"
    );
    assert!(
        stats.copy_reads > 215_000 && stats.drains > 10_200,
        "{stats:?}"
    );
    assert!(stats.thin > 18_500, "{stats:?}");
    assert!(stats.keys_lost > 75_000 && stats.void > 1_850, "{stats:?}");
}

/// Owners stopped past their lease in strong mode, and continued: none serves
/// or commits anything afterwards.
#[test]
fn stopped_owners() {
    let stats = clean(Runs::Pauses, 2_000_000, 3_500);
    assert!(stats.pauses > 8_000 && stats.replaced > 4_000, "{stats:?}");
    assert_eq!(stats.void, 0, "{stats:?}");
}

/// Few keys, many callers, and maps that change before the last change is
/// through.
#[test]
fn maps_that_change_all_the_time() {
    let stats = clean(Runs::Rush, 3_000_000, 12_000);
    assert!(
        stats.maps > 200_000 && stats.redirects > 60_000,
        "{stats:?}"
    );
    assert!(stats.taken_back > 1_400, "{stats:?}");
}

/// Windows that are always full, while maps change all the time.
#[test]
fn windows_that_are_always_full() {
    let stats = clean(Runs::Windows, 5_000_000, 5_000);
    assert!(stats.maps > 60_000 && stats.commits > 350_000, "{stats:?}");
    assert!(stats.moves > 120_000 && stats.crashes > 5_000, "{stats:?}");
}

/// Nobody's change is overwritten by one that was computed before it: with callers
/// that give up, owners that die, and maps that change.
#[test]
fn changes_that_depend_on_what_is_there() {
    let stats = clean(Runs::Updates, 6_000_000, 3_000);
    assert!(
        stats.commits > 300_000 && stats.crashes > 3_000,
        "{stats:?}"
    );
    assert!(stats.moves > 8_000 && stats.replaced > 500, "{stats:?}");
}

/// Servers without room, so that keys stay where they were, while others die and drain one
/// after another: what has an owner when one dies is not lost by that.
#[test]
fn deaths_apart_in_time_while_keys_stay() {
    let stats = clean(Runs::Stays, 7_000_000, 2_000);
    assert!(
        stats.commits > 100_000 && stats.crashes > 6_000,
        "{stats:?}"
    );
    assert!(stats.unmoved > 12_000 && stats.drains > 1_400, "{stats:?}");
    assert!(stats.stays > 900, "{stats:?}");
    assert!(
        stats.stays_copied > 900 && stats.stays_struck > 350,
        "{stats:?}"
    );
}

/// Links that are cut for long while their servers have their leases: no request waits for
/// longer than it takes to find another way, and what holds elsewhere holds, with servers
/// that die meanwhile.
#[test]
fn links_that_are_cut_for_long() {
    let stats = clean(Runs::Cuts, 8_000_000, 1_500);
    assert!(stats.passed > 200_000, "{stats:?}");
    assert!(stats.commits > 400_000 && stats.moves > 20_000, "{stats:?}");
    assert!(stats.crashes > 1_300, "{stats:?}");
}

/// Servers that stand still for less than their lease: what they are not to confirm does not
/// wait for them.
#[test]
fn servers_that_stand_still_hold_up_nothing_else() {
    let stats = clean(Runs::Hangs, 9_000_000, 500);
    assert!(stats.pauses > 1_800 && stats.commits > 120_000, "{stats:?}");
}

/// Hundreds of keys at few servers: what moves takes several chunks, and the windows are
/// full.
#[test]
fn hundreds_of_keys() {
    let stats = clean(Runs::Crowd, 10_000_000, 150);
    assert!(stats.moves > 250_000, "{stats:?}");
    assert!(
        stats.chunks > 6_000 && stats.chunk_keys > 6 * stats.chunks,
        "{stats:?}"
    );
}

/// Two assigners that both run: one is elected, loses its lead while it is stopped or cut
/// off, and what it asked for before is refused.
#[test]
fn assigners_that_are_elected() {
    let stats = clean(Runs::Elections, 11_000_000, 3_000);
    assert!(stats.elections > 8_000 && stats.usurpers > 400, "{stats:?}");
    assert!(stats.commits > 130_000 && stats.replaced > 150, "{stats:?}");
    assert!(stats.unheard > 120, "{stats:?}");
}

/// Two assigners that lead in turn and grant leases of different lengths, or one
/// whose store forgets everything.
#[test]
fn assigners_that_differ_or_forget() {
    let stats = clean(Runs::Assigners, 4_100_000, 13_000);
    assert!(
        stats.replaced > 3_000 && stats.commits > 400_000,
        "{stats:?}"
    );
    assert!(stats.recoveries > 2_500, "{stats:?}");
}

/// Each of these was a violation once, of the servers or of what the simulator took
/// for true.
#[test]
fn seeds_that_found_something() {
    for (runs, seed) in [
        // A new owner hears of a copy at a server that had died before it began.
        (Runs::Assigners, 4_000_432),
        (Runs::Rush, 3_000_671),
        // A value is lost while a removal of it waits for its turn.
        (Runs::Assigners, 4_004_834),
        // A copy is being dropped when the next map wants one there again.
        (Runs::Any, 2_590),
        (Runs::Rush, 3_001_747),
        // Commits are under way when a server is to have copies, and the window is full.
        (Runs::Any, 32),
        (Runs::Windows, 2),
        // A copy that was dropped is to be there again, and what was sent after the
        // order to drop it fails.
        (Runs::Rush, 1_357),
        (Runs::Any, 111_493),
        (Runs::Assigners, 117_294),
        // A copy is filled while its drop is not confirmed, filled again by mistake, and
        // a commit confirmed that was told behind the first of both.
        (Runs::Windows, 204_415),
        // One range is lost by a death, and a key of another one on its way.
        (Runs::Rush, 103_254),
        // A copy cannot store a commit while its key is to be given away: it was
        // dropped, and with its owner's death what was acknowledged before.
        (Runs::Rush, 204_611),
        (Runs::Rush, 3_004_890),
        // A holder had died before a new owner came, who had claimed once more since
        // the giver answered.
        (Runs::Rush, 21_327),
        (Runs::Rush, 95_722),
        (Runs::Rush, 258_831),
        // A store that had forgotten everything told its last map to who came then, and
        // let who had been away come back after it had dealt anew. It dealt as at its
        // first start: a later one took a server of before for the one that knew most.
        (Runs::Assigners, 4_427),
        (Runs::Assigners, 4_595),
        (Runs::Assigners, 8_668),
        // Who passed frames on for others had a small window, and dropped the questions and
        // answers that would have had them speak directly again, at the same point of what
        // was said again and again.
        (Runs::Updates, 6_000_019),
        (Runs::Updates, 6_000_075),
        (Runs::Windows, 5_000_859),
        // What a copy could not store waited for its turn, the copy was dropped, and when it
        // was to be there again commits were acknowledged that went on waiting for that turn.
        (Runs::Any, 1_019_869),
    ] {
        for ends in [Ends::Late, Ends::Early] {
            if let Err(violation) = run_seed(runs, seed, ends, None) {
                panic!("{violation}");
            }
        }
    }
}
