//! Queues that are served by processes.

mod forks;
mod joining;
mod kills;
mod remote;
mod support;
