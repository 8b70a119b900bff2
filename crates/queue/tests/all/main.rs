//! Queues that are served by processes.

mod joining;
mod kills;
mod remote;
mod support;
