//! One account of every resident byte.
//!
//! Whoever is about to make memory resident charges it first and gives it back
//! after it is gone, so that the sum never runs behind the truth. Small private
//! metadata whose size is known only afterwards is charged unconditionally;
//! the excess is given back at the next mutation or maintenance step.

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
    /// Private metadata: policy, bitmaps, side tables, tombstones.
    Private,
    /// Charged by callers: message rings.
    Extra,
}

const KIND_COUNT: usize = 5;

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

    /// Bytes that can still be charged.
    pub(crate) fn available(&self) -> u64 {
        self.limit().saturating_sub(self.used())
    }

    /// Bytes beyond the limit.
    pub(crate) fn excess(&self) -> u64 {
        self.used().saturating_sub(self.limit())
    }

    /// What a mutation that begins now may bring the account to: the limit, or
    /// what is used if the limit was lowered below it. Such a mutation has to
    /// give back as much as it takes, and need not first pay the whole excess.
    pub(crate) fn cap(&self) -> u64 {
        self.limit().max(self.used())
    }

    /// Charges `bytes` unless the limit would be exceeded.
    #[must_use]
    pub(crate) fn try_charge(&self, kind: Kind, bytes: u64) -> bool {
        self.try_charge_within(kind, bytes, self.limit())
    }

    /// Charges `bytes` unless `cap` would be exceeded.
    #[must_use]
    pub(crate) fn try_charge_within(&self, kind: Kind, bytes: u64, cap: u64) -> bool {
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
        let budget = Budget::new(100);
        assert!(budget.try_charge(Kind::Pages, 60));
        assert!(!budget.try_charge(Kind::Runs, 41));
        assert!(budget.try_charge(Kind::Runs, 40));
        assert!(!budget.try_charge(Kind::Runs, u64::MAX));
        budget.charge(Kind::Private, 5);
        assert_eq!((budget.available(), budget.excess()), (0, 5));
        budget.release(Kind::Pages, 60);
        assert_eq!((budget.used(), budget.available()), (45, 55));
        assert_eq!(budget.used_for(Kind::Runs), 40);
    }
}
