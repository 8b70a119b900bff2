//! A load that goes on whatever happens: 20,000 GETs and 1,000 SETs a second by one client,
//! each at its time, of keys that were all written before. It knows what it has written, so
//! that what is lost or old is noticed.

use std::time::{Duration, Instant};

use serde::Serialize;
use trefoil_client::{Client, Lookup, Mutated, SetOptions};

use super::ScenarioError;

const VALUE_LEN: usize = 1000;
/// One SET among so many operations, at so many a second.
const SET_EVERY: u64 = 21;
pub(super) const OPS_PER_S: u64 = 21_000;

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
    /// Attempts beyond the first.
    pub retried: u64,
    /// Of GETs.
    pub get_p50_ns: u64,
    /// Of GETs.
    pub get_p99_ns: u64,
    /// Of GETs.
    pub get_p999_ns: u64,
    /// Of GETs.
    pub get_max_ns: u64,
    /// Of SETs.
    pub set_p99_ns: u64,
    /// Of SETs.
    pub set_max_ns: u64,
}

/// An operation that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    /// When, since the load began.
    pub(super) at: Duration,
    pub(super) is_set: bool,
    /// From when it was due.
    pub(super) took: Duration,
    /// In the client: the rest was waiting for the one before.
    pub(super) inside: Duration,
    /// Attempts beyond the first.
    pub(super) retried: u64,
    pub(super) verdict: Verdict,
}

/// What came of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// A GET that found nothing: every key was written before.
    Missed,
    /// A GET that found what was replaced before.
    Stale,
    Failed,
}

/// One client, which knows what it has written last.
pub(super) struct Load {
    client: Client,
    /// How often each key was written.
    rounds: Vec<u32>,
    value: Vec<u8>,
    random: u64,
}

impl Load {
    pub(super) fn new(client: Client, keys: u64) -> Self {
        Load {
            client,
            rounds: vec![0; keys as usize],
            value: vec![7; VALUE_LEN],
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    pub(super) fn fill(&mut self) -> Result<(), ScenarioError> {
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

    fn retries(&self) -> u64 {
        let counters = self.client.counters();
        counters.get_retries.total() + counters.mutation_retries.total()
    }

    fn next_key(&mut self) -> usize {
        // xorshift: any spread will do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % self.rounds.len() as u64) as usize
    }

    /// Operations at their times until it is enough.
    pub(super) fn run(&mut self, is_enough: &mut dyn FnMut() -> bool) -> Course {
        self.run_noting(is_enough, &mut |_| {})
    }

    /// The same; `note` is told of each that has ended, between two of them.
    pub(super) fn run_noting(
        &mut self,
        is_enough: &mut dyn FnMut() -> bool,
        note: &mut dyn FnMut(Ended),
    ) -> Course {
        let mut course = Course::default();
        let before = self.retries();
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
            let (begun, retries) = (begin.elapsed(), self.retries());
            let verdict = match is_set {
                true => self.set(key).map(|()| Verdict::Fine),
                false => self.get(key).map(|found| match found {
                    Some(round) if round < self.rounds[key] => Verdict::Stale,
                    Some(_) => Verdict::Fine,
                    None => Verdict::Missed,
                }),
            };
            let at = begin.elapsed();
            let took = at - due;
            if is_set { &mut sets } else { &mut gets }.push(took.as_nanos() as u64);
            course.operations += 1;
            let verdict = verdict.unwrap_or_else(|why| {
                course.first_failure.get_or_insert(why);
                Verdict::Failed
            });
            match verdict {
                Verdict::Fine => {}
                Verdict::Missed => course.misses += 1,
                Verdict::Stale => course.stale += 1,
                Verdict::Failed => course.failed += 1,
            }
            note(Ended {
                at,
                is_set,
                took,
                inside: at - begun,
                retried: self.retries() - retries,
                verdict,
            });
        }
        course.retried = self.retries() - before;
        gets.sort_unstable();
        sets.sort_unstable();
        course.get_p50_ns = at(&gets, 0.5);
        course.get_p99_ns = at(&gets, 0.99);
        course.get_p999_ns = at(&gets, 0.999);
        course.get_max_ns = at(&gets, 1.0);
        course.set_p99_ns = at(&sets, 0.99);
        course.set_max_ns = at(&sets, 1.0);
        course
    }

    /// Reads every key: how many are missing, and how many are old.
    pub(super) fn check(&mut self) -> (u64, u64) {
        let (mut lost, mut stale) = (0, 0);
        for key in 0..self.rounds.len() {
            match self.get(key) {
                Ok(Some(round)) => stale += u64::from(round < self.rounds[key]),
                Ok(None) => lost += 1,
                Err(why) => {
                    lost += 1;
                    eprintln!("key {key} cannot be read: {why}");
                }
            }
        }
        (lost, stale)
    }
}

/// A percentile of sorted times.
pub(super) fn at(times: &[u64], share: f64) -> u64 {
    let place = (times.len() as f64 * share) as usize;
    times.get(place).or(times.last()).copied().unwrap_or(0)
}
