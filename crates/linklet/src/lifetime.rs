//! Objects that end by themselves: at a time of their own, or when nobody has
//! used them for long.
//!
//! A time of its own is in the object ([`Builder::expires`]), so every server
//! that has the object knows it, whatever it hears from others. That an object
//! is idle only its owner knows, so where objects may be idle it is the owner
//! that is asked for them, and copies answer nothing. Who becomes the owner
//! takes all that comes with it for used at that moment.
//!
//! [`Builder::expires`]: crate::Builder::expires

use crate::table::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trefoil_coordination::BootInstant;

/// When an object ends, by its own account.
pub(crate) type Expires<V> = dyn Fn(&[u8], &V) -> Option<SystemTime> + Send + Sync;

/// The end of an object that has none.
pub(crate) const NEVER_MS: u64 = u64::MAX;

/// How long objects of a corpus may stay.
pub(crate) struct Lifetimes<V> {
    pub(crate) expires: Option<Box<Expires<V>>>,
    pub(crate) idle: Option<Duration>,
    origin: BootInstant,
}

/// Why an object is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// By its own account.
    Ended,
    /// Nobody has used it.
    Idle,
}

/// Both clocks, looked at once for many objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    /// Milliseconds since 1970.
    wall_ms: u64,
    /// Milliseconds since the linklet was started; goes on while the machine is
    /// suspended.
    boot_ms: u64,
}

impl<V> Default for Lifetimes<V> {
    fn default() -> Self {
        Lifetimes::new(None, None)
    }
}

impl<V> Lifetimes<V> {
    pub(crate) fn new(expires: Option<Box<Expires<V>>>, idle: Option<Duration>) -> Self {
        Lifetimes {
            expires,
            idle,
            origin: BootInstant::now(),
        }
    }

    /// Whether anything ends at all.
    pub(crate) fn any(&self) -> bool {
        self.expires.is_some() || self.idle.is_some()
    }

    /// When an object ends, in milliseconds since 1970. The application's closure
    /// runs here, under the lock of the key's part.
    pub(crate) fn end_ms(&self, key: &[u8], value: &V) -> u64 {
        let Some(expires) = &self.expires else {
            return NEVER_MS;
        };
        match catch_unwind(AssertUnwindSafe(|| expires(key, value))) {
            // Rounded up: nothing ends before its time.
            Ok(end) => end
                .and_then(|end| end.checked_add(Duration::from_nanos(999_999)))
                .map_or(NEVER_MS, wall_ms),
            Err(payload) => {
                let panic = crate::marshal::panic_text(&*payload);
                let key = String::from_utf8_lossy(key);
                tracing::error!(%key, panic, "`expires` panicked: the object stays");
                NEVER_MS
            }
        }
    }

    /// When a use takes place; nothing where that does not matter.
    #[inline]
    pub(crate) fn use_ms(&self) -> u64 {
        match self.idle {
            Some(_) => self.boot_ms(),
            None => 0,
        }
    }

    pub(crate) fn clocks(&self) -> Clocks {
        Clocks {
            wall_ms: wall_ms(SystemTime::now()),
            boot_ms: self.boot_ms(),
        }
    }

    fn boot_ms(&self) -> u64 {
        self.origin.elapsed().as_millis() as u64
    }

    /// Whether an object of which this server is the owner is over.
    pub(crate) fn over(&self, entry: &Entry<V>, clocks: Clocks) -> Option<Over> {
        if entry.stale {
            // It goes for that reason.
            return None;
        }
        if entry.ended || (!entry.pinned && entry.end_ms <= clocks.wall_ms) {
            return Some(Over::Ended);
        }
        // A removal of what is idle is under way until it is gone.
        let idle = self.idle.filter(|_| !entry.pinned && !entry.leaving)?;
        let unused = Duration::from_millis(clocks.boot_ms.saturating_sub(entry.used_ms));
        (unused > idle).then_some(Over::Idle)
    }
}

impl<V> Entry<V> {
    /// Whether it has ended by its own account. It counts as absent, but for a
    /// change that had begun before.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
            || (self.end_ms != NEVER_MS
                && !self.pinned
                && self.end_ms <= wall_ms(SystemTime::now()))
    }
}

/// A moment as milliseconds since 1970, rounded down.
fn wall_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(NEVER_MS)
}
