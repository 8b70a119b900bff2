//! What has been told of the database's changes: one [`FreshTable`] for all keys.
//!
//! Lock order: the lock of a key's part, then this one; never the other way
//! round. So whoever stores a value asks under the part's lock; a change that is
//! told later finds the value there.

use crate::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use trefoil_coordination::BootInstant;
use trefoil_freshness_core::event::{Gap, Progress};
use trefoil_freshness_core::position::Place;
use trefoil_freshness_core::table::{
    FillToken, FreshTable, Refused, SLOTS_DEFAULT, Stamp, Sweep, Verdict,
};
use trefoil_layout::hash::KeyHash;

/// See the page of this module.
#[derive(Debug)]
pub(crate) struct Fresh {
    table: Mutex<FreshTable>,
    /// Somebody tells of changes. Until then every value may be kept.
    connected: AtomicBool,
    /// The history that positions of values belong to when they are sent; 0
    /// while what is kept does not belong to one.
    history: AtomicU64,
    /// Up to where every value that is kept is fresh; 0 while that is unknown.
    reached: watch::Sender<u64>,
    /// For how long what is kept may be served after it was known to be fresh.
    limit: Option<Limit>,
}

/// Until when what is kept may be served. It goes by the clock that does not stand
/// still while the machine is suspended.
#[derive(Debug)]
struct Limit {
    max: Duration,
    origin: BootInstant,
    /// Nanoseconds since `origin`; 0 while nothing is known.
    until_ns: AtomicU64,
}

impl Limit {
    fn new(max: Duration) -> Self {
        Limit {
            max,
            origin: BootInstant::now(),
            until_ns: AtomicU64::new(0),
        }
    }

    /// What is kept was fresh so long ago.
    fn known(&self, age: Duration, now: Duration) {
        let until = (now + self.max).saturating_sub(age);
        let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns.fetch_max(until_ns, Ordering::AcqRel);
    }

    #[inline]
    fn is_over(&self, now: Duration) -> bool {
        now.as_nanos() >= u128::from(self.until_ns.load(Ordering::Acquire))
    }
}

/// Which values will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All.
    Any,
    /// Those that contain the commits up to this position of the stream's history.
    From(u64),
    /// Only what is read from now on: the position belongs to another history, and
    /// nothing that is kept can be compared with it.
    Anew,
}

impl Wanted {
    fn of(table: &FreshTable, place: Option<&Place>) -> Self {
        match place {
            None => Wanted::Any,
            Some(place) if table.place().is_some_and(|at| at.history == place.history) => {
                Wanted::From(place.position)
            }
            Some(_) => Wanted::Anew,
        }
    }

    /// Whether a value that is fresh as of this position will do.
    pub(crate) fn admits(self, position: u64) -> bool {
        match self {
            Wanted::Any => true,
            Wanted::From(wanted) => position >= wanted,
            Wanted::Anew => false,
        }
    }
}

/// What is said of a value that is sent: read before the value is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) history: u64,
    pub(crate) reached: u64,
}

fn id(hash: KeyHash) -> u64 {
    hash.place ^ hash.tag
}

impl Fresh {
    /// `stale_max`: for how long what is kept may be served after it was known to be
    /// fresh; nothing: for ever.
    pub(crate) fn new(stale_max: Option<Duration>) -> Self {
        Fresh {
            table: Mutex::new(FreshTable::new(SLOTS_DEFAULT)),
            connected: AtomicBool::new(false),
            history: AtomicU64::new(0),
            reached: watch::Sender::new(0),
            limit: stale_max.map(Limit::new),
        }
    }

    fn table(&self) -> MutexGuard<'_, FreshTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    /// To be taken before a load begins to read. `wanted`: the caller knows that
    /// the commit there was acknowledged. With what makes a value good enough.
    pub(crate) fn token(&self, wanted: Option<&Place>) -> (FillToken, Wanted) {
        let table = self.table();
        let wanted = Wanted::of(&table, wanted);
        let token = match wanted {
            Wanted::From(position) => table.token().after(position),
            Wanted::Any | Wanted::Anew => table.token(),
        };
        (token, wanted)
    }

    /// The same token for a load that contains what is there, if that is a place of
    /// the stream's history: of another one it says nothing.
    pub(crate) fn contains(&self, token: FillToken, place: &Place) -> FillToken {
        match Wanted::of(&self.table(), Some(place)) {
            Wanted::From(position) => token.after(position),
            Wanted::Any | Wanted::Anew => token,
        }
    }

    /// What makes a value good enough for who knows of a commit there.
    pub(crate) fn wanted(&self, place: Option<&Place>) -> Wanted {
        match place {
            None => Wanted::Any,
            Some(_) => Wanted::of(&self.table(), place),
        }
    }

    /// Whether a loaded value may be stored: under the lock of its part.
    pub(crate) fn admit(&self, hash: KeyHash, token: FillToken) -> Result<Stamp, Refused> {
        let table = self.table();
        let now = Instant::now();
        match table.admit(id(hash), token, now) {
            Err(Refused::NotFollowing) if !self.connected() => Ok(table.unfollowed(token, now)),
            admitted => admitted,
        }
    }

    /// For a loaded value that is not kept.
    pub(crate) fn unkept(&self, token: FillToken) -> Stamp {
        self.table().unfollowed(token, Instant::now())
    }

    /// For a value that the application has made: under the lock of its part.
    pub(crate) fn written(&self) -> Stamp {
        if self.connected() {
            self.table().written(Instant::now())
        } else {
            Stamp::UNKNOWN
        }
    }

    /// For a value from elsewhere: under the lock of its part. None if it is not
    /// known to be fresh.
    pub(crate) fn receive(&self, hash: KeyHash, history: u64, position: u64) -> Option<Stamp> {
        let table = self.table();
        table.receive(id(hash), history, position, Instant::now())
    }

    /// Whether a value that was kept aside since is fresh: under the lock of its
    /// part.
    pub(crate) fn is_fresh(&self, hash: KeyHash, history: u64, stamp: Stamp) -> bool {
        let table = self.table();
        history == table.history_id() && table.is_fresh(id(hash), stamp)
    }

    /// What is to be said of values that are looked up from now on.
    pub(crate) fn sent(&self) -> Sent {
        let history = self.history.load(Ordering::Acquire);
        let reached = self.reached();
        // Another history may have begun between: of that nothing is said.
        if history == self.history.load(Ordering::Acquire) {
            Sent { history, reached }
        } else {
            Sent {
                history: 0,
                reached: 0,
            }
        }
    }

    /// The history that stamps are made in now.
    pub(crate) fn history(&self) -> u64 {
        self.table().history_id()
    }

    /// Every value that is kept is fresh as of this position; 0 if that is not
    /// known.
    pub(crate) fn reached(&self) -> u64 {
        *self.reached.borrow()
    }

    /// Follows [`Fresh::reached`].
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.reached.subscribe()
    }

    pub(crate) fn place(&self) -> Option<Place> {
        self.table().place()
    }

    pub(crate) fn staleness(&self) -> Option<Duration> {
        self.table().staleness(Instant::now())
    }

    /// Whether what is kept may not be served, because it is not known whether it was
    /// fresh lately. To be asked before the value is looked at.
    #[inline]
    pub(crate) fn is_late(&self) -> bool {
        match &self.limit {
            None => false,
            Some(limit) => limit.is_over(limit.origin.elapsed()),
        }
    }

    /// Refuses what is kept, if it may not be served.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.limit {
            Some(limit) if self.is_late() => Err(Error::Stale {
                max: limit.max,
                known: self.staleness(),
            }),
            _ => Ok(()),
        }
    }

    /// What has to go; then `begun_here`.
    pub(crate) fn begin(&self, place: &Place) -> Sweep {
        self.connected.store(true, Ordering::Release);
        let mut table = self.table();
        let sweep = table.begun(place);
        if sweep != Sweep::Keep {
            self.history.store(0, Ordering::Release);
            self.reached.send_replace(0);
        }
        sweep
    }

    /// What had to go has gone: what is kept belongs to the stream's history.
    pub(crate) fn begun(&self) {
        let history = self.table().history_id();
        self.history.store(history, Ordering::Release);
    }

    pub(crate) fn gap(&self, gap: &Gap) -> Sweep {
        let mut table = self.table();
        let sweep = table.gap(gap);
        if !table.following() {
            self.reached.send_replace(0);
        }
        sweep
    }

    /// A change: what becomes of the key's value. Under the lock of its part.
    pub(crate) fn invalidate(&self, hash: KeyHash, position: u64) -> Verdict {
        self.table().invalidate(id(hash), position)
    }

    /// The same, with the new value.
    pub(crate) fn refresh(&self, hash: KeyHash, position: u64, kept: Option<Stamp>) -> Verdict {
        self.table().refresh(id(hash), position, kept)
    }

    /// A change that is contained in the value that is kept: the value's stamp from
    /// now on. Under the lock of its part.
    pub(crate) fn contained(&self, hash: KeyHash, position: u64, kept: Stamp) -> Stamp {
        self.table().contained(id(hash), position, kept)
    }

    /// Everything up to there was told, and has been seen to.
    pub(crate) fn progress(&self, progress: Progress) {
        self.connected.store(true, Ordering::Release);
        let position = {
            let mut table = self.table();
            table.progress(progress);
            if let (Some(limit), Some(age)) = (&self.limit, table.staleness(Instant::now())) {
                limit.known(age, limit.origin.elapsed());
            }
            table.position()
        };
        self.reached.send_replace(position);
    }

    pub(crate) fn position(&self) -> u64 {
        self.table().position()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_served_for_so_long_after_it_was_known_to_be_fresh() {
        let s = Duration::from_secs;
        let limit = Limit::new(s(10));
        assert!(limit.is_over(s(0)), "nothing is known");
        limit.known(s(3), s(100));
        assert!(!limit.is_over(s(100)) && !limit.is_over(s(106)));
        assert!(limit.is_over(s(107)) && limit.is_over(s(1_000)));
        // News that are older than what is known take nothing back.
        limit.known(s(9), s(101));
        assert!(!limit.is_over(s(106)));
        // Older than anything may be.
        limit.known(s(500), s(120));
        assert!(limit.is_over(s(120)));
        limit.known(s(0), s(120));
        assert!(!limit.is_over(s(129)) && limit.is_over(s(130)));
    }

    #[test]
    fn without_a_limit_nothing_is_late_and_with_one_progress_decides() {
        assert!(!Fresh::new(None).is_late());
        let fresh = Fresh::new(Some(Duration::from_secs(3_600)));
        assert!(fresh.is_late());
        let progress = |position, age_s| {
            // Nothing, on a host that was started just now.
            let as_of = Instant::now().checked_sub(Duration::from_secs(age_s));
            fresh.progress(Progress { position, as_of });
        };
        progress(1, 7_200);
        assert!(matches!(fresh.check(), Err(Error::Stale { .. })));
        progress(2, 1);
        assert!(fresh.check().is_ok());
    }
}
