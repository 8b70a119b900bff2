//! A thread's client: what its operations share.

use crate::cell::Shared;
use crate::link::Link;
use crate::options::Options;
use crate::rpc::Completion;
use crate::time;
use crate::versions::Versions;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use trefoil_cell::{CellConfig, Cohort, Placement, RpcAddress};
use trefoil_client_core::mode::Mode;
use trefoil_client_core::retry::{Limits, RetryCounts};
use trefoil_layout::limits::{CLOCK_AHEAD_NS_MAX, KEY_LEN_MAX};
use trefoil_layout::op::Rejection;
use trefoil_layout::{KeyHash, KeyHasher, Version};
use trefoil_region::WordBuffer;

/// How many lookups begin at the same replica before the next one's turn: each
/// gets its share of touches, and its memory stays in the cache for a while.
const PREFERRED_TURN: u64 = 64;

/// What a client has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Lookups that returned a value.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Of the misses, those without a quorum.
    pub inquorate: u64,
    /// Operations without a result.
    pub failed: u64,
    /// Mutations whose outcome is unknown.
    pub indeterminate: u64,
    /// Retries of lookups, by cause.
    pub get_retries: RetryCounts,
    /// Retries of mutations, by cause.
    pub mutation_retries: RetryCounts,
}

/// Which replica is asked first.
pub(crate) struct Turns {
    /// Always this one.
    preferred: Option<usize>,
    /// Lookups so far, and the client's own start.
    count: u64,
}

impl Turns {
    /// The place in a cohort of `copies` that is asked first.
    #[inline(always)]
    pub(crate) fn next(&mut self, copies: usize) -> usize {
        if copies == 1 {
            return 0;
        }
        if let Some(preferred) = self.preferred {
            return preferred % copies;
        }
        self.count += 1;
        (self.count / PREFERRED_TURN % copies as u64) as usize
    }
}

/// A client of one cell for one thread.
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) config: Arc<CellConfig>,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    pub(crate) hasher: KeyHasher,
    pub(crate) placement: Placement,
    pub(crate) links: Vec<Link>,
    /// What a group of [`Client::get_many`] has read.
    pub(crate) group_bytes: Vec<WordBuffer>,
    pub(crate) versions: Versions,
    /// Whether lookups are reported as uses.
    pub(crate) reports_uses: bool,
    pub(crate) counters: Counters,
    pub(crate) turns: Turns,
    /// Number of the operation under way.
    pub(crate) operation: u64,
    pub(crate) done: (Sender<Completion>, Receiver<Completion>),
}

impl Client {
    pub(crate) fn new(shared: Arc<Shared>, options: Options, number: usize) -> Self {
        let config = shared.config();
        let now = time::monotonic_ns();
        let link = |backend: &trefoil_cell::BackendConfig| {
            let has_tcp = backend
                .addresses
                .iter()
                .any(|a| matches!(a, RpcAddress::Tcp { host, .. } if !is_loopback(host)));
            Link::new(
                backend.number,
                backend.fabric_socket.clone(),
                has_tcp,
                options.touch_sample,
                now,
            )
        };
        Client {
            mode: machine_mode(config.mode),
            hasher: config.hash,
            placement: config.placement(),
            links: config.backends.iter().map(link).collect(),
            group_bytes: Vec::new(),
            config,
            shared,
            options,
            versions: Versions::new(),
            reports_uses: true,
            counters: Counters::default(),
            turns: Turns {
                preferred: options.preferred,
                count: number as u64 * PREFERRED_TURN,
            },
            operation: 0,
            done: channel(),
        }
    }

    /// What this client has counted so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Starts counting anew.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
    }

    /// Reports the touches that are still being collected. Called when the
    /// client is dropped; of use before it goes idle.
    pub fn flush_touches(&mut self) {
        self.links.iter_mut().for_each(Link::flush_touches);
    }

    /// Waits, for at most `patience`, until the replicas that were not waited for
    /// have executed this client's mutations, too: a mutation is acknowledged by
    /// a majority. Of use before counting what the replicas hold. Looks at rings
    /// only: what went by gRPC is not waited for.
    pub fn settle(&mut self, patience: Duration) {
        let end = Instant::now() + patience;
        for link in &mut self.links {
            while let Some((connection, _)) = link.shared_and_bytes()
                && connection.channel().is_some_and(|c| !c.is_settled())
                && let Some(left) = end.checked_duration_since(Instant::now())
            {
                connection.wait(left);
                if connection.poll(|_, _| {}).is_err() {
                    break;
                }
            }
        }
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash(key)
    }

    #[inline(always)]
    pub(crate) fn cohort(&self, hash: KeyHash) -> Cohort {
        self.placement.cohort(hash)
    }

    #[inline(always)]
    pub(crate) fn limits(&self, now_ns: u64) -> Limits {
        Limits {
            deadline_ns: now_ns + self.options.deadline.as_nanos() as u64,
            retries_max: self.options.retries_max,
        }
    }

    /// The place in the cohort that is asked first.
    #[inline(always)]
    pub(crate) fn preferred(&mut self) -> usize {
        self.turns.next(self.mode.replica_count())
    }

    /// The version that was nominated last. After an indeterminate CAS, finding
    /// it tells that the CAS was applied.
    pub fn last_version(&self) -> Version {
        self.versions.last()
    }

    /// The cell's configuration, as this client knows it.
    pub fn config(&self) -> &CellConfig {
        &self.config
    }

    /// Takes note of a version, unless it is from so far in the future that
    /// every later mutation of ours would be refused.
    pub(crate) fn observe_sanely(&mut self, version: Version) {
        let latest = time::unix_ns() + CLOCK_AHEAD_NS_MAX;
        if version.time_ns <= latest {
            self.versions.observe(version);
        }
    }

    /// Learns of a configuration that is newer than the known one.
    pub fn refresh(&mut self) {
        self.refresh_config();
    }

    /// Notes that another configuration may be in force.
    #[cold]
    pub(crate) fn refresh_config(&mut self) {
        if let Ok(config) = self.shared.reload_config()
            && config.config_id > self.config.config_id
        {
            self.hasher = config.hash;
            self.placement = config.placement();
            self.mode = machine_mode(config.mode);
            self.observe_sanely(config.flush_floor);
            self.config = config;
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.flush_touches();
    }
}

/// Refuses keys that no backend takes.
#[inline(always)]
pub(crate) fn check_key(key: &[u8]) -> Result<(), Rejection> {
    if key.is_empty() {
        return Err(Rejection::KeyEmpty);
    }
    if key.len() > KEY_LEN_MAX {
        return Err(Rejection::KeyTooLong);
    }
    Ok(())
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

fn machine_mode(mode: trefoil_cell::Mode) -> Mode {
    match mode {
        trefoil_cell::Mode::R1 => Mode::R1,
        trefoil_cell::Mode::R2 => Mode::R2Immutable,
        trefoil_cell::Mode::R32 => Mode::R32,
    }
}
