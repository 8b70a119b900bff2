//! What memcached and Redis clients say, and what a cell answers: the
//! protocols of the front door, without I/O.
//!
//! ```text
//!  bytes in ─► Session::drive ─► protocol (memcache, resp) ─► Keyspace ─► bytes out
//! ```
//!
//! A connection owns a [`Session`](session::Session); an event loop owns a
//! [`Keyspace`](keyspace::Keyspace) and everything else that commands need, and
//! lends it as a [`World`](world::World) for the duration of one call. Nothing
//! here knows sockets, threads or clocks; time is an argument.
//!
//! | module | what it does |
//! |---|---|
//! | `memcache` | memcached's protocols |
//! | `resp` | Redis's protocol |
//! | `keyspace` | what protocols ask of the cell behind them |
//! | `session` | the contract between a connection and its protocol |
//! | `world` | what a protocol is lent beside the bytes |
//! | `deferred` | a keyspace whose operations somebody else executes meanwhile |
//! | `draft` | one item as a keyspace, for what is stored at once |
//! | `memory` | a keyspace in a hash map, the model that tests compare with |

pub mod deferred;
pub mod draft;
pub mod keyspace;
pub mod memcache;
pub mod memory;
pub mod resp;
pub mod session;
pub mod world;
