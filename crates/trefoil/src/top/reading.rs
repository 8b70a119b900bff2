//! What the cell says of itself at one moment.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use trefoil_client::{BackendStats, Cell, EngineStats, HotKey};
use trefoil_rpc::v1;

/// See the module.
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) unix_ms: u64,
    pub(super) cell: String,
    pub(super) mode: String,
    /// Replicas that apply a mutation.
    pub(super) copy_count: u64,
    pub(super) config_id: u32,
    pub(super) backends: Vec<BackendStats>,
    /// State and process of those that say nothing.
    pub(super) silence: Vec<(u32, &'static str, Option<u32>)>,
    pub(super) keys: Vec<HotKey>,
    /// That read backends for clients on other hosts.
    pub(super) engines: Vec<EngineStats>,
}

impl Reading {
    /// Asks every backend; those that do not answer are part of the reading.
    pub(super) fn take(cell: &Cell, key_count: usize) -> Reading {
        let config = cell.config();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let backends = cell.stats();
        let unheard = backends.iter().filter(|backend| backend.stats.is_err());
        let silence = |backend: &BackendStats| {
            let (state, pid) = crate::cell::status::silence(cell, backend);
            (backend.number, state, pid)
        };
        let silence = unheard.map(silence).collect();
        Reading {
            at: Instant::now(),
            unix_ms: now.unwrap_or(Duration::ZERO).as_millis() as u64,
            cell: config.cell.clone(),
            mode: config.mode.to_string(),
            copy_count: config.mode.copy_count() as u64,
            config_id: config.config_id,
            backends,
            silence,
            keys: cell.top_keys(key_count),
            engines: cell.engines(),
        }
    }

    /// The same process of an engine in this reading.
    pub(super) fn same_engine(&self, other: &EngineStats) -> Option<&EngineStats> {
        let is_it = |engine: &&EngineStats| {
            engine.address == other.address && engine.count("pid") == other.count("pid")
        };
        self.engines.iter().find(is_it)
    }

    /// What backend `number` says, or why it says nothing.
    pub(super) fn member(
        &self,
        number: u32,
    ) -> Result<(&v1::StatsResponse, &v1::MemberStats), &str> {
        let backend = self.backends.iter().find(|b| b.number == number);
        let stats = match backend.map(|backend| &backend.stats) {
            Some(Ok(stats)) => stats,
            Some(Err(error)) => return Err(error),
            None => return Err("not part of the cell"),
        };
        let member = stats.members.iter().find(|member| member.backend == number);
        member
            .map(|member| (stats, member))
            .ok_or("another process answered at its address")
    }

    /// The processes that answered, each once: one may be several backends.
    pub(super) fn processes(&self) -> Vec<&v1::StatsResponse> {
        let mut seen = Vec::new();
        let mut processes = Vec::new();
        for backend in &self.backends {
            let Ok((stats, member)) = self.member(backend.number) else {
                continue;
            };
            // Numbers of processes are each host's own, incarnations are not.
            if !seen.contains(&&member.incarnation) {
                seen.push(&member.incarnation);
                processes.push(stats);
            }
        }
        processes
    }

    /// The same process in this reading.
    pub(super) fn same_process(&self, other: &v1::StatsResponse) -> Option<&v1::StatsResponse> {
        let life = |stats: &v1::StatsResponse| stats.members.first().map(|m| m.incarnation.clone());
        let wanted = life(other)?;
        let mut processes = self.processes().into_iter();
        processes.find(|stats| life(stats).as_ref() == Some(&wanted))
    }
}
