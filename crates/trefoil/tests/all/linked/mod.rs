//! A linked store as who runs it sees it: real assigners, relays and servers.

mod draining;
mod fleet;
mod metrics;
mod notify;
mod readiness;
mod status;
