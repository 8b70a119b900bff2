//! kill -9 of a backend that holds a gigabyte, at R=3.2: it comes back, recovers while a
//! load goes on, and right after it another one is killed for good. Nothing that was
//! acknowledged may be lost.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use trefoil_client::{Cell, Options};

use super::steady::{Course, Load};
use super::{Progress, ScenarioError, ScenarioOptions};
use crate::server::{Server, ServerOptions};

/// The first one to be killed, and the second.
const VICTIM: usize = 1;
const SECOND_VICTIM: usize = 0;
/// How long a recovery may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at how far it is.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// What must be shown.
const MIB_PER_S_MIN: f64 = 400.0;
const P99_MAX: f64 = 2.0;

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct RecoveryReport {
    /// Bytes of all data entries of one backend, in MiB.
    pub corpus_mib: f64,
    /// From the kill until the successor voted, in seconds: its start and the rest of
    /// the lease included.
    pub back_s: f64,
    /// Its recovery alone.
    pub recovery_s: f64,
    /// Of data entries, while it recovered.
    pub mib_per_s: f64,
    /// Values that came after its vote.
    pub repaired: u64,
    /// Before the kill.
    pub before: Course,
    /// From the kill until the successor voted.
    pub during: Course,
    /// During by before.
    pub p99: f64,
    /// Keys read after another backend was killed.
    pub checked: u64,
    /// Of these, those that were missing, and those with an old value.
    pub lost: u64,
    /// See `lost`.
    pub stale: u64,
}

impl RecoveryReport {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        let courses = [&self.before, &self.during];
        let fine = |course: &&Course| course.failed + course.misses + course.stale == 0;
        courses.iter().all(fine)
            && self.lost + self.stale == 0
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
    let server = Server::start(&ServerOptions {
        processes: true,
        more: vec!["--restart".to_owned(), "always".to_owned()],
        is_silent: true,
        ..options.server("R=3.2", memory)
    })?;
    let cell = Cell::connect(&server.address)?;
    let mut load = Load::new(cell.client(Options::default()), keys);
    load.fill()?;
    server.settle()?;
    let corpus = backend(&cell, VICTIM).map_or(0, |backend| backend.entry_bytes);

    let length = Duration::from_secs(options.scaled(10, 2));
    progress(&format!("recovery: healthy, {length:?}"));
    let begin = Instant::now();
    let before = load.run(&mut || begin.elapsed() >= length);

    progress("recovery: a backend is killed");
    let killed = Instant::now();
    server.kill(VICTIM);
    let watched = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            options.pin_aside().ok()?;
            watch(&cell, server.pids[VICTIM])
        });
        let during = load.run(&mut || watch.is_finished());
        let recovered = watch.join().unwrap_or(None);
        (during, recovered)
    });
    let (during, Some(recovered)) = watched else {
        let why = format!("the backend has not recovered within {PATIENCE:?}");
        return Err(ScenarioError::Course(why));
    };
    let back_s = killed.elapsed().as_secs_f64();

    progress("recovery: another one is killed, everything is read");
    let other = Pid::from_raw(server.pids[SECOND_VICTIM] as i32);
    other.map(|pid| kill_process(pid, Signal::KILL));
    let (lost, stale) = load.check();
    let recovery_s = recovered.took_ms as f64 / 1e3;
    let mib = 1024.0 * 1024.0;
    Ok(RecoveryReport {
        corpus_mib: corpus as f64 / mib,
        back_s,
        recovery_s,
        mib_per_s: recovered.bytes as f64 / mib / recovery_s.max(1e-3),
        repaired: recovered.repaired,
        p99: during.get_p99_ns as f64 / before.get_p99_ns.max(1) as f64,
        before,
        during,
        checked: keys,
        lost,
        stale,
    })
}

/// What a backend says of itself, of which this needs little.
struct Backend {
    pid: u32,
    entry_bytes: u64,
    recovered: Option<Recovered>,
}

/// A recovery that is over.
struct Recovered {
    took_ms: u64,
    bytes: u64,
    repaired: u64,
}

fn backend(cell: &Cell, number: usize) -> Option<Backend> {
    let stats = cell.stats().into_iter().nth(number)?.stats.ok()?;
    let pid = stats.process.as_ref()?.pid;
    let member = stats.members.into_iter().next()?;
    let over = member.recovery.filter(|recovery| recovery.shards_left == 0);
    Some(Backend {
        pid,
        entry_bytes: member.entry_bytes,
        recovered: over.map(|recovery| Recovered {
            took_ms: recovery.took_ms,
            bytes: recovery.bytes,
            repaired: recovery.repaired,
        }),
    })
}

/// Waits until the one that was killed votes again, in another process.
fn watch(cell: &Cell, killed: u32) -> Option<Recovered> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        std::thread::sleep(LOOK_PERIOD);
        let found = backend(cell, VICTIM).filter(|backend| backend.pid != killed);
        if let Some(recovered) = found.and_then(|backend| backend.recovered) {
            return Some(recovered);
        }
    }
    None
}
