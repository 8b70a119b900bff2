//! Eviction policies: who leaves when memory, or a bucket, is full.
//!
//! A policy belongs to one partition and is called under its lock. It knows
//! slots (numbers of the partition's index and side table) and, for memory of
//! what has left, *identities*: 64 bits that tell keys apart, the tag in
//! practice. It never sees keys, values or sizes.
//!
//! A slot number is of one of two *spaces*: an index that is being replaced and
//! the one that replaces it. Usually there is only one.
//!
//! The life of an item:
//!
//! ```text
//! prepare(identity)            a new key is coming: was it here lately?
//! victim(..) ...               as many as its room needs
//! insert(slot, identity)       it is here
//! access(slot) ...             read or overwritten
//! victim(..) -> slot           it leaves for lack of room,
//! victim_among(slots) -> slot    for lack of a place in its buckets,
//! remove(slot)                   or because it was erased or has expired
//! ```
//!
//! **Capacity.** The papers count it in objects and know it beforehand. Here it
//! is *the number of resident items when a victim is asked for*: the same thing
//! where a capacity in objects is configured, and right where bytes are the
//! limit, because then the number of items that fit follows the values' sizes.
//! Ratios (S3-FIFO's small queue and ghosts) and adaptive targets (ARC's) are
//! taken from that number each time.
//!
//! **Nonsense is ignored.** Slot numbers come from clients' touch reports: one
//! that is out of range or names an empty slot changes nothing.
//!
//! **Reads reported in batches** are noted beside the policy and told to it when
//! they matter ([`noted`]).
//!
//! **Memory.** Two bytes per slot for SLRU ([`slru`]); nine for the others
//! ([`slots`], [`noted`]), plus ten per remembered key ([`ghost`]): at most one key
//! per resident item for ARC, 0.9 for S3-FIFO, none for LRU.
//! [`Policy::resident_bytes`] counts capacity, not use.

mod age;
mod arc;
mod ghost;
mod lru;
mod noted;
#[cfg(test)]
mod oltp;
#[cfg(test)]
mod reference;
mod s3fifo;
mod slots;
mod slru;
#[cfg(test)]
mod tests;

pub use arc::Arc;
pub use lru::Lru;
pub use noted::Noted;
pub use s3fifo::S3Fifo;
pub use slots::{SLOT_COUNT_MAX, SPACE};
pub use slru::Slru;

use std::fmt;
use std::str::FromStr;

/// Ghosts that one eviction drops at most: one in the steady state, more while
/// the number of resident items is falling.
const GHOST_DROP_MAX: usize = 4;

/// How long ago an item was used, and how, by a clock that passes with insertions: what a
/// copy of it is to be told beside its value, lest the first to leave there are those that
/// are used most. 0 says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recency(u16);

impl Recency {
    /// As a message carries it.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Of a message; any bits mean something.
    pub const fn from_bits(bits: u16) -> Self {
        Recency(bits)
    }
}

/// Chooses what leaves a partition.
pub trait Policy: Send {
    /// Makes room for slot numbers below `slot_count`, in the space that it is
    /// of (see [`SPACE`]); those that exist keep theirs. Never shrinks. Panics
    /// beyond [`SLOT_COUNT_MAX`].
    fn resize(&mut self, slot_count: u32);

    /// Takes the slots of a space away. All items have been removed from it, or
    /// relocated to the other one. Dropping what is returned may take long.
    fn retire(&mut self, space: u32) -> Retired;

    /// A key that is not here is about to be inserted; to be called before its
    /// victims are chosen. Once is enough; a repetition for the same key does
    /// no harm, nor does a key that is never inserted.
    fn prepare(&mut self, identity: u64);

    /// The key stands in `slot` now.
    fn insert(&mut self, slot: u32, identity: u64);

    /// The item in `slot` was read or overwritten.
    fn access(&mut self, slot: u32);

    /// The item in `slot` is gone: erased or expired.
    fn remove(&mut self, slot: u32);

    /// The item in `from` stands in the empty slot `to` now; order and
    /// frequency stay with it. Displacements stay with the slots.
    fn relocate(&mut self, from: u32, to: u32);

    /// Chooses the item that has to leave; it is still there. None if nothing
    /// is resident.
    fn candidate(&mut self) -> Option<u32>;

    /// Takes the candidate out and remembers its key.
    fn evict(&mut self, slot: u32, identity: u64);

    /// Chooses the item that has to leave, takes it out and remembers its key.
    /// None if nothing is resident.
    fn victim(&mut self, identity_of: &mut dyn FnMut(u32) -> u64) -> Option<u32> {
        let slot = self.candidate()?;
        self.evict(slot, identity_of(slot));
        Some(slot)
    }

    /// The same with the choice limited to `slots`. Empty slots are passed
    /// over. Queue and frequency decide, then a coarse age; the exact order
    /// within a list is not known.
    fn victim_among(
        &mut self,
        slots: &[u32],
        identity_of: &mut dyn FnMut(u32) -> u64,
    ) -> Option<u32>;

    /// Brings the metadata of a slot nearer.
    fn prefetch(&self, slot: u32);

    /// Items resident.
    fn resident_count(&self) -> u32;

    /// Private memory held, in bytes.
    fn resident_bytes(&self) -> u64;

    /// Two bits kept for the index: how many buckets from its home an entry
    /// stands. Only [`Policy::set_displacement`] and [`Policy::retire`] change
    /// it; insertion and removal do not.
    fn displacement(&self, slot: u32) -> u8;

    /// See [`Policy::displacement`].
    fn set_displacement(&mut self, slot: u32, displacement: u8);
}

/// Metadata of slots that are no more: to be dropped where nobody waits.
#[derive(Debug, Default)]
pub struct Retired {
    words: Vec<u64>,
    stamps: Vec<u16>,
    notes: Vec<u8>,
}

impl Retired {
    fn words(words: Vec<u64>) -> Self {
        Retired {
            words,
            ..Retired::default()
        }
    }

    /// Private bytes that they take until they are dropped.
    pub fn private_len(&self) -> u64 {
        let stamps = self.stamps.capacity() * size_of::<u16>();
        (self.words.capacity() * size_of::<u64>() + stamps + self.notes.capacity()) as u64
    }
}

/// Bytes of metadata for this many slots, ghosts not included: what
/// a second space of that many will need beside the first.
pub fn slot_bytes(kind: PolicyKind, slot_count: u32) -> u64 {
    match kind {
        PolicyKind::Slru => slru::bytes(slot_count),
        _ => u64::from(slot_count) * (size_of::<u64>() + size_of::<u8>()) as u64,
    }
}

/// The policies there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PolicyKind {
    /// Segmented LRU by coarse ages.
    #[default]
    Slru,
    /// Least recently used.
    Lru,
    /// Adaptive replacement cache.
    Arc,
    /// Three FIFO queues.
    S3Fifo,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 4] = [
        PolicyKind::Slru,
        PolicyKind::Lru,
        PolicyKind::Arc,
        PolicyKind::S3Fifo,
    ];

    /// The name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyKind::Slru => "slru",
            PolicyKind::Lru => "lru",
            PolicyKind::Arc => "arc",
            PolicyKind::S3Fifo => "s3fifo",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A policy name that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no eviction policy is called {0:?}; choose slru, lru, arc or s3fifo")]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// Any of the policies, without a virtual call.
#[derive(Debug)]
pub enum AnyPolicy {
    /// See [`Slru`].
    Slru(Slru),
    /// See [`Lru`].
    Lru(Lru),
    /// See [`Arc`].
    Arc(Arc),
    /// See [`S3Fifo`].
    S3Fifo(S3Fifo),
}

/// A policy for slots 0 to `slot_count - 1`, all empty. Panics beyond
/// [`SLOT_COUNT_MAX`].
pub fn new(kind: PolicyKind, slot_count: u32) -> AnyPolicy {
    match kind {
        PolicyKind::Slru => AnyPolicy::Slru(Slru::new(slot_count)),
        PolicyKind::Lru => AnyPolicy::Lru(Lru::new(slot_count)),
        PolicyKind::Arc => AnyPolicy::Arc(Arc::new(slot_count)),
        PolicyKind::S3Fifo => AnyPolicy::S3Fifo(S3Fifo::new(slot_count)),
    }
}

macro_rules! each {
    ($any:expr, $policy:ident => $call:expr) => {
        match $any {
            AnyPolicy::Slru($policy) => $call,
            AnyPolicy::Lru($policy) => $call,
            AnyPolicy::Arc($policy) => $call,
            AnyPolicy::S3Fifo($policy) => $call,
        }
    };
}

impl Policy for AnyPolicy {
    fn resize(&mut self, slot_count: u32) {
        each!(self, policy => policy.resize(slot_count))
    }

    fn retire(&mut self, space: u32) -> Retired {
        each!(self, policy => policy.retire(space))
    }

    #[inline]
    fn prepare(&mut self, identity: u64) {
        each!(self, policy => policy.prepare(identity))
    }

    #[inline]
    fn insert(&mut self, slot: u32, identity: u64) {
        each!(self, policy => policy.insert(slot, identity))
    }

    #[inline]
    fn access(&mut self, slot: u32) {
        each!(self, policy => policy.access(slot))
    }

    #[inline]
    fn remove(&mut self, slot: u32) {
        each!(self, policy => policy.remove(slot))
    }

    fn relocate(&mut self, from: u32, to: u32) {
        each!(self, policy => policy.relocate(from, to))
    }

    fn candidate(&mut self) -> Option<u32> {
        each!(self, policy => policy.candidate())
    }

    fn evict(&mut self, slot: u32, identity: u64) {
        each!(self, policy => policy.evict(slot, identity))
    }

    fn victim_among(
        &mut self,
        slots: &[u32],
        identity_of: &mut dyn FnMut(u32) -> u64,
    ) -> Option<u32> {
        each!(self, policy => policy.victim_among(slots, identity_of))
    }

    #[inline(always)]
    fn prefetch(&self, slot: u32) {
        each!(self, policy => policy.prefetch(slot))
    }

    fn resident_count(&self) -> u32 {
        each!(self, policy => policy.resident_count())
    }

    fn resident_bytes(&self) -> u64 {
        each!(self, policy => policy.resident_bytes())
    }

    #[inline]
    fn displacement(&self, slot: u32) -> u8 {
        each!(self, policy => policy.displacement(slot))
    }

    #[inline]
    fn set_displacement(&mut self, slot: u32, displacement: u8) {
        each!(self, policy => policy.set_displacement(slot, displacement))
    }
}
