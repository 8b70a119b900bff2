//! Single safety rules, turned off: the simulator shows with these that each
//! rule is needed. Compiled only with the feature `mutants`, never into the
//! product; off unless switched on in the calling thread.

#[cfg(feature = "mutants")]
use std::cell::Cell;

/// A rule that is not followed. Numbers are those of DESIGN section 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// 1: SET and ERASE apply whatever the bound.
    BoundIgnored,
    /// 2: a forgotten tombstone does not raise the floor.
    TombstoneForgottenSilently,
    /// 3: an eviction does not raise the floor.
    EvictionForgotten,
    /// 3: an expiry does not raise the floor.
    ExpiryForgotten,
    /// 13: CAS applies whatever version is present.
    CasNotExact,
    /// A fill applies whatever was written since its miss.
    FillUnchecked,
    /// A fill does not count for those after it.
    FillUncounted,
    /// Writer's rule 1: the index entry is published first, and its data entry
    /// is written only when its partition is entered again.
    PublishedBeforeData,
    /// The checksum is not bound to tag and version.
    ChecksumUnbound,
    /// An entry goes to the side table without its home being flagged.
    OverflowUnflagged,
    /// What changes while an index is being retired is not poisoned there first.
    OldHomeBelieved,
}

impl Mutant {
    /// Every mutant.
    pub const ALL: [Mutant; 11] = [
        Mutant::BoundIgnored,
        Mutant::TombstoneForgottenSilently,
        Mutant::EvictionForgotten,
        Mutant::ExpiryForgotten,
        Mutant::CasNotExact,
        Mutant::FillUnchecked,
        Mutant::FillUncounted,
        Mutant::PublishedBeforeData,
        Mutant::ChecksumUnbound,
        Mutant::OverflowUnflagged,
        Mutant::OldHomeBelieved,
    ];
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Makes every store that the calling thread enters break one rule, or none.
#[cfg(feature = "mutants")]
pub fn set(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}

/// Whether the calling thread breaks any rule.
#[inline(always)]
pub(crate) fn any() -> bool {
    #[cfg(feature = "mutants")]
    return ACTIVE.get().is_some();
    #[cfg(not(feature = "mutants"))]
    false
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
