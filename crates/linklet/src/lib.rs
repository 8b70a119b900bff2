//! The linked store inside an application server: native objects in the
//! process that uses them, placed by an auto-sharder, moved with their keys.
//!
//! ```no_run
//! # use trefoil_linklet::{Linklet, PlainMarshal, Error};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let sessions: Linklet<String> = Linklet::builder("sessions", PlainMarshal)
//!     .memory(1 << 30)
//!     .listen("127.0.0.1:7400", "127.0.0.1:0".parse()?)
//!     .await?;
//!
//! let mut session = match sessions.get(b"user 17").await {
//!     Ok(Some(session)) => session,
//!     Ok(None) => return Ok(()),
//!     Err(Error::NotMine(elsewhere)) => return Err(elsewhere.to_string().into()),
//!     Err(error) => return Err(error.into()),
//! };
//! session.edit().push('!');
//! sessions.commit(session).await?; // from here on it may be moved
//! # Ok(()) }
//! ```
//!
//! ```text
//!   application ──► Linklet: read · get, commit · update · insert · get_or_load
//!                      │ the part of the key, under its own lock (nanoseconds)
//!                      ▼
//!                   Table: entries beside the rules by which they are served
//!                      ▲ publishes rules; scans, stores, forgets values
//!   driver task ──► Life: trefoil-linklet-core, sans-IO, behind one lock
//!                      │ frames                       ▲ view, lease, reports
//!                      ▼                              ▼
//!                   Peers, PeerService (gRPC)      Session (trefoil-coordination)
//! ```
//!
//! # Promises
//!
//! 1. At any moment at most one server changes a key; one that is not its owner
//!    answers with a redirect, and changes nothing.
//! 2. Objects that move are not lost: a request for a key on its way waits
//!    until the key has arrived, and has it sent first.
//! 3. What is lost is told, each loss in one report of one server: to
//!    [`Listener::state_loss`], by range or by name, with the reason.
//! 4. Memory: no more than [`Builder::memory`] and one value.
//! 5. With [`Replication::Strong`] a commit is seen by nobody before every
//!    replica has it, and a server whose lease has ended serves nothing,
//!    whatever it believes. A commit that is not confirmed in time is
//!    [`Error::Indeterminate`], names who has not confirmed it, and goes on: the
//!    next change of the key sees it, or waits for it. Other keys do not wait.
//!
//! # Threads
//!
//! Operations run on the caller's thread. A part of the table is locked for
//! as long as a lookup takes ([`Linklet::update`] and [`Linklet::upsert`]: as
//! long as their closures; with [`Replication::Strong`] these run outside any
//! lock, too); other closures run outside any lock. The protocol's lock is taken
//! only for keys that are being moved, for strong commits, and by the driver, and
//! no closure runs under it.
//!
//! | module | what it does |
//! |---|---|
//! | `linklet`, `builder` | the handle; starting |
//! | `ops` | reading, changing, loading, freshness |
//! | `table` | objects, memory bound, eviction |
//! | `lifetime`, `sweep` | objects that end by themselves |
//! | `values` | objects as the protocol sees them: marshalled |
//! | `life`, `driver` | one membership; the tasks |
//! | `peers`, `service` | frames out and in, over gRPC |
//! | `load` | CPU time, bytes, hot keys, for the assigner |
//! | `flight`, `loader`, `fresh` | single flights; what was told of the database's changes |
//! | `event`, `facts`, `stats`, `metrics`, `error` | what the application is told |

mod builder;
mod damped;
mod driver;
mod error;
mod event;
mod facts;
mod flight;
mod fresh;
mod generated;
mod life;
mod lifetime;
mod linklet;
mod load;
mod loader;
mod marshal;
mod metrics;
mod ops;
mod peers;
mod service;
mod stats;
mod store;
mod sweep;
mod table;
mod values;

pub use builder::{Assigner, Builder};
pub use error::{CommitError, Error, Indeterminate, Redirect, StartError};
pub use event::{Eviction, EvictionReason, Listener, StateLoss, StateLossReason};
pub use linklet::{Drained, Linklet};
pub use loader::{LoadFuture, Loaded, Loader, LoaderError};
pub use marshal::{Marshal, MarshalError, PlainMarshal, ProstMarshal};
pub use ops::{Committed, EachOwned, Held, LinkletSink};
pub use service::PeerService;
pub use stats::Stats;
pub use trefoil_channel::Security;
pub use trefoil_freshness_core as freshness;
pub use trefoil_linklet_core::{Config, Extent, LossReason, Replication, TooFew, Wire, WireError};
