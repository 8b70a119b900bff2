//! Real peers: memcached and Redis as the distribution ships them, started for
//! one measurement, and clients for them that cost as little as a client can, so
//! that a comparison measures the peer.

mod congestion;
mod decimal;
mod inbox;
mod memcached;
mod process;
pub mod procfs;
mod redis;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

pub use congestion::{CONGESTION, set_listener_congestion};
pub use memcached::Memcached;
pub(crate) use process::spawn_on_core;
pub use process::{PeerKind, PeerOptions, PeerProcess, Transport};
pub use redis::Redis;
pub use stream::Waiting;

/// Where a peer listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// TCP, on loopback.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Why a peer could not be started or looked at.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// Not installed.
    #[error("{program} is not in PATH: install it with `apt-get install {package}`")]
    Missing {
        /// The program looked for.
        program: &'static str,
        /// Debian's package with it.
        package: &'static str,
    },
    /// It would not run.
    #[error("cannot start {program}: {source}")]
    Start {
        /// Which program.
        program: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// It ran, and ended or never answered.
    #[error("{program} did not come up ({why}); it said: {output}")]
    NotReady {
        /// Which program.
        program: &'static str,
        /// What was seen.
        why: String,
        /// The end of its own output.
        output: String,
    },
    /// `/proc` did not say what was asked.
    #[error("cannot read {path}: {source}")]
    Proc {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: io::Error,
    },
}
