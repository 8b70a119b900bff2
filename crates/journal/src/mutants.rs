//! Single rules of the journal, turned off: the simulator shows with these that each is
//! needed. Compiled only with the feature `mutants`, never into the product; off unless
//! switched on in the calling thread. The numbers are those of the crate's rules.

#[cfg(feature = "mutants")]
use std::cell::Cell;

/// A rule that is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// 1: a group counts as committed when it is written.
    NotFlushed,
    /// 1: requests are executed before their group is committed. A rule of the worker's.
    ExecutedEarly,
    /// 2: the checksum of a frame is not looked at.
    SumIgnored,
    /// 2: the number of a frame is not looked at.
    NumberIgnored,
    /// 3: recovery executes all that stands in the ring.
    ReplayedFromTail,
    /// 3: the state's position is changed after its effects. A rule of the service's.
    PositionApart,
    /// 4: room is given back before the state is persistent. A rule of the worker's.
    ReleasedEarly,
    /// 4: room is used before the superblock that says so is persistent.
    SuperblockNotFlushed,
    /// 5: one copy of the superblock is written every time.
    SuperblockInPlace,
    /// 6: recovery executes what it reads.
    NotRewritten,
    /// 7: the journal goes on after a failed flush.
    FailureForgotten,
    /// 8: frames of any life are taken.
    EpochIgnored,
}

impl Mutant {
    /// Every mutant.
    pub const ALL: [Mutant; 12] = [
        Mutant::NotFlushed,
        Mutant::ExecutedEarly,
        Mutant::SumIgnored,
        Mutant::NumberIgnored,
        Mutant::ReplayedFromTail,
        Mutant::PositionApart,
        Mutant::ReleasedEarly,
        Mutant::SuperblockNotFlushed,
        Mutant::SuperblockInPlace,
        Mutant::NotRewritten,
        Mutant::FailureForgotten,
        Mutant::EpochIgnored,
    ];
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Makes every journal that the calling thread drives break one rule, or none.
#[cfg(feature = "mutants")]
pub fn set(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}

/// Whether the calling thread breaks this rule. Some are those of who drives the journal.
#[inline(always)]
pub fn is(mutant: Mutant) -> bool {
    #[cfg(feature = "mutants")]
    return ACTIVE.get() == Some(mutant);
    #[cfg(not(feature = "mutants"))]
    {
        let _ = mutant;
        false
    }
}
