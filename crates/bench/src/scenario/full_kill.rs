//! A full cell of three copies in ordinary use, and kill -9 of one backend:
//! nothing may fail, and what follows is as fast as before.

use std::time::Duration;

use serde::Serialize;

use super::look_aside_load::{LookAsideLoad, Reach, Stretch};
use super::{Progress, ScenarioError, ScenarioOptions};

const VICTIM: usize = 1;
/// From the beginning of the stretch that is measured as "after".
const KILL_AFTER: Duration = Duration::from_millis(200);

/// What must be shown.
const THROUGHPUT_MIN: f64 = 0.9;
const P99_MAX: f64 = 2.0;
const HIT_RATIO_POINTS_MAX: f64 = 2.0;

/// By one way to the cell.
#[derive(Debug, Clone, Serialize)]
pub struct FullKillFigures {
    /// How the cell is reached.
    pub reach: Reach,
    /// Memory is full, all backends work.
    pub healthy: Stretch,
    /// A backend is killed at its beginning.
    pub after: Stretch,
    /// After by healthy.
    pub throughput: f64,
    /// After by healthy.
    pub p99: f64,
    /// Healthy less after, in percent of lookups.
    pub hit_ratio_points_lost: f64,
}

impl FullKillFigures {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        self.healthy.is_clean()
            && self.after.is_clean()
            && self.throughput >= THROUGHPUT_MIN
            && self.p99 <= P99_MAX
            && self.hit_ratio_points_lost <= HIT_RATIO_POINTS_MAX
    }
}

/// By the gateway and by native clients.
#[derive(Debug, Clone, Serialize)]
pub struct FullKillReport {
    /// Each in turn, with a cell of its own.
    pub figures: Vec<FullKillFigures>,
}

impl FullKillReport {
    /// Everything that must be shown is, by either way.
    pub fn is_clean(&self) -> bool {
        self.figures.iter().all(FullKillFigures::is_clean)
    }
}

/// Kills a backend of a full cell.
pub fn full_kill(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<FullKillReport, ScenarioError> {
    options.pin()?;
    let mut figures = Vec::new();
    for reach in Reach::ALL {
        let name = format!("full-kill by {reach:?}");
        progress(&format!("{name}: filling"));
        let mut load = LookAsideLoad::start(options, reach)?;
        let length = Duration::from_secs(options.scaled(15, 5));
        progress(&format!("{name}: warming up, {length:?}"));
        load.run(length / 2, |_| {})?;
        progress(&format!("{name}: healthy, {length:?}"));
        let healthy = load.run(length, |_| {})?;
        progress(&format!("{name}: killed, {length:?}"));
        let after = load.run(length, |server| {
            std::thread::sleep(KILL_AFTER);
            server.kill(VICTIM);
        })?;
        figures.push(FullKillFigures {
            reach: load.reach(),
            throughput: after.ops_per_s / healthy.ops_per_s.max(1e-9),
            p99: after.p99_ns as f64 / healthy.p99_ns.max(1) as f64,
            hit_ratio_points_lost: (healthy.hit_ratio - after.hit_ratio) * 100.0,
            healthy,
            after,
        });
    }
    Ok(FullKillReport { figures })
}
