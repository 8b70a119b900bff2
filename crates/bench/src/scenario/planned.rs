//! Each backend is moved to another process in turn, at R=3.2 and at R=1 with a spare,
//! while a load goes on. Nobody may notice.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use trefoil_client::{Cell, Options};

use super::steady::{Course, Load};
use super::{Progress, ScenarioError, ScenarioOptions};
use crate::server::{Server, ServerOptions};

const BACKENDS: usize = 3;

/// What must be shown: p99.9 of GETs at most twice what it was, or this; and at most so
/// many attempts beyond the first.
const P999_FACTOR: u64 = 2;
const P999_NS: u64 = 100_000;
const RETRIED_SHARE: u64 = 1000;

/// What came of one mode.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedFigures {
    /// Bytes of all data entries of one backend, in MiB.
    pub corpus_mib: f64,
    /// All moves together, in seconds.
    pub took_s: f64,
    /// Before.
    pub before: Course,
    /// While backends moved.
    pub during: Course,
    /// Keys read afterwards that were missing, and that had an old value.
    pub lost: u64,
    /// See `lost`.
    pub stale: u64,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedReport {
    /// R=3.2, `cell restart`.
    pub three: PlannedFigures,
    /// R=1, three backends and a spare, `cell drain` and `undrain`.
    pub one: PlannedFigures,
}

impl PlannedFigures {
    fn is_clean(&self) -> bool {
        let (before, during) = (&self.before, &self.during);
        let nothing = |course: &Course| course.failed + course.misses + course.stale == 0;
        nothing(before)
            && nothing(during)
            && self.lost + self.stale == 0
            && during.get_p999_ns <= P999_NS.max(P999_FACTOR * before.get_p999_ns)
            && during.retried * RETRIED_SHARE < during.operations
    }
}

impl PlannedReport {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        self.three.is_clean() && self.one.is_clean()
    }
}

/// Moves all backends, in both modes.
pub fn planned(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<PlannedReport, ScenarioError> {
    options.pin()?;
    let (three, one) = (("R=3.2", "0"), ("R=1", "1"));
    Ok(PlannedReport {
        three: figures(options, three, "planned", progress, &|address| {
            moves(options, address, "R=3.2")
        })?,
        one: figures(options, one, "planned", progress, &|address| {
            moves(options, address, "R=1")
        })?,
    })
}

/// A cell of three backends in this mode, with so many spares, under a load while
/// something is done to it.
pub(super) fn figures(
    options: &ScenarioOptions,
    (mode, spares): (&'static str, &str),
    name: &str,
    progress: Progress<'_>,
    change: &(dyn Fn(&str) -> Result<f64, String> + Sync),
) -> Result<PlannedFigures, ScenarioError> {
    let keys: u64 = options.scaled(250_000, 20_000);
    let memory = options.scaled(512 << 20, 128 << 20);
    progress(&format!("{name}, {mode}: filling"));
    let backends = BACKENDS.to_string();
    let more = ["--backends", &backends, "--spares", spares];
    let server = Server::start(&ServerOptions {
        processes: true,
        more: more.map(str::to_owned).to_vec(),
        is_silent: true,
        ..options.server(mode, memory)
    })?;
    let cell = Cell::connect(&server.address)?;
    let mut load = Load::new(cell.client(Options::default()), keys);
    load.fill()?;
    server.settle()?;
    let stats = cell.stats().into_iter().next().and_then(|s| s.stats.ok());
    let corpus = stats.and_then(|stats| stats.members.into_iter().next());
    let corpus = corpus.map_or(0, |member| member.entry_bytes);

    let length = Duration::from_secs(options.scaled(10, 2));
    progress(&format!("{name}, {mode}: undisturbed, {length:?}"));
    let begin = Instant::now();
    let before = load.run(&mut || begin.elapsed() >= length);

    progress(&format!("{name}, {mode}: the change"));
    let (during, moved) = std::thread::scope(|scope| {
        let moves = scope.spawn(|| change(&server.address));
        let during = load.run(&mut || moves.is_finished());
        let moved = moves.join();
        (
            during,
            moved.unwrap_or(Err("the mover has panicked".into())),
        )
    });
    let took_s = moved.map_err(ScenarioError::Course)?;
    progress(&format!("{name}, {mode}: everything is read"));
    let (lost, stale) = load.check();
    Ok(PlannedFigures {
        corpus_mib: corpus as f64 / (1024.0 * 1024.0),
        took_s,
        before,
        during,
        lost,
        stale,
    })
}

/// Moves all, as an operator does; how long that took, in seconds.
fn moves(options: &ScenarioOptions, address: &str, mode: &str) -> Result<f64, String> {
    let begin = Instant::now();
    let run = |arguments: &[&str]| order(options, address, arguments);
    match mode {
        "R=1" => (0..BACKENDS).try_for_each(|number| {
            let number = number.to_string();
            run(&["drain", &number])?;
            run(&["undrain", &number])
        })?,
        _ => run(&["restart"])?,
    }
    Ok(begin.elapsed().as_secs_f64())
}

/// Gives an order to a cell, and waits for its end.
pub(super) fn order(
    options: &ScenarioOptions,
    address: &str,
    arguments: &[&str],
) -> Result<(), String> {
    let mut command = Command::new(&options.program);
    command
        .arg("cell")
        .args(arguments)
        .args(["--cell", address]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
