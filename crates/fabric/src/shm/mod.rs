//! Shared memory: clients and backends on one host.
//!
//! | file | side | what |
//! |---|---|---|
//! | `connect` | initiator, set-up | greeting, descriptors, mappings |
//! | `channel` | initiator, datapath | requests and answers through the rings |
//! | `wait` | initiator, datapath | spinning, sleeping and being woken |
//! | `seat` | initiator, set-up | a lane of a backend's queue, and the right to mark |
//! | `connection` | initiator | view and channel of one backend in one hand: the port |
//! | `socket_file` | target, set-up | the file that clients find the backend by |
//! | `export` | target, set-up | what a backend hands to its clients |
//! | `listener` | target, set-up | the thread that greets clients |
//! | `client` | target, datapath | the rings of one client |
//! | `poller` | target, datapath | the one thread that serves all rings |
//! | `target` | target | both threads and what they share |
//! | `policy` | both | which users may talk to each other |
//! | `socket` | both | bytes and descriptors over the Unix socket |
//!
//! The socket stays open after the greeting. Its death tells either side that
//! the other is gone; a byte on it is a doorbell for a side that sleeps.

mod channel;
mod client;
mod connect;
mod connection;
mod copier;
mod export;
mod listener;
mod policy;
mod poller;
mod seat;
mod socket;
mod socket_file;
mod target;
mod wait;

pub use channel::Channel;
pub use connect::{ConnectError, ConnectOptions, Early, successor_path};
pub use connection::Connection;
pub use copier::Copier;
pub use export::Export;
pub use policy::UserPolicy;
pub use seat::Seat;
pub use socket::{receive_with, send_with};
pub use socket_file::{ListenError, MODE_BY_CREDENTIALS, MODE_PRIVATE, SocketFile};
pub use target::{Progress, Statistics, Target, TargetError, TargetOptions};
pub use wait::wait_any;
