//! What clients notice of maintenance, over time: the pictures that CliqueMap's paper
//! draws of planned maintenance by warm spares (its figure 13) and of a crash with
//! recovery (figure 14), of our cell.
//!
//! ```text
//!  load (steady.rs) ──► every operation ──┐
//!  watch: bytes copied, CPU, every 100 ms ├─► slots ─► phases, CSV, plot
//!  course of events: drain, restart, kill ┘
//! ```

mod charts;
mod phase;
mod run;
mod slots;
mod watch;

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::read_back::ReadBack;
use super::{Progress, ScenarioError, ScenarioOptions};
use crate::report::{ReportError, Table, nanoseconds, save, write_json};
use crate::suite::Machine;

pub use phase::Phase;
pub use run::{MaintenanceEvent, MaintenanceRun};
pub use slots::Slot;

/// What to run, and for how long.
#[derive(Debug, Clone)]
pub struct MaintenanceOptions {
    /// Where and how thoroughly.
    pub scenario: ScenarioOptions,
    /// How long nothing is done before the first event, between two, and after the last.
    pub calm: Duration,
    /// Items of 1,000 bytes in the cell.
    pub keys: u64,
}

impl MaintenanceOptions {
    /// Three runs in less than two minutes, or small and short ones.
    pub fn new(scenario: ScenarioOptions) -> Self {
        let calm = Duration::from_secs(scenario.scaled(6, 1));
        let keys = scenario.scaled(250_000, 10_000);
        Self {
            scenario,
            calm,
            keys,
        }
    }
}

/// All runs.
#[derive(Debug, Clone, Serialize)]
pub struct MaintenanceReport {
    /// Where it ran; others at work there show in its load average.
    pub machine: Machine,
    /// Planned at R=3.2, planned at R=1, unplanned at R=3.2.
    pub runs: Vec<MaintenanceRun>,
}

/// Has backends drained, restarted and killed under load, each in a cell of its own.
pub fn maintenance(
    options: &MaintenanceOptions,
    progress: Progress<'_>,
) -> Result<MaintenanceReport, ScenarioError> {
    let machine = Machine::this();
    options.scenario.pin()?;
    let plans = [run::PLANNED_THREE, run::PLANNED_ONE, run::UNPLANNED];
    let runs = plans.map(|plan| run::run(options, plan, progress));
    let runs: Result<Vec<_>, _> = runs.into_iter().collect();
    Ok(MaintenanceReport {
        machine,
        runs: runs?,
    })
}

/// What the load and the reads after it found amiss, and how late the load itself was.
fn after(run: &MaintenanceRun) -> String {
    let (read, load, name) = (&run.read_back, &run.load, run.name);
    let ReadBack {
        checked,
        lost,
        missed_for_a_moment,
        stale,
        ..
    } = read;
    let mut lines = vec![format!(
        "read afterwards: {lost} of {checked} keys lost, {missed_for_a_moment} missed for a \
         moment, {stale} old"
    )];
    for missing in &read.missing {
        let (key, why) = (missing.key, &missing.why);
        lines.push(match (missing.found_after_s, &missing.why_at_last) {
            (Some(seconds), _) => format!("key {key}: {why}, found {seconds:.1} s later"),
            (None, at_last) => format!("key {key}: {why}, at last {at_last:?}"),
        });
    }
    let first = [&load.first_failure, &load.first_miss];
    lines.extend(first.into_iter().flatten().cloned());
    let late = &load.punctuality;
    let [p50, p99, p999, max] = [
        late.bare_p50_ns,
        late.bare_p99_ns,
        late.bare_p999_ns,
        late.bare_max_ns,
    ]
    .map(nanoseconds);
    lines.push(format!(
        "a loop that does nothing was late by {p50}, p99 {p99}, p99.9 {p999}, at most {max}"
    ));
    let line = |line: String| format!("{name:<16}           {line}\n");
    lines.into_iter().map(line).collect()
}

impl MaintenanceReport {
    /// Nothing failed, was missed, old or lost.
    pub fn is_clean(&self) -> bool {
        self.runs.iter().all(MaintenanceRun::is_clean)
    }

    /// Before, during and after of each run.
    pub fn table(&self) -> Table {
        let mut table = Table::new("", &phase::HEADS);
        for run in &self.runs {
            let phases = [
                ("before", &run.before),
                ("during", &run.during),
                ("after", &run.after),
            ];
            for (name, phase) in phases {
                table.row(phase.cells(&format!("{}, {name}", run.name)));
            }
        }
        table
    }

    /// What happened when, a line for each event.
    pub fn events(&self) -> String {
        let mut text = String::new();
        for run in &self.runs {
            for event in &run.events {
                let at_s = event.at_ms as f64 / 1e3;
                text += &format!("{:<16} {at_s:>6.2} s  {}\n", run.name, event.label);
            }
            text += &after(run);
        }
        text
    }

    /// Writes into `folder`: of each run its slots as CSV and its picture as SVG and PNG,
    /// and everything as `maintenance.json` and `maintenance.txt`.
    pub fn save(&self, folder: &Path) -> Result<(), ReportError> {
        let failed = |path: &Path, source| ReportError::Write {
            path: path.display().to_string(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
        for run in &self.runs {
            let stem = folder.join(format!("maintenance-{}", run.name));
            save(&charts::picture(run), &stem)?;
            let path = folder.join(format!("maintenance-{}.csv", run.name));
            let csv = charts::csv(run).map_err(|source| failed(&path, source))?;
            std::fs::write(&path, csv).map_err(|source| failed(&path, source))?;
        }
        write_json(&folder.join("maintenance.json"), self)?;
        let path = folder.join("maintenance.txt");
        let text = format!("{}\n{}", self.table(), self.events());
        std::fs::write(&path, text).map_err(|source| failed(&path, source))
    }
}
