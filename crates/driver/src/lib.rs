//! The client's driver: many operations under way on the links of one client,
//! without I/O, threads or blocking. A host lends it clocks, connections and
//! configurations; ports carry its reads and messages; whoever owns it decides when
//! to sleep. The client library and its async client are hosts, and so is the
//! simulator (`trefoil-sim`, module `whole`).
//!
//! ```text
//!   Host: clocks, connect, learn ──events──┐
//!                                          ▼
//!   submit ──► Slab of Ops ◄── steps ── Driver ──► Links ──► Ports (near: shm; far: calls)
//!                 machines of client-core   ▲                  │
//!                 a buffer each             └──completions─────┘
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `topology` | all that is believed of a cell: one value, swapped whole |
//! | `host` | what the driver asks of the world |
//! | `link` | one backend: which port, when to try again, what it owes |
//! | `inline` | a lookup by one-sided reads, carried out in place |
//! | `op` | one operation: machine, message, what it waits for |
//! | `slab` | all of them, and their timers |
//! | `driver` | begins operations, sends messages |
//! | `late` | third copies whose answer comes when the operation is over |
//! | `suspects` | keys on which replicas differ, for whoever repairs them |
//! | `learn` | learns of the cell, and swaps topologies |
//! | `uses` | what is reported of items that were read |
//! | `stamps` | what a miss leaves for a fill |
//! | `room` | messages that wait for room in a ring or among calls |
//! | `turn` | takes in what has come |
//! | `lose` | takes note of what will not come any more |
//! | `step` | goes on with one operation |
//!
//! # Invariants
//!
//! 1. An answer counts for the attempt that asked: every message has a token of its
//!    own, and an operation knows which token each replica owes it.
//! 2. What a mutation has to send is sent to all replicas: a message that finds a
//!    ring full keeps its operation's place after the outcome is known. What is left
//!    waiting so is bounded: beyond it, operations end when less is waiting.
//! 3. An operation begun under one topology is never finished under another: it
//!    begins again, with a new hash, cohort and mode, within its deadline.
//! 4. Nothing waits here. Connections and configurations are begun, and end as
//!    events.

mod driver;
mod host;
pub mod inline;
mod late;
mod learn;
mod link;
mod lose;
mod op;
mod options;
mod room;
mod slab;
mod slow;
mod stamps;
mod step;
mod suspects;
mod topology;
mod turn;
mod uses;
mod versions;

pub use driver::{Counters, Driver, Inline, Purpose, Turns};
pub use host::{Clock, Event, Host, NotConnected, SUCCESSOR_NS};
pub use link::{CarrierInUse, Link, LinkStatus, OWED_NS_MIN};
pub use op::{Item, Outcome, Owner};
pub use options::{Carrier, LookupStrategy, Options};
pub use topology::Topology;
pub use turn::Ended;
pub use uses::ItemRead;
pub use versions::Versions;
