//! One operation of one client: when it began and ended, what it did and what
//! it was told.

use trefoil_layout::Version;

/// The end of an operation that nobody saw end.
pub const NEVER: u64 = u64::MAX;

/// What a value says of itself: the write that wrote it.
///
/// A counter's value has the mark of the `add` that made it, and the number of
/// increments since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mark {
    /// The client that wrote it; 0 is nobody.
    pub writer: u32,
    /// The number of the write among that client's operations.
    pub sequence: u32,
    /// Increments since; 0 for a value that is no counter.
    pub count: u32,
}

impl Mark {
    /// No value.
    pub const NONE: Mark = Mark {
        writer: 0,
        sequence: 0,
        count: 0,
    };

    /// A value that is not a counter's, or a counter's first.
    pub const fn new(writer: u32, sequence: u32) -> Mark {
        Mark {
            writer,
            sequence,
            count: 0,
        }
    }

    /// The `add` that a counter began with.
    pub const fn origin(self) -> Mark {
        Mark { count: 0, ..self }
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A lookup, alone or as one of many.
    Get = 1,
    /// Store.
    Set = 2,
    /// Store what was computed after a miss.
    Fill = 3,
    /// Store in the place of exactly one value, or of none.
    Cas = 4,
    /// Remove.
    Erase = 5,
    /// Add one to a counter.
    Increment = 6,
    /// Make everything invisible, of every key.
    Flush = 7,
    /// Not asked for: the only copy of everything is gone.
    Loss = 8,
}

impl Kind {
    /// Every kind, for decoding and for tables.
    pub const ALL: [Kind; 8] = [
        Kind::Get,
        Kind::Set,
        Kind::Fill,
        Kind::Cas,
        Kind::Erase,
        Kind::Increment,
        Kind::Flush,
        Kind::Loss,
    ];

    /// Whether it concerns all keys.
    pub const fn is_of_all(self) -> bool {
        matches!(self, Kind::Flush | Kind::Loss)
    }

    /// Its name in histories.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Get => "get",
            Kind::Set => "set",
            Kind::Fill => "fill",
            Kind::Cas => "cas",
            Kind::Erase => "erase",
            Kind::Increment => "increment",
            Kind::Flush => "flush",
            Kind::Loss => "loss",
        }
    }
}

/// What the caller was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// A value whose bytes are those of one write.
    Hit = 1,
    /// Bytes that nobody can have written for this key.
    Corrupt = 2,
    /// No value.
    Absent = 3,
    /// A value past its expiry.
    Expired = 4,
    /// A value from before the last flush.
    Flushed = 5,
    /// No two replicas agree.
    Inquorate = 6,
    /// A lookup without an answer.
    Failed = 7,
    /// It holds.
    Stored = 8,
    /// Something newer was there first. A copy may stand at one replica.
    Superseded = 9,
    /// Nothing was done.
    Denied = 10,
    /// It may have been done, or may yet be.
    Unknown = 11,
}

impl Outcome {
    /// Every outcome, for decoding and for tables.
    pub const ALL: [Outcome; 11] = [
        Outcome::Hit,
        Outcome::Corrupt,
        Outcome::Absent,
        Outcome::Expired,
        Outcome::Flushed,
        Outcome::Inquorate,
        Outcome::Failed,
        Outcome::Stored,
        Outcome::Superseded,
        Outcome::Denied,
        Outcome::Unknown,
    ];

    /// The operation did what it is for. A CAS that is denied may have met another writer,
    /// or nobody at all: it does not count.
    pub const fn has_succeeded(self) -> bool {
        matches!(
            self,
            Outcome::Hit
                | Outcome::Absent
                | Outcome::Expired
                | Outcome::Flushed
                | Outcome::Stored
                | Outcome::Superseded
        )
    }

    /// Its name in histories.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Hit => "hit",
            Outcome::Corrupt => "corrupt",
            Outcome::Absent => "absent",
            Outcome::Expired => "expired",
            Outcome::Flushed => "flushed",
            Outcome::Inquorate => "inquorate",
            Outcome::Failed => "failed",
            Outcome::Stored => "stored",
            Outcome::Superseded => "superseded",
            Outcome::Denied => "denied",
            Outcome::Unknown => "unknown",
        }
    }
}

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Who did it.
    pub client: u32,
    /// Its number among the client's operations; those of one `get_many` have
    /// numbers of their own.
    pub number: u32,
    /// On what; see [`Kind::is_of_all`].
    pub key: u32,
    /// What.
    pub kind: Kind,
    /// With what result.
    pub outcome: Outcome,
    /// When it was called.
    pub begin_ns: u64,
    /// When the answer was there; [`NEVER`] if nobody saw it.
    pub end_ns: u64,
    /// Of a mutation: its own. Of a hit or an increment: of the value found.
    pub mark: Mark,
    /// Of the value, in bytes.
    pub len: u32,
    /// Of the value found or stored; zero where the carrier does not tell.
    pub version: Version,
    /// Of a CAS: the value that it replaces ([`Mark::NONE`]: none). Of a fill:
    /// nothing.
    pub expected: Mark,
    /// Of a CAS: that value's version; zero where it is not known.
    pub expected_version: Version,
    /// Of a fill: when the GET began that missed.
    pub miss_begin_ns: u64,
    /// Of a fill: when that GET ended.
    pub miss_end_ns: u64,
}

impl Event {
    /// An operation under way, of which nothing more is known yet.
    pub fn begun(client: u32, number: u32, key: u32, kind: Kind, begin_ns: u64) -> Event {
        Event {
            client,
            number,
            key,
            kind,
            outcome: if kind == Kind::Get {
                Outcome::Failed
            } else {
                Outcome::Unknown
            },
            begin_ns,
            end_ns: NEVER,
            mark: Mark::NONE,
            len: 0,
            version: Version::ZERO,
            expected: Mark::NONE,
            expected_version: Version::ZERO,
            miss_begin_ns: 0,
            miss_end_ns: 0,
        }
    }

    /// A mutation that was acknowledged.
    pub fn is_acknowledged(&self) -> bool {
        self.outcome == Outcome::Stored
    }

    /// Whether it writes a value.
    pub fn is_write(&self) -> bool {
        matches!(self.kind, Kind::Set | Kind::Fill | Kind::Cas)
    }

    /// From when on a write counts as done, as far as others are older or newer.
    pub fn order_begin_ns(&self) -> u64 {
        match self.kind {
            Kind::Fill => self.miss_begin_ns,
            _ => self.begin_ns,
        }
    }

    /// When a write has certainly been done, or [`NEVER`].
    pub fn order_end_ns(&self) -> u64 {
        match (self.kind, self.outcome) {
            (Kind::Fill, _) => self.miss_end_ns,
            (_, Outcome::Stored) => self.end_ns,
            _ => NEVER,
        }
    }
}
