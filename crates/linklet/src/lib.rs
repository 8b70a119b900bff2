//! The linked store inside an application server: native objects in the
//! process that uses them, placed by an auto-sharder, moved with their keys.
//!
//! One [`Linklet`] holds the objects of one corpus that this server owns; the other
//! servers hold the rest. Requests are operations on it, and an object that is
//! somebody else's is answered with a redirect, which the callers' router follows.
//! In all three examples below an assigner (`trefoil assigner`) says who owns what, and
//! [`Linklet::drain`] gives everything to the others before a server is stopped.
//!
//! # A cache in front of Postgres
//!
//! Objects can be loaded again, so no copies are needed. `trefoil relay` tells of
//! rows that change; what it tells of is loaded anew when it is asked for. The key
//! is what the relay was told to make of a row: `--map contact=contact/{id}`.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tokio::sync::Mutex;
//! use tokio_postgres::{Client, Error, NoTls};
//! use trefoil_freshness::{SubscribeOptions, Subscription};
//! use trefoil_linklet::endpoint::Reach;
//! use trefoil_linklet::{Linklet, LoaderError, PlainMarshal};
//!
//! /// One connection, made anew when it has ended; a pool does as well.
//! #[derive(Default)]
//! struct Database(Mutex<Option<Arc<Client>>>);
//!
//! impl Database {
//!     async fn client(&self) -> Result<Arc<Client>, Error> {
//!         let mut kept = self.0.lock().await;
//!         if let Some(client) = kept.as_ref().filter(|client| !client.is_closed()) {
//!             return Ok(Arc::clone(client));
//!         }
//!         let options = "host=127.0.0.1 user=app connect_timeout=5";
//!         let (client, connection) = tokio_postgres::connect(options, NoTls).await?;
//!         tokio::spawn(connection);
//!         Ok(Arc::clone(kept.insert(Arc::new(client))))
//!     }
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let database = Arc::new(Database::default());
//!
//! // Run once for each key, however many ask for it at the same time.
//! let load = move |key: Vec<u8>| {
//!     let database = Arc::clone(&database);
//!     async move {
//!         let id = key.strip_prefix(b"contact/").and_then(|id| std::str::from_utf8(id).ok());
//!         let id: i64 = id
//!             .and_then(|id| id.parse().ok())
//!             .ok_or_else(|| LoaderError::new("no key of a contact"))?;
//!         let client = database.client().await.map_err(LoaderError::from_error)?;
//!         let row = client
//!             .query_opt("SELECT phone FROM contact WHERE id = $1", &[&id])
//!             .await
//!             .map_err(LoaderError::from_error)?;
//!         Ok(row.map(|row| row.get::<_, String>(0).into()))
//!     }
//! };
//! let phones: Linklet<String> = Linklet::builder("phones", PlainMarshal)
//!     .memory(1 << 30) // beyond it others make room
//!     .loader(load) // has 10 s for each key: see `load_within`
//!     .listen("127.0.0.1:7421", "127.0.0.1:0".parse()?)
//!     .await?;
//! let relay = SubscribeOptions::new("http://127.0.0.1:7431");
//! let _fresh = Subscription::start(relay, phones.sink(), None);
//! let _watched = phones.serve_metrics("127.0.0.1:9413".parse()?, Reach::Loopback)?;
//!
//! // The object where it is: nothing is copied or unmarshalled.
//! let digits = phones.read_or_load(b"contact/17", |phone| phone.len()).await?;
//! # Ok(()) }
//! ```
//!
//! # A session store
//!
//! Objects that are nowhere else, and may not be lost: two servers have a change
//! before anybody is told of it. They end by themselves. `examples/sessions` is this
//! as a service that can be run and killed.
//!
//! ```no_run
//! use std::time::{Duration, SystemTime, UNIX_EPOCH};
//! use trefoil_linklet::{Error, Linklet, Marshal, MarshalError, Replication};
//!
//! #[derive(Clone)]
//! struct Session {
//!     begun: SystemTime,
//!     user: u64,
//! }
//!
//! /// Used only when a session moves or is copied, never to answer a request.
//! struct Bytes;
//!
//! impl Marshal<Session> for Bytes {
//!     fn marshal(&self, _: &[u8], session: &Session, out: &mut Vec<u8>) -> Result<(), MarshalError> {
//!         let begun = session.begun.duration_since(UNIX_EPOCH).unwrap_or_default();
//!         out.extend_from_slice(&(begun.as_secs()).to_le_bytes());
//!         out.extend_from_slice(&session.user.to_le_bytes());
//!         Ok(())
//!     }
//!
//!     fn unmarshal(&self, _: &[u8], bytes: &[u8]) -> Result<Session, MarshalError> {
//!         let parts = bytes.as_chunks::<8>();
//!         let ([begun, user], []) = parts else {
//!             return Err(MarshalError::new("a session has 16 bytes"));
//!         };
//!         Ok(Session {
//!             begun: UNIX_EPOCH + Duration::from_secs(u64::from_le_bytes(*begun)),
//!             user: u64::from_le_bytes(*user),
//!         })
//!     }
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let sessions = Linklet::builder("sessions", Bytes)
//!     .replication(Replication::Strong)
//!     .expires(|_, session: &Session| Some(session.begun + Duration::from_secs(28_800)))
//!     .idle(Duration::from_secs(1_800))
//!     .listen("127.0.0.1:7421", "127.0.0.1:0".parse()?)
//!     .await?;
//!
//! // May be repeated: one that is there already stays.
//! let begin = || Session { begun: SystemTime::now(), user: 17 };
//! sessions.upsert(b"s-4711", begin, |_| ()).await?;
//! match sessions.read(b"s-4711", |session| session.user).await {
//!     Ok(user) => println!("{user:?}"),
//!     // A caller of `trefoil-router` follows it by itself.
//!     Err(Error::NotMine(elsewhere)) => println!("ask {elsewhere}"),
//!     Err(error) => return Err(error.into()),
//! }
//!
//! // On SIGTERM: the others get everything, and then it is safe to stop.
//! sessions.drain().await;
//! sessions.leave().await;
//! # Ok(()) }
//! ```
//!
//! # A store of one's own
//!
//! Any structure can be an object: here lists that are changed where they are,
//! taken out and put back, gone through, and whose losses are heard of.
//!
//! ```no_run
//! use std::sync::Arc;
//! use trefoil_linklet::{Linklet, Listener, Marshal, MarshalError, Replication, StateLoss};
//!
//! #[derive(Clone, Debug, Default)]
//! struct Board(Vec<(u64, String)>);
//!
//! struct Lines;
//!
//! impl Marshal<Board> for Lines {
//!     fn marshal(&self, _: &[u8], board: &Board, out: &mut Vec<u8>) -> Result<(), MarshalError> {
//!         for (score, name) in &board.0 {
//!             out.extend_from_slice(format!("{score} {name}\n").as_bytes());
//!         }
//!         Ok(())
//!     }
//!
//!     fn unmarshal(&self, _: &[u8], bytes: &[u8]) -> Result<Board, MarshalError> {
//!         let bad = || MarshalError::new("no board");
//!         let text = std::str::from_utf8(bytes).map_err(|_| bad())?;
//!         let entries = text.lines().map(|line| {
//!             let (score, name) = line.split_once(' ')?;
//!             Some((score.parse().ok()?, name.to_owned()))
//!         });
//!         entries.collect::<Option<_>>().map(Board).ok_or_else(bad)
//!     }
//!
//!     // What the memory bound counts.
//!     fn weigh(&self, board: &Board) -> usize {
//!         board.0.iter().map(|(_, name)| 32 + name.len()).sum()
//!     }
//! }
//!
//! struct Log;
//!
//! impl Listener for Log {
//!     fn state_loss(&self, loss: &StateLoss) {
//!         eprintln!("lost: {loss}");
//!     }
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let boards = Linklet::builder("boards", Lines)
//!     .replication(Replication::Eventual) // a death may cost the last moments
//!     .listener(Arc::new(Log))
//!     .listen("127.0.0.1:7421", "127.0.0.1:0".parse()?)
//!     .await?;
//!
//! // Where it is, one change at a time for each key.
//! let add = |board: &mut Board| {
//!     board.0.push((42, "ada".to_owned()));
//!     board.0.sort_by(|a, b| b.cmp(a));
//!     board.0.truncate(100);
//!     board.0.len()
//! };
//! let entries = boards.upsert(b"chess", Board::default, add).await?;
//!
//! // Or out and back: a conflict if somebody has changed it meanwhile.
//! if let Some(mut board) = boards.get(b"chess").await? {
//!     board.edit().0.retain(|(score, _)| *score > 0);
//!     boards.commit(board).await?;
//! }
//!
//! // All that this server owns, some hundred at a time.
//! let mut parts = boards.each_owned();
//! while let Some(part) = parts.next().await? {
//!     println!("{} boards", part.len());
//! }
//! # Ok(()) }
//! ```
//!
//! `docs/linked.md` has a table of what each [`Replication`] promises when a server
//! is killed, a slice moves, a row changes or memory is full.
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
//! 4. Memory: no more than [`Builder::memory`] and one value. With [`Builder::spill`] it may
//!    be more while values are being written: by what arrives from other servers, an eighth
//!    of the bound at most, by strong commits that have just been confirmed, and by one
//!    changed value for each call under way.
//! 5. With [`Replication::Strong`] a commit is seen by nobody before every
//!    replica has it, and a server whose lease has ended serves nothing,
//!    whatever it believes. A commit that is not confirmed in time is
//!    [`Error::Indeterminate`], names who has not confirmed it, and goes on: the
//!    next change of the key sees it, or waits for it. Other keys do not wait.
//!
//! # Threads
//!
//! Operations run on the caller's thread. A part of the table is locked for
//! as long as a lookup takes. The protocol's lock is taken only for keys that are
//! being moved, for strong commits, and by the driver.
//!
//! | the application's | runs under |
//! |---|---|
//! | closures of [`Linklet::update`] and [`Linklet::upsert`] | the lock of the key's part; with [`Replication::Strong`] none |
//! | the closure of [`Linklet::sink_comparing`], at every refresh | the lock of the key's part |
//! | [`Builder::expires`], at every change | the lock of the key's part; and the protocol's where the change came from another server, or is a strong commit that has been confirmed |
//! | [`Marshal`], when a value moves or is copied | the protocol's, as a rule |
//! | loaders, [`Listener`], all other closures | none |
//!
//! What runs under a lock has to be short, and **may not call the linklet**, neither
//! for objects nor for [`Linklet::metrics`] or [`Linklet::stats`]: it would wait for
//! itself, for ever.
//!
//! | module | what it does |
//! |---|---|
//! | `linklet`, `builder` | the handle; starting |
//! | `ops` | reading, changing, loading, freshness |
//! | `table` | objects, memory bound, eviction |
//! | `spill` | values on disk for which there is no memory |
//! | `lifetime`, `sweep` | objects that end by themselves |
//! | `values` | objects as the protocol sees them: marshalled |
//! | `life`, `driver` | one membership; the tasks |
//! | `peers`, `service` | frames out and in, over gRPC |
//! | `load` | CPU time, bytes, hot keys, for the assigner |
//! | `flight`, `loader`, `fresh` | single flights; what was told of the database's changes |
//! | `event`, `facts`, `stats`, `metrics`, `error` | what the application is told |
//! | `probes` | what Prometheus and orchestrators are told |

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
mod probes;
mod service;
mod spill;
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
pub use metrics::METRICS;
pub use ops::{Committed, EachOwned, Held, LinkletSink};
pub use service::PeerService;
pub use stats::Stats;
pub use trefoil_channel::Security;
pub use trefoil_endpoint as endpoint;
pub use trefoil_freshness_core as freshness;
pub use trefoil_linklet_core::{
    CHUNK_BYTES_MAX, Config, Extent, LossReason, Replication, TooFew, VALUE_BYTES_MAX, Wire,
    WireError,
};
