//! Single safety rules, turned off: the simulator shows with these that each
//! rule is needed. Compiled only with the feature `mutants`, never into the
//! product; off unless switched on in the calling thread.

#[cfg(feature = "mutants")]
use std::cell::Cell;

/// A rule that is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A range is taken for ownerless though not everybody has answered.
    NotEverybodyAsked,
    /// Who has answered "nothing" accepts the authority afterwards all the same.
    PromiseForgotten,
    /// What has been sent is served on until it is confirmed.
    ServedInTransit,
    /// A server without a lease serves in strong mode.
    LeaseIgnored,
    /// A strong commit is acknowledged before the copies have confirmed.
    AcknowledgedEarly,
    /// A strong commit is acknowledged though too few servers have it.
    ThinAcknowledged,
    /// A copy is read though it was changed by a commit not settled yet.
    DirtyCopyRead,
    /// Lost ranges are not reported.
    LossUnreported,
    /// Values are forgotten when they are sent, not when they are taken.
    ForgottenWhenSent,
    /// A late confirmation makes a server forget what has come back meanwhile.
    ForgottenWhenBack,
    /// A new copy does not hear of the commits under way.
    PendingNotCopied,
    /// A copy that became the owner serves commits that others may lack.
    UnsettledServed,
    /// A copy is dropped before its replacement is complete.
    ExcludedEarly,
    /// A new owner does not hear who has copies.
    HoldersForgotten,
    /// A copy that could not be stored is confirmed.
    FailedCopyConfirmed,
    /// A copy that could not store a commit is dropped, so that its key can be given
    /// away.
    DroppedToGive,
    /// A commit is taken back, and copies that have it keep it.
    TakenBackByHalf,
    /// A value that its next owner cannot store is lost with its move.
    UnstoredLost,
    /// Who cannot store what it is to own forgets the copy that it had.
    UnstoredCopyForgotten,
    /// Nobody sees to the copies of what its next owner cannot store.
    StayedNotCopied,
    /// With each map servers are offered all copies of what stays that they have declined.
    DeclinedOfferedAnew,
    /// A new owner hears of copies, and not that they are newer than all that it knows.
    NewestNotTold,
    /// Who cannot be reached is reached through nobody else.
    NoWayRound,
    /// Who has too much to pass on drops questions about the way, and answers, like the rest.
    QuestionsDropped,
    /// Copies for who takes over are all sent at once.
    WindowIgnored,
    /// An assigner knows nothing of the longer leases of the one before it.
    LeaseLengthForgotten,
    /// An assigner whose store has forgotten everything deals it out at once.
    DealtAtOnce,
    /// It takes back who was struck off before.
    StruckOffReturns,
    /// The clock of a machine stands still while it is suspended.
    ClockStopsAsleep,
    /// A key may be changed again as soon as the caller who began a change has gone.
    TurnEndsWithItsCaller,
    /// Keys have no turns of their own: one that waits for its copies holds up others.
    TurnsShared,
    /// A member whose corpus an assigner does not know gives everything up.
    UnknownIsFinal,
    /// A newcomer that had no answer asks as if it had not asked before.
    NewcomerAsksAnew,
}

impl Mutant {
    /// Every mutant.
    pub const ALL: [Mutant; 33] = [
        Mutant::NotEverybodyAsked,
        Mutant::PromiseForgotten,
        Mutant::ServedInTransit,
        Mutant::LeaseIgnored,
        Mutant::AcknowledgedEarly,
        Mutant::ThinAcknowledged,
        Mutant::DirtyCopyRead,
        Mutant::LossUnreported,
        Mutant::ForgottenWhenSent,
        Mutant::ForgottenWhenBack,
        Mutant::PendingNotCopied,
        Mutant::UnsettledServed,
        Mutant::ExcludedEarly,
        Mutant::HoldersForgotten,
        Mutant::FailedCopyConfirmed,
        Mutant::DroppedToGive,
        Mutant::TakenBackByHalf,
        Mutant::LeaseLengthForgotten,
        Mutant::DealtAtOnce,
        Mutant::StruckOffReturns,
        Mutant::UnstoredLost,
        Mutant::UnstoredCopyForgotten,
        Mutant::StayedNotCopied,
        Mutant::DeclinedOfferedAnew,
        Mutant::NewestNotTold,
        Mutant::NoWayRound,
        Mutant::QuestionsDropped,
        Mutant::WindowIgnored,
        Mutant::ClockStopsAsleep,
        Mutant::TurnEndsWithItsCaller,
        Mutant::TurnsShared,
        Mutant::UnknownIsFinal,
        Mutant::NewcomerAsksAnew,
    ];
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Makes every core that the calling thread enters break one rule, or none.
#[cfg(feature = "mutants")]
pub fn set(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}

/// Whether the calling thread breaks this rule.
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
