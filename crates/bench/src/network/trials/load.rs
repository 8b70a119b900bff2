//! Clients that read and one that writes, all the time, on threads of a host: what of it
//! failed, was not found, was another key's or older than what had been acknowledged.

use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, Mutated, Options, SetOptions, Tls};

use super::super::{NetworkBenchError, await_engine, cell_error, connect_to, goes_by_engine};
use super::Finding;
use crate::hosts::Host;
use crate::load::Latency;

/// Keys, all of them stored before anything is measured.
const KEYS_COUNT: usize = 500;
/// Between two SETs: few, so that GETs are what is measured.
const SET_PAUSE: Duration = Duration::from_millis(2);
/// How long the clients may take until all of them are ready.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Load<'a> {
    pub(super) cell: &'a str,
    pub(super) tls: Option<&'a Tls>,
    pub(super) options: Options,
    pub(super) readers: usize,
    pub(super) value_len: usize,
}

/// What was seen in one stretch.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) gets: u64,
    pub(super) sets: u64,
    pub(super) failed: u64,
    /// Stored, and not found.
    pub(super) missed: u64,
    /// Another value, or one that had been replaced before.
    pub(super) wrong: u64,
    /// The first of all these.
    pub(super) first: Option<String>,
    pub(super) get: Latency,
    pub(super) set: Latency,
    /// Whether all clients went by engines in the end.
    pub(super) is_by_engine: bool,
}

impl Seen {
    pub(super) fn is_clean(&self) -> bool {
        self.failed + self.missed + self.wrong == 0 && self.gets > 0 && self.sets > 0
    }

    /// The usual figures.
    pub(super) fn finding(&self, what: impl Into<String>) -> Finding {
        let ms = |ns: u64| ns as f64 / 1e6;
        let finding = Finding::new(what)
            .with("GETs", self.gets as f64)
            .with("SETs", self.sets as f64)
            .with("failed", self.failed as f64)
            .with("missed", self.missed as f64)
            .with("wrong", self.wrong as f64)
            .with("GET p50 ms", ms(self.get.p50_ns))
            .with("p99 ms", ms(self.get.p99_ns))
            .with("p99.9 ms", ms(self.get.p999_ns))
            .with("longest ms", ms(self.get.max_ns))
            .with("SET p50 ms", ms(self.set.p50_ns))
            .with("SET longest ms", ms(self.set.max_ns));
        match &self.first {
            Some(first) => finding.noted(format!("the first: {first}")),
            None => finding,
        }
    }
}

struct Record {
    get_ns: Histogram<u64>,
    set_ns: Histogram<u64>,
    failed: u64,
    missed: u64,
    wrong: u64,
    first: Option<String>,
    is_by_engine: bool,
}

impl Record {
    fn new() -> Self {
        let empty = || {
            Histogram::new_with_bounds(1, 60_000_000_000, 3)
                .unwrap_or_else(|error| unreachable!("constant histogram bounds: {error}"))
        };
        Record {
            get_ns: empty(),
            set_ns: empty(),
            failed: 0,
            missed: 0,
            wrong: 0,
            first: None,
            is_by_engine: true,
        }
    }
}

/// What the threads share.
struct Shared {
    /// Of each key: the round that is being written, and the last one acknowledged.
    begun: Vec<AtomicU64>,
    acknowledged: Vec<AtomicU64>,
    records: Vec<Mutex<Record>>,
    ready: AtomicUsize,
    failure: Mutex<Option<NetworkBenchError>>,
    is_over: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While the load runs.
pub(super) struct Running<'a>(&'a Shared);

impl Running<'_> {
    /// What the next stretch of time shows.
    pub(super) fn watch(&self, length: Duration) -> Seen {
        self.watch_while(|| std::thread::sleep(length))
    }

    /// The same, while something is done.
    pub(super) fn watch_while(&self, during: impl FnOnce()) -> Seen {
        for record in &self.0.records {
            *locked(record) = Record::new();
        }
        during();
        let (mut seen, mut all) = (Seen::default(), Record::new());
        seen.is_by_engine = true;
        for record in &self.0.records {
            let record = locked(record);
            // Their bounds are the same.
            let _ = all.get_ns.add(&record.get_ns);
            let _ = all.set_ns.add(&record.set_ns);
            seen.failed += record.failed;
            seen.missed += record.missed;
            seen.wrong += record.wrong;
            seen.is_by_engine &= record.is_by_engine;
            seen.first = seen.first.or_else(|| record.first.clone());
        }
        (seen.gets, seen.sets) = (all.get_ns.len(), all.set_ns.len());
        (seen.get, seen.set) = (Latency::of(&all.get_ns), Latency::of(&all.set_ns));
        seen
    }

    /// Waits until all clients go by engines; whether they did in time.
    pub(super) fn await_engines(&self, patience: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < patience {
            if self.watch(Duration::from_millis(300)).is_by_engine {
                return true;
            }
        }
        false
    }
}

impl Load<'_> {
    /// Runs on threads of `host` while `drive` runs on this one.
    pub(super) fn run<R: Send>(
        &self,
        host: &Host,
        drive: impl FnOnce(&Running<'_>) -> R + Send,
    ) -> Result<R, NetworkBenchError> {
        let numbers = || (0..KEYS_COUNT).map(|_| AtomicU64::new(0)).collect();
        let threads = self.readers + 1;
        let shared = Shared {
            begun: numbers(),
            acknowledged: numbers(),
            records: (0..threads).map(|_| Mutex::new(Record::new())).collect(),
            ready: AtomicUsize::new(0),
            failure: Mutex::new(None),
            is_over: AtomicBool::new(false),
        };
        host.enter(|| {
            std::thread::scope(|scope| {
                for number in 0..threads {
                    let shared = &shared;
                    scope.spawn(move || {
                        let done = match number {
                            0 => self.write(shared),
                            _ => self.read(shared, number),
                        };
                        if let Err(error) = done {
                            locked(&shared.failure).get_or_insert(error);
                        }
                    });
                }
                let begin = Instant::now();
                let is_ready = || shared.ready.load(Ordering::Acquire) == threads;
                let has_failed = || locked(&shared.failure).is_some();
                while !is_ready() && !has_failed() && begin.elapsed() < READY_WITHIN {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let result = is_ready().then(|| drive(&Running(&shared)));
                shared.is_over.store(true, Ordering::Release);
                result
            })
        })?
        .ok_or_else(|| {
            let failure = locked(&shared.failure).take();
            failure.unwrap_or_else(|| cell_error("the clients did not come to read in time"))
        })
    }

    fn client(&self) -> Result<Client, NetworkBenchError> {
        let cell = connect_to(self.cell, self.tls.cloned())?;
        let mut client = cell.client(self.options);
        await_engine(&mut client)?;
        Ok(client)
    }

    fn write(&self, shared: &Shared) -> Result<(), NetworkBenchError> {
        let mut client = self.client()?;
        for number in 0..KEYS_COUNT {
            self.set(&mut client, number, 1).map_err(cell_error)?;
            shared.begun[number].store(1, Ordering::Release);
            shared.acknowledged[number].store(1, Ordering::Release);
        }
        shared.ready.fetch_add(1, Ordering::AcqRel);
        let mut round = 1;
        while !shared.is_over.load(Ordering::Acquire) {
            round += 1;
            for number in 0..KEYS_COUNT {
                if shared.is_over.load(Ordering::Acquire) {
                    break;
                }
                shared.begun[number].store(round, Ordering::Release);
                let begin = Instant::now();
                let done = self.set(&mut client, number, round);
                let took = begin.elapsed();
                let mut record = locked(&shared.records[0]);
                record.set_ns.saturating_record(took.as_nanos() as u64);
                match done {
                    Ok(()) => shared.acknowledged[number].store(round, Ordering::Release),
                    Err(why) => {
                        record.failed += 1;
                        record
                            .first
                            .get_or_insert(format!("SET after {took:?}: {why}"));
                    }
                }
                drop(record);
                std::thread::sleep(SET_PAUSE);
            }
        }
        Ok(())
    }

    fn set(&self, client: &mut Client, number: usize, round: u64) -> Result<(), String> {
        let mut value = format!("{number} {round} ").into_bytes();
        value.resize(self.value_len.max(value.len()), b'v');
        match client.set(&key(number), &value, SetOptions::default()) {
            Ok(Mutated::Stored { .. }) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn read(&self, shared: &Shared, thread: usize) -> Result<(), NetworkBenchError> {
        // Once everything is stored.
        while shared.ready.load(Ordering::Acquire) == 0 {
            if shared.is_over.load(Ordering::Acquire) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut client = self.client()?;
        shared.ready.fetch_add(1, Ordering::AcqRel);
        let mut next = thread * 31;
        while !shared.is_over.load(Ordering::Acquire) {
            next += 7919;
            let number = next % KEYS_COUNT;
            let least = shared.acknowledged[number].load(Ordering::Acquire);
            let begin = Instant::now();
            let found = client.get(&key(number));
            let took = begin.elapsed();
            let most = shared.begun[number].load(Ordering::Acquire);
            let mut wrong = None;
            let mut record = locked(&shared.records[thread]);
            match &found {
                Ok(Lookup::Hit(hit)) if is_of(hit.value, number, least..=most) => {}
                Ok(Lookup::Hit(hit)) => {
                    let begin = &hit.value[..hit.value.len().min(20)];
                    let begin = String::from_utf8_lossy(begin).into_owned();
                    record.wrong += 1;
                    wrong = Some(format!("{begin:?} of key {number}, {least} to {most}"));
                }
                Ok(Lookup::Miss(miss)) => {
                    record.missed += 1;
                    wrong = Some(format!("miss after {took:?}: {miss:?}"));
                }
                Err(error) => {
                    record.failed += 1;
                    wrong = Some(format!("GET after {took:?}: {error}"));
                }
            }
            record.get_ns.saturating_record(took.as_nanos() as u64);
            if let Some(wrong) = wrong {
                record.first.get_or_insert(wrong);
            }
            drop(found);
            record.is_by_engine = goes_by_engine(&mut client);
        }
        Ok(())
    }
}

fn key(number: usize) -> Vec<u8> {
    format!("key-of-the-trial:{number:08}").into_bytes()
}

fn is_of(value: &[u8], number: usize, rounds: std::ops::RangeInclusive<u64>) -> bool {
    let mut words = value.split(|byte| *byte == b' ');
    let mut word = || {
        let word = std::str::from_utf8(words.next()?).ok()?;
        word.parse::<u64>().ok()
    };
    let is_key = word() == Some(number as u64);
    let is_round = word().is_some_and(|round| rounds.contains(&round));
    is_key && is_round && value.last().is_some_and(|last| matches!(last, b'v' | b' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_s_own_rounds_are_right() {
        assert!(is_of(b"7 3 vvv", 7, 3..=4));
        assert!(is_of(b"7 4 ", 7, 3..=4));
        for value in [
            &b"8 3 vvv"[..],
            b"7 2 vvv",
            b"7 5 vvv",
            b"7",
            b"",
            b"7 3 vvx",
        ] {
            assert!(!is_of(value, 7, 3..=4), "{value:?}");
        }
    }
}
