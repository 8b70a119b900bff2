//! Shared memory: clients and backends on one host.
//!
//! | file | side | what |
//! |---|---|---|
//! | `connect` | initiator, set-up | greeting, descriptors, mappings |
//! | `reader` | initiator, datapath | one-sided reads of index and data |
//! | `channel` | initiator, datapath | requests and answers through the rings |
//! | `wait` | initiator, datapath | spinning, sleeping and being woken |
//! | `connection` | initiator | reader and channel of one backend in one hand |
//! | `listener` | target, set-up | socket file, peer credentials, greeting |
//! | `grant` | target, set-up | what a backend hands to a client |
//! | `client` | target, datapath | the rings of one client |
//! | `poller` | target, datapath | the one thread that serves all rings |
//! | `socket` | both | bytes and descriptors over the Unix socket |
//!
//! The socket stays open after the greeting. Its death tells either side that
//! the other is gone; a byte on it is a doorbell for a side that sleeps.

mod channel;
mod connect;
mod connection;
mod reader;
mod socket;
mod wait;

pub use channel::Channel;
pub use connect::{ConnectError, ConnectOptions};
pub use connection::Connection;
pub use reader::Reader;
pub use wait::wait_any;
