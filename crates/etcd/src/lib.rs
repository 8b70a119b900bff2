//! A client of etcd, as much of it as configuration stores need: reading keys,
//! transactions, leases and watches, over TLS and with credentials if asked to.
//!
//! | module | what it holds |
//! |---|---|
//! | `access` | certificates and users by the environment; what may be in the clear |
//! | `options` | where etcd is and how one comes in |
//! | `reach` | channels after what certificates' and passwords' files hold now |
//! | `client` | calls: one member at a time, the next one after a failure |
//! | `transaction` | comparisons and writes that happen at one moment |
//! | `watch` | what changes from a revision on |
//!
//! No locks of etcd: whoever holds one may have stopped, and finds out too late
//! that it has passed on. What must not be overwritten is compared by its revision
//! in the transaction that writes.

mod access;
mod client;
mod error;
mod generated;
mod options;
mod reach;
mod transaction;
mod watch;

pub use access::EtcdAccess;
pub use client::{EtcdClient, Found, Stored};
pub use error::EtcdError;
pub use options::{Credentials, EtcdOptions, TlsFiles};
pub use transaction::{Transaction, prefix_end};
pub use watch::{Happened, Watch};
