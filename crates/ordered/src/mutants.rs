//! Single rules of the queue, turned off: the simulator shows with these that each is
//! needed. Compiled only with the feature `mutants`, never into the product; off unless
//! switched on in the calling thread. The numbers are those of the crate's invariants.

#[cfg(feature = "mutants")]
use std::cell::Cell;

/// A rule that is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// 1: a client takes its ticket and claims afterwards.
    ClaimedLate,
    /// 2: a client publishes whatever was decided meanwhile.
    PublishedBlindly,
    /// 2: the server skips whatever was decided meanwhile.
    SkippedBlindly,
    /// 2: the mark is set before the request is published.
    MarkedEarly,
    /// 3: the server executes the lowest position that it sees, whoever may hold a lower one.
    GapIgnored,
    /// 3: a lane that was cleared for one position counts as cleared for all.
    ClearedForGood,
    /// 3: what was cleared is looked at again in each step.
    ClearedAnew,
    /// 3: a lane is cleared by its head, whatever it has begun behind that.
    HeadClears,
    /// 3: the server waits for a claim for ever.
    Patient,
    /// 4: the server goes on at the sequence that it has skipped.
    SkipForgotten,
    /// 5: a client writes whether there is room or not.
    FullIgnored,
    /// 5: a slot is free before it is copied.
    FreedEarly,
    /// 6: whatever stands in a slot is executed.
    SumIgnored,
    /// 6: a broken lane breaks all.
    AllBroken,
    /// 7: at its end, the server closes a lane whatever was decided meanwhile.
    ClosedBlindly,
    /// 8: a slot is free when its request is taken.
    FreedWhenTaken,
    /// 8: a skip frees its slot, and all earlier ones with it.
    SkipFreesTaken,
    /// Of a delegate, 1: a request is acknowledged when it is forwarded.
    DelegateAcknowledgesEarly,
    /// Of a delegate, 2: a request is completed when it is forwarded.
    DelegateCompletesEarly,
    /// Of a delegate, 3: what is refused for now is not offered again.
    DelegateForgets,
    /// Of a delegate, 4: what is completed before it was acknowledged never is.
    DelegateCompletesUntold,
    /// Of a delegate, 5: a delegate ends without a last look at the queue behind.
    DelegateEndsEarly,
    /// Of a durable queue: what is taken is acknowledged before it is in the journal.
    DurableAcknowledgesEarly,
    /// Of a durable queue: what is taken is executed and answered before that.
    DurableAnswersEarly,
    /// Of a durable queue: the journal's room is given back before the state is persistent.
    DurableReleasesEarly,
    /// Of marks, 1: a mutation is marked after it was published. A rule of the client's.
    MarkedLate,
    /// Of marks, 2: a mark is cleared before its mutation is executed. A rule of the
    /// service's.
    ClearedEarly,
    /// Of marks, 3: a reader looks at marks after it has read.
    MarksLast,
    /// Of marks, 4: a reader does not look at the directory.
    DirectoryIgnored,
    /// Of marks, 4: the directory falls to as many rows as are in use, wherever these are.
    DirectoryFallsShort,
    /// Of marks, 5: what was refused stays marked.
    NotWithdrawn,
    /// Of marks, 6: a place is given up while its lane still holds something. A rule of the
    /// server's.
    ReleasedEarly,
}

impl Mutant {
    /// Every mutant.
    pub const ALL: [Mutant; 32] = [
        Mutant::ClaimedLate,
        Mutant::PublishedBlindly,
        Mutant::SkippedBlindly,
        Mutant::MarkedEarly,
        Mutant::GapIgnored,
        Mutant::ClearedForGood,
        Mutant::ClearedAnew,
        Mutant::HeadClears,
        Mutant::Patient,
        Mutant::SkipForgotten,
        Mutant::FullIgnored,
        Mutant::FreedEarly,
        Mutant::SumIgnored,
        Mutant::AllBroken,
        Mutant::ClosedBlindly,
        Mutant::FreedWhenTaken,
        Mutant::SkipFreesTaken,
        Mutant::DelegateAcknowledgesEarly,
        Mutant::DelegateCompletesEarly,
        Mutant::DelegateForgets,
        Mutant::DelegateCompletesUntold,
        Mutant::DelegateEndsEarly,
        Mutant::DurableAcknowledgesEarly,
        Mutant::DurableAnswersEarly,
        Mutant::DurableReleasesEarly,
        Mutant::MarkedLate,
        Mutant::ClearedEarly,
        Mutant::MarksLast,
        Mutant::DirectoryIgnored,
        Mutant::DirectoryFallsShort,
        Mutant::NotWithdrawn,
        Mutant::ReleasedEarly,
    ];
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Makes every queue that the calling thread drives break one rule, or none.
#[cfg(feature = "mutants")]
pub fn set(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}

/// The same for whoever drives the steps: some rules are his.
pub fn is_on(mutant: Mutant) -> bool {
    is(mutant)
}

/// Whether the calling thread breaks this rule.
#[inline(always)]
pub(crate) fn is(mutant: Mutant) -> bool {
    #[cfg(feature = "mutants")]
    return ACTIVE.get() == Some(mutant);
    #[cfg(not(feature = "mutants"))]
    {
        let _ = mutant;
        false
    }
}
