//! Makes histories: a cell and clients in processes of their own, faults while
//! they work, and what came of it.
//!
//! | module | what it does |
//! |---|---|
//! | `plan` | what a round consists of, drawn from a seed or given |
//! | `round` | starts cell, gateway and workers, and collects their logs |
//! | `faults` | what goes wrong meanwhile, a file each |
//! | `means` | what this machine can do of that |
//! | `doctored` | what the doctor says of the cell in the end |
//! | `upgrade` | another release takes over meanwhile, and gives back |
//! | `worker` | one client's process |
//! | `native`, `memcached` | how it reaches the cell |
//! | `cell_log` | what `cell up` has logged that it should not have |
//! | `figures`, `demands` | what is counted, and what a run has to have shown |
//! | `report` | many rounds, and what is printed of them |

mod cell_log;
mod demands;
mod doctored;
mod faults;
mod figures;
mod means;
mod memcached;
mod native;
mod plan;
mod report;
mod round;
mod upgrade;
mod worker;

pub use figures::{CarrierFigures, FaultFigures};
pub use means::enclose;
pub use plan::{CarrierKind, Fault, Lens, PlanError, RoundPlan, Wish};
pub use report::{HistoriesReport, histories};
pub use upgrade::{HitRatio, UpgradeFigures};
pub use worker::{WORKER_COMMAND, run_worker};

/// Why there is no history.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A server could not be started.
    #[error(transparent)]
    Server(#[from] trefoil_bench::peer::PeerError),
    /// The cell cannot be reached.
    #[error(transparent)]
    Connect(#[from] trefoil_client::ConnectError),
    /// A file or a process of ours.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A process ended that should not have.
    #[error("{0}")]
    Course(String),
}

impl RecordError {
    fn doing(what: &'static str) -> impl FnOnce(std::io::Error) -> RecordError {
        move |source| RecordError::Io { what, source }
    }
}
