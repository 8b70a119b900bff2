//! The bytes that two Trefoil processes share, and nothing else.
//!
//! Every layout stands once, as a table at the top of its module, beside the
//! constants derived from it and compile-time asserts. No I/O, no clock, no
//! runtime; the only allocation is a caller's own buffer growing.
//!
//! | module | what it describes |
//! |---|---|
//! | [`limits`] | named bounds and how they relate |
//! | [`hash`] | key hash: which bits pick shard, partition, bucket, slot and tag |
//! | [`placement`] | which backends hold a key, and which shards a backend holds |
//! | [`epoch`] | numbers of epochs, and who may be in one |
//! | [`version`] | client-nominated, globally unique, totally ordered versions |
//! | [`entry`] | the 32-byte index entry and its packed pointer |
//! | [`bucket`] | header, slots, the reader's scan and the writer's publish |
//! | [`data`] | the self-validating data entry |
//! | [`control`] | a backend's control region: lease, incarnation, windows |
//! | [`copied`] | copies of long values, at a processor's full speed |
//! | [`hello`] | the greeting on a backend's Unix socket |
//! | [`ring`] | one client's request and answer rings |
//! | [`message`] | requests and answers, as bytes |
//! | [`size_class`] | classes of items by size, in which statistics are told |
//! | [`topology`] | which life and configuration of a cell |
//! | [`op`] | the vocabulary of mutations, lookups and their answers |
//!
//! Shared words are reached through [`words::Words`], so that the same code
//! runs over a mapping, over a private copy that a network read filled, and
//! over loom's atomics in the memory-model tests.

pub mod bucket;
pub mod checksum;
pub mod control;
pub mod copied;
pub mod data;
pub mod entry;
pub mod epoch;
pub mod hash;
pub mod hello;
pub mod limits;
pub mod message;
pub mod op;
pub mod placement;
pub mod ring;
pub mod size_class;
pub mod topology;
pub mod version;
pub mod words;

pub use bucket::{BucketHeader, BucketScan};
pub use entry::{IndexEntry, Pointer};
pub use hash::{HashKind, KeyHash, KeyHasher};
pub use placement::{Cohort, Placement, ShardMap};
pub use topology::TopologyId;
pub use version::Version;
