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
//! `trefoil-client-core`, many at a time in the slab of `trefoil-driver`; this
//! crate connects, waits, and speaks to callers.
//!
//! | module | what it does |
//! |---|---|
//! | `cell` | finds the cell, loads its configuration, makes clients |
//! | `etcd`, `served` | a configuration in etcd, and what backends say of it |
//! | `client`, `sleep` | a thread's client: a driver, and how it is waited for |
//! | `get`, `get_many`, `mutate`, `item_use` | operations that are waited for |
//! | `get_now`, `look` | lookups for those who must not wait, or who write next |
//! | `submit` | operations that a later poll completes |
//! | `asynchronous` | the same for tasks: a thread, a queue, reads in place |
//! | `host` | connections and configurations for the driver |
//! | `loading` | one look at the configuration for all threads that wait for it |
//! | `port`, `rpc` | the carriers: shared memory, an engine, gRPC |
//! | `engines` | which engines there are, and what they have counted |
//! | `pulse` | whether this process has paused: a thread that wakes ten times a second |
//! | `reaches` | which backends cannot be reached, told in the log |
//! | `carriers` | why a carrier is not the fastest one, said once |
//! | `census`, `flush`, `list`, `reload` | of the whole cell, by RPC |

mod asynchronous;
mod carriers;
mod cell;
mod census;
mod client;
mod commit;
mod engines;
mod error;
mod etcd;
mod flush;
mod get;
mod get_many;
mod get_now;
mod host;
mod item_use;
mod list;
mod loading;
mod look;
mod mutate;
mod owned;
mod port;
mod pulse;
mod reaches;
mod reload;
mod rpc;
mod seats;
mod served;
mod sleep;
mod submit;
mod successor;
mod time;

pub use asynchronous::AsyncClient;
pub use cell::{CERTS_VARIABLE, Cell, tls_for};
pub use census::{BackendStats, Presence};
pub use client::Client;
pub use commit::Commit;
pub use engines::EngineStats;
pub use error::{ConnectError, Mutated, NotCommittable, OpError, UNREACHABLE};
pub use flush::{FlushError, Flushed};
pub use get::{Hit, Lookup, Miss};
pub use item_use::ItemUses;
pub use list::{ListError, ListedAt};
pub use look::Basis;
pub use mutate::SetOptions;
pub use owned::{OwnedHit, OwnedLookup};
pub use reload::{CorpusFormat, ReloadError, Reloaded};
pub use rpc::is_nobody_there;
pub use served::{Served, Unanswered, served, set_memory_limit_at};
pub use submit::Completion;
pub use trefoil_cell::use_token_file;
pub use trefoil_client_core::fill::{FillTicket, NoTicket, TICKET_LEN};
pub use trefoil_client_core::get::MissReason;
pub use trefoil_client_core::retry::{RetryCause, RetryCounts};
pub use trefoil_driver::{Carrier, CarrierInUse, Counters, LinkStatus, LookupStrategy, Options};
pub use trefoil_hot::{HotKey, Order};
pub use trefoil_layout::Version;
pub use trefoil_layout::op::Expected;
pub use trefoil_rpc::Listed;
pub use trefoil_tls::{CertError, CertFiles, CertUse, HandshakeError, Tls};
