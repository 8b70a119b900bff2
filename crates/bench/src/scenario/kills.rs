//! kill -9 of the backends of a full cell, one after another, each recovered before the
//! next, under 20,000 GETs and 1,000 SETs a second; what is missed is filled in.
//!
//! A backend has recovered when it says `done`: it votes, clients have found it again, and
//! it has fetched what they wrote before. That is some two seconds after its vote.
//!
//! **What is lost.** In a full cell a miss is ordinary: each replica evicts what was used
//! least. What was written a moment ago it must not evict: `slru` lets a value that was
//! used once go after a third of all items were written after it, at the earliest. So a
//! key is *owed* while no more than one in [`OWED_SHARE`] of the items that fit were
//! written after its last acknowledged write. A GET that does not find what is owed has
//! found a lost write, one that finds something older a stale one. Each GET of the load is
//! held against that, and after each recovery everything owed is read.
//!
//! What was written longer ago is held against the hit ratio. What was *just written*, one
//! in [`JUST_WRITTEN_SHARE`] at most, is counted beside, and how old each lost write was:
//! evictions take the oldest of what is owed, a recovery that missed something the youngest.
//!
//! The count can fail: it has to be 0 before the first kill, where nothing but eviction
//! takes values away; and with `overlap`, where the next backend is killed before the
//! last one has recovered, it has to be more.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use trefoil_client::{Cell, Client, Lookup, MissReason, Mutated, OpError, Options, SetOptions};

use super::{Progress, ScenarioError, ScenarioOptions};
use crate::load::{KeyChooser, Popularity};
use crate::median::Median;
use crate::server::{Server, ServerOptions};

const BACKENDS: usize = 3;
/// In bytes. The short form has fewer and longer ones: it is for machines that others use.
const VALUE_LEN: usize = 1000;
const VALUE_LEN_QUICK: usize = 3000;
/// Values of all keys together, in the memory of a backend.
const CORPUS: u64 = 3;
const THETA: f64 = 0.99;
/// One SET among so many operations, at so many a second; fills come on top.
const SET_EVERY: u64 = 21;
const OPS_PER_S: u64 = 21_000;
const OPS_PER_S_QUICK: u64 = 7_000;
/// See the module.
const OWED_SHARE: u64 = 8;
const JUST_WRITTEN_SHARE: u64 = 20;
/// So many ages of lost writes are printed, the youngest.
const AGES_MAX: usize = 10;
/// How long a recovery may take, the pause before a restart included: half a minute for
/// a backend that dies again and again.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at how far it is.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// What must be shown: points of the hit ratio, before less during and before less after.
const HIT_POINTS_MAX: f64 = 2.0;
/// How often a key is written when the cell is filled.
const FILL_ATTEMPTS: u32 = 20;
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// A stretch of the load.
#[derive(Debug, Clone, Default, Serialize)]
pub struct KillsStretch {
    /// GETs, SETs and fills that ended.
    pub operations: u64,
    /// GETs that found a value.
    pub hits: u64,
    /// Share of GETs that did.
    pub hit_ratio: f64,
    /// Values filled in after a miss.
    pub fills: u64,
    /// Operations that failed, or whose outcome is unknown.
    pub failed: u64,
    /// Of these, those whose deadline passed before a quorum answered: it is not known
    /// whether they took effect.
    pub failed_unanswered: u64,
    /// The first one's reason.
    pub first_failure: Option<String>,
    /// Misses for want of a quorum.
    pub inquorate: u64,
    /// GETs of what is owed.
    pub owed: u64,
    /// Of these, those that found nothing.
    pub lost: u64,
    /// Of these, those for want of a quorum; two replicas have evicted the others.
    pub lost_inquorate: u64,
    /// GETs of what was just written.
    pub owed_just_written: u64,
    /// Of these, those that found nothing though a quorum answered.
    pub lost_just_written: u64,
    /// Writes after each that was lost, from the youngest on; of many only the first.
    pub lost_ages: Vec<u64>,
    /// Median of all of them.
    pub lost_age_p50: Option<u64>,
    /// Of the oldest.
    pub lost_age_max: Option<u64>,
    /// GETs that found what had been replaced before, owed or not.
    pub stale: u64,
    /// GETs that found another key's value.
    pub wrong: u64,
    /// Of GETs, from when they were due.
    pub get_p50_ns: u64,
    /// Of GETs.
    pub get_p99_ns: u64,
    /// Of GETs.
    pub get_p999_ns: u64,
    /// Of GETs.
    pub get_max_ns: u64,
    /// Of SETs.
    pub set_p99_ns: u64,
}

impl KillsStretch {
    fn is_clean(&self) -> bool {
        self.failed + self.lost + self.stale + self.wrong == 0 && self.owed > 0
    }
}

/// One backend that was killed and came back.
#[derive(Debug, Clone, Serialize)]
pub struct KillsRecovery {
    /// Which.
    pub backend: usize,
    /// From the kill until its successor voted, in seconds: the pause before it was
    /// started, its start and the rest of the lease included.
    pub votes_s: f64,
    /// From the kill until it had recovered, in seconds.
    pub back_s: f64,
    /// Its recovery alone, until its vote, in seconds.
    pub recovery_s: f64,
    /// Values that it took over.
    pub items: u64,
    /// Values that were written while it copied, and before clients had found it again.
    pub repaired: u64,
    /// Values that its peers did not both hold.
    pub disagreed: u64,
    /// Shards that came back empty: two of three copies had been lost.
    pub shards_lost: u32,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct KillsReport {
    /// Keys of the corpus.
    pub keys: u64,
    /// Items that one backend held when it was full.
    pub items: u64,
    /// A write is owed while no more than so many came after it.
    pub owed_writes: u64,
    /// It was just written while no more than so many did.
    pub just_written_writes: u64,
    /// Memory is full, all backends work.
    pub before: KillsStretch,
    /// From the first kill until the last backend had recovered.
    pub during: KillsStretch,
    /// All backends work again.
    pub after: KillsStretch,
    /// Everything owed, read after each recovery.
    pub swept: KillsStretch,
    /// Before less during, in percent of GETs.
    pub hit_points_lost_during: f64,
    /// Before less after, in percent of GETs.
    pub hit_points_lost_after: f64,
    /// Median from a kill until the successor voted, in seconds.
    pub votes_s_p50: f64,
    /// The longest.
    pub votes_s_max: f64,
    /// Median from a kill until the successor had recovered, in seconds.
    pub back_s_p50: f64,
    /// The longest.
    pub back_s_max: f64,
    /// Median of recoveries alone, until the vote, in seconds.
    pub recovery_s_p50: f64,
    /// The longest.
    pub recovery_s_max: f64,
    /// Each.
    pub recoveries: Vec<KillsRecovery>,
}

impl KillsReport {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        let stretches = [&self.before, &self.during, &self.after, &self.swept];
        stretches.iter().all(|stretch| stretch.is_clean())
            && self.recoveries.iter().all(|one| one.shards_lost == 0)
            && self.hit_points_lost_during <= HIT_POINTS_MAX
            && self.hit_points_lost_after <= HIT_POINTS_MAX
    }
}

/// Kills backends of a full cell in turn.
pub fn kills(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<KillsReport, ScenarioError> {
    options.pin()?;
    let memory: u64 = options.scaled(256 << 20, 64 << 20);
    let count = options.kills.unwrap_or(options.scaled(30, 5));
    let server = Server::start(&ServerOptions {
        processes: true,
        more: vec!["--restart".to_owned(), "always".to_owned()],
        is_silent: true,
        ..options.server("R=3.2", memory)
    })?;
    let cell = Cell::connect(&server.address)?;
    let value_len = options.scaled(VALUE_LEN, VALUE_LEN_QUICK);
    let keys = memory * CORPUS / value_len as u64;
    progress(&format!("kills: filling with {keys} keys"));
    let mut load = Load::new(cell.client(Options::default()), keys, value_len)?;
    load.ops_per_s = options.scaled(OPS_PER_S, OPS_PER_S_QUICK);
    load.fill()?;
    let items = backend(&cell, 0).map_or(0, |backend| backend.items);
    load.owe(items);

    let length = Duration::from_secs(options.scaled(20, 3));
    progress(&format!("kills: warming up, {length:?}"));
    load.run_for(length);
    progress(&format!("kills: all backends work, {length:?}"));
    let before = load.run_for(length);

    let mut during = Part::default();
    let mut swept = Part::default();
    let mut recoveries: Vec<KillsRecovery> = Vec::new();
    for number in 0..count {
        let victim = number % BACKENDS;
        let Some(found) = backend(&cell, victim) else {
            let why = format!("backend {victim} does not answer before it is killed");
            return Err(ScenarioError::Course(why));
        };
        let killed = Instant::now();
        kill(found.pid);
        let mut watched = vec![(victim, found.pid)];
        if options.overlap {
            let second = (victim + 1) % BACKENDS;
            if let Some(found) = backend(&cell, second) {
                kill(found.pid);
                watched.push((second, found.pid));
            }
        }
        let recovered = std::thread::scope(|scope| {
            let watch = scope.spawn(|| watch(&cell, &watched, killed));
            load.run(&mut during, &mut || watch.is_finished());
            watch.join().unwrap_or(None)
        });
        let Some(recovered) = recovered else {
            let why = format!("backend {victim} has not recovered within {PATIENCE:?}");
            return Err(ScenarioError::Course(why));
        };
        load.sweep(&mut swept);
        for one in recovered {
            progress(&format!(
                "kills: {} of {count}, backend {} votes after {:.1} s, has recovered after {:.1} s ({} items, {} repaired; {})",
                number + 1,
                one.backend,
                one.votes_s,
                one.back_s,
                one.items,
                one.repaired,
                lost_so_far(&[&during, &swept])
            ));
            recoveries.push(one);
        }
    }
    progress(&format!("kills: all backends work again, {length:?}"));
    let after = load.run_for(length);
    load.sweep(&mut swept);

    let during = during.stretch();
    let seconds = |figure: fn(&KillsRecovery) -> f64| {
        let all: Vec<f64> = recoveries.iter().map(figure).collect();
        let most = all.iter().copied().fold(0.0, f64::max);
        (f64::median(&all).unwrap_or(0.0), most)
    };
    let (votes_s_p50, votes_s_max) = seconds(|one| one.votes_s);
    let (back_s_p50, back_s_max) = seconds(|one| one.back_s);
    let (recovery_s_p50, recovery_s_max) = seconds(|one| one.recovery_s);
    Ok(KillsReport {
        keys,
        items,
        owed_writes: load.owed_writes,
        just_written_writes: load.just_written_writes,
        hit_points_lost_during: (before.hit_ratio - during.hit_ratio) * 100.0,
        hit_points_lost_after: (before.hit_ratio - after.hit_ratio) * 100.0,
        before,
        during,
        after,
        swept: swept.stretch(),
        votes_s_p50,
        votes_s_max,
        back_s_p50,
        back_s_max,
        recovery_s_p50,
        recovery_s_max,
        recoveries,
    })
}

fn lost_so_far(parts: &[&Part]) -> String {
    let lost: u64 = parts.iter().map(|part| part.seen.lost).sum();
    let just_written: u64 = parts.iter().map(|part| part.seen.lost_just_written).sum();
    let ages = parts.iter().flat_map(|part| &part.lost_ages);
    match (ages.clone().min(), ages.max()) {
        (Some(youngest), Some(oldest)) => format!(
            "{lost} lost so far, after {youngest} to {oldest} writes, {just_written} just written"
        ),
        _ => "none lost so far".to_owned(),
    }
}

/// It fails only if the process is gone already.
fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// What a backend says of itself, of which this needs little.
struct Backend {
    pid: u32,
    items: u64,
    /// If it votes after a loss.
    recovery: Option<KillsRecovery>,
    /// If it has recovered.
    done: bool,
}

fn backend(cell: &Cell, number: usize) -> Option<Backend> {
    let stats = cell.stats().into_iter().nth(number)?.stats.ok()?;
    let member = stats.members.into_iter().next()?;
    let done = member.recovery.as_ref().is_some_and(|one| one.done);
    let votes = member.recovery.filter(|recovery| recovery.shards_left == 0);
    Some(Backend {
        done,
        pid: stats.process.as_ref()?.pid,
        items: member.items,
        recovery: votes.map(|recovery| KillsRecovery {
            backend: number,
            votes_s: 0.0,
            back_s: 0.0,
            repaired: recovery.repaired,
            recovery_s: recovery.took_ms as f64 / 1e3,
            items: recovery.items,
            disagreed: recovery.disagreed,
            shards_lost: recovery.shards_lost,
        }),
    })
}

/// Waits until those who were killed have recovered, in other processes.
fn watch(cell: &Cell, killed: &[(usize, u32)], since: Instant) -> Option<Vec<KillsRecovery>> {
    let mut votes_s = vec![None; killed.len()];
    let mut recovered: Vec<Option<KillsRecovery>> = vec![None; killed.len()];
    while since.elapsed() < PATIENCE {
        std::thread::sleep(LOOK_PERIOD);
        for (at, (number, pid)) in killed.iter().enumerate() {
            let found = backend(cell, *number).filter(|backend| backend.pid != *pid);
            let Some((recovery, done)) = found.and_then(|b| Some((b.recovery?, b.done))) else {
                continue;
            };
            let now_s = since.elapsed().as_secs_f64();
            let votes_s = *votes_s[at].get_or_insert(now_s);
            if done && recovered[at].is_none() {
                recovered[at] = Some(KillsRecovery {
                    votes_s,
                    back_s: now_s,
                    ..recovery
                });
            }
        }
        if recovered.iter().all(Option::is_some) {
            return recovered.into_iter().collect();
        }
    }
    None
}

/// An operation that had no result.
struct Failure {
    why: String,
    is_unanswered: bool,
}

impl Failure {
    fn of(operation: &str, error: &OpError) -> Self {
        Failure {
            why: format!("a {operation}: {error}"),
            is_unanswered: matches!(error, OpError::Indeterminate(_)),
        }
    }
}

/// What was seen so far.
#[derive(Default)]
struct Part {
    seen: KillsStretch,
    gets: u64,
    /// Of each lost write.
    lost_ages: Vec<u64>,
    get_ns: Option<Histogram<u64>>,
    set_ns: Option<Histogram<u64>>,
}

impl Part {
    fn failed(&mut self, failure: Failure) {
        self.seen.failed += 1;
        self.seen.failed_unanswered += u64::from(failure.is_unanswered);
        self.seen.first_failure.get_or_insert(failure.why);
    }

    fn took(&mut self, is_set: bool, took: Duration) {
        let histogram = match is_set {
            true => &mut self.set_ns,
            false => &mut self.get_ns,
        };
        if histogram.is_none() {
            *histogram = Histogram::new_with_max(LATENCY_MAX_NS, 3).ok();
        }
        if let Some(histogram) = histogram {
            histogram.saturating_record(took.as_nanos() as u64);
        }
    }

    fn lost(&mut self, age: u64, is_just_written: bool, is_inquorate: bool) {
        self.lost_ages.push(age);
        self.seen.lost += 1;
        self.seen.lost_just_written += u64::from(is_just_written && !is_inquorate);
        self.seen.lost_inquorate += u64::from(is_inquorate);
    }

    fn stretch(mut self) -> KillsStretch {
        self.lost_ages.sort_unstable();
        let at = |histogram: &Option<Histogram<u64>>, share| {
            histogram.as_ref().map_or(0, |h| h.value_at_quantile(share))
        };
        KillsStretch {
            lost_age_p50: self.lost_ages.get(self.lost_ages.len() / 2).copied(),
            lost_age_max: self.lost_ages.last().copied(),
            lost_ages: self.lost_ages.iter().copied().take(AGES_MAX).collect(),
            hit_ratio: self.seen.hits as f64 / self.gets.max(1) as f64,
            get_p50_ns: at(&self.get_ns, 0.5),
            get_p99_ns: at(&self.get_ns, 0.99),
            get_p999_ns: at(&self.get_ns, 0.999),
            get_max_ns: at(&self.get_ns, 1.0),
            set_p99_ns: at(&self.set_ns, 0.99),
            ..self.seen
        }
    }
}

/// One client, which knows what it has written, and when.
struct Load {
    client: Client,
    chooser: KeyChooser,
    value: Vec<u8>,
    ops_per_s: u64,
    /// Of each key: how often it was written, and the number of its last acknowledged
    /// write among all.
    rounds: Vec<u32>,
    written: Vec<u64>,
    writes: u64,
    /// See the module.
    owed_writes: u64,
    just_written_writes: u64,
    /// What was written lately, in order; some of it again since.
    lately: VecDeque<(u64, u64)>,
}

impl Load {
    fn new(client: Client, keys: u64, value_len: usize) -> Result<Self, ScenarioError> {
        let popularity = Popularity::Zipf { theta: THETA };
        Ok(Load {
            client,
            chooser: KeyChooser::new(popularity, keys, 1)?,
            value: vec![7; value_len],
            ops_per_s: OPS_PER_S,
            rounds: vec![0; keys as usize],
            written: vec![0; keys as usize],
            writes: 0,
            owed_writes: 0,
            just_written_writes: 0,
            lately: VecDeque::new(),
        })
    }

    /// Writes every key once.
    fn fill(&mut self) -> Result<(), ScenarioError> {
        for key in 0..self.rounds.len() as u64 {
            // On a busy machine, a cell that has just begun may stall.
            let stored =
                (0..FILL_ATTEMPTS).try_fold(None, |_, _| self.set(key).err().map(Some).ok_or(()));
            if let Ok(Some(failure)) = stored {
                let why = format!("filling: {}", failure.why);
                return Err(ScenarioError::Course(why));
            }
        }
        Ok(())
    }

    /// From now on a share of what fits is owed.
    fn owe(&mut self, items: u64) {
        self.owed_writes = items / OWED_SHARE;
        self.just_written_writes = items / JUST_WRITTEN_SHARE;
        self.forget();
    }

    fn forget(&mut self) {
        let since = self.writes.saturating_sub(self.owed_writes);
        while self.lately.front().is_some_and(|(at, _)| *at < since) {
            self.lately.pop_front();
        }
    }

    fn prepare(&mut self, key: u64) -> u32 {
        let round = self.rounds[key as usize] + 1;
        self.value[..4].copy_from_slice(&round.to_le_bytes());
        self.value[4..12].copy_from_slice(&key.to_le_bytes());
        round
    }

    fn stored(&mut self, key: u64, round: u32) {
        self.writes += 1;
        self.rounds[key as usize] = round;
        self.written[key as usize] = self.writes;
        self.lately.push_back((self.writes, key));
        if self.owed_writes > 0 {
            self.forget();
        }
    }

    fn set(&mut self, key: u64) -> Result<(), Failure> {
        let round = self.prepare(key);
        let name = key.to_le_bytes();
        match self.client.set(&name, &self.value, SetOptions::default()) {
            Ok(Mutated::Stored { .. }) => {
                self.stored(key, round);
                Ok(())
            }
            Ok(other) => Err(Failure {
                why: format!("a SET: {other:?}"),
                is_unanswered: false,
            }),
            Err(error) => Err(Failure::of("SET", &error)),
        }
    }

    /// Writes after its last one, if it is owed.
    fn owed_age(&self, key: u64) -> Option<u64> {
        let written = self.written[key as usize];
        let age = self.writes - written;
        (written > 0 && age <= self.owed_writes).then_some(age)
    }

    fn get(&mut self, key: u64, part: &mut Part) {
        part.gets += 1;
        let owed_age = self.owed_age(key);
        let is_just_written = owed_age.is_some_and(|age| age <= self.just_written_writes);
        part.seen.owed += u64::from(owed_age.is_some());
        part.seen.owed_just_written += u64::from(is_just_written);
        let name = key.to_le_bytes();
        let ticket = match self.client.get(&name) {
            Ok(Lookup::Hit(hit)) => {
                part.seen.hits += 1;
                let round = hit
                    .value
                    .first_chunk()
                    .map(|word| u32::from_le_bytes(*word));
                let is_of_key = hit.value.get(4..12) == Some(&name[..]);
                part.seen.wrong += u64::from(!is_of_key);
                let newest = self.rounds[key as usize];
                part.seen.stale += u64::from(round.is_none_or(|round| round < newest));
                return;
            }
            Ok(Lookup::Miss(miss)) => {
                let is_inquorate = miss.reason == MissReason::Inquorate;
                part.seen.inquorate += u64::from(is_inquorate);
                if let Some(age) = owed_age {
                    part.lost(age, is_just_written, is_inquorate);
                }
                miss.fill
            }
            Err(error) => return part.failed(Failure::of("GET", &error)),
        };
        let round = self.prepare(key);
        part.seen.operations += 1;
        let filled = self
            .client
            .fill(ticket, &name, &self.value, SetOptions::default());
        match filled {
            Ok(Mutated::Stored { .. }) => {
                part.seen.fills += 1;
                self.stored(key, round);
            }
            // A fill may give way.
            Ok(_) => {}
            Err(error) => part.failed(Failure::of("fill", &error)),
        }
    }

    /// Operations at their times until it is enough.
    fn run(&mut self, part: &mut Part, is_enough: &mut dyn FnMut() -> bool) {
        let begin = Instant::now();
        for number in 0.. {
            if number % 64 == 0 && is_enough() {
                break;
            }
            let due = Duration::from_nanos(number * 1_000_000_000 / self.ops_per_s);
            while begin.elapsed() < due {
                std::hint::spin_loop();
            }
            let key = self.chooser.next_key();
            let is_set = number % SET_EVERY == 0;
            match is_set {
                true => {
                    if let Err(failure) = self.set(key) {
                        part.failed(failure);
                    }
                }
                false => self.get(key, part),
            }
            part.seen.operations += 1;
            part.took(is_set, begin.elapsed().saturating_sub(due));
        }
    }

    fn run_for(&mut self, length: Duration) -> KillsStretch {
        let begin = Instant::now();
        let mut part = Part::default();
        self.run(&mut part, &mut || begin.elapsed() >= length);
        part.stretch()
    }

    /// Reads everything that is owed.
    fn sweep(&mut self, part: &mut Part) {
        let mut keys: Vec<u64> = self.lately.iter().map(|(_, key)| *key).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            part.seen.operations += 1;
            self.get(key, part);
        }
    }
}
