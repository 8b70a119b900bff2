//! The store of one backend: partitions of items in memory that others read.
//!
//! No sockets, no clock, no threads: the backend brings requests, the time and
//! [`Store::maintain`]'s turns.
//!
//! ```text
//!  any thread ── mutate / lookup / touch ──► partition (one lock each)
//!  maintenance ── maintain ───────────────►   rules, policy, allocator
//!                                               │ writes words
//!                      control · index · data ◄─┘
//!                          ▲ read one-sided, without any lock
//!                       clients
//! ```
//!
//! Start with [`Store::mutate`], then `partition::mutate` (the rules),
//! `partition::room` (who leaves when memory is full) and `partition::reshape`
//! (how an index grows under readers).

mod budget;
mod changed;
mod classes;
mod committed;
mod config;
mod digest;
mod evictions;
mod index;
mod inspect;
mod leaving;
mod list;
mod maintain;
mod memory;
#[cfg(feature = "mutants")]
pub mod mutants;
#[cfg(not(feature = "mutants"))]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the product breaks no rule and names only some"
)]
mod mutants;
mod partition;
pub mod policy;
mod pool;
mod ranges;
mod read;
mod reload;
mod runs;
mod sample;
mod serving;
mod shared;
mod side;
mod slab;
mod space;
mod stats;
mod store;
mod tombstones;
mod transfer;
mod uses;

pub use changed::CHANGED_UNIT;
pub use committed::CommitOrder;
pub use config::{Now, StoreConfig, StoreError};
pub use digest::KeyState;
pub use evictions::Evicted;
pub use list::{ListedItem, Position};
pub use maintain::Maintained;
pub use partition::{CheckError, StoredItem};
pub use policy::{PolicyKind, Recency};
pub use read::{Access, EachRead, Foreseen};
pub use reload::ReloadError;
pub use space::{Regions, Space};
pub use stats::{Counts, MutationKind, OutcomeCounts, Resident, StoreStats};
pub use store::Store;
pub use transfer::{Exported, PLACES};
