//! Each backend is moved to another process in turn, at R=3.2 and at R=1 with a spare,
//! while a load goes on. Nobody may notice.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use trefoil_client::{Cell, Options};

use super::read_back::ReadBack;
use super::steady::{Course, Load};
use super::{Progress, ScenarioError, ScenarioOptions, note_pids};
use crate::median::Median;
use crate::server::{Server, ServerOptions};

const BACKENDS: usize = 3;

/// What must be shown: p99.9 of GETs at most twice what it was, or this; and fewer than one
/// in so many operations tried more than once.
const P999_FACTOR: u64 = 2;
const P999_NS: u64 = 100_000;
const RETRIED_SHARE: u64 = 1000;

/// What came of one mode.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedFigures {
    /// Bytes of all data entries of one backend, in MiB.
    pub corpus_mib: f64,
    /// Runs, one after another in the same cell.
    pub runs: usize,
    /// All moves of a run together, in seconds, the median.
    pub took_s: f64,
    /// Before, medians of the runs.
    pub before: Course,
    /// While backends moved, medians of the runs.
    pub during: Course,
    /// Each run.
    pub each: Vec<PlannedRun>,
    /// All keys, read afterwards.
    #[serde(flatten)]
    pub read_back: ReadBack,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedRun {
    /// All moves together, in seconds.
    pub took_s: f64,
    /// Before.
    pub before: Course,
    /// While backends moved.
    pub during: Course,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedReport {
    /// R=3.2, `cell restart`.
    pub three: PlannedFigures,
    /// R=1, three backends and a spare, `cell drain` and `undrain`.
    pub one: PlannedFigures,
}

/// The same of upgrades from the previous release to this one, and back.
#[derive(Debug, Clone, Serialize)]
pub struct UpgradeReport {
    /// R=3.2.
    pub three: PlannedFigures,
    /// R=1; a spare takes a backend over, too.
    pub one: PlannedFigures,
}

impl PlannedFigures {
    /// Every operation did what it should: no GET missed what was written before.
    pub(super) fn is_kept(&self) -> bool {
        self.before.is_kept() && self.during.is_kept() && self.read_back.is_clean()
    }

    fn is_clean(&self) -> bool {
        let (before, during) = (&self.before, &self.during);
        self.is_kept()
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

impl UpgradeReport {
    /// Nothing failed, was missed, old or lost.
    pub fn is_clean(&self) -> bool {
        self.three.is_kept() && self.one.is_kept()
    }
}

/// Has a cell of the previous release upgraded to this one and downgraded again, in both
/// modes. [`ScenarioOptions::previous`] has to be given.
pub fn upgrade(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<UpgradeReport, ScenarioError> {
    options.pin()?;
    if options.previous.is_none() {
        let why = "which release's program is upgraded?";
        return Err(ScenarioError::Course(why.to_owned()));
    }
    let (three, one) = both(options, "upgrade", progress)?;
    Ok(UpgradeReport { three, one })
}

/// Moves all backends, in both modes.
pub fn planned(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<PlannedReport, ScenarioError> {
    options.pin()?;
    let (three, one) = both(options, "planned", progress)?;
    Ok(PlannedReport { three, one })
}

/// R=3.2, and R=1 with a spare.
fn both(
    options: &ScenarioOptions,
    name: &str,
    progress: Progress<'_>,
) -> Result<(PlannedFigures, PlannedFigures), ScenarioError> {
    let mut of = |mode, spares| {
        let moves = |address: &str| moves(options, address, mode);
        figures(options, (mode, spares), name, progress, &moves)
    };
    Ok((of("R=3.2", "0")?, of("R=1", "1")?))
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
    // So many that a backend holds as much in either mode.
    let keys_per_backend: u64 = options.scaled(250_000, 20_000);
    let keys = match mode {
        "R=1" => keys_per_backend * BACKENDS as u64,
        _ => keys_per_backend,
    };
    let memory = options.scaled(512 << 20, 128 << 20);
    progress(&format!("{name}, {mode}: filling"));
    let backends = BACKENDS.to_string();
    let more = ["--backends", &backends, "--spares", spares];
    let mut server = Server::start(&ServerOptions {
        processes: true,
        more: more.map(str::to_owned).to_vec(),
        is_silent: true,
        program: options
            .previous
            .as_ref()
            .unwrap_or(&options.program)
            .clone(),
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
    let runs = options.runs.max(1);
    let mut each = Vec::new();
    for run in 1..=runs {
        let of = format!("{name}, {mode}, run {run} of {runs}");
        progress(&format!("{of}: undisturbed, {length:?}"));
        let begin = Instant::now();
        let before = load.run(&mut || begin.elapsed() >= length);

        progress(&format!("{of}: the change"));
        let (during, moved) = std::thread::scope(|scope| {
            let moves = scope.spawn(|| {
                options.pin_aside().map_err(|error| error.to_string())?;
                change(&server.address)
            });
            let during = load.run(&mut || moves.is_finished());
            let moved = moves.join();
            (
                during,
                moved.unwrap_or(Err("the mover has panicked".into())),
            )
        });
        each.push(PlannedRun {
            took_s: moved.map_err(ScenarioError::Course)?,
            before,
            during,
        });
        // Until huge pages are gathered: it would be seen in what comes before the next.
        note_pids(&mut server, &cell);
        server.settle()?;
    }
    progress(&format!("{name}, {mode}: everything is read"));
    let read_back = load.read_back(Cell::connect(&server.address)?.client(Options::default()));
    let took_s: Vec<f64> = each.iter().map(|run| run.took_s).collect();
    let median = |course: fn(&PlannedRun) -> &Course| {
        let courses: Vec<Course> = each.iter().map(|run| course(run).clone()).collect();
        Course::median(&courses).unwrap_or_default()
    };
    Ok(PlannedFigures {
        corpus_mib: corpus as f64 / (1024.0 * 1024.0),
        runs,
        took_s: f64::median(&took_s).unwrap_or_default(),
        before: median(|run| &run.before),
        during: median(|run| &run.during),
        each,
        read_back,
    })
}

/// Gives a cell's `cell up` an order, as an operator does; why it failed, if it did.
pub(super) fn order(program: &Path, address: &str, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new(program);
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

/// Moves all, as an operator does; how long that took, in seconds.
fn moves(options: &ScenarioOptions, address: &str, mode: &str) -> Result<f64, String> {
    let begin = Instant::now();
    let run = |arguments: &[&str]| order(&options.program, address, arguments);
    if let Some(previous) = &options.previous {
        for program in [&options.program, previous] {
            let binary = program.display().to_string();
            run(&["upgrade", "--binary", &binary])?;
            if mode == "R=1" {
                run(&["drain", "1"])?;
                run(&["undrain", "1"])?;
            }
        }
        return Ok(begin.elapsed().as_secs_f64());
    }
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
