//! kill -9 of a backend that holds a gigabyte, at R=3.2: it comes back, recovers while a
//! load goes on, and right after it another one is killed for good. Nothing that was
//! acknowledged may be lost.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use trefoil_client::{Cell, Client, Lookup, Mutated, Options, SetOptions};

use super::{Progress, ScenarioError, ScenarioOptions};
use crate::server::{Server, ServerOptions};

const VALUE_LEN: usize = 1000;
/// The load: one SET among so many operations, at so many a second.
const SET_EVERY: u64 = 21;
const OPS_PER_S: u64 = 21_000;
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

/// A stretch of the load: times from when an operation was due.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Course {
    /// Operations that ended.
    pub operations: u64,
    /// Of these, those that failed, with the first reason.
    pub failed: u64,
    /// The first one's.
    pub first_failure: Option<String>,
    /// GETs that found nothing: every key was written before.
    pub misses: u64,
    /// GETs that found what was replaced before.
    pub stale: u64,
    /// Of GETs.
    pub get_p50_ns: u64,
    /// Of GETs.
    pub get_p99_ns: u64,
    /// Of GETs.
    pub get_p999_ns: u64,
    /// Of SETs.
    pub set_p99_ns: u64,
}

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
        let watch = scope.spawn(|| watch(&cell, server.pids[VICTIM]));
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

/// One client, which knows what it has written last.
struct Load {
    client: Client,
    /// How often each key was written.
    rounds: Vec<u32>,
    value: Vec<u8>,
    random: u64,
}

impl Load {
    fn new(client: Client, keys: u64) -> Self {
        Load {
            client,
            rounds: vec![0; keys as usize],
            value: vec![7; VALUE_LEN],
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    fn fill(&mut self) -> Result<(), ScenarioError> {
        for key in 0..self.rounds.len() {
            self.set(key)
                .map_err(|why| ScenarioError::Course(format!("filling: {why}")))?;
        }
        Ok(())
    }

    fn set(&mut self, key: usize) -> Result<(), String> {
        let round = self.rounds[key] + 1;
        self.value[..4].copy_from_slice(&round.to_le_bytes());
        let name = (key as u64).to_le_bytes();
        match self.client.set(&name, &self.value, SetOptions::default()) {
            Ok(Mutated::Stored { .. }) => {
                self.rounds[key] = round;
                Ok(())
            }
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The round that was found, if any was.
    fn get(&mut self, key: usize) -> Result<Option<u32>, String> {
        let name = (key as u64).to_le_bytes();
        match self.client.get(&name) {
            Ok(Lookup::Hit(hit)) => Ok(hit
                .value
                .first_chunk()
                .map(|round| u32::from_le_bytes(*round))),
            Ok(Lookup::Miss(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn next_key(&mut self) -> usize {
        // xorshift: any spread will do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % self.rounds.len() as u64) as usize
    }

    /// Operations at their times until it is enough.
    fn run(&mut self, is_enough: &mut dyn FnMut() -> bool) -> Course {
        let mut course = Course::default();
        let (mut gets, mut sets) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        for number in 0.. {
            if number % 64 == 0 && is_enough() {
                break;
            }
            let due = Duration::from_nanos(number * 1_000_000_000 / OPS_PER_S);
            while begin.elapsed() < due {
                std::hint::spin_loop();
            }
            let key = self.next_key();
            let is_set = number % SET_EVERY == 0;
            let failure = match is_set {
                true => self.set(key).err(),
                false => match self.get(key) {
                    Ok(Some(round)) => {
                        course.stale += u64::from(round < self.rounds[key]);
                        None
                    }
                    Ok(None) => {
                        course.misses += 1;
                        None
                    }
                    Err(why) => Some(why),
                },
            };
            let took = (begin.elapsed() - due).as_nanos() as u64;
            if is_set { &mut sets } else { &mut gets }.push(took);
            course.operations += 1;
            if let Some(why) = failure {
                course.failed += 1;
                course.first_failure.get_or_insert(why);
            }
        }
        gets.sort_unstable();
        sets.sort_unstable();
        course.get_p50_ns = at(&gets, 0.5);
        course.get_p99_ns = at(&gets, 0.99);
        course.get_p999_ns = at(&gets, 0.999);
        course.set_p99_ns = at(&sets, 0.99);
        course
    }

    /// Reads every key: how many are missing, and how many are old.
    fn check(&mut self) -> (u64, u64) {
        let (mut lost, mut stale) = (0, 0);
        for key in 0..self.rounds.len() {
            match self.get(key) {
                Ok(Some(round)) => stale += u64::from(round < self.rounds[key]),
                Ok(None) | Err(_) => lost += 1,
            }
        }
        (lost, stale)
    }
}

/// A percentile of sorted times.
fn at(times: &[u64], share: f64) -> u64 {
    let place = (times.len() as f64 * share) as usize;
    times.get(place).or(times.last()).copied().unwrap_or(0)
}
