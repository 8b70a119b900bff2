//! A cell of three copies is loaded from nothing, so that every index grows many
//! times: how long did the slowest SET wait? Beside it the same keys once more, in
//! indexes that have the right size already.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use trefoil_client::{Cell, Lookup, Options, SetOptions};

use super::{Progress, ScenarioError, ScenarioOptions};
use crate::server::{Server, ServerOptions};

const ITEMS: u64 = 10_000_000;
const VALUE_LEN: usize = 32;
/// Memory of each backend for an item: with room for two indexes at a time.
const MEMORY_OF_ITEM: u64 = 200;
const MEMORY_MIN: u64 = 128 << 20;
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
    let growing = pass(&cell, items, 1)?;
    server.settle()?;
    progress("load: the same items again");
    let fixed = pass(&cell, items, 2)?;
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

fn pass(cell: &Cell, items: u64, round: u8) -> Result<LoadFigures, ScenarioError> {
    let mut client = cell.client(Options::default());
    let mut latencies = Histogram::<u64>::new_with_bounds(1, LATENCY_MAX_NS, 3)
        .map_err(|error| ScenarioError::Course(error.to_string()))?;
    let mut slowest = [Duration::ZERO; SLOWEST];
    let (mut failed, mut first_error) = (0, None);
    let begin = Instant::now();
    for n in 0..items {
        let before = Instant::now();
        let outcome = client.set(&n.to_le_bytes(), &[round; VALUE_LEN], SetOptions::default());
        let took = before.elapsed();
        if let Err(error) = outcome {
            failed += 1;
            first_error.get_or_insert(error.to_string());
        }
        latencies.saturating_record(took.as_nanos() as u64);
        if took > slowest[SLOWEST - 1] {
            slowest[SLOWEST - 1] = took;
            slowest.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
    let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    Ok(LoadFigures {
        sets: items,
        failed,
        first_error,
        sets_per_s: items as f64 / begin.elapsed().as_secs_f64(),
        p50_us: us(0.5),
        p99_9_us: us(0.999),
        p99_9999_us: us(0.999_999),
        slowest_ms: slowest.map(|took| took.as_secs_f64() * 1e3).to_vec(),
    })
}
