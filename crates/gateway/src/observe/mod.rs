//! What the front door does, counted: statistics for memcached's clients and
//! agents, metrics for Prometheus, the slow log, the keys that are asked for
//! most.
//!
//! ```text
//!  event loop ─► Counting (one per loop)                 Observatory (one per gateway)
//!                  counters, histograms ── its own block ──► sums   ─► stats, metrics, RPC
//!                  one command in many  ── its own sketch ─► merge  ─► top keys
//!                  a slow command ───────── a shared ring ─────────► slow log
//! ```
//!
//! **Cost.** A command is a clock read (the processor's counter), three stores
//! into memory that no other thread writes, and two subtractions of the sampler.
//! Locks are taken by sampled and by slow commands only.
//!
//! **Invariant.** A block is written by one thread: its loop's. Counters are
//! added to by a load and a store, which loses counts if that is broken.
//!
//! | module | what it does |
//! |---|---|
//! | `block` | the counters of one loop, and their sums |
//! | `histogram` | how long commands took |
//! | `observer` | what a loop tells, counted |
//! | `observatory` | what all loops share, and who reads it |
//! | `faults` | a keyspace whose faults are counted by kind |
//! | `slow` | the slow log |
//! | `detail` | counts by key prefix (`stats detail`) |
//! | `report` | memcached's groups of statistics |
//! | `metrics` | Prometheus |
//! | `endpoint` | metrics over HTTP, where no backend serves them |

mod block;
mod detail;
mod endpoint;
mod faults;
mod histogram;
mod metrics;
mod observatory;
mod observer;
mod report;
mod slow;

pub use endpoint::serve_metrics;
pub use faults::Counted;
pub use metrics::{METRICS, MetricInfo};
pub use observatory::{Observatory, ObserveOptions, SLOW_THRESHOLD_DEFAULT};
pub use observer::Counting;
