//! Trefoil beside a real peer, in turn in one run: A B C A B C …, medians of
//! every figure, ratios of the medians.
//!
//! Servers stay on one core, the load generator on the other. A peer is asked
//! by a client that spins (it never sleeps, so this machine's slow wake-ups do
//! not flatter us) and, beside it, by an ordinary blocking one.

mod phases;
mod report;

use std::path::{Path, PathBuf};

use crate::floor::{FloorError, PageSize};
use crate::load::LoadError;
use crate::peer::{PeerError, PeerKind};
use crate::target::TargetError;

pub use report::{
    BatchFigures, BatchRates, CompareReport, GetFigures, RpcFigures, ScalingFigures, SetFigures,
};

/// What to compare.
#[derive(Debug, Clone)]
pub struct CompareOptions {
    /// Path of the trefoil program.
    pub program: PathBuf,
    /// With whom.
    pub peer: PeerKind,
    /// Bytes of a value.
    pub value_len: usize,
    /// Bytes of all values together.
    pub corpus_len: u64,
    /// Runs of each system.
    pub runs: usize,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// Pages behind Trefoil's memory and behind the floor's.
    pub page: PageSize,
    /// Core of the servers.
    pub server_core: usize,
    /// Core of the load generator.
    pub client_core: usize,
}

impl CompareOptions {
    /// 1 GiB of 1 KiB values, five runs of a second each; servers on core 0, the
    /// load on core 1.
    pub fn new(program: &Path, peer: PeerKind, page: PageSize) -> Self {
        Self {
            program: program.to_owned(),
            peer,
            value_len: 1024,
            corpus_len: 1 << 30,
            runs: 5,
            seconds: 1.0,
            page,
            server_core: 0,
            client_core: 1,
        }
    }
}

/// Why a comparison came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A server could not be started or looked at.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A load could not be made.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The floor has no memory.
    #[error(transparent)]
    Floor(#[from] FloorError),
    /// A client could not connect.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Trefoil's client could not connect.
    #[error(transparent)]
    Connect(#[from] trefoil_client::ConnectError),
    /// There is no such workload.
    #[error(transparent)]
    Workload(#[from] crate::workload::WorkloadError),
    /// The numbers asked for make no comparison.
    #[error("{0}")]
    Options(String),
    /// Operations failed: the figures would be meaningless.
    #[error("{system}: {failed} of {ops} operations failed or returned wrong values: {reason}")]
    Failed {
        /// Which system.
        system: String,
        /// How many.
        failed: u64,
        /// Of how many.
        ops: u64,
        /// The first error.
        reason: String,
    },
}

/// Compares; `progress` is told what is being done.
pub fn compare(
    options: &CompareOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<CompareReport, CompareError> {
    if options.runs == 0 || options.value_len == 0 || options.seconds <= 0.0 {
        return Err(CompareError::Options(
            "a comparison needs at least one run, a value size and a time above 0".to_owned(),
        ));
    }
    if (options.corpus_len as usize) < options.value_len * 100 {
        return Err(CompareError::Options(
            "the corpus is too small: give at least a hundred values".to_owned(),
        ));
    }
    phases::run(options, progress)
}
