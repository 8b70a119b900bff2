//! An ordered queue as a server and its clients on one host: a socket at which clients get
//! their lanes, and a service behind it, Trefoil's own store or RocksDB.
//!
//! ```text
//!  client ── connect ──► Listener: who asks?   (Unix socket)
//!         ◄─ lane, order, bell ──┘             (three descriptors, once)
//!  client ── requests ──► lane ──► Worker ─────────► Cache | Rocks
//!                                  DurableWorker ──► journal, then the same
//! ```
//!
//! Clients on other hosts have their lanes by an engine beside the server, which places their
//! requests ([`beside`], `trefoil-softnic`).
//!
//! After the first exchange nothing goes over the socket: requests and answers stand in the
//! shared memory of `trefoil-ordered`, whose rules these are.
//!
//! | module | what |
//! |---|---|
//! | [`request`] | the bytes of requests and answers |
//! | [`table`] | what each request does, whatever keeps the values |
//! | [`cache`], [`rocks`] | what keeps them |
//! | [`folder`] | where a queue's files are, and whose they are |
//! | [`welcome`] | the bytes of the first exchange |
//! | [`listener`], [`server`] | the server |
//! | [`client`] | a client |
//! | [`beside`] | the queue as an engine knows it; where it asks for lanes is in `claims` |

pub mod beside;
pub mod cache;
mod claims;
pub mod client;
pub mod folder;
pub mod listener;
pub mod request;
pub mod rocks;
pub mod server;
pub mod table;
pub mod welcome;

pub use client::{Client, ClientError, JoinError, RemoteJoinError};
pub use folder::FolderError;
pub use request::{Request, RequestError, Status};
pub use server::{ServeError, ServeOptions, serve};
pub use welcome::ServiceKind;
// What a server's user chooses by.
pub use trefoil_journal::Flush;
pub use trefoil_ordered::{Carrier, Options};
pub use trefoil_rocksdb::DbOptions;
