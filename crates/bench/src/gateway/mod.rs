//! The front door beside memcached or Redis: the same load generator on one
//! core, each server in turn on the other, alternating, medians.
//!
//! Throughput *per core* is what the server's CPU time gives: items for each
//! second of it. Where the generator is the slower of the two, operations per
//! second are about the generator.

mod dialect;
mod generator;
mod report;
mod servers;

pub use dialect::{Dialect, Operation};
pub use generator::{Load, Waits};
pub use report::{CaseReport, Figures, GatewayReport, SystemReport};
pub use servers::System;

use crate::load::pin_current_thread;
use crate::peer::{PeerError, PeerKind};
use generator::generate;
use servers::Running;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const WARM_UP: Duration = Duration::from_millis(150);
/// Connections where latency is what matters.
const CONNECTIONS_MANY: usize = 50;
/// Connections that send many requests at once.
const CONNECTIONS_FEW: usize = 10;

/// Why a comparison has no result.
#[derive(Debug, thiserror::Error)]
pub enum GatewayBenchError {
    /// A server.
    #[error(transparent)]
    Server(#[from] PeerError),
    /// A connection.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// An answer that is none.
    #[error("an unexpected answer, or a miss: {0:?}")]
    Unexpected(String),
    /// No answer at all.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// There is nothing to measure.
    #[error("no case's name contains {0:?}")]
    NoCase(String),
    /// The core is not to be had.
    #[error("cannot use core {core}: {source}")]
    Core {
        /// Which.
        core: usize,
        /// Why.
        source: io::Error,
    },
    /// Latencies cannot be recorded.
    #[error("a histogram of latencies cannot be made")]
    Histogram,
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// This program.
    pub program: PathBuf,
    /// The peer, and with it the protocol.
    pub peer: PeerKind,
    /// Also a gateway in front of a cell of three copies.
    pub with_cell: bool,
    /// Only cases whose name contains this.
    pub only: Option<String>,
    /// Runs of each case and system, in turn.
    pub runs: usize,
    /// Length of each.
    pub seconds: f64,
    /// Keys asked for.
    pub keys_count: u64,
    /// Lengths of values.
    pub value_lens: Vec<usize>,
    /// Cores of the generator and of the servers.
    pub cores: (usize, usize),
}

impl GatewayOptions {
    /// The defaults.
    pub fn new(program: &Path, peer: PeerKind) -> Self {
        GatewayOptions {
            program: program.to_owned(),
            peer,
            with_cell: true,
            only: None,
            runs: 5,
            seconds: 1.0,
            keys_count: 100_000,
            value_lens: vec![100, 1024],
            cores: (0, 1),
        }
    }
}

impl GatewayOptions {
    /// What the peer speaks.
    pub fn dialect(&self) -> Dialect {
        match self.peer {
            PeerKind::Memcached => Dialect::Memcached,
            PeerKind::Redis | PeerKind::Valkey => Dialect::Redis,
        }
    }
}

/// A named load.
struct Case {
    name: String,
    load: Load,
}

fn cases(options: &GatewayOptions) -> Vec<Case> {
    use Operation::{Get, MultiGet, Set};
    let shapes = [
        (
            "get, one at a time",
            Get,
            CONNECTIONS_MANY,
            1,
            Waits::Polling,
        ),
        (
            "set, one at a time",
            Set,
            CONNECTIONS_MANY,
            1,
            Waits::Polling,
        ),
        (
            "get, 32 pipelined",
            Get,
            CONNECTIONS_FEW,
            32,
            Waits::Polling,
        ),
        (
            "set, 32 pipelined",
            Set,
            CONNECTIONS_FEW,
            32,
            Waits::Polling,
        ),
        (
            "multiget of 100",
            MultiGet(100),
            CONNECTIONS_FEW,
            1,
            Waits::Polling,
        ),
        ("get, one blocking client", Get, 1, 1, Waits::Blocking),
        ("set, one blocking client", Set, 1, 1, Waits::Blocking),
    ];
    let mut cases = Vec::new();
    for value_len in &options.value_lens {
        for (name, operation, connections, depth, waits) in shapes {
            cases.push(Case {
                name: format!("{name}, {value_len} B"),
                load: Load {
                    dialect: options.dialect(),
                    operation,
                    value_len: *value_len,
                    keys_count: options.keys_count,
                    connections,
                    depth,
                    waits,
                },
            });
        }
    }
    if let Some(only) = &options.only {
        cases.retain(|case| case.name.contains(only.as_str()));
    }
    cases
}

/// Measures everything. `progress` is told what comes next.
pub fn gateway(
    options: &GatewayOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<GatewayReport, GatewayBenchError> {
    let (client_core, server_core) = options.cores;
    pin_current_thread(client_core).map_err(|source| GatewayBenchError::Core {
        core: client_core,
        source,
    })?;
    let cases = cases(options);
    if cases.is_empty() {
        let only = options.only.clone().unwrap_or_default();
        return Err(GatewayBenchError::NoCase(only));
    }
    let mut systems = vec![System::Peer, System::Serve];
    if options.with_cell {
        systems.push(System::Gateway);
    }
    let mut running = Vec::new();
    for system in systems {
        progress(&format!("starting {}", system.name(options.peer)));
        running.push(Running::start(options, system, server_core)?);
    }
    let mut report = GatewayReport::new(options.dialect(), options.runs, options.seconds);
    let mut filled_len = None;
    for case in cases {
        if filled_len != Some(case.load.value_len) {
            for server in &running {
                generator::fill(server.address, &case.load)?;
                server.settle()?;
            }
            filled_len = Some(case.load.value_len);
        }
        let mut figures: Vec<Vec<Figures>> = vec![Vec::new(); running.len()];
        for run in 0..options.runs.max(1) {
            for (server, figures) in running.iter().zip(&mut figures) {
                progress(&format!("{}: {}, run {}", case.name, server.name, run + 1));
                figures.push(measure(server, &case.load, options.seconds)?);
            }
        }
        let names = running.iter().map(|server| server.name.clone());
        report.add(&case.name, names.zip(figures));
    }
    Ok(report)
}

fn measure(server: &Running, load: &Load, seconds: f64) -> Result<Figures, GatewayBenchError> {
    let measured = Duration::from_secs_f64(seconds);
    let mut before = Ok(Duration::ZERO);
    let begins = &mut || before = server.cpu_time();
    let generated = generate(server.address, load, WARM_UP, measured, begins)?;
    let used = server.cpu_time()?.saturating_sub(before?);
    let items = generated.items.max(1) as f64;
    Ok(Figures {
        ops_per_s: generated.items as f64 / generated.elapsed.as_secs_f64(),
        p50_ns: generated.latencies.value_at_quantile(0.5),
        p99_ns: generated.latencies.value_at_quantile(0.99),
        server_cpu_ns_per_op: used.as_nanos() as f64 / items,
        ops_per_cpu_s: items / used.as_secs_f64().max(1e-9),
    })
}
