//! A load that goes on whatever happens: 20,000 GETs and 1,000 SETs a second by one client,
//! each submitted at its time, of keys that were all written before. It knows what it has
//! written, so that what is lost, old or another key's is noticed.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use serde::Serialize;
use trefoil_client::{
    Client, Completion, Lookup, MissReason, Mutated, OpError, RetryCounts, SetOptions,
};

use super::ScenarioError;
use super::lateness::{Lateness, LoopFigures};
use super::read_back::{ReadBack, Reading};
use crate::median::Median;

const VALUE_LEN: usize = 1000;
/// One SET among so many operations, at so many a second.
const SET_EVERY: u64 = 21;
pub(super) const OPS_PER_S: u64 = 21_000;
/// How often a key is written when the cell is filled: on a busy machine two backends may
/// stand still at once.
const FILL_ATTEMPTS: u32 = 20;

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
    /// Of these, those for want of a quorum.
    pub inquorate: u64,
    /// The first one's key, time and reason.
    pub first_miss: Option<String>,
    /// GETs that found what was replaced before.
    pub stale: u64,
    /// GETs that found what was never written there.
    pub wrong: u64,
    /// Operations that were tried more than once.
    pub retried: u64,
    /// Attempts beyond the first, by cause.
    pub attempts: BTreeMap<String, u64>,
    /// Of GETs.
    pub get_p50_ns: u64,
    /// Of GETs.
    pub get_p99_ns: u64,
    /// Of GETs.
    pub get_p999_ns: u64,
    /// Of GETs; of several runs, of all.
    pub get_max_ns: u64,
    /// Of SETs.
    pub set_p50_ns: u64,
    /// Of SETs.
    pub set_p99_ns: u64,
    /// Of SETs.
    pub set_p999_ns: u64,
    /// Of SETs; of several runs, of all.
    pub set_max_ns: u64,
    /// The longest call of the client's library, the thread's waits for its core included; of
    /// several runs, of all. None of them is to wait for anybody.
    pub call_max_ns: u64,
    /// How late the load itself was meanwhile, and a loop that does nothing.
    #[serde(rename = "loop")]
    pub punctuality: LoopFigures,
}

impl Course {
    /// Every operation did what it should: nothing failed, was missed, old or wrong.
    pub fn is_kept(&self) -> bool {
        self.failed + self.misses + self.stale + self.wrong == 0
    }
}

/// Percentiles are medians. What may not happen is a sum: a median would hide the run in
/// which it did.
impl Median for Course {
    fn median(runs: &[Self]) -> Option<Self> {
        let sum = |figure: fn(&Self) -> u64| runs.iter().map(figure).sum();
        let most = |figure: fn(&Self) -> u64| runs.iter().map(figure).max();
        let of = |figure: fn(&Self) -> u64| {
            let all: Vec<u64> = runs.iter().map(figure).collect();
            u64::median(&all)
        };
        let loops: Vec<LoopFigures> = runs.iter().map(|run| run.punctuality.clone()).collect();
        Some(Course {
            operations: sum(|run| run.operations),
            failed: sum(|run| run.failed),
            first_failure: runs.iter().find_map(|run| run.first_failure.clone()),
            misses: sum(|run| run.misses),
            inquorate: sum(|run| run.inquorate),
            first_miss: runs.iter().find_map(|run| run.first_miss.clone()),
            stale: sum(|run| run.stale),
            wrong: sum(|run| run.wrong),
            retried: sum(|run| run.retried),
            attempts: runs.iter().fold(BTreeMap::new(), |mut sums, run| {
                for (cause, count) in &run.attempts {
                    *sums.entry(cause.clone()).or_default() += count;
                }
                sums
            }),
            get_p50_ns: of(|run| run.get_p50_ns)?,
            get_p99_ns: of(|run| run.get_p99_ns)?,
            get_p999_ns: of(|run| run.get_p999_ns)?,
            get_max_ns: most(|run| run.get_max_ns)?,
            set_p50_ns: of(|run| run.set_p50_ns)?,
            set_p99_ns: of(|run| run.set_p99_ns)?,
            set_p999_ns: of(|run| run.set_p999_ns)?,
            set_max_ns: most(|run| run.set_max_ns)?,
            call_max_ns: most(|run| run.call_max_ns)?,
            punctuality: LoopFigures::median(&loops)?,
        })
    }
}

/// An operation that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    /// When, since the load began.
    pub(super) at: Duration,
    pub(super) is_set: bool,
    /// From when it was due.
    pub(super) took: Duration,
    /// In the client: the rest was waiting for an answer.
    pub(super) inside: Duration,
    /// Operations that were tried more than once, with those that ended in the same moment.
    pub(super) retried: u64,
    pub(super) verdict: Verdict,
}

/// What came of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// A GET that found nothing: every key was written before.
    Missed(MissReason),
    /// A GET that found what was replaced before.
    Stale,
    /// A GET that found what was never written there.
    Wrong,
    Failed,
}

/// One client, which knows what it has written last. Operations are submitted, as an event
/// loop does it: one that has to wait keeps no other one from its time.
pub(super) struct Load {
    client: Client,
    /// How often each key was written, as far as was acknowledged, and as far as was sent.
    rounds: Vec<u32>,
    sent: Vec<u32>,
    value: Vec<u8>,
    random: u64,
    /// Keys that are being written: of two SETs under way either may be the last.
    writing: HashSet<usize>,
    /// The longest call since this was last taken.
    call_max: Duration,
    /// What was submitted and has not ended, by its token.
    open: Vec<Option<Open>>,
    free: Vec<u64>,
}

/// An operation under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    key: usize,
    is_set: bool,
    /// What a SET writes; what was acknowledged when a GET began.
    round: u32,
    due: Duration,
    /// What it took to submit it.
    inside: Duration,
}

/// What an operation came to.
enum Found {
    /// A value that was written to this key, in this round.
    Value {
        key: u64,
        round: u32,
    },
    /// A value that nobody has written.
    Damaged,
    Missed(MissReason),
    Stored,
    Failed(String),
}

fn found(result: Result<Lookup<'_>, OpError>) -> Found {
    match result {
        Ok(Lookup::Hit(hit)) => value_of(hit.value),
        Ok(Lookup::Miss(miss)) => Found::Missed(miss.reason),
        Err(error) => Found::Failed(error.to_string()),
    }
}

/// A value is the round in which it was written, its key, and filler that depends on both:
/// a part of another value is noticed.
fn write_value(value: &mut [u8], key: u64, round: u32) {
    let filler = filler_of(key, round);
    value.fill(filler);
    value[..4].copy_from_slice(&round.to_le_bytes());
    value[4..12].copy_from_slice(&key.to_le_bytes());
}

fn filler_of(key: u64, round: u32) -> u8 {
    (key.wrapping_mul(31) as u8) ^ (round as u8)
}

fn value_of(value: &[u8]) -> Found {
    let Some((round, rest)) = value.split_first_chunk::<4>() else {
        return Found::Damaged;
    };
    let Some((key, filler)) = rest.split_first_chunk::<8>() else {
        return Found::Damaged;
    };
    let (round, key) = (u32::from_le_bytes(*round), u64::from_le_bytes(*key));
    let expected = filler_of(key, round);
    let is_whole = value.len() == VALUE_LEN && filler.iter().all(|byte| *byte == expected);
    match is_whole {
        true => Found::Value { key, round },
        false => Found::Damaged,
    }
}

fn stored(result: Result<Mutated, OpError>) -> Found {
    match result {
        Ok(Mutated::Stored { .. }) => Found::Stored,
        Ok(other) => Found::Failed(format!("{other:?}")),
        Err(error) => Found::Failed(error.to_string()),
    }
}

impl Load {
    pub(super) fn new(client: Client, keys: u64) -> Self {
        Load {
            client,
            rounds: vec![0; keys as usize],
            sent: vec![0; keys as usize],
            value: vec![7; VALUE_LEN],
            random: 0x9e37_79b9_7f4a_7c15,
            writing: HashSet::new(),
            call_max: Duration::ZERO,
            open: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn fill(&mut self) -> Result<(), ScenarioError> {
        for key in 0..self.rounds.len() {
            let name = (key as u64).to_le_bytes();
            for attempt in 1.. {
                let round = self.next_round(key);
                let result = self.client.set(&name, &self.value, SetOptions::default());
                match stored(result) {
                    Found::Failed(why) if attempt == FILL_ATTEMPTS => {
                        return Err(ScenarioError::Course(format!("filling: {why}")));
                    }
                    Found::Failed(_) => {}
                    _ => {
                        self.rounds[key] = round;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Of the value that is written next.
    fn next_round(&mut self, key: usize) -> u32 {
        self.sent[key] += 1;
        let round = self.sent[key];
        write_value(&mut self.value, key as u64, round);
        round
    }

    /// Operations that were tried more than once.
    fn retried(&self) -> u64 {
        self.client.counters().retried
    }

    /// Attempts beyond the first, by cause.
    fn attempts(&self) -> BTreeMap<String, u64> {
        let counters = self.client.counters();
        let of = |counts: RetryCounts| counts.iter().collect::<Vec<_>>();
        let mut attempts = BTreeMap::new();
        for (cause, count) in [of(counters.get_retries), of(counters.mutation_retries)].concat() {
            *attempts.entry(cause.to_string()).or_default() += count;
        }
        attempts
    }

    fn next_key(&mut self) -> usize {
        // xorshift: any spread will do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % self.rounds.len() as u64) as usize
    }

    /// Begins a SET or GET that was due then. What it came to, if it has ended already.
    fn begin(&mut self, is_set: bool, due: Duration) -> Option<(Open, Found)> {
        let mut key = self.next_key();
        while is_set && !self.writing.insert(key) {
            key = self.next_key();
        }
        let name = (key as u64).to_le_bytes();
        let token = self.free.pop().unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() as u64 - 1
        });
        let round = match is_set {
            true => self.next_round(key),
            false => self.rounds[key],
        };
        let begun = Instant::now();
        let ended = match is_set {
            true => {
                let options = SetOptions::default();
                self.client.submit_set(&name, &self.value, options, token);
                None
            }
            false => self.client.get_or_submit(&name, token).map(found),
        };
        let inside = begun.elapsed();
        self.call_max = self.call_max.max(inside);
        let open = Open {
            key,
            is_set,
            round,
            due,
            inside,
        };
        if ended.is_some() {
            self.free.push(token);
        } else {
            self.open[token as usize] = Some(open);
        }
        ended.map(|ended| (open, ended))
    }

    /// What has ended meanwhile.
    fn poll(&mut self, ended: &mut Vec<(Open, Found)>) {
        let (open, free) = (&mut self.open, &mut self.free);
        let begun = Instant::now();
        self.client.poll(&mut |token, completion| {
            let found = match completion {
                Completion::Lookup(result) => found(result),
                Completion::Mutated(result) => stored(result),
                other => Found::Failed(format!("nobody asked for {other:?}")),
            };
            if let Some(mut open) = open.get_mut(token as usize).and_then(Option::take) {
                open.inside += begun.elapsed();
                free.push(token);
                ended.push((open, found));
            }
        });
        self.call_max = self.call_max.max(begun.elapsed());
    }

    /// Operations at their times until it is enough.
    pub(super) fn run(&mut self, is_enough: &mut dyn FnMut() -> bool) -> Course {
        self.run_noting(is_enough, &mut |_| {})
    }

    /// The same; `note` is told of each that has ended.
    pub(super) fn run_noting(
        &mut self,
        is_enough: &mut dyn FnMut() -> bool,
        note: &mut dyn FnMut(Ended),
    ) -> Course {
        let mut lateness = Lateness::new(OPS_PER_S);
        let mut tally = Tally {
            begin: lateness.begin(),
            course: Course::default(),
            gets: Vec::new(),
            sets: Vec::new(),
            retried: self.retried(),
            note,
        };
        let (retried, attempts) = (self.retried(), self.attempts());
        self.call_max = Duration::ZERO;
        let mut ended = Vec::new();
        for number in 0.. {
            if number % 64 == 0 && is_enough() {
                break;
            }
            let due = loop {
                self.poll(&mut ended);
                self.take_in(&mut ended, &mut tally);
                if let Some(due) = lateness.is_due(number) {
                    break due;
                }
            };
            ended.extend(self.begin(number % SET_EVERY == 0, due));
            self.take_in(&mut ended, &mut tally);
        }
        let punctuality = lateness.figures();
        // Each ends by its deadline.
        while self.free.len() < self.open.len() {
            self.poll(&mut ended);
            self.take_in(&mut ended, &mut tally);
        }
        let Tally {
            mut course,
            mut gets,
            mut sets,
            ..
        } = tally;
        course.retried = self.retried() - retried;
        course.attempts = self.attempts();
        for (cause, count) in &mut course.attempts {
            *count -= attempts.get(cause).copied().unwrap_or_default();
        }
        course.attempts.retain(|_, count| *count > 0);
        course.punctuality = punctuality;
        course.call_max_ns = self.call_max.as_nanos() as u64;
        gets.sort_unstable();
        sets.sort_unstable();
        course.get_p50_ns = at(&gets, 0.5);
        course.get_p99_ns = at(&gets, 0.99);
        course.get_p999_ns = at(&gets, 0.999);
        course.get_max_ns = at(&gets, 1.0);
        course.set_p50_ns = at(&sets, 0.5);
        course.set_p99_ns = at(&sets, 0.99);
        course.set_p999_ns = at(&sets, 0.999);
        course.set_max_ns = at(&sets, 1.0);
        course
    }

    /// Counts what has ended, and remembers what was acknowledged.
    fn take_in(&mut self, ended: &mut Vec<(Open, Found)>, tally: &mut Tally<'_>) {
        for (open, found) in ended.drain(..) {
            if open.is_set {
                self.writing.remove(&open.key);
            }
            let verdict = match found {
                Found::Stored => {
                    let round = &mut self.rounds[open.key];
                    *round = open.round.max(*round);
                    Verdict::Fine
                }
                Found::Value { key, round } => match self.judge(open.key, key, round) {
                    Verdict::Fine if round < open.round => Verdict::Stale,
                    verdict => verdict,
                },
                Found::Damaged => Verdict::Wrong,
                Found::Missed(reason) => {
                    let (key, at) = (open.key, tally.begin.elapsed());
                    let miss = || format!("key {key} after {:.3} s: {reason}", at.as_secs_f64());
                    tally.course.first_miss.get_or_insert_with(miss);
                    Verdict::Missed(reason)
                }
                Found::Failed(why) => {
                    tally.course.first_failure.get_or_insert(why);
                    Verdict::Failed
                }
            };
            let retried = self.retried();
            tally.count(open, verdict, retried);
        }
    }

    /// Whether what was found in the place of `key` was ever written there.
    fn judge(&self, key: usize, found_key: u64, round: u32) -> Verdict {
        match found_key == key as u64 && (1..=self.sent[key]).contains(&round) {
            true => Verdict::Fine,
            false => Verdict::Wrong,
        }
    }

    /// Reads every key, by `client`: one that has mapped no memory of a backend that is dead
    /// by now. Until its lease ends, that would still be read.
    pub(super) fn read_back(&self, mut client: Client) -> ReadBack {
        let rounds = &self.rounds;
        ReadBack::of(rounds.len(), |key| {
            match found(client.get(&(key as u64).to_le_bytes())) {
                Found::Value { key: of, round } => match self.judge(key, of, round) {
                    Verdict::Fine if round < rounds[key] => Reading::Stale,
                    Verdict::Fine => Reading::Fine,
                    _ => Reading::Wrong,
                },
                Found::Damaged => Reading::Wrong,
                Found::Stored => Reading::Nothing("stored".to_owned()),
                Found::Missed(reason) => Reading::Nothing(reason.to_string()),
                Found::Failed(why) => Reading::Nothing(why),
            }
        })
    }
}

/// What a stretch of the load has come to so far.
struct Tally<'a> {
    begin: Instant,
    course: Course,
    gets: Vec<u64>,
    sets: Vec<u64>,
    /// Of the client's operations, when the latest one ended.
    retried: u64,
    note: &'a mut dyn FnMut(Ended),
}

impl Tally<'_> {
    fn count(&mut self, open: Open, verdict: Verdict, retried: u64) {
        let at = self.begin.elapsed();
        let took = at.saturating_sub(open.due);
        let times = match open.is_set {
            true => &mut self.sets,
            false => &mut self.gets,
        };
        times.push(took.as_nanos() as u64);
        let course = &mut self.course;
        course.operations += 1;
        match verdict {
            Verdict::Fine => {}
            Verdict::Missed(reason) => {
                course.misses += 1;
                course.inquorate += u64::from(reason == MissReason::Inquorate);
            }
            Verdict::Stale => course.stale += 1,
            Verdict::Wrong => course.wrong += 1,
            Verdict::Failed => course.failed += 1,
        }
        let retried = retried - std::mem::replace(&mut self.retried, retried);
        (self.note)(Ended {
            at,
            is_set: open.is_set,
            took,
            inside: open.inside,
            retried,
            verdict,
        });
    }
}

/// A percentile of sorted times.
pub(super) fn at(times: &[u64], share: f64) -> u64 {
    let place = (times.len() as f64 * share) as usize;
    times.get(place).or(times.last()).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_whose_it_is_and_a_part_of_another_one_is_noticed() {
        let mut value = vec![0; VALUE_LEN];
        write_value(&mut value, 7, 3);
        let found = value_of(&value);
        assert!(matches!(found, Found::Value { key: 7, round: 3 }));
        let mut torn = value.clone();
        write_value(&mut value, 7, 4);
        torn[500..].copy_from_slice(&value[500..]);
        assert!(matches!(value_of(&torn), Found::Damaged));
        assert!(matches!(value_of(&value[..999]), Found::Damaged));
        assert!(matches!(value_of(b"short"), Found::Damaged));
    }
}
