//! One account of every resident byte.
//!
//! Whoever is about to make memory resident charges it first and gives it back
//! after it is gone, so that the sum never runs behind the truth. Small private
//! metadata whose size is known only afterwards is charged unconditionally, out
//! of a *headroom* that everything else leaves free; what eats into it is given
//! back by the mutations and maintenance steps that follow.
//!
//! # Who is charged, and when
//! 1. Bytes are charged before they become resident, and released after they are
//!    gone. Between the two they are on the account once, under one kind.
//! 2. A charge is measured against the goal as it is at that moment ([`Cap::Goal`]),
//!    or against what was used when a *short* piece of work began ([`Cap::At`]).
//!    Nobody keeps an earlier measure while waiting for room: the limit may be
//!    lowered meanwhile, and what others give back for it would be taken.
//! 3. So what is beyond the goal only shrinks. Small mutations leave it where it is
//!    and give a part of it back; who takes much, a long value or a message, pays all
//!    of it first.
//! 4. Who makes room over several holds of a lock charges what was made at the end
//!    of each, as [`Kind::Promised`]. It becomes another kind together with the
//!    memory, or is released.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a byte is resident for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data pages, free ones included.
    Pages,
    /// Runs of large entries.
    Runs,
    /// Index windows.
    Index,
    /// Index windows that nobody uses any more ([`crate::leaving`]): as good as
    /// free, for whoever needs room has them go first.
    Leaving,
    /// Private metadata: policy, bitmaps, side tables, tombstones.
    Private,
    /// Charged by callers: message rings.
    Extra,
    /// Room made for a run or for a caller, where nothing is resident yet.
    Promised,
}

const KIND_COUNT: usize = 7;

/// What somebody may bring the account to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cap {
    /// The goal, as it is when something is charged.
    Goal,
    /// So many bytes; see [`Budget::cap`].
    At(u64),
}

/// Headroom: this share of the limit, but not less than a length, but not more
/// than another share.
const HEADROOM_SHARE: u64 = 1024;
const HEADROOM_LEN: u64 = 64 << 10;
const HEADROOM_SHARE_MAX: u64 = 64;

/// The account.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    by_kind: [AtomicU64; KIND_COUNT],
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Budget {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            by_kind: Default::default(),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn used_for(&self, kind: Kind) -> u64 {
        self.by_kind[kind as usize].load(Ordering::Relaxed)
    }

    /// The limit less the headroom.
    pub(crate) fn goal(&self) -> u64 {
        let limit = self.limit();
        let headroom = (limit / HEADROOM_SHARE).max(HEADROOM_LEN);
        limit - headroom.min(limit / HEADROOM_SHARE_MAX)
    }

    /// Bytes that can still be charged.
    pub(crate) fn available(&self) -> u64 {
        self.goal().saturating_sub(self.used())
    }

    /// Bytes that pages have or could have, whoever holds them.
    pub(crate) fn for_pages(&self) -> u64 {
        let others = self.used() - self.used_for(Kind::Pages).min(self.used());
        self.goal().saturating_sub(others)
    }

    /// Bytes that data could have if every item were evicted.
    pub(crate) fn evictable(&self) -> u64 {
        let fixed = self.used_for(Kind::Index) + self.used_for(Kind::Private);
        self.goal()
            .saturating_sub(fixed + self.used_for(Kind::Extra))
    }

    /// Bytes to give back.
    pub(crate) fn excess(&self) -> u64 {
        self.used().saturating_sub(self.goal())
    }

    /// What a small mutation that begins now may bring the account to: the goal,
    /// or what is used if the limit was lowered below that. Such a mutation has to
    /// give back as much as it takes, and need not first pay the whole excess.
    pub(crate) fn cap(&self) -> Cap {
        Cap::At(self.goal().max(self.used()))
    }

    /// What a cap comes to now.
    #[inline]
    pub(crate) fn bytes_of(&self, cap: Cap) -> u64 {
        match cap {
            Cap::Goal => self.goal(),
            Cap::At(bytes) => bytes,
        }
    }

    /// Charges `bytes` unless the headroom would be touched.
    #[must_use]
    pub(crate) fn try_charge(&self, kind: Kind, bytes: u64) -> bool {
        self.try_charge_within(kind, bytes, Cap::Goal)
    }

    /// Charges `bytes` unless `cap` would be exceeded.
    #[must_use]
    pub(crate) fn try_charge_within(&self, kind: Kind, bytes: u64, cap: Cap) -> bool {
        let cap = self.bytes_of(cap);
        let fits = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= cap)
            })
            .is_ok();
        if fits {
            self.by_kind[kind as usize].fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Charges as much of `bytes` as fits below `cap`; how much.
    pub(crate) fn charge_some(&self, kind: Kind, bytes: u64, cap: Cap) -> u64 {
        let cap = self.bytes_of(cap);
        let fits = |used: u64| cap.saturating_sub(used).min(bytes);
        let update = |used| Some(used + fits(used));
        let relaxed = Ordering::Relaxed;
        let before = self.used.fetch_update(relaxed, relaxed, update);
        let charged = fits(before.unwrap_or(u64::MAX));
        self.by_kind[kind as usize].fetch_add(charged, Ordering::Relaxed);
        charged
    }

    /// What was charged for one kind is for another from now on.
    pub(crate) fn convert(&self, from: Kind, to: Kind, bytes: u64) {
        self.by_kind[to as usize].fetch_add(bytes, Ordering::Relaxed);
        self.by_kind[from as usize].fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Charges what is resident already.
    pub(crate) fn charge(&self, kind: Kind, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.by_kind[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back what was charged.
    pub(crate) fn release(&self, kind: Kind, bytes: u64) {
        let before = self.by_kind[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{kind:?}: {bytes} released of {before}");
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_stop_at_the_limit_and_kinds_add_up() {
        let budget = Budget::new(101);
        assert_eq!(budget.goal(), 100);
        assert!(budget.try_charge(Kind::Pages, 60));
        assert!(!budget.try_charge(Kind::Runs, 41));
        assert!(budget.try_charge(Kind::Runs, 40));
        assert!(!budget.try_charge(Kind::Runs, u64::MAX));
        budget.charge(Kind::Private, 5);
        assert_eq!((budget.available(), budget.excess()), (0, 5));
        budget.release(Kind::Pages, 60);
        assert_eq!((budget.used(), budget.available()), (45, 55));
        assert_eq!(budget.used_for(Kind::Runs), 40);
        assert_eq!(budget.charge_some(Kind::Runs, 50, Cap::Goal), 50);
        assert_eq!(budget.charge_some(Kind::Runs, 50, Cap::Goal), 5);
        assert_eq!(budget.charge_some(Kind::Runs, 50, Cap::At(99)), 0);
        budget.convert(Kind::Runs, Kind::Extra, 55);
        assert_eq!(budget.used_for(Kind::Extra), 55);
        assert_eq!((budget.used(), budget.used_for(Kind::Runs)), (100, 40));
    }
}
