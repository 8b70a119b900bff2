//! How one corpus is kept, and every limit of the protocol.

use std::time::Duration;

/// The most that [`Config::chunk_bytes`] may be.
pub const CHUNK_BYTES_MAX: usize = 16 << 20;

/// How many copies of a value there are, and what they are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Replication {
    /// The owner's only. A dead owner's values are lost, and reported.
    #[default]
    None,
    /// The owner acknowledges; copies follow. After the owner's death a copy
    /// is served, and its range reported: the last commits may be missing.
    Eventual,
    /// The owner acknowledges when every server that may have a copy has
    /// confirmed, [`Config::copies_min`] servers at least have the value, and
    /// only while its lease holds.
    Strong,
}

/// What becomes of strong commits while there are fewer servers for copies than
/// [`Config::copies_min`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TooFew {
    /// They are refused ([`Refused::TooFewCopies`](crate::Refused)).
    #[default]
    Refuse,
    /// They are acknowledged with as many as there are;
    /// [`Commit::copies`](crate::Commit) says how many. The next death may take
    /// them.
    Acknowledge,
}

/// How one corpus is kept. All servers of a corpus use the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Copies.
    pub replication: Replication,
    /// Whether an owner whose lease has run out stops serving. Always so with
    /// [`Replication::Strong`]. Otherwise it may serve on, so that an outage of
    /// the coordination does not stop the traffic; what it acknowledges in that
    /// time is reported if somebody else has taken over meanwhile.
    pub lease_required: bool,
    /// Servers, the owner counted, that have to have a strong commit before it
    /// is acknowledged; at least 1, which is no copy at all.
    pub copies_min: usize,
    /// What to do where there are fewer.
    pub too_few: TooFew,
    /// Marshalled bytes of one chunk, [`CHUNK_BYTES_MAX`] at most; a single key point may be
    /// more.
    pub chunk_bytes: usize,
    /// Entries of one chunk.
    pub chunk_entries: usize,
    /// Marshalled bytes that go along with a key that somebody waits for: its
    /// neighbours. 0: it goes alone. If all did, callers of many keys would take a
    /// range apart into as many pieces.
    pub pull_bytes: usize,
    /// Bytes sent to one server and not confirmed yet, above which nothing but
    /// what is urgent is sent: what somebody waits for, and the copies and commits
    /// that commits under way wait for.
    pub window_bytes: usize,
    /// Of these, the share of what nobody waits for: above it no further chunk of a move
    /// or of copies is sent. Messages between two servers arrive in order, so whatever is
    /// urgent has that much before it at most. More is faster on a long way.
    pub bulk_bytes: usize,
    /// Bytes per second that this server spends on moving and copying values;
    /// `u64::MAX` for no limit. What somebody waits for goes at once, and the rest waits
    /// for longer then. What is to be recovered after a death has no owner meanwhile, and
    /// waits for nothing.
    pub bytes_per_second: u64,
    /// After which an unconfirmed message is sent again. Longer than a round
    /// trip.
    pub resend_after: Duration,
    /// What a server could not store is sent to it again: after four times
    /// `resend_after`, then after twice that, and so on up to this pause.
    pub retry_max: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            replication: Replication::None,
            lease_required: false,
            copies_min: 2,
            too_few: TooFew::Refuse,
            chunk_bytes: 64 << 10,
            chunk_entries: 1_024,
            pull_bytes: 16 << 10,
            window_bytes: 4 << 20,
            bulk_bytes: 256 << 10,
            bytes_per_second: u64::MAX,
            resend_after: Duration::from_millis(250),
            retry_max: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// The usual one with this replication.
    pub fn new(replication: Replication) -> Self {
        Config {
            replication,
            ..Config::default()
        }
    }

    /// Whether nothing is served without a lease.
    pub fn needs_lease(&self) -> bool {
        self.lease_required || self.replication == Replication::Strong
    }

    /// Servers that every key is to have, the owner counted: what the
    /// coordination is asked for.
    pub fn servers_wanted(&self) -> usize {
        match self.replication {
            Replication::None => 1,
            Replication::Eventual => 2,
            Replication::Strong => self.copies_min,
        }
    }

    /// Checks that the limits allow progress.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let rules = [
            (self.copies_min > 0, "copies_min has to be above 0"),
            (self.chunk_bytes > 0, "chunk_bytes has to be above 0"),
            (
                self.chunk_bytes <= CHUNK_BYTES_MAX,
                "chunk_bytes has to be 16 MiB at most",
            ),
            (self.chunk_entries > 0, "chunk_entries has to be above 0"),
            (
                self.window_bytes >= self.chunk_bytes,
                "window_bytes has to be at least chunk_bytes",
            ),
            (self.bulk_bytes > 0, "bulk_bytes has to be above 0"),
            (
                self.bytes_per_second > 0,
                "bytes_per_second has to be above 0",
            ),
            (
                !self.resend_after.is_zero(),
                "resend_after has to be above 0",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(ConfigError(rule)),
            None => Ok(()),
        }
    }
}

/// Limits under which nothing could move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a corpus cannot be kept like this: {0}")]
pub struct ConfigError(pub &'static str);
