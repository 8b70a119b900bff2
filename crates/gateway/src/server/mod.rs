//! Sockets, event loops, connections.
//!
//! ```text
//!  doors ─► loop 0 accepts ─► the loop with fewest connections
//!                                    │
//!   epoll ─► Connection::turn ── recv ─► Session::drive ─► send
//!                                    │        │
//!                                  Desk: Keyspace, observer, buffers, clock
//! ```
//!
//! A loop is one thread that owns everything its connections use: no lock, no
//! hop, no allocation on the way of a request, and in the common case one
//! `recv` and one `send`. A connection that says nothing keeps nothing but its
//! socket and its session.
//!
//! | module | what it does |
//! |---|---|
//! | `options`, `error` | what an operator chooses, and why it cannot be done |
//! | `doors` | listening sockets, taken before anything is served |
//! | `gateway` | starts and stops the loops |
//! | `event_loop` | waits, accepts, serves whoever is ready, keeps time |
//! | `connection` | bytes in, answers out, and what is kept in between |
//! | `pace` | whether a long request comes on |
//! | `desk` | what a loop lends a connection for its turn |
//! | `front` | what a session sees as its observer |
//! | `waiting` | when to poll and when to sleep |
//! | `watch` | log lines for connections that watch |
//! | `scripts` | Redis's scripts, in threads of their own |
//! | `speaker` | the session that fits a door |
//! | `socket`, `tls` | a client's socket, plain or encrypted |
//! | `users` | names and passwords |
//! | `shared` | what the loops share |

mod ahead;
mod connection;
mod desk;
mod doors;
mod error;
mod event_loop;
mod front;
mod gateway;
mod intake;
mod options;
mod outbox;
mod pace;
mod scripts;
mod shared;
mod socket;
mod speaker;
mod tls;
mod users;
mod waiting;
mod watch;

pub use doors::Doors;
pub use error::GatewayError;
pub use front::LoopObserver;
pub use gateway::Gateway;
pub use options::{
    Door, DoorAddress, DoorAddressError, GatewayOptions, IDLE_TIMEOUT_DEFAULT, Limits, OnFailure,
    Protocol, SPIN_DEFAULT, TlsFiles, UPLOAD_RATE_MIN_DEFAULT, thread_count_default,
};
pub use tls::TlsError;
pub use users::{Users, UsersError};
