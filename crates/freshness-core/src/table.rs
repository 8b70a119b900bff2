//! Which copies of the database's rows may be stored, kept and served. No I/O,
//! no clock, no values: the owner of the values asks, and does what it is told,
//! under the lock that guards them.
//!
//! # The race
//!
//! A load reads a row; the row changes; the change's invalidation arrives and
//! finds nothing to drop; the load stores the old row, for ever. So a load takes
//! a [`FillToken`] *before* it reads, and its value is refused if an
//! invalidation of its key with a later position has been told since, or
//! before.
//!
//! # Invariants
//!
//! 1. Every change up to `progress` has been told, and is visible to whoever
//!    begins to read the database after the progress was told.
//! 2. A value that is admitted contains every change of its key up to its
//!    token's position, and no told change of its key is later than that.
//! 3. A value that is kept contains every told change of its key, but for those
//!    of transactions that it had already seen when it was read.
//! 4. What is forgotten is forgotten on the safe side: keys share slots, and a
//!    slot keeps the latest position of all its keys. The memory is fixed, and
//!    two keys in one slot cost a refused fill, never a stale value.

use crate::event::{Gap, Progress, Scope};
use crate::position::{History, Place};
use std::time::{Duration, Instant};
use twox_hash::XxHash3_64;

/// Slots of positions where nothing else is asked for: 512 KiB. A fill is
/// refused for a neighbour's change about once in `slots / changes during a
/// load`.
pub const SLOTS_DEFAULT: usize = 1 << 16;

fn xxh(history: &History) -> u64 {
    XxHash3_64::oneshot(history.0.as_bytes()).max(1)
}

/// Hash of a key, for [`FreshTable`]'s slots.
pub fn key_hash(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

/// Taken before a load reads the database; decides whether the result may be
/// stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillToken {
    /// Grows whenever the stream was interrupted with a loss.
    era: u64,
    /// Progress when the load began.
    position: u64,
    /// What the load is known to contain beyond that.
    contains: u64,
}

impl FillToken {
    /// The load begins after the caller has learned that the commit at
    /// `position` was acknowledged: its result contains that commit, even if
    /// the stream has not told it yet.
    #[must_use]
    pub fn after(mut self, position: u64) -> Self {
        self.contains = self.contains.max(position);
        self
    }
}

/// Kept with every stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Every commit up to here is contained.
    pub position: u64,
    /// When a load stored it; none for what a refresh brought.
    filled: Option<Instant>,
}

/// Why a loaded value may not be stored. It may be served to whoever asked for
/// it: it is as fresh as a read of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The key was changed after the load began, or so shortly before that the
    /// load may not have seen it.
    #[error("the key changed while it was loaded")]
    Changed,
    /// A gap fell into the load.
    #[error("changes were lost while the key was loaded")]
    Gap,
    /// No stream of changes is being followed yet.
    #[error("no stream of changes is being followed yet")]
    NotFollowing,
}

/// What to do with the value that is kept of a key, if one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Keep it: it contains the change.
    Keep,
    /// Drop it.
    Drop,
    /// Put the refresh's value in its place, with this stamp.
    Replace(Stamp),
}

/// What to do with all that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Nothing.
    Keep,
    /// Drop (or check against the database) every value in this scope whose
    /// stamp's position is less than `before`.
    Drop {
        /// Which keys.
        scope: Scope,
        /// Stamps from here on are not concerned.
        before: u64,
    },
}

impl Stamp {
    /// For a value of which nothing is known.
    pub const UNKNOWN: Stamp = Stamp {
        position: 0,
        filled: None,
    };

    /// For what a refresh with this position brought.
    pub fn refreshed(position: u64) -> Self {
        Stamp {
            position,
            filled: None,
        }
    }
}

/// What is known of a stream of changes, and of the last ones.
#[derive(Clone, Debug)]
pub struct FreshTable {
    era: u64,
    history: History,
    /// Of `history`; 0 where nothing was ever followed.
    history_id: u64,
    following: bool,
    progress: u64,
    as_of: Option<Instant>,
    /// Tokens before this position are refused, whatever the key.
    floor: u64,
    /// Latest position told for any of the keys that share the slot.
    slots: Box<[u64]>,
}

impl FreshTable {
    /// A table that follows nothing yet. `slots` is rounded up to a power of
    /// two; each takes eight bytes.
    pub fn new(slots: usize) -> Self {
        FreshTable {
            era: 0,
            history: History::default(),
            history_id: 0,
            following: false,
            progress: 0,
            as_of: None,
            floor: 0,
            slots: vec![0; slots.clamp(1, 1 << 32).next_power_of_two()].into(),
        }
    }

    /// Everything up to here has been told.
    pub fn position(&self) -> u64 {
        self.progress
    }

    /// Where to go on after an interruption; none before anything was told.
    pub fn place(&self) -> Option<Place> {
        (!self.history.0.is_empty()).then(|| Place {
            history: self.history.clone(),
            position: self.progress,
        })
    }

    /// How old what is kept may be: every commit acknowledged longer ago than
    /// this is contained. None if nothing is known.
    pub fn staleness(&self, now: Instant) -> Option<Duration> {
        let as_of = self.as_of?;
        Some(now.saturating_duration_since(as_of))
    }

    /// Whether every kept value contains the commits up to a position that
    /// somebody was told after their commit.
    pub fn reached(&self, position: u64) -> bool {
        self.following && self.progress >= position
    }

    /// To be taken before a load begins to read.
    pub fn token(&self) -> FillToken {
        FillToken {
            era: self.era,
            position: self.progress,
            contains: self.progress,
        }
    }

    /// Whether a loaded value may be stored. `now` is the moment of storing.
    ///
    /// # Errors
    /// It may not: serve it and forget it.
    pub fn admit(&self, hash: u64, token: FillToken, now: Instant) -> Result<Stamp, Refused> {
        if !self.following {
            return Err(Refused::NotFollowing);
        }
        if token.era != self.era || token.position < self.floor {
            return Err(Refused::Gap);
        }
        if token.position < self.slots[self.slot(hash)] {
            return Err(Refused::Changed);
        }
        // By notifications, changes are told with positions that lie before the
        // log's: what a value contains by the log would hide them.
        let notified = self.history.is_notified();
        Ok(Stamp {
            position: if notified {
                token.position
            } else {
                token.contains
            },
            filled: Some(now),
        })
    }

    /// A short name of the log's history, for values that go from one keeper to
    /// another; 0 where nothing was ever followed.
    pub fn history_id(&self) -> u64 {
        self.history_id
    }

    /// Whether progress is being told.
    pub fn following(&self) -> bool {
        self.following
    }

    /// For a loaded value of one who follows no stream, and keeps it all the same.
    pub fn unfollowed(&self, token: FillToken, now: Instant) -> Stamp {
        Stamp {
            position: token.contains,
            filled: Some(now),
        }
    }

    /// For a value that was not loaded but made here, at this moment.
    pub fn written(&self, now: Instant) -> Stamp {
        Stamp {
            position: self.progress,
            filled: Some(now),
        }
    }

    /// Whether a value with this stamp still may be served, as far as has been
    /// told: for one that was kept aside meanwhile.
    pub fn is_fresh(&self, hash: u64, stamp: Stamp) -> bool {
        stamp.position >= self.floor && stamp.position >= self.slots[self.slot(hash)]
    }

    /// For a value that another keeper had, by the same history, fresh as of a
    /// position. None if a later change has been told here, or may have been
    /// missed, or if it cannot be compared.
    pub fn receive(
        &self,
        hash: u64,
        history_id: u64,
        position: u64,
        now: Instant,
    ) -> Option<Stamp> {
        let stamp = Stamp {
            position,
            filled: Some(now),
        };
        (history_id == self.history_id && self.is_fresh(hash, stamp)).then_some(stamp)
    }

    /// [`Sink::begun`](crate::event::Sink::begun): says what has to go.
    pub fn begun(&mut self, place: &Place) -> Sweep {
        if self.history == place.history && place.position <= self.progress {
            return Sweep::Keep;
        }
        // A value may be kept that was read after all that is missing.
        let same = self.history == place.history;
        let before = if same { place.position } else { u64::MAX };
        self.interrupted();
        self.history = place.history.clone();
        self.history_id = xxh(&self.history);
        self.progress = place.position;
        // What was read before is unknown here, whoever has kept it meanwhile.
        self.floor = if same {
            self.floor.max(place.position)
        } else {
            self.slots.fill(0);
            place.position
        };
        Sweep::Drop {
            scope: Scope::All,
            before,
        }
    }

    /// [`Sink::gap`](crate::event::Sink::gap): says what has to go.
    pub fn gap(&mut self, gap: &Gap) -> Sweep {
        let same = self.history == gap.to.history;
        if same && gap.to.position <= self.progress && gap.scope != Scope::All {
            // Told before, and done then.
            return Sweep::Keep;
        }
        if gap.scope == Scope::All {
            self.interrupted();
        }
        if same {
            self.floor = self.floor.max(gap.to.position);
        }
        Sweep::Drop {
            scope: gap.scope.clone(),
            before: if same { gap.to.position } else { u64::MAX },
        }
    }

    /// Loads that have begun are refused, and new ones until there is progress
    /// again.
    fn interrupted(&mut self) {
        self.era += 1;
        self.following = false;
    }

    /// [`Sink::invalidate`](crate::event::Sink::invalidate): what to do with the
    /// key's value.
    pub fn invalidate(&mut self, hash: u64, position: u64) -> Verdict {
        if self.following && position <= self.progress {
            return Verdict::Keep;
        }
        self.changed(hash, position);
        Verdict::Drop
    }

    /// [`Sink::refresh`](crate::event::Sink::refresh): what to do with the key's
    /// value, whose stamp is given.
    pub fn refresh(&mut self, hash: u64, position: u64, kept: Option<Stamp>) -> Verdict {
        if self.following && position <= self.progress {
            return Verdict::Keep;
        }
        self.changed(hash, position);
        match kept {
            // What a load brought may be newer than this change, as long as
            // the stream has not caught up with the moment of the load.
            Some(Stamp {
                filled: Some(filled),
                ..
            }) if self.as_of.is_none_or(|as_of| as_of < filled) => Verdict::Drop,
            Some(Stamp { position: kept, .. }) if kept > position => Verdict::Keep,
            _ => Verdict::Replace(Stamp {
                position,
                filled: None,
            }),
        }
    }

    /// A change that the value which is kept is known to contain, by what the
    /// change says of itself: the value's stamp from now on. Every earlier change
    /// of the key has been told, so it contains those, too.
    pub fn contained(&mut self, hash: u64, position: u64, kept: Stamp) -> Stamp {
        if !self.following || position > self.progress {
            self.changed(hash, position);
        }
        Stamp {
            position: kept.position.max(position),
            ..kept
        }
    }

    fn changed(&mut self, hash: u64, position: u64) {
        let slot = self.slot(hash);
        self.slots[slot] = self.slots[slot].max(position);
    }

    /// [`Sink::progress`](crate::event::Sink::progress).
    pub fn progress(&mut self, progress: Progress) {
        self.following = true;
        self.progress = self.progress.max(progress.position);
        self.as_of = self.as_of.max(progress.as_of);
    }

    fn slot(&self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }
}
