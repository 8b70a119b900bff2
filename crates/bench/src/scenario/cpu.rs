//! CPU that a backend spends on GETs which it does not see: one-sided reads of
//! one copy, touches reported as by default. And what it spends when nobody asks.

use std::time::Duration;

use serde::Serialize;

use super::{Mix, Progress, ScenarioError, ScenarioOptions, connect};
use crate::load::{Bound, Popularity, RunShared};
use crate::median::Median as _;
use crate::server::Server;

const MEMORY: u64 = 512 << 20;
const WARM_UP: Duration = Duration::from_millis(200);
/// After this a backend sleeps.
const SETTLE: Duration = Duration::from_millis(200);

/// CPU of the backend.
#[derive(Debug, Clone, Serialize)]
pub struct CpuReport {
    /// Runs.
    pub runs: usize,
    /// GETs of all runs.
    pub gets: u64,
    /// Touches included, median.
    pub server_cpu_us_per_get: f64,
    /// Of an idle backend, in microseconds for each second, median.
    pub idle_cpu_us_per_s: f64,
}

/// Measures a backend's CPU.
pub fn cpu(options: &ScenarioOptions, progress: Progress<'_>) -> Result<CpuReport, ScenarioError> {
    options.pin()?;
    let mix = Mix {
        keys_count: options.scaled(200_000, 20_000),
        value_len: 1024,
        popularity: Popularity::Uniform,
        gets: 1.0,
        ops_per_s: None,
    };
    let server = Server::start(&options.server("R=1", MEMORY))?;
    let mut target = connect(&server)?;
    let shared = RunShared::reading();
    mix.preload(&mut target, &shared)?;
    let seconds = Duration::from_secs_f64(options.scaled(1.0, 0.3));
    let (mut per_get, mut idle, mut gets) = (Vec::new(), Vec::new(), 0);
    for number in 0..options.runs.max(1) {
        progress(&format!(
            "cpu: run {} of {}",
            number + 1,
            options.runs.max(1)
        ));
        std::thread::sleep(SETTLE);
        let begin = server.cpu_time()?;
        std::thread::sleep(seconds);
        let before = server.cpu_time()?;
        idle.push((before - begin).as_secs_f64() * 1e6 / seconds.as_secs_f64());
        let counted = target.client().counters().hits;
        let bound = Bound::Time(seconds);
        mix.run(&mut target, &shared, WARM_UP, bound, number as u64 + 1)?;
        target.client().flush_touches();
        std::thread::sleep(SETTLE);
        let used = server.cpu_time()?.saturating_sub(before);
        let hits = target.client().counters().hits - counted;
        per_get.push(used.as_secs_f64() * 1e6 / hits.max(1) as f64);
        gets += hits;
    }
    Ok(CpuReport {
        runs: per_get.len(),
        gets,
        server_cpu_us_per_get: f64::median(&per_get).unwrap_or(0.0),
        idle_cpu_us_per_s: f64::median(&idle).unwrap_or(0.0),
    })
}
