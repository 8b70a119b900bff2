//! The operations of a Trefoil client as machines without I/O, clock or
//! runtime. A driver owns the sockets, the mappings and the time; a machine
//! says what to do next (`poll`) and is told what came of it (`handle_*`).
//!
//! ```text
//!              poll: ReadIndex, ReadData, Ask, Send, Pause, Done ...
//!   machine  ---------------------------------------------------->  driver
//!   get, mutate, cas                                                shm, network, simulator
//!            <----------------------------------------------------
//!              handle_index, handle_data, handle_ack, handle_failure ...
//! ```
//!
//! | module | what it decides |
//! |---|---|
//! | [`vote`] | what a bucket says about a key, whatever carried it |
//! | [`data`] | whether bytes are the wanted, valid value |
//! | [`quorum`] | what votes and acknowledgements add up to; tables in `tests/all/decisions/` |
//! | [`get`] | lookups in every mode and by every strategy |
//! | [`mutate`], [`cas`], [`outcome`] | mutations |
//! | [`fill`] | what a miss leaves for the fill after it |
//! | [`clock`] | which version comes next |
//! | [`retry`] | deadline, budget, causes |
//! | [`touch`] | what was read, for the backends' eviction |
//! | [`mode`] | copies and quorum |
//! | [`mutants`] | single rules switched off, for tests that must notice |
//!
//! Nothing here allocates. A hit under R=1 costs the machine a few
//! nanoseconds (`cargo run --release -p trefoil-client-core --example get_cost`).
//!
//! ```
//! use trefoil_client_core::data::DataCheck;
//! use trefoil_client_core::get::{Get, GetOutcome, GetStep, Plan};
//! use trefoil_client_core::retry::Limits;
//! use trefoil_client_core::vote::IndexVote;
//! use trefoil_layout::data::DataEntry;
//! use trefoil_layout::{IndexEntry, KeyHasher, Pointer, Version};
//!
//! let hash = KeyHasher::default().hash(b"key");
//! let version = Version::new(1_000, 7, 0);
//! let stored = DataEntry { key: b"key", value: b"value", ..DataEntry::default() };
//! let mut bytes = vec![0; stored.encoded_len()];
//! stored.encode(&mut bytes, hash.tag, version);
//! let entry = IndexEntry { tag: hash.tag, version, pointer: Pointer::new(0, bytes.len()).unwrap() };
//!
//! let check = DataCheck { key: b"key", now_ms: 0, flush_floor: Version::ZERO };
//! let mut get = Get::<1>::new(&Plan::frugal(0), hash, Limits::until(u64::MAX), 0);
//! loop {
//!     match get.poll(0) {
//!         GetStep::ReadIndex { replica } => {
//!             get.handle_index(replica, IndexVote::Present { slot_number: 3, entry, epoch: 1 });
//!         }
//!         GetStep::ReadData { replica, .. } => get.handle_data(replica, &bytes, &check),
//!         GetStep::Done(outcome) => {
//!             assert_eq!(outcome, GetOutcome::Hit { version, replica: 0 });
//!             break;
//!         }
//!         other => unreachable!("{other:?}"),
//!     }
//! }
//! ```

pub mod cas;
pub mod clock;
pub mod data;
pub mod fill;
pub mod get;
pub mod mode;
pub mod mutants;
pub mod mutate;
pub mod outcome;
pub mod quorum;
pub mod retry;
pub mod touch;
pub mod vote;
