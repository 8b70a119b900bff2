//! The front door: memcached and Redis clients talk to a cell.
//!
//! | module | what it does |
//! |---|---|
//! | `server` | sockets, event loops, connections, TLS, limits |
//! | `keyspace` | the cell behind the door: the backend of this process, or any cell through the client library |
//! | `observe` | counters, statistics, slow log, top keys |

pub mod keyspace;
pub mod observe;
pub mod server;
