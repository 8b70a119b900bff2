//! The vocabulary of operations: what a client asks of one replica and what
//! the replica answers, whatever carried it. The store executes these, the
//! operation machines decide over them, the fabrics and the RPC contract
//! encode them.

use crate::data::DataEntry;
use crate::version::Version;

/// What a CAS expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No value at all (memcached's `add`).
    Absent,
    /// Exactly this version.
    Version(Version),
}

/// What a mutation does with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Install unless something newer is known (rule 1).
    Set,
    /// Remove unless something newer is known; the version is remembered.
    Erase,
    /// Install iff exactly the expected version is present (rule 13).
    Cas(Expected),
    /// A SET of what was computed after a miss, iff nothing else was applied
    /// to the key here since: iff its stamp ([`crate::control::stamp`]) is still
    /// that of the miss.
    Fill {
        /// Of this replica, read at the miss.
        stamp: u64,
    },
}

/// One mutation at one replica.
#[derive(Clone, Copy, Debug)]
pub struct Mutation<'a> {
    /// What to do.
    pub action: Action,
    /// Nominated by the client.
    pub version: Version,
    /// Key, value and metadata; the value is empty for an erase.
    pub entry: DataEntry<'a>,
}

/// What became of a mutation at one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds here (or has held already: the same version again).
    Applied,
    /// Something at least as new is known here; retry above the bound.
    Superseded {
        /// The replica's bound for this key.
        bound: Version,
    },
    /// A CAS did not find what it expected, or the key was written since a fill's
    /// miss.
    Mismatch {
        /// What is present instead.
        present: Option<Version>,
        /// The replica's bound for this key.
        bound: Version,
    },
    /// Nothing was done.
    Rejected(Rejection),
}

/// Why a replica refuses to consider an operation. Rejected operations left
/// no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Rejection {
    /// The version is too far ahead of the backend's clock.
    #[error(
        "the version is more than 10 s ahead of the backend's clock: check the clocks of client and backend"
    )]
    ClockAhead = 1,
    /// Nothing that could be evicted makes enough room.
    #[error("the entry does not fit the backend's memory limit")]
    NoMemory = 2,
    /// Longer than the cell's configuration allows.
    #[error("the value is longer than the cell's limit")]
    ValueTooLong = 3,
    /// Longer than 65,536 bytes.
    #[error("the key is longer than 65536 bytes")]
    KeyTooLong = 4,
    /// Keys have at least one byte.
    #[error("the key is empty")]
    KeyEmpty = 5,
    /// The corpus is immutable.
    #[error("the cell is immutable (R=2): load another file with `trefoil cell reload`")]
    Immutable = 6,
    /// This shard is being filled.
    #[error("the backend is recovering")]
    Recovering = 7,
    /// The key belongs to other backends.
    #[error("the key does not belong to this backend under its configuration")]
    WrongShard = 8,
    /// An expiry or a flag that the formats cannot carry.
    #[error("the item's expiry or flags are out of range")]
    BadItem = 9,
    /// The request was made for another life of the cell. The client has to
    /// learn the whole topology anew.
    #[error("the cell was started anew: this backend holds another life of it")]
    OtherLife = 10,
    /// The request was made under a configuration that was replaced. The client
    /// has to learn the one in force.
    #[error("the cell's configuration has changed")]
    StaleConfig = 11,
    /// The request was made under a configuration that this backend does not
    /// serve yet: it is catching up. The client waits a moment.
    #[error("the backend is taking over the cell's new configuration")]
    UnknownConfig = 12,
}

impl Rejection {
    /// Every rejection, for decoding and for tables.
    pub const ALL: [Rejection; 12] = [
        Rejection::ClockAhead,
        Rejection::NoMemory,
        Rejection::ValueTooLong,
        Rejection::KeyTooLong,
        Rejection::KeyEmpty,
        Rejection::Immutable,
        Rejection::Recovering,
        Rejection::WrongShard,
        Rejection::BadItem,
        Rejection::OtherLife,
        Rejection::StaleConfig,
        Rejection::UnknownConfig,
    ];

    /// Whether the operation may succeed in a moment: what was wrong is the
    /// client's or the backend's knowledge of the topology, or a recovery.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Rejection::Recovering
                | Rejection::WrongShard
                | Rejection::OtherLife
                | Rejection::StaleConfig
                | Rejection::UnknownConfig
        )
    }

    /// The rejection with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|r| *r as u8 == number)
    }
}

/// A replica's answer to a mutation. Answers count together only if of one
/// epoch (rule 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The shard's epoch when it was executed.
    pub epoch: u32,
    /// What became of it.
    pub outcome: Outcome,
}

/// A replica's answer to a lookup by message (strategies MSG and RPC, and the
/// way to a key in the side table).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupAnswer<'a> {
    /// The shard's epoch when it was executed.
    pub epoch: u32,
    /// What was found.
    pub found: Found<'a>,
}

/// What a replica knows of the use of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemUse {
    /// The mutation that wrote the item.
    pub version: Version,
    /// It was read since then, as far as this replica was told.
    pub hit_before: bool,
    /// When it was last read, in seconds since the Unix epoch; 0 is not since it
    /// was written, or not known.
    pub last_use_s: u32,
}

/// What a lookup by message found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// The data entry's bytes as they lie in the data region, checksum
    /// included: validated by the same code as a one-sided read.
    Present {
        /// Of the index entry.
        version: Version,
        /// The encoded data entry.
        data: &'a [u8],
    },
    /// No value.
    Absent,
    /// No vote.
    Rejected(Rejection),
}
