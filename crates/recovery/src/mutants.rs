//! Single rules of recovery, turned off: the simulator shows with these that each is
//! needed. Compiled only with the feature `mutants`, never into the product; off unless
//! switched on in the calling thread.

#[cfg(feature = "mutants")]
use std::cell::Cell;

/// A rule that is not followed. Numbers are those of DESIGN section 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// 6: the epochs are raised when everything was copied.
    EpochRaisedLate,
    /// 7, 8: the shard votes and takes everything from its first moment on.
    VotesAtOnce,
    /// 9: nothing stands for the bounds of keys without a common value.
    FloorForgotten,
    /// 9: a floor that was taken over stands for nothing in the next recovery.
    FloorNotInherited,
    /// 10: what one peer holds is copied.
    LoneValueCopied,
    /// 11: repair installs what one peer holds.
    RepairedByOne,
    /// A handover ends with what had changed while the predecessor went on.
    NeverFrozen,
    /// A handover takes the values and leaves the floor.
    FloorLeftBehind,
    /// A handover leaves alone what was erased after it had been copied.
    ErasedStays,
    /// A handover does not compare what both hold.
    CompareSkipped,
    /// A handover leaves what was changed before the predecessor was frozen.
    LastSkipped,
    /// A successor serves before its predecessor has gone.
    BegunEarly,
    /// A frozen predecessor lets others raise its epoch.
    RaisedWhileFrozen,
    /// A backend of a resized cell serves before those of before have gone.
    ResizedEarly,
    /// A cell is resized though the copies of a shard are of different epochs, and though one
    /// recovers.
    EpochsMixed,
    /// A frozen backend that hears nothing more goes on, and leaves the configuration.
    BrokenOffUnsaid,
    /// Whoever raises an epoch names no configuration.
    ConfigUnnamed,
    /// A spare that is given a place takes itself for one that has nothing to forget.
    SpareUncounted,
    /// 11: a scan spreads what one replica holds.
    LoneValueSpread,
    /// 5: a scan counts votes of different epochs together.
    RepairAcrossEpochs,
    /// 12: a scan installs at a new version without asking what is there.
    RenewedBlindly,
    /// A scan stores anew what the third replica knows to be flushed.
    FlushedRenewed,
    /// 11: a scan evicts, where an erasure has to go to the third replica.
    TombstonesIgnored,
    /// A scan evicts what may be a mutation on its way.
    YoungEvicted,
    /// A scan acts on what it has seen once.
    OneLook,
    /// A scan takes a CAS back because a replica has put it off.
    TakenBackAtOnce,
}

impl Mutant {
    /// Every mutant.
    pub const ALL: [Mutant; 26] = [
        Mutant::EpochRaisedLate,
        Mutant::VotesAtOnce,
        Mutant::FloorForgotten,
        Mutant::FloorNotInherited,
        Mutant::LoneValueCopied,
        Mutant::RepairedByOne,
        Mutant::NeverFrozen,
        Mutant::FloorLeftBehind,
        Mutant::ErasedStays,
        Mutant::CompareSkipped,
        Mutant::LastSkipped,
        Mutant::BegunEarly,
        Mutant::RaisedWhileFrozen,
        Mutant::ResizedEarly,
        Mutant::EpochsMixed,
        Mutant::BrokenOffUnsaid,
        Mutant::ConfigUnnamed,
        Mutant::SpareUncounted,
        Mutant::LoneValueSpread,
        Mutant::RepairAcrossEpochs,
        Mutant::RenewedBlindly,
        Mutant::FlushedRenewed,
        Mutant::TombstonesIgnored,
        Mutant::YoungEvicted,
        Mutant::OneLook,
        Mutant::TakenBackAtOnce,
    ];
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Makes every recovery that the calling thread drives break one rule, or none.
#[cfg(feature = "mutants")]
pub fn set(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}

/// The same for whoever drives the machines: some rules are his.
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
