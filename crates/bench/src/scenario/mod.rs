//! Things done to a running cell while a load goes on: kill, restart, grow and
//! shrink; and loads whose result is not a latency. One file each.

mod alike;
mod aside;
mod away;
mod cpu;
mod crowd;
mod etcd;
mod full_kill;
mod kill;
mod kills;
mod large;
mod lateness;
mod load;
mod look_aside_load;
mod maintenance;
mod neighbours;
mod planned;
mod read_back;
mod recovery;
mod repair;
mod reshape;
mod resize;
mod restarts;
mod retries;
mod steady;
mod stop_stop;
mod takeover;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use trefoil_client::{BackendStats, Cell, Options};

use crate::doctor::DoctorError;
use crate::load::{
    Arrivals, Bound, LoadError, Popularity, RequestSource as _, RunOptions, RunResult, RunShared,
    Share, SyntheticOptions, SyntheticSource, ValueLen, pin_current_thread, preload,
    run as run_load, run_clients,
};
use crate::peer::PeerError;
use crate::server::{Server, ServerOptions};
use crate::target::trefoil::Trefoil;

pub use alike::{AlikeFigures, AlikeReport, Copies, TouchCost, alike};
pub use away::{AwayReport, away};
pub use cpu::{CpuReport, cpu};
pub use crowd::{CrowdReport, crowd};
pub use etcd::{EtcdReport, EtcdRun, etcd};
pub use full_kill::{FullKillFigures, FullKillReport, full_kill};
pub use kill::{KillReport, kill};
pub use kills::{KillsRecovery, KillsReport, KillsStretch, kills};
pub use large::{LargeFigures, LargeReport, large};
pub use lateness::LoopFigures;
pub use load::{LoadFigures, LoadReport, load};
pub use look_aside_load::{Reach, Requests, Stretch};
pub use maintenance::{
    MaintenanceEvent, MaintenanceOptions, MaintenanceReport, MaintenanceRun, Phase, Slot,
    maintenance,
};
pub use neighbours::{
    DoorFigures, Enumeration, GetFigures, NeighbourFigures, NeighboursReport, neighbours,
};
pub use planned::{PlannedFigures, PlannedReport, PlannedRun, UpgradeReport, planned, upgrade};
pub use read_back::{Missing, ReadBack};
pub use recovery::{RecoveryReport, RecoveryRun, recovery};
pub use repair::{FullFigures, RepairReport, repair};
pub use reshape::{ReshapeReport, reshape};
pub use resize::{ResizeReport, resize};
pub use restarts::{RestartsReport, StayingClient, restarts};
pub use retries::{RetriesReport, RetryFigures, retries};
pub use steady::Course;
pub use stop_stop::{StopStopFigures, StopStopReport, stop_stop};
pub use takeover::{TakeoverReport, takeover};

/// How thoroughly to run a scenario, and where.
#[derive(Debug, Clone)]
pub struct ScenarioOptions {
    /// Path of the trefoil program.
    pub program: PathBuf,
    /// Repetitions of what is reported as a median.
    pub runs: usize,
    /// Small and short: shows that it works, not how well.
    pub is_quick: bool,
    /// The cases whose names contain this, where a scenario's cases have names.
    pub only: Option<String>,
    /// The program of another release, where a scenario is about two.
    pub previous: Option<PathBuf>,
    /// Of [`kills`]: how many.
    pub kills: Option<usize>,
    /// Of [`kills`]: the next backend is killed before the last has recovered.
    pub overlap: bool,
    /// Core of the servers; none on a machine with one.
    pub server_core: Option<usize>,
    /// Core of the load generator.
    pub client_core: Option<usize>,
}

impl ScenarioOptions {
    /// Five runs, or one quick one; servers on core 0, the load on core 1.
    pub fn new(program: &Path, is_quick: bool) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            program: program.to_owned(),
            runs: if is_quick { 1 } else { 5 },
            is_quick,
            only: None,
            previous: None,
            kills: None,
            overlap: false,
            server_core: (cores > 1).then_some(0),
            client_core: (cores > 1).then_some(1),
        }
    }

    /// The long or the quick value.
    fn scaled<T>(&self, full: T, quick: T) -> T {
        if self.is_quick { quick } else { full }
    }

    fn server(&self, mode: &'static str, memory: u64) -> ServerOptions {
        ServerOptions {
            core: self.server_core,
            ..ServerOptions::new(&self.program, mode, memory)
        }
    }

    /// Keeps the calling thread, and what it will spawn, on the load's core.
    fn pin(&self) -> Result<(), LoadError> {
        self.client_core.map_or(Ok(()), |core| {
            pin_current_thread(core).map_err(|source| LoadError::Pin { core, source })
        })
    }

    /// Keeps the calling thread, and what it will spawn, on the servers' core: an
    /// operator's command, or whoever looks on, takes nothing of the load's.
    fn pin_aside(&self) -> Result<(), LoadError> {
        self.server_core.map_or(Ok(()), |core| {
            pin_current_thread(core).map_err(|source| LoadError::Pin { core, source })
        })
    }
}

/// Told now and then what is being done.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// Why a scenario has no result.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// A server could not be started or looked at.
    #[error(transparent)]
    Server(#[from] PeerError),
    /// The load could not be made.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The client could not connect.
    #[error(transparent)]
    Connect(#[from] trefoil_client::ConnectError),
    /// A directory for the cell could not be made.
    #[error("cannot make a directory for the cell: {0}")]
    Directory(std::io::Error),
    /// The doctor could not look.
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    /// The cell did not do what the scenario is about.
    #[error("{0}")]
    Course(String),
}

fn connect(server: &Server) -> Result<Trefoil, ScenarioError> {
    let cell = Cell::connect(&server.address)?;
    Ok(Trefoil::new(cell.client(Options::default())))
}

/// How long backends that have changed may take until all say who they are.
const PIDS_PATIENCE: Duration = Duration::from_secs(10);
const PIDS_PAUSE: Duration = Duration::from_millis(100);

/// Takes down which processes the backends are by now: some have died, or have moved. Of a
/// cell that has just changed, one that is on its way out may answer, or none: two looks
/// have to find the same.
fn note_pids(server: &mut Server, cell: &Cell) {
    let end = Instant::now() + PIDS_PATIENCE;
    let pid_of = |backend: BackendStats| Some(backend.stats.ok()?.process?.pid);
    let look = || -> Vec<Option<u32>> { cell.stats().into_iter().map(pid_of).collect() };
    let mut seen = look();
    loop {
        std::thread::sleep(PIDS_PAUSE);
        let now = look();
        let is_same = now == seen && now.iter().all(Option::is_some);
        seen = now;
        if is_same || Instant::now() >= end {
            break;
        }
    }
    server.pids = seen.into_iter().flatten().collect();
}

/// A synthetic mix at a rate, or as fast as it goes.
#[derive(Debug, Clone, Copy)]
struct Mix {
    keys_count: u64,
    value_len: usize,
    popularity: Popularity,
    gets: f64,
    ops_per_s: Option<f64>,
}

impl Mix {
    fn source(&self, seed: u64) -> Result<SyntheticSource, LoadError> {
        self.share_of_source(seed, Share::WHOLE)
    }

    fn share_of_source(&self, seed: u64, share: Share) -> Result<SyntheticSource, LoadError> {
        SyntheticSource::new(SyntheticOptions {
            share,
            keys_count: self.keys_count,
            value_len: ValueLen::Fixed(self.value_len),
            popularity: self.popularity,
            gets: self.gets,
            seed,
            ..SyntheticOptions::default()
        })
    }

    /// Writes every key once.
    fn preload(&self, target: &mut Trefoil, shared: &RunShared) -> Result<(), LoadError> {
        let codec = self.source(0)?.codec();
        let len = ValueLen::Fixed(self.value_len);
        preload(target, codec, 0..self.keys_count, len, shared, &mut |_| {})
    }

    fn run(
        &self,
        target: &mut Trefoil,
        shared: &RunShared,
        warm_up: Duration,
        bound: Bound,
        seed: u64,
    ) -> Result<RunResult, LoadError> {
        let options = self.options(warm_up, bound, seed, 1);
        run_load(target, &mut self.source(seed)?, &options, shared)
    }

    /// The same by several clients at once, so that some read while others
    /// write; together they are as fast as the mix says.
    fn run_beside_one_another(
        &self,
        targets: Vec<Trefoil>,
        core: Option<usize>,
        shared: &RunShared,
        warm_up: Duration,
        bound: Bound,
        seed: u64,
    ) -> Result<RunResult, LoadError> {
        let count = targets.len() as u64;
        let options = self.options(warm_up, bound, seed, count);
        let mut clients = Vec::new();
        for (index, target) in (0..count).zip(targets) {
            let share = Share { index, count };
            let source = self.share_of_source(seed * count + index, share)?;
            clients.push((target, source, core));
        }
        run_clients(clients, &options, shared)
    }

    fn options(&self, warm_up: Duration, bound: Bound, seed: u64, clients: u64) -> RunOptions {
        RunOptions {
            arrivals: match self.ops_per_s {
                Some(ops_per_s) => Arrivals::Poisson {
                    ops_per_s: ops_per_s / clients.max(1) as f64,
                },
                None => Arrivals::Closed,
            },
            warm_up: Bound::Time(warm_up),
            bound,
            seed,
            ..RunOptions::default()
        }
    }
}
