//! A full cell in ordinary use: one backend stands still, goes on, and at once
//! another stands still. The first has missed writes; nothing may fail and
//! nothing old may be read.

use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;

use super::look_aside_load::{LookAsideLoad, Reach, Stretch};
use super::{Progress, ScenarioError, ScenarioOptions};

const FIRST: usize = 1;
const SECOND: usize = 2;

/// By one way to the cell.
#[derive(Debug, Clone, Serialize)]
pub struct StopStopFigures {
    /// How the cell is reached.
    pub reach: Reach,
    /// Nobody stands still.
    pub healthy: Stretch,
    /// First one, then another stands still.
    pub stopped: Stretch,
    /// Nobody stands still any more.
    pub after: Stretch,
}

/// By the gateway and by native clients.
#[derive(Debug, Clone, Serialize)]
pub struct StopStopReport {
    /// How long each stands still, in seconds.
    pub stop_s: f64,
    /// Each in turn, with a cell of its own.
    pub figures: Vec<StopStopFigures>,
}

impl StopStopReport {
    /// No errors, nothing stale.
    pub fn is_clean(&self) -> bool {
        let is_clean = |figures: &StopStopFigures| {
            figures.healthy.is_clean() && figures.stopped.is_clean() && figures.after.is_clean()
        };
        self.figures.iter().all(is_clean)
    }
}

/// Stops one backend after another.
pub fn stop_stop(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<StopStopReport, ScenarioError> {
    options.pin()?;
    let stop = Duration::from_secs(options.scaled(5, 2));
    let mut figures = Vec::new();
    for reach in Reach::ALL {
        let name = format!("stop-stop by {reach:?}");
        progress(&format!("{name}: filling"));
        let mut load = LookAsideLoad::start(options, reach)?;
        progress(&format!("{name}: healthy"));
        load.run(stop, |_| {})?;
        let healthy = load.run(stop, |_| {})?;
        progress(&format!(
            "{name}: one stands still, then another, {stop:?} each"
        ));
        let stopped = load.run(stop * 2 + stop / 2, |server| {
            for victim in [FIRST, SECOND] {
                server.signal(victim, Signal::STOP);
                std::thread::sleep(stop);
                server.signal(victim, Signal::CONT);
            }
        })?;
        progress(&format!("{name}: all are back"));
        let after = load.run(stop, |_| {})?;
        figures.push(StopStopFigures {
            reach: load.reach(),
            healthy,
            stopped,
            after,
        });
    }
    Ok(StopStopReport {
        stop_s: stop.as_secs_f64(),
        figures,
    })
}
