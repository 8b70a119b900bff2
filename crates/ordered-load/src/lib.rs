//! Load for the ordered queue, and what it is measured beside: a bare loop over the same
//! kind of memory, requests that are run to completion, and requests that the server's CPU
//! acknowledges before it executes them. A small crate, so that its figures are
//! made without a build of everything: `trefoil bench ordered`, or
//! `cargo run --release -p trefoil-ordered-load --example measure`.
//!
//! Server and client are threads of one process, each on a core of its own; memory is
//! shared as between processes. Latency of commits and of the four workloads counts from the
//! intended start of a request (Poisson arrivals): what waits because the client or the queue
//! is behind counts as waiting. Clients that share connections, and durable SETs, are closed
//! loops: the next request begins when an earlier one is done. RocksDB behind a queue is measured
//! both ways.

mod bare;
mod cache;
mod client;
mod clusters;
mod commits;
mod durable;
mod pace;
mod pauses;
mod report;
mod rocks;
mod rocks_load;
mod session;
mod shared;
mod tape;
mod waits;
mod wanted;
mod watch;
mod workloads;

pub use cache::Cache;
pub use client::{Client, Line, Load, Offered, Slice};
pub use clusters::Cluster;
pub use pace::Pace;
pub use report::{
    CommitRow, DurableRow, DurableRun, ECHO, Latency, MEMCACHED, NILEXT, NILEXT_ASLEEP, OffHostRow,
    OrderedReport, RocksRow, RocksRun, SharedRow, Way, WorkloadRow,
};
pub use session::{System, Workload, serve};
pub use tape::Tape;
pub use waits::Waits;
pub use wanted::{Target, Wanted};
pub use workloads::{Body, Session, measure_by};

use std::path::PathBuf;
use trefoil_ordered::SetUpError;
use trefoil_store::StoreError;

/// What to measure.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Rounds over all cases; figures are medians of them.
    pub runs: usize,
    /// Seconds of one measurement. Workloads and shared connections are measured in short
    /// slices, which are so long together, with rests between them.
    pub seconds: f64,
    /// Core of the client.
    pub client_core: usize,
    /// Core of the server.
    pub server_core: usize,
    /// The rows of one host's commits.
    pub commits: bool,
    /// The four workloads.
    pub workloads: bool,
    /// SETs from another host. Measured by `trefoil-bench`, which has the network for it.
    pub off_host: bool,
    /// The four workloads from another host. Likewise.
    pub off_host_workloads: bool,
    /// The same, the alternatives in one thread without an engine. Likewise.
    pub one_thread: bool,
    /// 200 clients over few connections.
    pub shared: bool,
    /// SETs that are acknowledged when they are in a file.
    pub durable: bool,
    /// RocksDB behind the durable queue, beside its own log.
    pub rocks: bool,
    /// RocksDB's library, if it is not where the system has such.
    pub library: Option<PathBuf>,
    /// Where files are made, in a folder of their own that goes afterwards.
    pub folder: PathBuf,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            runs: 3,
            seconds: 0.5,
            client_core: 1,
            server_core: 0,
            commits: true,
            workloads: true,
            off_host: true,
            off_host_workloads: true,
            one_thread: true,
            shared: true,
            durable: true,
            rocks: true,
            library: None,
            folder: std::env::temp_dir(),
        }
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The queue.
    #[error(transparent)]
    SetUp(#[from] SetUpError),
    /// The store behind it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The table of clusters.
    #[error("the table of clusters has no usable row {0}")]
    Cluster(u32),
    /// A core that is not there.
    #[error("cannot use core {core}: {source}")]
    Core {
        /// Its number.
        core: usize,
        /// The system's words.
        source: std::io::Error,
    },
    /// Nothing is flushed there.
    #[error(
        "{0} is a file system in memory (tmpfs): what is flushed there is on no disk; name a \
         folder on one"
    )]
    Memory(PathBuf),
    /// So many slices in a row.
    #[error(
        "nothing was done in {slices} short measurements in a row: other programs have the \
         cores; measure when the machine is less busy"
    )]
    NothingDone {
        /// How many.
        slices: usize,
    },
    /// The queue was refused or ended amid a measurement.
    #[error("the queue under load failed: {0}")]
    Queue(String),
}

/// Is told what is begun.
pub type Progress<'p> = dyn FnMut(&str) + 'p;

/// Adds rows of other systems.
pub type Also<'a> = dyn FnMut(&mut OrderedReport, &mut Progress<'_>) -> Result<(), LoadError> + 'a;

/// Measures everything asked for, case by case in turn. `also` is called in each run.
pub fn measure(
    options: &LoadOptions,
    also: &mut Also<'_>,
    progress: &mut Progress<'_>,
) -> Result<OrderedReport, LoadError> {
    let mut report = OrderedReport::new(options);
    // Other measurements pin this thread; threads of others' are to have all cores.
    let cores = rustix::thread::sched_getaffinity(None).map_err(std::io::Error::from);
    let cores = cores.map_err(|source| LoadError::Core { core: 0, source })?;
    for run in 1..=options.runs.max(1) {
        progress(&format!("run {run} of {}", options.runs));
        if options.commits {
            commits::measure(options, &mut report)?;
        }
        also(&mut report, progress)?;
        if options.workloads {
            workloads::measure(options, &mut report, progress)?;
        }
        if options.shared {
            shared::measure(options, &mut report)?;
        }
        if options.durable {
            durable::measure(options, &mut report)?;
        }
        if options.rocks {
            rocks::measure(options, &cores, &mut report)?;
        }
    }
    report.finish();
    Ok(report)
}

/// Keeps the calling thread on a core.
fn pin(core: usize) -> Result<(), LoadError> {
    let failed = |source| LoadError::Core { core, source };
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(failed(std::io::ErrorKind::InvalidInput.into()));
    }
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    rustix::thread::sched_setaffinity(None, &cores).map_err(|error| failed(error.into()))
}
