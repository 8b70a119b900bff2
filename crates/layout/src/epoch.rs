//! Numbers of epochs.
//!
//! An epoch belongs to one backend and one shard. Acknowledgements, and a GET's
//! votes, count together only if they are of one epoch; so a backend that has
//! forgotten what it acknowledged must be in an epoch that no peer is in, and
//! must stay so however often peers are restarted. Epochs are also ordered:
//! recovery raises those of a cohort to one above all of theirs.
//!
//! | bits | field | why |
//! |---|---|---|
//! | 0..13 | whose | 1: a cohort's, which its members share; n + 2: backend n's alone; 0 is never issued |
//! | 13..32 | round | makes epochs ordered; a restart and a recovery begin another one |
//!
//! Both kinds of epochs only ever meet in the order: an epoch that recovery
//! raises is never one that a restarted backend gives itself, whatever the
//! rounds are.

const WHOSE_BITS: u32 = 13;
const SHARED: u32 = 1;

/// In answers about keys of no shard of the backend that answers: no shard is
/// ever in it.
pub const NONE: u32 = 0;

/// The first epoch of every shard.
pub const FIRST: u32 = SHARED;

/// Backends of one cell at most, for the sake of these numbers.
pub const BACKEND_COUNT_MAX: u32 = (1 << WHOSE_BITS) - 2;

/// The epoch in which backend number `backend` begins its incarnation number
/// `count` with an empty memory. The first incarnation, in which no backend has
/// anything to forget, begins in [`FIRST`]; every later one in an epoch that no
/// other incarnation of any backend begins in. `None` if the numbers are used up.
pub const fn of_incarnation(count: u32, backend: u32) -> Option<u32> {
    if count <= 1 {
        return Some(FIRST);
    }
    let round = count - 1;
    if round > u32::MAX >> WHOSE_BITS || backend >= BACKEND_COUNT_MAX {
        return None;
    }
    Some(round << WHOSE_BITS | (backend + 2))
}

/// The epoch that a cohort is raised to whose members are at most in `highest`.
/// `None` if the numbers are used up.
pub const fn shared_above(highest: u32) -> Option<u32> {
    let round = (highest >> WHOSE_BITS) + 1;
    if round > u32::MAX >> WHOSE_BITS {
        return None;
    }
    Some(round << WHOSE_BITS | SHARED)
}

/// Rounds by which a message may raise an epoch at once: more than a backend that dies at
/// each start is started in a month (each start begins a round of its own), and few
/// enough for the numbers to last.
const ROUNDS_AT_ONCE: u32 = 1 << 17;

/// Whether a cohort whose member is in epoch `current` may be told to raise it to
/// `next`: an epoch that its members can share, and not absurdly far ahead.
pub const fn may_follow(current: u32, next: u32) -> bool {
    let ahead = (next >> WHOSE_BITS).saturating_sub(current >> WHOSE_BITS);
    next & ((1 << WHOSE_BITS) - 1) == SHARED && ahead <= ROUNDS_AT_ONCE
}

/// Whether the shards of one cell can be in epochs from `lowest` to `highest`: both are
/// epochs that somebody issues, there is another one after them, and they are not absurdly
/// far apart.
pub const fn are_of_one_cell(lowest: u32, highest: u32) -> bool {
    let whose = (1 << WHOSE_BITS) - 1;
    let apart = (highest >> WHOSE_BITS).saturating_sub(lowest >> WHOSE_BITS);
    lowest & whose != 0
        && highest & whose != 0
        && shared_above(highest).is_some()
        && apart <= ROUNDS_AT_ONCE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_restarted_backends_are_in_one_epoch() {
        let mut seen = HashSet::new();
        for backend in [0, 1, 2, 7, 4095] {
            assert_eq!(of_incarnation(1, backend), Some(FIRST));
            for count in 2..100 {
                let epoch = of_incarnation(count, backend).unwrap();
                assert!(epoch > FIRST && seen.insert(epoch), "{count} of {backend}");
            }
        }
        // Nor does a recovery ever bring a cohort into one of these.
        let mut epoch = FIRST;
        for _ in 0..1000 {
            let next = shared_above(epoch).unwrap();
            assert!(next > epoch && !seen.contains(&next));
            epoch = next;
        }
        let alone = of_incarnation(500, 3).unwrap();
        assert!(shared_above(alone).unwrap() > alone);
    }

    #[test]
    fn only_shared_epochs_that_are_near_may_follow() {
        let next = shared_above(FIRST).unwrap();
        assert!(may_follow(FIRST, next) && may_follow(next, FIRST));
        assert!(may_follow(of_incarnation(9, 2).unwrap(), next));
        assert!(!may_follow(FIRST, of_incarnation(2, 0).unwrap()));
        assert!(!may_follow(FIRST, NONE));
        let far = (ROUNDS_AT_ONCE + 1) << WHOSE_BITS | SHARED;
        assert!(!may_follow(FIRST, far) && may_follow(next, far));
        assert!(!may_follow(FIRST, u32::MAX));
    }

    #[test]
    fn numbers_are_not_reused_when_they_are_used_up() {
        assert_eq!(of_incarnation(u32::MAX, 0), None);
        assert_eq!(of_incarnation(2, BACKEND_COUNT_MAX), None);
        assert_eq!(shared_above(u32::MAX), None);
        assert!(of_incarnation(1 << 19, BACKEND_COUNT_MAX - 1).is_some());
    }

    #[test]
    fn a_cell_is_in_epochs_that_are_issued_and_not_far_apart() {
        let second = shared_above(FIRST).unwrap();
        let alone = of_incarnation(9, 3).unwrap();
        for (lowest, highest) in [(FIRST, FIRST), (FIRST, second), (FIRST, alone)] {
            assert!(are_of_one_cell(lowest, highest), "{lowest} {highest}");
        }
        let far = (ROUNDS_AT_ONCE + 1) << WHOSE_BITS | SHARED;
        for highest in [NONE, 1 << WHOSE_BITS, u32::MAX, far] {
            assert!(!are_of_one_cell(FIRST, highest), "{highest}");
        }
        assert!(are_of_one_cell(alone, far));
        assert!(!are_of_one_cell(NONE, FIRST));
    }
}
