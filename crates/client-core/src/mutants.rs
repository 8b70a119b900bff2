//! Single safety rules, switched off so that a test can show that it would
//! notice. Without the feature `mutants` every switch is the constant `false`
//! and costs nothing.

/// A rule that can be broken on purpose, here or in the crates above. Numbers are
/// those of `docs/quorum.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Rule 4: acknowledgements of different epochs count together.
    AcksAcrossEpochs,
    /// Rule 5: a GET's votes of different epochs count together.
    VotesAcrossEpochs,
    /// Rule 14: a CAS whose answer was lost is sent again.
    CasResent,
    /// Rule 15: a CAS that was refused goes on without a look.
    CasWithoutLook,
    /// Rule 15: a CAS does not wait for a contender that has come first at a replica.
    CasOvertakes,
    /// Rule 15: a CAS that holds the last copy does not wait for a survivor that lags behind.
    LaggardGivenUp,
    /// Rule 15: a CAS that failed leaves its entry at the replica that applied it.
    FailedCasStays,
    /// A CAS that expects no value leaves survivors disagreeing.
    DisagreementStays,
    /// What survivors hold is evicted at a new version: whatever has come since.
    EvictionUnbound,
    /// Survivors count as at rest whatever their age.
    RestAssumed,
    /// Rule 15: what one replica named is reported as what is there.
    PresentByOne,
    /// Rule 15: one refusal makes a CAS failed.
    OneRefusalFails,
    /// Rule 15: one application makes a CAS stored.
    OneApplicationStores,
    /// A fill goes to replicas whose stamp its miss has not read, too, and counts
    /// there.
    UnstampedFilled,
    /// A fill takes the place of what a replica holds.
    FillAnywhere,
    /// A fill that gives way leaves what it has stored at a replica.
    FillStays,
    /// One vote decides a GET under R=3.2.
    VoteOfOne,
    /// One acknowledgement stores a SET or ERASE under R=3.2.
    AckOfOne,
    /// A data entry is believed without its checksum.
    ChecksumIgnored,
    /// A bucket whose header moved during the scan is believed.
    StabilityIgnored,
    /// A bucket of another configuration (a poisoned one included) is believed.
    ConfigIgnored,
    /// Readers look in a backend's first shard, whatever its place in the cohort.
    PlaceIgnored,
    /// What waits for room in a ring is sent there, whatever backend the operation
    /// that has its place now waits for.
    StaleBlocked,
    /// Operations end however much they leave waiting for a ring.
    NeverHeld,
    /// An answer counts for its operation, whatever attempt asked.
    FormerAnswerCounts,
    /// A topology of another life of the cell is not taken.
    LifeIgnored,
    /// An operation that was abandoned keeps its place when it has ended.
    AbandonedKept,
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Breaks `mutant`'s rule, and no other, on this thread; `None` restores all.
#[cfg(feature = "mutants")]
pub fn set(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}

/// Whether this rule is broken now.
#[cfg(feature = "mutants")]
#[inline]
pub fn is_on(mutant: Mutant) -> bool {
    ACTIVE.get() == Some(mutant)
}

/// Whether this rule is broken now: never, in a build without the feature.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_: Mutant) -> bool {
    false
}
