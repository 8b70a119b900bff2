//! Until when this server may serve, and what it commits without that.

use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use trefoil_sharder::KeyPoint;

/// Keys remembered that were committed without a lease; beyond it their
/// ranges are reported.
const PROVISIONAL_KEYS_MAX: usize = 100_000;

/// The lease, and the commits that are void should somebody else have taken over. It touches
/// no other part.
///
/// * What was committed without a lease is forgotten when it is renewed: nobody has taken
///   over then.
/// * No more than `PROVISIONAL_KEYS_MAX` keys are remembered.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    until: Option<Duration>,
    /// It had run out when that was looked at last ([`Lease::look`]).
    is_out: bool,
    provisional: BTreeSet<(KeyPoint, Bytes)>,
    provisional_overflow: bool,
}

impl Lease {
    /// Until when, on this server's clock.
    pub(crate) fn until(&self) -> Option<Duration> {
        self.until
    }

    /// It lasts until then; whether that is longer than before.
    pub(crate) fn renew(&mut self, until: Duration) -> bool {
        let longer = self.until.is_none_or(|had| had < until);
        if longer {
            self.until = Some(until);
        }
        longer
    }

    /// Whether there is one.
    pub(crate) fn holds(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether there was one, and is none any more.
    pub(crate) fn has_lapsed(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// Whether it had run out when that was looked at last.
    pub(crate) fn is_out(&self) -> bool {
        self.is_out
    }

    /// Looks whether it has run out; whether that has changed.
    pub(crate) fn look(&mut self, now: Duration) -> bool {
        let is_out = self.has_lapsed(now);
        let changed = is_out != self.is_out;
        self.is_out = is_out;
        if changed && !is_out {
            // Still a member: nobody has taken over.
            self.provisional.clear();
            self.provisional_overflow = false;
        }
        changed
    }

    /// When it runs out, if it has not.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        self.until.filter(|_| !self.is_out)
    }

    /// This was committed without it.
    pub(crate) fn note_commit(&mut self, point: KeyPoint, key: Bytes) {
        if self.provisional.len() < PROVISIONAL_KEYS_MAX {
            self.provisional.insert((point, key));
        } else {
            self.provisional_overflow = true;
        }
    }

    /// What was committed without it; `None`: too many keys to be named.
    pub(crate) fn take_provisional(&mut self) -> Option<BTreeSet<(KeyPoint, Bytes)>> {
        let keys = std::mem::take(&mut self.provisional);
        (!self.provisional_overflow).then_some(keys)
    }
}
