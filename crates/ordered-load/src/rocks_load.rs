//! The client of RocksDB behind queues: what it asks for, and how long that takes.

use crate::LoadError;
use crate::commits::MOST;
use crate::pace::Pace;
use crate::report::{Latency, RocksRun};
use crate::rocks::System;
use crate::watch::Watch;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_ordered::{Committed, Queue, Refused};
use trefoil_queue::Request;
use trefoil_rocksdb::{Batch, Db, DbError, Wal};

const KEY_LEN: usize = 48;
const VALUE_LEN: usize = 43;
const _: () = assert!(KEY_LEN + VALUE_LEN == 91);
const KEYS: u64 = 100_000;
const ZIPF: f64 = 0.99;
/// Requests until they come again.
const TAPE: usize = 1 << 17;
/// Requests under way where the peak is looked for.
const WINDOW: usize = 256;
/// Threads of a RocksDB without a queue.
const THREADS: usize = 32;
/// Requests that were due and not sent: the system is behind for good.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// Keys written as one batch before the measurement.
const FILL_BATCH: u64 = 1000;

/// Requests, drawn before the measurement.
pub(crate) struct Mix {
    asked: Vec<(u64, bool)>,
}

fn spell_key(into: &mut [u8; KEY_LEN], key: u64) {
    into[..8].copy_from_slice(&key.to_le_bytes());
}

impl Mix {
    pub(crate) fn new(puts: f64) -> Self {
        let mut rng = SmallRng::seed_from_u64(5);
        let zipf = Zipf::new(KEYS as f64, ZIPF).expect("valid bounds");
        let mut draw = || {
            let rank = zipf.sample(&mut rng) as u64 - 1;
            // Popular keys are not neighbours.
            let key = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS;
            (key, rng.random::<f64>() < puts)
        };
        Mix {
            asked: (0..TAPE).map(|_| draw()).collect(),
        }
    }

    /// A value for each key, under the client's name and under the durable service's.
    pub(crate) fn fill(&self, db: &Db) -> Result<(), DbError> {
        let mut batch = Batch::new(db.library());
        let mut key = [b'k'; KEY_LEN + 1];
        for number in 0..KEYS {
            key[1..9].copy_from_slice(&number.to_le_bytes());
            batch.put(&key, &[7; VALUE_LEN]);
            batch.put(&key[1..], &[7; VALUE_LEN]);
            if number % FILL_BATCH == FILL_BATCH - 1 {
                db.write(&mut batch, Wal::Off)?;
                batch.clear();
            }
        }
        db.flush()
    }
}

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// As much as the system takes, a window of requests under way.
    Window,
    /// Poisson arrivals, so many a second.
    PerSecond(f64),
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) per_s: f64,
    pub(crate) puts_per_s: f64,
    pub(crate) kept_up: f64,
    pub(crate) latency: Latency,
}

struct Pending {
    due: Instant,
    sent: Committed,
    is_put: bool,
}

/// One client.
pub(crate) struct Client<'q> {
    queue: &'q mut Queue,
    system: System,
    mix: &'q Mix,
    next: usize,
    pending: VecDeque<Pending>,
    bytes: Vec<u8>,
    watch: Watch,
}

impl<'q> Client<'q> {
    pub(crate) fn new(queue: &'q mut Queue, system: System, mix: &'q Mix) -> Self {
        Client {
            queue,
            system,
            mix,
            next: 0,
            pending: VecDeque::new(),
            bytes: Vec::new(),
            watch: Watch::default(),
        }
    }

    /// Latency counts from when a request was due until its answer, or a put's
    /// acknowledgement, was seen. The first tenth does not count.
    pub(crate) fn offer(&mut self, load: Load, seconds: f64) -> Result<Measured, LoadError> {
        let mut took = Histogram::<u64>::new_with_max(MOST, 3).expect("valid bounds");
        let mut pace = match load {
            Load::PerSecond(per_s) => Some(Pace::new(per_s, 3)),
            Load::Window => None,
        };
        let warm = Instant::now() + Duration::from_secs_f64(seconds / 10.0);
        let end = warm + Duration::from_secs_f64(seconds);
        let (mut offered, mut in_time, mut puts) = (0u64, 0u64, 0u64);
        loop {
            let now = Instant::now();
            let due = match &pace {
                Some(pace) => pace.next(),
                None => now,
            };
            let is_due = match &pace {
                Some(_) => due <= now && due < end,
                None => now < end && self.pending.len() < WINDOW,
            };
            if is_due && now - due > BEHIND_MAX {
                return Err(LoadError::Queue("the server is too slow for this".into()));
            }
            if is_due && self.send(due)? {
                offered += u64::from(due >= warm);
                if let Some(pace) = &mut pace {
                    pace.advance();
                }
            }
            while let Some(done) = self.poll()? {
                let now = Instant::now();
                if done.due >= warm {
                    took.saturating_record((now - done.due).as_nanos() as u64);
                }
                if (warm..=end).contains(&now) {
                    in_time += 1;
                    puts += u64::from(done.is_put);
                }
            }
            if due.max(now) >= end && self.pending.is_empty() {
                break;
            }
        }
        Ok(Measured {
            per_s: in_time as f64 / seconds,
            puts_per_s: puts as f64 / seconds,
            kept_up: in_time as f64 / offered.max(1) as f64,
            latency: Latency::of(&took),
        })
    }

    /// Whether the next request was taken.
    fn send(&mut self, due: Instant) -> Result<bool, LoadError> {
        let (number, is_put) = self.mix.asked[self.next % TAPE];
        let mut key = [b'k'; KEY_LEN];
        spell_key(&mut key, number);
        let request = match is_put {
            true => Request::Set(&key, &[9; VALUE_LEN]),
            false => Request::Get(&key),
        };
        let spelled = request.encode(&mut self.bytes);
        spelled.map_err(|error| LoadError::Queue(error.to_string()))?;
        let nilext = is_put && self.system.acknowledges();
        match self.queue.submit(&self.bytes, nilext) {
            Ok(sent) => {
                self.next += 1;
                self.pending.push_back(Pending { due, sent, is_put });
                Ok(true)
            }
            Err(Refused::Full | Refused::Skipped) => {
                self.watch.in_vain(self.queue)?;
                Ok(false)
            }
            Err(refused) => Err(LoadError::Queue(refused.to_string())),
        }
    }

    /// The oldest request, if it is done: they are in the queue's order.
    fn poll(&mut self) -> Result<Option<Pending>, LoadError> {
        let Some(first) = self.pending.front() else {
            return Ok(None);
        };
        let (sent, is_put) = (first.sent, first.is_put);
        let is_acknowledged = is_put && self.system.acknowledges();
        let is_done = match is_acknowledged {
            true => self.queue.is_committed(sent),
            false => self.queue.is_executed(sent),
        };
        if !is_done {
            self.watch.in_vain(self.queue)?;
            return Ok(None);
        }
        if !is_acknowledged {
            let answer = self.queue.answer(sent, Duration::ZERO);
            answer.map_err(|error| LoadError::Queue(error.to_string()))?;
        }
        Ok(self.pending.pop_front())
    }
}

/// Threads that read and write a database themselves, each put synchronous.
pub(crate) fn direct(db: &Db, mix: &Mix, seconds: f64) -> Result<RocksRun, DbError> {
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    let one = |first: usize| -> Result<(u64, u64, Histogram<u64>), DbError> {
        let mut took = Histogram::new_with_max(MOST, 3).expect("valid bounds");
        let mut batch = Batch::new(db.library());
        let (mut key, mut value) = ([b'k'; KEY_LEN], Vec::new());
        let (mut done, mut puts) = (0, 0);
        for at in first.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let (number, is_put) = mix.asked[at % TAPE];
            spell_key(&mut key, number);
            let start = Instant::now();
            if is_put {
                batch.clear();
                batch.put(&key, &[9; VALUE_LEN]);
                db.write(&mut batch, Wal::Synced)?;
            } else {
                db.get(&key, &mut value)?;
            }
            took.saturating_record(start.elapsed().as_nanos() as u64);
            done += 1;
            puts += u64::from(is_put);
        }
        Ok((done, puts, took))
    };
    let one = &one;
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|at| scope.spawn(move || one(at * (TAPE / THREADS))))
            .collect();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        is_over.store(true, Ordering::Relaxed);
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        joined.collect::<Result<Vec<_>, DbError>>()
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut all = Histogram::<u64>::new_with_max(MOST, 3).expect("valid bounds");
    let (mut done, mut puts) = (0, 0);
    for (of_thread, puts_of_thread, took) in results {
        done += of_thread;
        puts += puts_of_thread;
        all.add(took).expect("the same bounds");
    }
    Ok(RocksRun {
        peak_per_s: done as f64 / seconds,
        puts_per_s: puts as f64 / seconds,
        at_peak: Latency::of(&all),
        at_equal_rate: None,
    })
}
