//! Workloads taken from life: block traces, and clusters whose statistics were
//! published.

mod replay;
mod trace;
mod twitter;
mod zstd;

pub use replay::{Trace, TraceSource};
pub use trace::{OLTP, TraceError, TraceReader};
pub use twitter::{Cluster, ClusterSource, WorkloadError, clusters};
