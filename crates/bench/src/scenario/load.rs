//! A cell of three copies is loaded from nothing, so that every index grows many
//! times: how long did the slowest SET wait? Beside it the same keys once more, in
//! indexes that have the right size already.
//!
//! The load's thread does nothing but spin while it waits, and looks at the clock each
//! time. A machine that has others to serve takes its core away, too, and the SET of
//! that moment is slow whatever the servers did: how much of each of the slowest SETs
//! were gaps between two looks is reported, and the longest gap. Nothing is subtracted.
//! (The thread's CPU clock would not do: it runs while the host has stopped the core.)
//! On the servers' cores nobody spins for that (it would be one more who wants them):
//! how many cores others used, and what the host took, is reported.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use trefoil_client::{Cell, Client, Completion, Lookup, Options, SetOptions};

use super::{Progress, ScenarioError, ScenarioOptions};
use crate::peer::procfs;
use crate::server::{Server, ServerOptions};

const ITEMS: u64 = 10_000_000;
const VALUE_LEN: usize = 32;
/// Memory of each backend for an item: with room for two indexes at a time.
const MEMORY_OF_ITEM: u64 = 200;
const MEMORY_MIN: u64 = 128 << 20;
/// A longer time between two looks at the clock is a gap: a look takes less than a
/// microsecond.
const GAP_MIN: Duration = Duration::from_micros(100);
/// The slowest SETs that are reported one by one.
const SLOWEST: usize = 5;
/// Of so many items, one is looked up in the end.
const LOOKUP_EVERY: usize = 97;
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// One SET of every key.
#[derive(Debug, Clone, Serialize)]
pub struct LoadFigures {
    /// SETs of one client, one after another.
    pub sets: u64,
    /// Of these, failed.
    pub failed: u64,
    /// The first error.
    pub first_error: Option<String>,
    /// SETs per second.
    pub sets_per_s: f64,
    /// Microseconds of the median.
    pub p50_us: f64,
    /// Microseconds that one in a thousand exceeded.
    pub p99_9_us: f64,
    /// Microseconds that one in a million exceeded.
    pub p99_9999_us: f64,
    /// Milliseconds of the slowest, the slowest first.
    pub slowest_ms: Vec<f64>,
    /// Of each of these, the milliseconds that were gaps: in which the load's own
    /// thread, which spins, did not run.
    pub slowest_away_ms: Vec<f64>,
    /// Milliseconds of the longest gap between two looks of that thread at the clock.
    pub gap_ms: f64,
    /// Cores that processes of others used, on average.
    pub others_cores: f64,
    /// Seconds that the host took from the machine's cores, all together.
    pub stolen_s: f64,
}

/// Both passes.
#[derive(Debug, Clone, Serialize)]
pub struct LoadReport {
    /// Keys.
    pub items: u64,
    /// Bytes of each backend's bound.
    pub memory: u64,
    /// The first SET of every key: indexes grow.
    pub growing: LoadFigures,
    /// The second: they do not.
    pub fixed: LoadFigures,
    /// Of a sample of the keys, those not found in the end.
    pub missing: u64,
}

impl LoadReport {
    /// Nothing failed, nothing is gone.
    pub fn is_clean(&self) -> bool {
        self.growing.failed + self.fixed.failed + self.missing == 0
    }
}

/// Loads a cell twice.
pub fn load(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<LoadReport, ScenarioError> {
    let items = options.scaled(ITEMS, 200_000);
    let memory = MEMORY_MIN + items * MEMORY_OF_ITEM;
    let server = Server::start(&ServerOptions {
        processes: true,
        ..options.server("R=3.2", memory)
    })?;
    options.pin()?;
    let cell = Cell::connect(&server.address)?;
    progress(&format!("load: {items} new items"));
    let growing = pass(&server, &cell, items, 1)?;
    server.settle()?;
    progress("load: the same items again");
    let fixed = pass(&server, &cell, items, 2)?;
    let mut client = cell.client(Options::default());
    let mut is_found = |n: u64| matches!(client.get(&n.to_le_bytes()), Ok(Lookup::Hit(_)));
    let sample = (0..items).step_by(LOOKUP_EVERY);
    let missing = sample.map(|n| u64::from(!is_found(n))).sum();
    Ok(LoadReport {
        items,
        memory,
        growing,
        fixed,
        missing,
    })
}

/// What the machine did, to be compared with later.
struct Busy {
    machine: procfs::MachineTime,
    ours: Duration,
}

impl Busy {
    fn now(server: &Server) -> Result<Self, ScenarioError> {
        Ok(Busy {
            machine: procfs::machine_time()?,
            ours: server.cpu_time()? + procfs::cpu_time(std::process::id())?,
        })
    }
}

/// One SET, waited for by spinning.
struct Spun {
    took: Duration,
    /// Of it, the gaps, in which this thread did not run.
    away: Duration,
    /// The longest of them.
    gap: Duration,
    error: Option<String>,
}

fn set(client: &mut Client, key: &[u8], value: &[u8]) -> Spun {
    let begin = Instant::now();
    client.submit_set(key, value, SetOptions::default(), 0);
    let (mut away, mut gap) = (Duration::ZERO, Duration::ZERO);
    let mut looked = begin;
    let mut ended = None;
    while ended.is_none() {
        client.poll(&mut |_, completion| {
            let error = match completion {
                Completion::Mutated(outcome) => outcome.err().map(|error| error.to_string()),
                other => Some(format!("a SET ended as {other:?}")),
            };
            ended = Some(error);
        });
        let now = Instant::now();
        let between = now - looked;
        if between >= GAP_MIN {
            away += between;
            gap = gap.max(between);
        }
        looked = now;
        std::hint::spin_loop();
    }
    Spun {
        took: looked - begin,
        away,
        gap,
        error: ended.flatten(),
    }
}

fn pass(server: &Server, cell: &Cell, items: u64, round: u8) -> Result<LoadFigures, ScenarioError> {
    let mut client = cell.client(Options::default());
    let mut latencies = Histogram::<u64>::new_with_bounds(1, LATENCY_MAX_NS, 3)
        .map_err(|error| ScenarioError::Course(error.to_string()))?;
    let mut slowest = [(Duration::ZERO, Duration::ZERO); SLOWEST];
    let mut gap_max = Duration::ZERO;
    let (mut failed, mut first_error) = (0, None);
    let busy = Busy::now(server)?;
    let begin = Instant::now();
    for n in 0..items {
        let Spun {
            took,
            away,
            gap,
            error,
        } = set(&mut client, &n.to_le_bytes(), &[round; VALUE_LEN]);
        if let Some(error) = error {
            failed += 1;
            first_error.get_or_insert(error);
        }
        latencies.saturating_record(took.as_nanos() as u64);
        gap_max = gap_max.max(gap);
        if took > slowest[SLOWEST - 1].0 {
            slowest[SLOWEST - 1] = (took, away);
            slowest.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
    let elapsed = begin.elapsed();
    let since = Busy::now(server)?;
    let ours = since.ours.saturating_sub(busy.ours);
    let all = since.machine.busy.saturating_sub(busy.machine.busy);
    let stolen = since.machine.stolen.saturating_sub(busy.machine.stolen);
    let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(LoadFigures {
        sets: items,
        failed,
        first_error,
        sets_per_s: items as f64 / elapsed.as_secs_f64(),
        p50_us: us(0.5),
        p99_9_us: us(0.999),
        p99_9999_us: us(0.999_999),
        slowest_ms: slowest.map(|(took, _)| ms(took)).to_vec(),
        slowest_away_ms: slowest.map(|(_, away)| ms(away)).to_vec(),
        gap_ms: ms(gap_max),
        others_cores: all.saturating_sub(ours).as_secs_f64() / elapsed.as_secs_f64(),
        stolen_s: stolen.as_secs_f64(),
    })
}
