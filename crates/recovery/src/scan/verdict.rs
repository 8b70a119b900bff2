//! What three replicas' states of one key mean, and what is to be done: a pure function.
//! Its cases are in `tests/all/verdicts.rs`.

use crate::mutants::{self, Mutant};
use trefoil_layout::{Version, epoch};
use trefoil_store::KeyState;

/// What is to be done about a key. Replicas are places in the cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All three agree.
    Clean,
    /// Two hold a value that the third has missed: it goes there at its own version
    /// (rule 11).
    Install {
        /// Who holds it.
        from: usize,
        /// Who lacks it.
        to: usize,
        /// Its version.
        version: Version,
    },
    /// Two hold a value below the third's bound: an honest CAS at a fresh version
    /// (rule 12).
    Renew {
        /// The two, in the cohort's order.
        pair: [usize; 2],
        /// The one whose bound is higher.
        third: usize,
        /// What the two hold.
        version: Version,
        /// The third's bound.
        above: Version,
    },
    /// Two remember that it was erased, and the third holds something older: the
    /// erasure goes there at its own version.
    Erase {
        /// Who holds it.
        at: usize,
        /// What it holds.
        held: Version,
        /// The erasure's version.
        version: Version,
    },
    /// No two hold the same value: no reader finds one, and no waiting brings one. What
    /// each was seen to hold is evicted there, at that entry's own version.
    Evict {
        /// By place.
        held: [Option<Version>; 3],
    },
    /// Two hold a value, and the third, which is full, has none and may have evicted it.
    Full,
    /// No two hold the same, but what one holds may be a mutation on its way.
    Young,
    /// Two hold a value in different epochs, or have not heard of a flush that the third
    /// knows: that is over in a moment.
    Apart,
}

/// Judges a key. `at_rest_ns` is the time, in nanoseconds since the Unix epoch, up to
/// which what was written is no mutation on its way any more; `is_full` says which
/// replicas evict for whatever new they store.
pub fn decide(states: [KeyState; 3], is_full: [bool; 3], at_rest_ns: u64) -> Verdict {
    let held = states.map(|state| state.held);
    if held[0] == held[1] && held[1] == held[2] {
        return Verdict::Clean;
    }
    // In the cohort's order, with the one that is left.
    for (pair, third) in [([0, 1], 2), ([0, 2], 1), ([1, 2], 0)] {
        let [one, other] = pair;
        if held[one] != held[other] {
            continue;
        }
        return match held[one] {
            Some(version) => of_pair(states, is_full[third], (pair, third), version),
            None => of_lone(states, (pair, third), at_rest_ns),
        };
    }
    evicted(held, at_rest_ns)
}

/// Two hold the same value.
fn of_pair(
    states: [KeyState; 3],
    is_full: bool,
    (pair, third): ([usize; 2], usize),
    version: Version,
) -> Verdict {
    let epochs = pair.map(|at| states[at].epoch);
    let is_apart = epochs[0] != epochs[1] || epochs[0] == epoch::NONE;
    if is_apart && !mutants::is(Mutant::RepairAcrossEpochs) {
        return Verdict::Apart;
    }
    let KeyState {
        held,
        bound,
        is_erased,
        flushed,
        ..
    } = states[third];
    if bound < version {
        let (from, to) = (pair[0], third);
        return Verdict::Install { from, to, version };
    }
    // At a fresh version the value would outlive the flush. The bound alone does not tell: a
    // floor of evictions, or a predecessor's, may lie above the flush.
    if version <= flushed && !mutants::is(Mutant::FlushedRenewed) {
        return Verdict::Apart;
    }
    // Nothing newer of the very key is known there, so its floor is what is above. That
    // rises with each eviction: a full replica has evicted this value, or would soon.
    if held.is_none() && !is_erased && is_full {
        return Verdict::Full;
    }
    Verdict::Renew {
        pair,
        third,
        version,
        above: bound,
    }
}

/// One holds a value, and two hold none.
fn of_lone(states: [KeyState; 3], (pair, at): ([usize; 2], usize), at_rest_ns: u64) -> Verdict {
    let Some(held) = states[at].held else {
        return Verdict::Clean;
    };
    let [one, other] = pair.map(|at| states[at]);
    if mutants::is(Mutant::LoneValueSpread) && one.bound < held {
        let (from, to, version) = (at, pair[0], held);
        return Verdict::Install { from, to, version };
    }
    let version = one.bound;
    let is_erased = one.is_erased && other.is_erased && version == other.bound;
    let is_voted = one.epoch == other.epoch && one.epoch != epoch::NONE;
    if is_erased && is_voted && version > held && !mutants::is(Mutant::TombstonesIgnored) {
        return Verdict::Erase { at, held, version };
    }
    evicted(states.map(|state| state.held), at_rest_ns)
}

fn evicted(held: [Option<Version>; 3], at_rest_ns: u64) -> Verdict {
    let is_young = |held: &Version| held.time_ns > at_rest_ns;
    match held.iter().flatten().any(is_young) && !mutants::is(Mutant::YoungEvicted) {
        true => Verdict::Young,
        false => Verdict::Evict { held },
    }
}
