//! Single rules, turned off: a simulation shows with these that each rule is needed.
//! Compiled only with the feature `mutants`, never into the product; off unless switched
//! on in the calling thread.

#[cfg(feature = "mutants")]
use std::cell::Cell;

/// A rule that is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// An assigner that was elected once leads for ever, and goes on publishing; stores
    /// take what a former leader publishes.
    FormerLeaderPublishes,
    /// Stores take what a former leader publishes, who believes no longer than is right.
    FormerTermTaken,
    /// Who has been elected does not stand for election again before it knows who is a
    /// member, though it leads no longer.
    CampaignHeldUp,
}

impl Mutant {
    /// Every mutant.
    pub const ALL: [Mutant; 3] = [
        Mutant::FormerLeaderPublishes,
        Mutant::FormerTermTaken,
        Mutant::CampaignHeldUp,
    ];
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Makes every assigner and store that the calling thread enters break one rule, or none.
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
