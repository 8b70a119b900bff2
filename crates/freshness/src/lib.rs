//! Copies of a database's rows that stay fresh: what Postgres's change stream
//! says reaches the servers that keep rows in memory.
//!
//! ```text
//!  Postgres ──logical replication──► Relay ──► Sink            in the process
//!     ▲  ▲                             │
//!     │  └── visible? heartbeats ──────┤
//!     │                                ▼
//!     │                              Hub ──gRPC──► subscribe ──► Sink, Sink, …
//!     │                                                            │
//!     └───────────── loads ◄── the application ◄── FreshTable ◄────┘
//! ```
//!
//! A [`Relay`] follows a publication, turns changed rows into keys
//! ([`KeyMap`]), and tells a [`Sink`] which keys are out of date, in commit
//! order, each change with its log position. A [`FreshTable`] decides which
//! values may be stored, kept and served. [`FreshCache`] is both with a map of
//! values, for tests and as an example; a linklet is kept fresh by its own sink.
//! Positions, events and the table are `trefoil-freshness-core`.
//!
//! # Invariants
//!
//! 1. **Nothing is missed silently.** What may have been missed is declared as
//!    a [`Gap`], or shows at [`Sink::begun`].
//! 2. **The database forgets a change only after the sink has taken it.**
//! 3. **Progress means visible**: every commit up to it has been told, and
//!    whoever begins to read from then on sees it (`snapshot` says why that is
//!    not the same).
//! 4. **A load takes its token before it reads** (`table`).
//! 5. **Memory is bounded everywhere**; what does not fit becomes a gap.
//!
//! Deliberately absent: values of rows beyond what a refresh carries, order
//! between keys, transactions, and reads from replicas of the database.
//!
//! | module | what it does | I/O |
//! |---|---|---|
//! | `snapshot` | who sees which transaction | |
//! | `pgoutput`, `row` | the stream's messages; rows with missing columns | |
//! | `template`, `keymap`, `changes` | rows to keys to events | |
//! | `pending` | commits to progress | |
//! | `cache` | a small cache on top of `FreshTable` | |
//! | `database`, `setup` | connections; is everything there; slots | Postgres |
//! | `relay` | follows the stream | Postgres |
//! | `notify` | the fallback without logical replication | Postgres |
//! | `sampler` | compares what is kept with the database | Postgres |
//! | `log`, `hub`, `serve` | a relay's memory; many subscribers; a process of its own | gRPC |
//! | `subscribe` | the other end | gRPC |
//! | `throwaway` | a database for tests and demonstrations | processes |
//!
//! # Limits
//!
//! A change of a table's definition that rewrites rows is noticed with the next
//! change of a row of that table. Sessions with `synchronous_commit = off` may
//! have shown commits that a crash of the database then undid:
//! [`RelayOptions::restart_is_gap`] is for them.

mod cache;
mod changes;
mod database;
mod generated;
mod hub;
mod keymap;
mod log;
mod metrics;
mod notify;
mod pending;
pub mod pgoutput;
mod relay;
mod row;
mod sampler;
mod serve;
mod setup;
mod snapshot;
mod subscribe;
mod template;
pub mod throwaway;
mod wire;
mod written;

pub(crate) use trefoil_freshness_core::{event, position, table};

pub use cache::{CacheCounts, CacheOptions, CacheSink, FreshCache};
pub use changes::{ChangeCounts, Changes, Committed, StreamError};
pub use database::{Connection, Database, DatabaseError};
pub use event::{Event, Gap, GapReason, GapReasonError, Progress, Scope, Sink};
pub use hub::{Hub, HubOptions, HubSink, HubStatus};
pub use keymap::{ColumnsError, KeyMap, KeysOf, TableMap, ValueOf, read_columns};
pub use metrics::{METRICS, SAMPLER_METRICS};
pub use notify::{NotifyError, NotifyOptions, NotifyRelay, NotifyStatus, notify_sql};
pub use pending::Pending;
pub use position::{History, Place, PositionError, ShownPosition, parse_position};
pub use relay::{Relay, RelayOptions, RelayStatus};
pub use row::{Row, Unknown};
pub use sampler::{Sampled, Sampler, SamplerOptions, Samples};
pub use serve::{RelayAccess, RelayServer, RelaySource, ServeError};
pub use setup::Slot;
pub use snapshot::{Snapshot, SnapshotError};
pub use subscribe::{SubscribeOptions, Subscription, SubscriptionStatus};
pub use table::{FillToken, FreshTable, Refused, SLOTS_DEFAULT, Stamp, Sweep, Verdict, key_hash};
pub use template::{KeyTemplate, TemplateError};
pub use wire::WireError;
pub use written::{PositionNowError, place_now, position_now};
