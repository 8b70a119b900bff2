//! One client's process: it does operations at random, one after another, and
//! logs them, until its standard input ends. It ends with its parent.

use super::RecordError;
use super::memcached::Memcached;
use super::native::Native;
use super::plan::{CarrierKind, Lens};
use crate::event::{Event, Kind, Mark, Outcome};
use crate::log::LogWriter;
use crate::value::{Marked, ValueMaker, counter_marked, counter_origin, marked};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::FillTicket;
use trefoil_layout::Version;

/// The hidden command that makes a process a worker; its plan comes on the
/// first line of standard input.
pub const WORKER_COMMAND: &str = "history-worker";

/// Keys of one `get_many`, at most.
const MANY_MAX: usize = 40;
/// Half of all operations go to so many keys.
const HOT_KEYS: u32 = 8;
/// After an operation that failed, not to fill the log with failures.
const FAILURE_PAUSE: Duration = Duration::from_millis(5);
/// How long the cell may not be found.
const CONNECT_PATIENCE: Duration = Duration::from_secs(20);

/// What a worker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct WorkerPlan {
    pub client: u32,
    pub seed: u64,
    pub carrier: CarrierKind,
    /// Of the cell.
    pub cell: String,
    /// The file in which the gateway's address stands.
    pub gateway: PathBuf,
    pub log: PathBuf,
    pub keys: u32,
    pub counters: u32,
    pub value_len: Lens,
    pub clock_offset_ms: i64,
    /// Writes its share of all keys first: its number among so many.
    pub fill: Option<(u32, u32)>,
}

/// Beside a worker's log once it has written its share of the keys.
pub(super) fn filled_file(log: &std::path::Path) -> PathBuf {
    log.with_extension("filled")
}

/// What a lookup found.
pub(super) struct Found {
    pub outcome: Outcome,
    pub mark: Mark,
    pub len: u32,
    pub version: Version,
    pub ticket: Option<FillTicket>,
    /// The gateway's token for a CAS.
    pub unique: u64,
}

impl Found {
    pub(super) fn nothing(outcome: Outcome) -> Self {
        Found {
            outcome,
            mark: Mark::NONE,
            len: 0,
            version: Version::ZERO,
            ticket: None,
            unique: 0,
        }
    }

    pub(super) fn value(key: Key, value: &[u8], version: Version, unique: u64) -> Self {
        let read = match key.is_counter {
            true => counter_marked(value),
            false => marked(key.number, value),
        };
        let (outcome, mark) = match read {
            Marked::As(mark) => (Outcome::Hit, mark),
            Marked::Corrupt => (Outcome::Corrupt, Mark::NONE),
        };
        Found {
            outcome,
            mark,
            len: value.len() as u32,
            version,
            ticket: None,
            unique,
        }
    }
}

/// What the caller of a mutation was told.
pub(super) struct Told {
    pub outcome: Outcome,
    pub version: Version,
}

impl Told {
    pub(super) fn of(outcome: Outcome) -> Self {
        Told {
            outcome,
            version: Version::ZERO,
        }
    }
}

/// What an increment was told.
pub(super) enum Counted {
    To(u64),
    Absent,
    /// It failed, and nothing was changed.
    NotDone,
    Unknown,
}

/// A key of the history.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub number: u32,
    pub is_counter: bool,
}

impl Key {
    pub(super) fn name(self) -> String {
        match self.is_counter {
            true => format!("counter-{}", self.number),
            false => format!("key-{}", self.number),
        }
    }
}

/// What a CAS puts itself in the place of.
pub(super) struct Expected {
    pub version: Version,
    pub unique: u64,
}

/// A way to the cell. `None` instead of an answer: there was no connection, and
/// nothing was sent.
pub(super) trait Path {
    fn get(&mut self, key: Key) -> Option<Found>;
    fn get_many(&mut self, keys: &[Key]) -> Option<Vec<Found>>;
    fn set(&mut self, key: Key, value: &[u8]) -> Option<Told>;
    fn erase(&mut self, key: Key) -> Option<Told>;
    /// `expected`: a value found before, or nothing.
    fn cas(&mut self, key: Key, expected: Option<&Expected>, value: &[u8]) -> Option<Told>;
    fn fill(&mut self, key: Key, ticket: FillTicket, value: &[u8]) -> Option<Told>;
    /// Only by the gateway.
    fn increment(&mut self, key: Key) -> Option<Counted>;
}

/// Runs a worker whose plan is on standard input.
pub fn run_worker() -> Result<(), RecordError> {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(RecordError::doing("reading the worker's plan"))?;
    let plan: WorkerPlan = serde_json::from_str(&line)
        .map_err(|e| RecordError::Course(format!("the worker's plan: {e}")))?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopper = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        stopper.store(true, Ordering::Relaxed);
    });
    let path: Box<dyn Path> = match plan.carrier {
        CarrierKind::Gateway => Box::new(Memcached::new(plan.gateway.clone())),
        _ => Box::new(connect(&plan, &stop)?),
    };
    let log = LogWriter::create(&plan.log).map_err(RecordError::doing("making a worker's log"))?;
    let mut worker = Worker {
        rng: SmallRng::seed_from_u64(plan.seed),
        values: ValueMaker::new(),
        number: 0,
        plan,
        path,
        log,
    };
    let mut result = worker.fill(&stop);
    while !stop.load(Ordering::Relaxed) && result.is_ok() {
        result = worker.step();
    }
    result
        .and_then(|()| worker.log.flush())
        .map_err(RecordError::doing("writing a worker's log"))
}

/// What keeps the configuration may be away at the moment.
fn connect(plan: &WorkerPlan, stop: &AtomicBool) -> Result<Native, RecordError> {
    let begin = Instant::now();
    loop {
        match Native::connect(plan) {
            Ok(native) => return Ok(native),
            Err(error) if begin.elapsed() > CONNECT_PATIENCE || stop.load(Ordering::Relaxed) => {
                return Err(error);
            }
            Err(_) => std::thread::sleep(FAILURE_PAUSE),
        }
    }
}

struct Worker {
    plan: WorkerPlan,
    path: Box<dyn Path>,
    log: LogWriter,
    rng: SmallRng,
    values: ValueMaker,
    number: u32,
}

type Logged<T> = std::io::Result<T>;

impl Worker {
    /// Writes its share of the keys.
    fn fill(&mut self, stop: &AtomicBool) -> Logged<()> {
        let Some((index, count)) = self.plan.fill else {
            return Ok(());
        };
        for number in (index..self.plan.keys).step_by(count.max(1) as usize) {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.set(Key {
                number,
                is_counter: false,
            })?;
        }
        std::fs::write(filled_file(&self.plan.log), "")
    }

    fn step(&mut self) -> Logged<()> {
        let is_gateway = self.plan.carrier == CarrierKind::Gateway;
        let counters = self.plan.counters;
        if counters > 0 && self.rng.random_bool(if is_gateway { 0.3 } else { 0.05 }) {
            let key = Key {
                number: self.plan.keys + self.rng.random_range(0..counters),
                is_counter: true,
            };
            return match is_gateway {
                true => self.count(key),
                false => self.get(key).map(drop),
            };
        }
        let key = self.key();
        match self.rng.random_range(0..100) {
            0..40 => self.look_aside(key),
            40..52 => self.get_many(),
            52..78 => self.set(key),
            78..83 => self.erase(key),
            _ => self.cas(key),
        }
    }

    fn key(&mut self) -> Key {
        let keys = self.plan.keys;
        let number = match self.rng.random_bool(0.5) {
            true => self.rng.random_range(0..keys.min(HOT_KEYS)),
            false => self.rng.random_range(0..keys),
        };
        Key {
            number,
            is_counter: false,
        }
    }

    /// Small ones are more frequent: each order of magnitude has its share.
    fn len(&mut self) -> usize {
        let Lens { min, max } = self.plan.value_len;
        let (low, high) = ((min as f64).ln(), (max as f64).ln());
        let len = self.rng.random_range(low..=high).exp().round() as usize;
        len.clamp(min, max).max(crate::value::MARKED_LEN_MIN)
    }

    fn event(&mut self, key: Key, kind: Kind) -> Event {
        self.number += 1;
        let (client, number) = (self.plan.client, self.number);
        Event::begun(client, number, key.number, kind, now_ns())
    }

    /// A mutation, logged before it is sent.
    fn mutate(
        &mut self,
        mut event: Event,
        act: impl FnOnce(&mut dyn Path) -> Option<Told>,
    ) -> Logged<Outcome> {
        self.log.begun(&event)?;
        event.begin_ns = now_ns();
        let told = act(&mut *self.path);
        event.end_ns = now_ns();
        match told {
            Some(told) => {
                event.outcome = told.outcome;
                event.version = told.version;
            }
            None => event.outcome = Outcome::Denied,
        }
        self.log.ended(&event)?;
        if matches!(event.outcome, Outcome::Unknown) || told_nothing(&event) {
            std::thread::sleep(FAILURE_PAUSE);
        }
        Ok(event.outcome)
    }

    fn get(&mut self, key: Key) -> Logged<(Event, Found)> {
        let mut event = self.event(key, Kind::Get);
        let found = self.path.get(key);
        event.end_ns = now_ns();
        let found = found.unwrap_or_else(|| Found::nothing(Outcome::Failed));
        note(&mut event, &found);
        self.log.ended(&event)?;
        if event.outcome == Outcome::Failed {
            std::thread::sleep(FAILURE_PAUSE);
        }
        Ok((event, found))
    }

    /// What users of a cache do: fill it after a miss.
    fn look_aside(&mut self, key: Key) -> Logged<()> {
        let (miss, found) = self.get(key)?;
        let is_miss = matches!(
            found.outcome,
            Outcome::Absent | Outcome::Expired | Outcome::Flushed | Outcome::Inquorate
        );
        if !is_miss || self.rng.random_bool(0.3) {
            return Ok(());
        }
        match found.ticket {
            Some(ticket) => {
                // The value comes from somewhere, which takes its time.
                if self.rng.random_bool(0.2) {
                    let us = self.rng.random_range(1..2_000);
                    std::thread::sleep(Duration::from_micros(us));
                }
                let mut event = self.write(key, Kind::Fill);
                (event.miss_begin_ns, event.miss_end_ns) = (miss.begin_ns, miss.end_ns);
                let value = value(&mut self.values, &event);
                self.mutate(event, |path| path.fill(key, ticket, &value))?;
            }
            None => {
                let event = self.write(key, Kind::Cas);
                let value = value(&mut self.values, &event);
                self.mutate(event, |path| path.cas(key, None, &value))?;
            }
        }
        Ok(())
    }

    fn get_many(&mut self) -> Logged<()> {
        let count = self.rng.random_range(2..=MANY_MAX);
        let keys: Vec<Key> = (0..count).map(|_| self.key()).collect();
        let begin_ns = now_ns();
        let found = self.path.get_many(&keys);
        let end_ns = now_ns();
        for (at, key) in keys.iter().enumerate() {
            let mut event = self.event(*key, Kind::Get);
            (event.begin_ns, event.end_ns) = (begin_ns, end_ns);
            if let Some(found) = found.as_ref().and_then(|found| found.get(at)) {
                note(&mut event, found);
            }
            self.log.ended(&event)?;
        }
        if found.is_none() {
            std::thread::sleep(FAILURE_PAUSE);
        }
        Ok(())
    }

    /// A write of a value of its own.
    fn write(&mut self, key: Key, kind: Kind) -> Event {
        let len = self.len() as u32;
        let event = self.event(key, kind);
        Event {
            mark: Mark::new(event.client, event.number),
            len,
            ..event
        }
    }

    fn set(&mut self, key: Key) -> Logged<()> {
        let event = self.write(key, Kind::Set);
        let value = value(&mut self.values, &event);
        self.mutate(event, |path| path.set(key, &value)).map(drop)
    }

    fn erase(&mut self, key: Key) -> Logged<()> {
        let event = self.event(key, Kind::Erase);
        self.mutate(event, |path| path.erase(key)).map(drop)
    }

    /// Reads, then puts a value in the place of what it has read.
    fn cas(&mut self, key: Key) -> Logged<()> {
        let (_, found) = self.get(key)?;
        let expected = match found.outcome {
            Outcome::Hit => Some(Expected {
                version: found.version,
                unique: found.unique,
            }),
            Outcome::Absent | Outcome::Expired | Outcome::Flushed => None,
            _ => return Ok(()),
        };
        let mut event = self.write(key, Kind::Cas);
        (event.expected, event.expected_version) = (found.mark, found.version);
        let value = value(&mut self.values, &event);
        self.mutate(event, |path| path.cas(key, expected.as_ref(), &value))
            .map(drop)
    }

    /// Increments a counter; begins it where there is none.
    fn count(&mut self, key: Key) -> Logged<()> {
        match self.rng.random_range(0..100) {
            0..25 => return self.get(key).map(drop),
            25..26 => return self.erase(key),
            _ => {}
        }
        let mut is_absent = false;
        let mut result = Mark::NONE;
        let event = self.event(key, Kind::Increment);
        // The mark is the result's, which is known only afterwards.
        self.log.begun(&event)?;
        let mut event = Event {
            begin_ns: now_ns(),
            ..event
        };
        let counted = self.path.increment(key);
        event.end_ns = now_ns();
        event.outcome = match counted {
            Some(Counted::To(number)) => match counter_marked(number.to_string().as_bytes()) {
                Marked::As(mark) => {
                    result = mark;
                    Outcome::Stored
                }
                Marked::Corrupt => Outcome::Corrupt,
            },
            Some(Counted::Absent) => {
                is_absent = true;
                Outcome::Denied
            }
            Some(Counted::Unknown) => Outcome::Unknown,
            Some(Counted::NotDone) | None => Outcome::Denied,
        };
        event.mark = result;
        self.log.ended(&event)?;
        if is_absent {
            let event = self.event(key, Kind::Cas);
            let mark = Mark::new(event.client, event.number);
            let event = Event { mark, ..event };
            let first = counter_origin(mark).to_string();
            self.mutate(event, |path| path.cas(key, None, first.as_bytes()))?;
        } else if event.outcome != Outcome::Stored {
            std::thread::sleep(FAILURE_PAUSE);
        }
        Ok(())
    }
}

fn told_nothing(event: &Event) -> bool {
    event.outcome == Outcome::Denied && event.kind != Kind::Cas
}

fn note(event: &mut Event, found: &Found) {
    event.outcome = found.outcome;
    event.mark = found.mark;
    event.len = found.len;
    event.version = found.version;
}

fn value(values: &mut ValueMaker, event: &Event) -> Vec<u8> {
    values
        .value(event.key, event.mark, event.len as usize)
        .to_vec()
}

/// The host's monotonic clock: the same for all processes.
pub(super) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
