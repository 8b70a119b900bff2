//! The Trefoil client: a [`Cell`] that a process connects to once, and a
//! [`Client`] for each thread.
//!
//! ```no_run
//! use trefoil_client::{Cell, Lookup, Options, SetOptions};
//!
//! let cell = Cell::connect("127.0.0.1:7411")?;
//! let mut client = cell.client(Options::default());
//! client.set(b"greeting", b"hello", SetOptions::default())?;
//! match client.get(b"greeting")? {
//!     Lookup::Hit(hit) => println!("{:?} at {}", hit.value, hit.version),
//!     Lookup::Miss(miss) => println!("nothing: {}", miss.reason),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A GET on the backend's host is two reads of its shared memory, validated
//! here: no system call, no lock, no allocation, no CPU at the backend.
//! Mutations are messages through rings in shared memory. Whatever cannot go
//! that way goes by gRPC. The operations themselves are the machines of
//! `trefoil-client-core`; this crate carries out their steps.
//!
//! | module | what it does |
//! |---|---|
//! | `cell` | finds the cell, loads its configuration, makes clients |
//! | `census` | what all backends say of themselves |
//! | `client` | a thread's state: links, clock, counters |
//! | `link` | one backend: shared memory if it can be, else RPC |
//! | `get`, `get_many`, `mutate` | drivers of the machines |
//! | `item_use` | how an item was used |
//! | `flush`, `list` | of the whole cell, by RPC |
//! | `wait` | answers of rings and calls |
//! | `rpc` | channels and their runtime |
//! | `asynchronous` | the same for async callers |

mod asynchronous;
mod cell;
mod census;
mod client;
mod error;
mod flush;
mod get;
mod get_many;
mod item_use;
mod link;
mod list;
mod mutate;
mod options;
mod reload;
mod rpc;
mod time;
mod versions;
mod wait;

pub use asynchronous::{AsyncClient, OwnedHit, OwnedLookup};
pub use cell::Cell;
pub use census::BackendStats;
pub use client::{Client, Counters};
pub use error::{ConnectError, Mutated, OpError};
pub use flush::{FlushError, Flushed};
pub use get::{Hit, Lookup, Miss};
pub use item_use::ItemUses;
pub use list::ListError;
pub use mutate::{FillTicket, SetOptions};
pub use options::{Carrier, Options};
pub use reload::{CorpusFormat, ReloadError, Reloaded};
pub use trefoil_client_core::get::MissReason;
pub use trefoil_client_core::retry::{RetryCause, RetryCounts};
pub use trefoil_hot::{HotKey, Order};
pub use trefoil_layout::Version;
pub use trefoil_layout::op::Expected;
