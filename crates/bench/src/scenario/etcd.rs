//! A cell whose configuration is in etcd, and etcd dead for a while: GETs and SETs while it
//! lives and while it does not, side by side. Nothing on their way waits for etcd, so nobody
//! may notice. When it is back, the configuration can be changed again.

use std::time::{Duration, Instant};

use serde::Serialize;
use trefoil_client::{Cell, Options};
use trefoil_ports::EtcdProcess;

use super::aside::aside;
use super::planned::order;
use super::read_back::ReadBack;
use super::steady::{Course, Load};
use super::{Progress, ScenarioError, ScenarioOptions, note_pids};
use crate::median::Median;
use crate::server::{Server, ServerOptions};

/// How long the first change after the outage may be refused: backends ask etcd again after
/// some seconds.
const RESUME_PATIENCE: Duration = Duration::from_secs(60);
const RESUME_PERIOD: Duration = Duration::from_millis(500);
/// What must be shown: p99 while it is dead at most so many times what it was.
const P99_FACTOR: u64 = 2;

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct EtcdReport {
    /// Outages, one after another.
    pub runs: usize,
    /// Seconds of each.
    pub dead_s: f64,
    /// While etcd lives, medians of the runs.
    pub alive: Course,
    /// While it is dead, medians of the runs.
    pub dead: Course,
    /// From its return until a backend was moved, which changes the configuration, in
    /// seconds; the longest.
    pub resumed_s_max: f64,
    /// Each run.
    pub each: Vec<EtcdRun>,
    /// All keys, read afterwards.
    #[serde(flatten)]
    pub read_back: ReadBack,
}

/// One outage.
#[derive(Debug, Clone, Serialize)]
pub struct EtcdRun {
    /// Before.
    pub alive: Course,
    /// Meanwhile.
    pub dead: Course,
    /// See the report.
    pub resumed_s: f64,
}

impl EtcdReport {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        let (alive, dead) = (&self.alive, &self.dead);
        let is_fast = |of: fn(&Course) -> u64| of(dead) <= P99_FACTOR * of(alive);
        alive.is_kept()
            && dead.is_kept()
            && self.read_back.is_clean()
            && is_fast(|course| course.get_p99_ns)
            && is_fast(|course| course.set_p99_ns)
    }
}

/// Kills etcd under load, and starts it again.
pub fn etcd(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<EtcdReport, ScenarioError> {
    options.pin()?;
    let keys: u64 = options.scaled(250_000, 20_000);
    let memory = options.scaled(512 << 20, 128 << 20);
    let dir = tempfile::Builder::new()
        .prefix("trefoil-etcd-")
        .tempdir()
        .map_err(ScenarioError::Directory)?;
    // On the servers' core, as the cell is.
    let mut etcd = aside(options, || {
        EtcdProcess::start(&dir.path().join("etcd"), None).map_err(failed)
    })?;
    progress("etcd: filling");
    let store = format!("etcd://{}/cell", etcd.host());
    let cell_dir = dir.path().join("cell");
    // Backends are moved by the `cell up` of their host, which is found by its directory.
    let supervisor = format!("unix:{}", cell_dir.display());
    let mut server = Server::start(&ServerOptions {
        processes: true,
        dir: Some(cell_dir),
        more: vec!["--store".to_owned(), store],
        is_silent: true,
        ..options.server("R=3.2", memory)
    })?;
    let cell = Cell::connect(&server.address)?;
    let mut load = Load::new(cell.client(Options::default()), keys);
    load.fill()?;
    server.settle()?;

    let length = Duration::from_secs(options.scaled(60, 3));
    let runs = options.runs.max(1);
    let mut each = Vec::new();
    for run in 1..=runs {
        progress(&format!("etcd, run {run} of {runs}: it lives, {length:?}"));
        let begin = Instant::now();
        let alive = load.run(&mut || begin.elapsed() >= length);
        progress(&format!(
            "etcd, run {run} of {runs}: it is dead, {length:?}"
        ));
        etcd.kill();
        let begin = Instant::now();
        let dead = load.run(&mut || begin.elapsed() >= length);
        aside(options, || etcd.run().map_err(failed))?;
        progress(&format!("etcd, run {run} of {runs}: it is back"));
        let resumed_s = resume(options, &supervisor)?.as_secs_f64();
        note_pids(&mut server, &cell);
        server.settle()?;
        each.push(EtcdRun {
            alive,
            dead,
            resumed_s,
        });
    }
    progress("etcd: everything is read");
    let read_back = load.read_back(Cell::connect(&server.address)?.client(Options::default()));
    let median = |course: fn(&EtcdRun) -> &Course| {
        let courses: Vec<Course> = each.iter().map(|run| course(run).clone()).collect();
        Course::median(&courses).unwrap_or_default()
    };
    Ok(EtcdReport {
        runs,
        dead_s: length.as_secs_f64(),
        alive: median(|run| &run.alive),
        dead: median(|run| &run.dead),
        resumed_s_max: each.iter().map(|run| run.resumed_s).fold(0.0, f64::max),
        each,
        read_back,
    })
}

fn failed(error: std::io::Error) -> ScenarioError {
    ScenarioError::Course(format!("etcd: {error}"))
}

/// Moves a backend to another process, which the configuration has to name.
fn resume(options: &ScenarioOptions, supervisor: &str) -> Result<Duration, ScenarioError> {
    let begin = Instant::now();
    loop {
        let moved = order(&options.program, supervisor, &["restart", "1"]);
        match moved {
            Ok(()) => return Ok(begin.elapsed()),
            Err(why) if begin.elapsed() > RESUME_PATIENCE => {
                let why = format!("etcd is back, and no backend can be moved: {why}");
                return Err(ScenarioError::Course(why));
            }
            Err(_) => std::thread::sleep(RESUME_PERIOD),
        }
    }
}
