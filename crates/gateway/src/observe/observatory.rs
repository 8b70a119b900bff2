//! What all loops share, and what is read of it.

use super::block::{Block, COMMANDS, FAULTS, Sums};
use super::detail::Detail;
use super::faults::Counted;
use super::metrics;
use super::observer::Counting;
use super::slow::SlowLog;
use crate::keyspace::Committing;
use crate::server::{DoorAddress, Doors, GatewayOptions, Protocol};
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use trefoil_backend::{MetricSource, Reporter};
use trefoil_gateway_core::keyspace::Totals;
use trefoil_gateway_core::world::{Ending, Settings};
use trefoil_hot::{HotKey, HotKeys};
use trefoil_rpc::v1;

/// Commands that take longer than this are in the slow log, unless an operator
/// chose otherwise.
pub const SLOW_THRESHOLD_DEFAULT: Duration = Duration::from_millis(10);

/// What is reported beside what is counted.
#[derive(Clone)]
pub struct ObserveOptions {
    /// What an operator chose for the front door.
    pub settings: Settings,
    /// TCP port of the memcached protocol, and the address it is bound to.
    pub port: Option<(String, u16)>,
    /// Unix socket of the memcached protocol.
    pub socket: Option<PathBuf>,
    /// Whether clients have to use TLS.
    pub tls: bool,
    /// From which duration on a command is slow; `None`: none is.
    pub slow_threshold: Option<Duration>,
    /// Whether commands reach the store of this process directly, so that no
    /// backend counts their keys.
    pub is_local: bool,
}

impl ObserveOptions {
    /// For a front door with these options, open at these doors.
    pub fn of(options: &GatewayOptions, doors: &Doors) -> Self {
        let mut observed = ObserveOptions::new(options.settings());
        observed.tls = options.doors.iter().any(|door| door.tls.is_some());
        for (protocol, address) in doors.addresses() {
            match address {
                _ if protocol != Protocol::Memcached => {}
                DoorAddress::Tcp(address) => {
                    observed.port = Some((address.ip().to_string(), address.port()));
                }
                DoorAddress::Unix(path) => observed.socket = Some(path),
            }
        }
        observed
    }

    /// The defaults, for these settings.
    pub fn new(settings: Settings) -> Self {
        ObserveOptions {
            settings,
            port: None,
            socket: None,
            tls: false,
            slow_threshold: Some(SLOW_THRESHOLD_DEFAULT),
            is_local: false,
        }
    }
}

impl fmt::Debug for ObserveOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObserveOptions")
            .field("settings", &self.settings)
            .field("slow_threshold", &self.slow_threshold)
            .field("is_local", &self.is_local)
            .finish_non_exhaustive()
    }
}

/// See the module. One belongs to each gateway.
#[derive(Debug)]
pub struct Observatory {
    pub(super) options: ObserveOptions,
    /// What an operator chose last.
    settings: RwLock<Arc<Settings>>,
    pub(super) started: Instant,
    pub(super) slow: SlowLog,
    pub(super) detail: Detail,
    loops: Vec<Loop>,
    /// Counted by the keyspaces.
    commits: OnceLock<Committing>,
    /// What memcached's statistics leave out since `stats reset`.
    before: Mutex<Before>,
}

/// What a loop writes.
#[derive(Debug, Default)]
struct Loop {
    block: Arc<Block>,
    hot: Arc<Mutex<HotKeys>>,
}

#[derive(Clone, Debug, Default)]
struct Before {
    sums: Sums,
    totals: Totals,
}

impl Observatory {
    /// For as many event loops as the settings say.
    pub fn new(options: ObserveOptions) -> Arc<Observatory> {
        let loop_count = options.settings.thread_count.max(1);
        Arc::new(Observatory {
            settings: RwLock::new(Arc::new(options.settings.clone())),
            options,
            started: Instant::now(),
            slow: SlowLog::default(),
            detail: Detail::default(),
            loops: (0..loop_count).map(|_| Loop::default()).collect(),
            commits: OnceLock::new(),
            before: Mutex::default(),
        })
    }

    /// What is reported of an operator's choices from now on.
    pub fn adopt(&self, settings: Settings) {
        let mut known = self
            .settings
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *known = Arc::new(settings);
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        let known = self.settings.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&known)
    }

    /// The observer of loop `index`. One for each loop, or counts are lost.
    pub fn observer(self: &Arc<Self>, index: usize) -> Counting {
        let own = &self.loops[index];
        let (block, hot) = (Arc::clone(&own.block), Arc::clone(&own.hot));
        Counting::new(Arc::clone(self), block, hot, index as u64)
    }

    /// The keyspace of loop `index`, with its faults counted.
    pub fn counted<K>(&self, index: usize, keyspace: K) -> Counted<K> {
        Counted::new(keyspace, Arc::clone(&self.loops[index].block))
    }

    /// Tells what those keyspaces count that were made with it, from now on. One is told of.
    pub fn tell_commits(&self, of: &Committing) {
        let _ = self.commits.set(of.clone());
    }

    /// Seconds since the start, for sketches.
    pub(super) fn now_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Everything since the start.
    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        self.loops.iter().for_each(|l| l.block.add_to(&mut sums));
        sums.commits = self
            .commits
            .get()
            .map(Committing::counts)
            .unwrap_or_default();
        sums
    }

    /// Everything since the last `stats reset`; `totals` are those of the cell now.
    pub(super) fn since_reset(&self, totals: &Totals) -> (Sums, Totals) {
        let (sums, mut totals) = (self.sums(), *totals);
        let before = self.before();
        for (counter, before) in [
            (&mut totals.evictions, before.totals.evictions),
            (&mut totals.expired, before.totals.expired),
            (&mut totals.out_of_memory, before.totals.out_of_memory),
            (&mut totals.stored, before.totals.stored),
        ] {
            *counter = counter.saturating_sub(before);
        }
        totals.classes.zip(&before.totals.classes, |class, before| {
            class.evicted = class.evicted.saturating_sub(before.evicted);
            class.expired = class.expired.saturating_sub(before.expired);
            class.no_memory = class.no_memory.saturating_sub(before.no_memory);
        });
        // Connections are open whether or not somebody looks away.
        let mut since = sums.since(&before.sums);
        since.closed = since.opened.saturating_sub(sums.connections());
        (since, totals)
    }

    /// `stats reset`. What Prometheus reads goes on.
    pub(super) fn reset(&self, totals: &Totals) {
        let now = Before {
            sums: self.sums(),
            totals: *totals,
        };
        *self.before() = now;
        self.slow.clear();
        self.detail.clear();
    }

    fn before(&self) -> std::sync::MutexGuard<'_, Before> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys asked for most through this front door.
    pub fn top_keys(&self, count: usize) -> Vec<HotKey> {
        let now_s = self.now_s();
        let lists = self.loops.iter().map(|own| {
            let hot = own.hot.lock().unwrap_or_else(PoisonError::into_inner);
            hot.all(now_s)
        });
        trefoil_hot::merge(lists, count)
    }
}

impl MetricSource for Observatory {
    fn encode(&self, cell: &str, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        metrics::encode(&self.sums(), &self.settings(), cell, encoder)
    }
}

impl Reporter for Observatory {
    fn statistics(&self) -> v1::GatewayStats {
        let sums = self.sums();
        let commands = COMMANDS
            .iter()
            .zip(&sums.took)
            .map(|((command, name), took)| {
                let ended = |ending| sums.of(*command, ending);
                let durations = took.filled();
                v1::CommandStats {
                    command: (*name).to_owned(),
                    hits: ended(Ending::Hit),
                    misses: ended(Ending::Miss),
                    refused: ended(Ending::Refused),
                    client_errors: ended(Ending::ClientError),
                    server_errors: ended(Ending::ServerError),
                    sum_ns: took.sum_ns,
                    durations: durations
                        .map(|(below_ns, count)| v1::DurationCount { below_ns, count })
                        .collect(),
                }
            });
        let faults = FAULTS.iter().zip(&sums.faults);
        v1::GatewayStats {
            connections: sums.connections(),
            connections_opened: sums.opened,
            connections_refused: sums.refused,
            bytes_read: sums.bytes_read,
            bytes_written: sums.bytes_written,
            slow_commands: sums.slow,
            commands: commands.collect(),
            faults: faults
                .map(|(kind, count)| v1::FaultCount {
                    kind: (*kind).to_owned(),
                    count: *count,
                })
                .collect(),
        }
    }

    fn hot_keys(&self, count: usize) -> Vec<HotKey> {
        // Through a cell, the same operations arrive at its backends.
        if self.options.is_local {
            self.top_keys(count)
        } else {
            Vec::new()
        }
    }
}
