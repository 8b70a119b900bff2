//! What a relay tells, and who is told.

use crate::position::Place;
use bytes::Bytes;
use std::fmt;
use std::str::FromStr;
use std::time::Instant;

/// Takes what a relay tells: in commit order, at least once.
///
/// The order of calls: [`begun`](Sink::begun) first and after every
/// interruption, then changes, with [`progress`](Sink::progress) whenever all
/// changes up to a position have been told. What is told again after an
/// interruption has positions that are not greater than the progress before
/// it, or belongs to the transaction that was interrupted. Calls must not
/// block for long: the relay waits for them.
pub trait Sink: Send {
    /// Everything after this place will be told. A sink that is not there
    /// (its progress is earlier, or in another history) has missed changes.
    fn begun(&mut self, place: &Place);

    /// What is kept of this key is out of date.
    fn invalidate(&mut self, key: &Bytes, position: u64);

    /// The key's row changed, and this is its new form.
    fn refresh(&mut self, key: &Bytes, value: &Bytes, position: u64);

    /// Changes may be missing.
    fn gap(&mut self, gap: &Gap);

    /// All changes up to a position have been told.
    fn progress(&mut self, progress: Progress);

    /// Up to where the database may forget its changes: everything up to there
    /// has been taken, and will not be asked for again.
    fn taken(&self) -> u64;
}

/// Everything up to a position has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Every commit up to here has been told, and whoever begins to read the
    /// database from now on sees it.
    pub position: u64,
    /// A moment of this machine's clock: every commit that was acknowledged
    /// before it has been told. None: nothing new is known.
    pub as_of: Option<Instant>,
}

/// Changes that may be missing: what was kept from before
/// [`to`](Gap::to) has to be dropped or checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The last position before the gap that is complete; 0 if there is none.
    pub from: u64,
    /// What was read at this place or later is not concerned. If its history
    /// is another one, earlier positions cannot be compared with it.
    pub to: Place,
    /// How it came about.
    pub reason: GapReason,
    /// Tables that are concerned, as `schema.table`; empty: all.
    pub tables: Vec<String>,
    /// Keys that are concerned.
    pub scope: Scope,
}

/// Which keys something concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every key.
    All,
    /// Keys that begin with one of these.
    Prefixes(Vec<Bytes>),
}

impl Scope {
    /// Whether it concerns this key.
    pub fn covers(&self, key: &[u8]) -> bool {
        match self {
            Scope::All => true,
            Scope::Prefixes(prefixes) => prefixes.iter().any(|prefix| key.starts_with(prefix)),
        }
    }
}

/// How a gap came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapReason {
    /// Nothing was followed before: the slot is new, or a temporary one.
    SlotNew,
    /// The database has dropped the slot or what it should have retained.
    SlotLost,
    /// The log has another history: a failover, another cluster, or a restart
    /// of a database that is not trusted to keep what it has shown.
    HistoryChanged,
    /// Tables were emptied.
    Truncated,
    /// A table's columns changed: rows may have been rewritten silently.
    SchemaChanged,
    /// A row changed whose old key the database does not tell.
    KeyUnknown,
    /// The subscriber was too slow for the relay's memory.
    Overrun,
    /// The subscriber was away for longer than the relay's memory.
    Forgotten,
    /// A connection without memory was interrupted.
    Disconnected,
}

/// Every reason with its name on the wire and in metrics.
const REASONS: [(GapReason, &str); 9] = [
    (GapReason::SlotNew, "slot-new"),
    (GapReason::SlotLost, "slot-lost"),
    (GapReason::HistoryChanged, "history-changed"),
    (GapReason::Truncated, "truncated"),
    (GapReason::SchemaChanged, "schema-changed"),
    (GapReason::KeyUnknown, "key-unknown"),
    (GapReason::Overrun, "overrun"),
    (GapReason::Forgotten, "forgotten"),
    (GapReason::Disconnected, "disconnected"),
];

impl fmt::Display for GapReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = REASONS.iter().find(|(reason, _)| reason == self);
        f.write_str(named.map_or("unnamed", |(_, name)| name))
    }
}

/// A name that no reason has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no known reason for a gap")]
pub struct GapReasonError(pub String);

impl FromStr for GapReason {
    type Err = GapReasonError;

    fn from_str(name: &str) -> Result<Self, GapReasonError> {
        let known = REASONS.iter().find(|(_, known)| *known == name);
        known
            .map(|(reason, _)| *reason)
            .ok_or_else(|| GapReasonError(name.into()))
    }
}

/// The same as calls of a [`Sink`], as a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// [`Sink::begun`].
    Begun(Place),
    /// [`Sink::invalidate`].
    Invalidate {
        /// Whose value is out of date.
        key: Bytes,
        /// The change's version.
        position: u64,
    },
    /// [`Sink::refresh`].
    Refresh {
        /// Whose value is new.
        key: Bytes,
        /// The new value.
        value: Bytes,
        /// The change's version.
        position: u64,
    },
    /// [`Sink::gap`].
    Gap(Gap),
    /// [`Sink::progress`].
    Progress(Progress),
}

impl Event {
    /// Tells a sink.
    pub fn tell(&self, sink: &mut impl Sink) {
        match self {
            Event::Begun(place) => sink.begun(place),
            Event::Invalidate { key, position } => sink.invalidate(key, *position),
            Event::Refresh {
                key,
                value,
                position,
            } => sink.refresh(key, value, *position),
            Event::Gap(gap) => sink.gap(gap),
            Event::Progress(progress) => sink.progress(*progress),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_names_of_their_own() {
        for (reason, name) in REASONS {
            assert_eq!(reason.to_string(), name);
            assert_eq!(name.parse(), Ok(reason));
        }
        assert!("unnamed".parse::<GapReason>().is_err());
    }

    #[test]
    fn scopes_go_by_prefix() {
        let scope = Scope::Prefixes(vec![Bytes::from_static(b"a/"), Bytes::from_static(b"b/")]);
        assert!(scope.covers(b"a/1") && scope.covers(b"b/"));
        assert!(!scope.covers(b"a") && !scope.covers(b"c/1"));
        assert!(Scope::All.covers(b""));
    }
}
