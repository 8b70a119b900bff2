//! kill -9 of the only backend at R=1, and a new process in the same directory,
//! while a client still maps the dead one's memory: errors have to be clean and
//! in time, and no value of the dead process may be seen once the new one serves.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use serde::Serialize;
use trefoil_client::{Cell, Client, Lookup, Options, SetOptions};

use super::{Progress, ScenarioError, ScenarioOptions};
use crate::server::{Server, ServerOptions};

const MEMORY: u64 = 256 << 20;
const VALUE_LEN: usize = 256;
/// First byte of every value: which process's life it was written in.
const FIRST_LIFE: u8 = 1;
const SECOND_LIFE: u8 = 2;
/// One operation in so many of the surviving client is a write.
const WRITE_EVERY: u64 = 64;
/// How long the surviving client may take to find the successor.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the surviving client saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TakeoverReport {
    /// Keys of the corpus.
    pub keys: u64,
    /// Hits after the kill and before the successor served: within the dead
    /// process's lease, and right, because nobody can have written since.
    pub hits_within_lease: u64,
    /// How long after the kill the last of them was, in milliseconds.
    pub last_hit_within_lease_ms: u64,
    /// Operations that failed, each with a message.
    pub errors: u64,
    /// The first message.
    pub first_error: Option<String>,
    /// The slowest call of all, in milliseconds.
    pub slowest_call_ms: f64,
    /// The deadline of a call, in milliseconds.
    pub deadline_ms: u64,
    /// From the kill until the successor served, in milliseconds.
    pub served_again_ms: u64,
    /// From then until the surviving client's first answer, a value or an acknowledgement, in milliseconds;
    /// nothing if there never was one.
    pub answered_again_ms: Option<u64>,
    /// Hits on values of the dead process in GETs that began after the new one
    /// served.
    pub dead_hits: u64,
    /// Hits on values of the new process.
    pub new_hits: u64,
}

impl TakeoverReport {
    /// Errors came, in time, and nothing of the dead process was seen.
    pub fn is_clean(&self) -> bool {
        // A call may end a little after its deadline on a busy machine.
        let is_in_time = self.slowest_call_ms <= self.deadline_ms as f64 * 1.2;
        self.dead_hits == 0
            && self.errors > 0
            && is_in_time
            && self.answered_again_ms.is_some()
            && self.new_hits > 0
    }
}

/// Kills the only backend and starts another.
pub fn takeover(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<TakeoverReport, ScenarioError> {
    options.pin()?;
    progress("takeover: filling");
    let dir = tempfile::Builder::new()
        .prefix("trefoil-takeover-")
        .tempdir()
        .map_err(ScenarioError::Directory)?;
    let server_options = ServerOptions {
        processes: true,
        dir: Some(dir.path().to_owned()),
        ..options.server("R=1", MEMORY)
    };
    let keys_count: u64 = options.scaled(20_000, 5_000);
    let first = Server::start(&ServerOptions {
        is_silent: true,
        ..server_options.clone()
    })?;
    let client_options = Options::default();
    let mut survivor = Cell::connect(&first.address)?.client(client_options);
    write_all(&mut survivor, keys_count, FIRST_LIFE)?;

    progress("takeover: killing the only backend and starting another");
    let is_serving = AtomicBool::new(false);
    let is_rewritten = AtomicBool::new(false);
    let killed = Instant::now();
    first.kill(0);
    let (mut report, successor) = std::thread::scope(|scope| {
        let successor = scope.spawn(|| {
            let server = Server::start(&server_options)?;
            let served = killed.elapsed();
            is_serving.store(true, Release);
            let mut writer = Cell::connect(&server.address)?.client(client_options);
            write_all(&mut writer, keys_count, SECOND_LIFE)?;
            is_rewritten.store(true, Release);
            Ok::<_, ScenarioError>((server, served))
        });
        let mut watch = Watch {
            survivor: &mut survivor,
            killed,
            keys_count,
            is_serving: &is_serving,
            is_rewritten: &is_rewritten,
            served: None,
            report: TakeoverReport::default(),
        };
        watch.run(&|| successor.is_finished());
        (watch.report, successor.join())
    });
    let (_server, served) =
        successor.map_err(|_| ScenarioError::Load(crate::load::LoadError::Panicked))??;
    report.keys = keys_count;
    report.deadline_ms = client_options.deadline.as_millis() as u64;
    report.served_again_ms = served.as_millis() as u64;
    Ok(report)
}

fn write_all(client: &mut Client, keys_count: u64, life: u8) -> Result<(), ScenarioError> {
    for key in 0..keys_count {
        client
            .set(
                &key.to_le_bytes(),
                &[life; VALUE_LEN],
                SetOptions::default(),
            )
            .map_err(|e| ScenarioError::Course(format!("a write before or after the kill: {e}")))?;
    }
    Ok(())
}

/// The surviving client, and what it sees.
struct Watch<'a> {
    survivor: &'a mut Client,
    killed: Instant,
    keys_count: u64,
    is_serving: &'a AtomicBool,
    is_rewritten: &'a AtomicBool,
    served: Option<Instant>,
    report: TakeoverReport,
}

impl Watch<'_> {
    /// Reads and writes until all keys have been read from the successor.
    fn run(&mut self, successor_is_settled: &dyn Fn() -> bool) {
        let mut in_a_row = 0;
        for number in 0u64.. {
            let late = self.killed.elapsed() > PATIENCE;
            let failed_to_start = successor_is_settled() && !self.is_rewritten.load(Acquire);
            if in_a_row > self.keys_count || late || failed_to_start {
                return;
            }
            let is_new = self.operation(number);
            in_a_row = if is_new && self.is_rewritten.load(Acquire) {
                in_a_row + 1
            } else {
                0
            };
        }
    }

    /// One operation; true if it was answered by the successor.
    fn operation(&mut self, number: u64) -> bool {
        let key = (number % self.keys_count).to_le_bytes();
        let served_before = self.is_serving.load(Acquire);
        let begin = Instant::now();
        if served_before && self.served.is_none() {
            self.served = Some(begin);
        }
        let is_write = number % WRITE_EVERY == WRITE_EVERY - 1;
        let answer = if is_write {
            let value = [SECOND_LIFE; VALUE_LEN];
            let stored = self.survivor.set(&key, &value, SetOptions::default());
            stored.map(|_| None)
        } else {
            self.survivor.get(&key).map(|lookup| match lookup {
                Lookup::Hit(hit) => hit.value.first().copied(),
                Lookup::Miss(_) => None,
            })
        };
        let report = &mut self.report;
        let took_ms = begin.elapsed().as_secs_f64() * 1e3;
        report.slowest_call_ms = report.slowest_call_ms.max(took_ms);
        match answer {
            Err(error) => {
                report.errors += 1;
                report.first_error.get_or_insert_with(|| error.to_string());
                return false;
            }
            Ok(Some(FIRST_LIFE)) if served_before => {
                report.dead_hits += 1;
                return false;
            }
            Ok(Some(FIRST_LIFE)) => {
                report.hits_within_lease += 1;
                report.last_hit_within_lease_ms = self.killed.elapsed().as_millis() as u64;
                return false;
            }
            Ok(Some(_)) => report.new_hits += 1,
            // Nothing was lost of what the successor holds; and nothing tells
            // who it was that answered.
            Ok(None) if !is_write => return false,
            Ok(None) => {}
        }
        if let Some(served) = self.served {
            report
                .answered_again_ms
                .get_or_insert(served.elapsed().as_millis() as u64);
        }
        true
    }
}
