//! kill -9 of a backend that holds a gigabyte, at R=3.2, while a load goes on. It comes
//! back, copies what the other two hold, votes, and fetches what was written meanwhile: then
//! it has recovered (`recovery.done`), and not before. In several runs each backend dies in
//! turn. After the last, `trefoil doctor` reads all replicas and has to find nothing; then
//! another backend is killed for good, and everything is read. Nothing that was acknowledged
//! may be lost.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use trefoil_client::{Cell, Options};

use super::aside::onlooker;
use super::read_back::ReadBack;
use super::steady::{Course, Load};
use super::{Progress, ScenarioError, ScenarioOptions, note_pids};
use crate::doctor::{Diagnosis, doctor};
use crate::median::Median;
use crate::server::{Server, ServerOptions};

const BACKENDS: usize = 3;
/// The first that is killed; in the next run its neighbour is.
const FIRST_VICTIM: usize = 1;
/// How long a recovery may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at how far it is.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// What must be shown.
const MIB_PER_S_MIN: f64 = 400.0;
const P99_MAX: f64 = 2.0;

/// Everything that was measured. Times, rates and percentiles are medians of the runs.
#[derive(Debug, Clone, Serialize)]
pub struct RecoveryReport {
    /// Bytes of all data entries of one backend, in MiB.
    pub corpus_mib: f64,
    /// Kills, each after the recovery from the last.
    pub runs: usize,
    /// From the kill until the successor voted, in seconds: its start and the rest of
    /// the lease included.
    pub votes_s: f64,
    /// From the kill until it had recovered, in seconds: it has what was written meanwhile,
    /// too.
    pub back_s: f64,
    /// Copying alone, until the vote.
    pub copying_s: f64,
    /// Of data entries, while it copied.
    pub mib_per_s: f64,
    /// Values that came after its vote, in all runs.
    pub repaired: u64,
    /// Before the kill.
    pub before: Course,
    /// From the kill until the successor had recovered.
    pub during: Course,
    /// During by before, of GETs.
    pub p99: f64,
    /// Each run.
    pub each: Vec<RecoveryRun>,
    /// What `trefoil doctor` said, right after the last recovery.
    pub doctor: Diagnosis,
    /// All keys, read after another backend was killed.
    #[serde(flatten)]
    pub read_back: ReadBack,
}

/// One run; see the report.
#[derive(Debug, Clone, Serialize)]
pub struct RecoveryRun {
    /// Which backend was killed.
    pub backend: usize,
    /// See the report.
    pub votes_s: f64,
    /// See the report.
    pub back_s: f64,
    /// See the report.
    pub copying_s: f64,
    /// See the report.
    pub mib_per_s: f64,
    /// Shards that came back empty: two of three copies had been lost.
    pub shards_lost: u32,
    /// See the report.
    pub repaired: u64,
    /// See the report.
    pub before: Course,
    /// See the report.
    pub during: Course,
}

impl RecoveryReport {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        self.before.is_kept()
            && self.during.is_kept()
            && self.each.iter().all(|run| run.shards_lost == 0)
            && self.doctor.is_clean
            && self.read_back.is_clean()
            && self.mib_per_s >= MIB_PER_S_MIN
            && self.p99 <= P99_MAX
    }
}

/// Kills a backend, has it recover, kills another.
pub fn recovery(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<RecoveryReport, ScenarioError> {
    options.pin()?;
    let keys: u64 = options.scaled(1_000_000, 50_000);
    let memory = options.scaled(1536 << 20, 256 << 20);
    progress("recovery: filling");
    let mut server = Server::start(&ServerOptions {
        processes: true,
        more: vec!["--restart".to_owned(), "always".to_owned()],
        is_silent: true,
        ..options.server("R=3.2", memory)
    })?;
    let cell = Cell::connect(&server.address)?;
    let mut load = Load::new(cell.client(Options::default()), keys);
    load.fill()?;
    server.settle()?;
    let cell = onlooker(options, &server.address)?;
    let corpus = standing(&cell, FIRST_VICTIM).map_or(0, |found| found.entry_bytes);

    let runs = options.runs.max(1);
    let mut each = Vec::new();
    for number in 0..runs {
        let victim = (FIRST_VICTIM + number) % BACKENDS;
        let of = format!("recovery, run {} of {runs}", number + 1);
        each.push(run(options, &cell, &mut load, victim, &of, progress)?);
        // Until huge pages are gathered: it would be seen in what comes before the next.
        note_pids(&mut server, &cell);
        server.settle()?;
    }

    progress("recovery: the doctor reads all replicas");
    let doctor = doctor(&options.program, &server.address)?;
    progress("recovery: another one is killed, everything is read");
    let second = (FIRST_VICTIM + runs) % BACKENDS;
    kill(&cell, second)?;
    let read_back = load.read_back(Cell::connect(&server.address)?.client(Options::default()));

    let of = |figure: fn(&RecoveryRun) -> f64| {
        let all: Vec<f64> = each.iter().map(figure).collect();
        f64::median(&all).unwrap_or_default()
    };
    let course = |figure: fn(&RecoveryRun) -> &Course| {
        let all: Vec<Course> = each.iter().map(|run| figure(run).clone()).collect();
        Course::median(&all).unwrap_or_default()
    };
    let (before, during) = (course(|run| &run.before), course(|run| &run.during));
    Ok(RecoveryReport {
        corpus_mib: mib(corpus),
        runs,
        votes_s: of(|run| run.votes_s),
        back_s: of(|run| run.back_s),
        copying_s: of(|run| run.copying_s),
        mib_per_s: of(|run| run.mib_per_s),
        repaired: each.iter().map(|run| run.repaired).sum(),
        p99: during.get_p99_ns as f64 / before.get_p99_ns.max(1) as f64,
        before,
        during,
        each,
        doctor,
        read_back,
    })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// One backend is killed, and recovers.
fn run(
    options: &ScenarioOptions,
    cell: &Cell,
    load: &mut Load,
    victim: usize,
    of: &str,
    progress: Progress<'_>,
) -> Result<RecoveryRun, ScenarioError> {
    let length = Duration::from_secs(options.scaled(10, 2));
    progress(&format!("{of}: healthy, {length:?}"));
    let begin = Instant::now();
    let before = load.run(&mut || begin.elapsed() >= length);

    progress(&format!("{of}: backend {victim} is killed"));
    let killed = Instant::now();
    let pid = kill(cell, victim)?;
    let (during, recovered) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            options.pin_aside().ok()?;
            watch(cell, victim, pid, killed)
        });
        let during = load.run(&mut || watch.is_finished());
        (during, watch.join().unwrap_or(None))
    });
    let Some((votes, back, recovery)) = recovered else {
        let why = format!("backend {victim} has not recovered within {PATIENCE:?}");
        return Err(ScenarioError::Course(why));
    };
    let copying_s = recovery.took_ms as f64 / 1e3;
    Ok(RecoveryRun {
        backend: victim,
        votes_s: votes.as_secs_f64(),
        back_s: back.as_secs_f64(),
        copying_s,
        mib_per_s: mib(recovery.bytes) / copying_s.max(1e-3),
        shards_lost: recovery.shards_lost,
        repaired: recovery.repaired,
        before,
        during,
    })
}

/// kill -9 of a backend; which process it was.
fn kill(cell: &Cell, number: usize) -> Result<u32, ScenarioError> {
    let pid = standing(cell, number).map(|found| found.pid);
    let killed = pid.and_then(|pid| {
        kill_process(Pid::from_raw(pid as i32)?, Signal::KILL).ok()?;
        Some(pid)
    });
    let why = || format!("backend {number} does not answer before it is killed");
    killed.ok_or_else(|| ScenarioError::Course(why()))
}

/// What a backend says of itself, of which this needs little.
struct Standing {
    pid: u32,
    entry_bytes: u64,
    recovery: Option<Recovery>,
}

/// A recovery, as far as it is.
struct Recovery {
    votes: bool,
    done: bool,
    took_ms: u64,
    bytes: u64,
    repaired: u64,
    shards_lost: u32,
}

fn standing(cell: &Cell, number: usize) -> Option<Standing> {
    let stats = cell.stats().into_iter().nth(number)?.stats.ok()?;
    let pid = stats.process.as_ref()?.pid;
    let member = stats.members.into_iter().next()?;
    Some(Standing {
        pid,
        entry_bytes: member.entry_bytes,
        recovery: member.recovery.map(|recovery| Recovery {
            votes: recovery.shards_left == 0,
            done: recovery.done,
            took_ms: recovery.took_ms,
            bytes: recovery.bytes,
            repaired: recovery.repaired,
            shards_lost: recovery.shards_lost,
        }),
    })
}

/// Waits until the one that was killed has recovered, in another process: how long after
/// the kill it voted, and had everything.
fn watch(
    cell: &Cell,
    victim: usize,
    killed_pid: u32,
    killed: Instant,
) -> Option<(Duration, Duration, Recovery)> {
    // What it had copied when it voted: more comes afterwards.
    let mut voted: Option<(Duration, u64)> = None;
    while killed.elapsed() < PATIENCE {
        std::thread::sleep(LOOK_PERIOD);
        let found = standing(cell, victim).filter(|found| found.pid != killed_pid);
        let Some(recovery) = found.and_then(|found| found.recovery) else {
            continue;
        };
        let after = killed.elapsed();
        if recovery.votes && voted.is_none() {
            voted = Some((after, recovery.bytes));
        }
        if let Some((votes, bytes)) = voted.filter(|_| recovery.done) {
            return Some((votes, after, Recovery { bytes, ..recovery }));
        }
    }
    None
}
