//! Repair at R=3.2: what a scan of a million clean keys costs, how long it takes until a
//! hundredth of them, missed by one backend while it hung, is clean again, and what it
//! moves for that. Then the same at full memory, under a load, with repair and without: it
//! may neither churn nor cost hits.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use trefoil_client::{Cell, Client, Lookup, Mutated, Options, SetOptions};

use super::{Progress, ScenarioError, ScenarioOptions};
use crate::server::{Server, ServerOptions};

const VALUE_LEN: usize = 1000;
/// Between two scans; and in a quick run.
const INTERVAL: Duration = Duration::from_secs(20);
const INTERVAL_QUICK: Duration = Duration::from_secs(2);
/// How long anything is waited for, in intervals, and at least.
const PATIENCE_INTERVALS: u32 = 6;
const PATIENCE_MIN: Duration = Duration::from_secs(60);
const INTERVAL_FULL: Duration = Duration::from_secs(2);
/// One key in so many is missed.
const MISSED_ONE_IN: u64 = 100;
/// The one that hangs.
const VICTIM: usize = 1;
/// Of a SET: on a busy machine two backends may stand still at once.
const ATTEMPTS_MAX: u32 = 20;
/// Between two looks at the statistics.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// What must be shown, as shares of the corpus, and of intervals.
const CLEAN_SHARE_MAX: f64 = 0.001;
const REPAIR_SHARE_MAX: f64 = 0.03;
const INTERVALS_MAX: f64 = 2.0;
/// Points of hit ratio, and eviction by repair for each SET.
const HIT_POINTS_MAX: f64 = 1.0;
const REPAIRED_SHARE_MAX: f64 = 0.05;

/// A load at full memory.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FullFigures {
    /// GETs.
    pub gets: u64,
    /// Of these, in percent, those that found something.
    pub hit_percent: f64,
    /// SETs, one for each miss and one for each tenth GET.
    pub sets: u64,
    /// Items evicted by a backend, for each SET.
    pub evictions: f64,
    /// Whole scans of one shard.
    pub scans: u64,
    /// Bytes of a scan of all shards, repairs included, by bytes of the corpus.
    pub scan_share: f64,
    /// Keys that were seen twice to differ, for each scan of all shards.
    pub dirty: f64,
    /// Values that a replica was given, for each SET.
    pub repaired: f64,
    /// Keys that no two replicas held, evicted, for each SET.
    pub evicted_lone: f64,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct RepairReport {
    /// Keys of the cell.
    pub keys: u64,
    /// Bytes of their data entries at one backend, in MiB.
    pub corpus_mib: f64,
    /// Bytes of a scan of all shards that finds nothing.
    pub clean_scan_bytes: u64,
    /// By those of the corpus.
    pub clean_scan_share: f64,
    /// How long the longest such scan took, in milliseconds, waits included.
    pub clean_scan_ms: u64,
    /// Keys that were written while a backend hung.
    pub missed: u64,
    /// Values that it was given.
    pub repaired: u64,
    /// From its return until the last of them, in intervals between scans.
    pub intervals: f64,
    /// Bytes that were moved meanwhile, by those of the corpus.
    pub repair_share: f64,
    /// Keys that were found to differ afterwards.
    pub left: u64,
    /// Keys that are missing or old after another backend was killed.
    pub lost: u64,
    /// At full memory, with repair.
    pub full: FullFigures,
    /// And without.
    pub full_without: FullFigures,
}

impl RepairReport {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        let is_cheap =
            self.clean_scan_share <= CLEAN_SHARE_MAX && self.repair_share <= REPAIR_SHARE_MAX;
        let is_repaired = self.repaired >= self.missed && self.left + self.lost == 0;
        let points = self.full_without.hit_percent - self.full.hit_percent;
        is_cheap
            && is_repaired
            && self.intervals <= INTERVALS_MAX
            && points <= HIT_POINTS_MAX
            && self.full.repaired <= REPAIRED_SHARE_MAX
    }
}

/// Measures repair.
pub fn repair(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<RepairReport, ScenarioError> {
    options.pin()?;
    let keys: u64 = options.scaled(1_000_000, 50_000);
    let memory = options.scaled(1536 << 20, 256 << 20);
    progress("repair: filling");
    let interval = options.scaled(INTERVAL, INTERVAL_QUICK);
    let patience = PATIENCE_MIN.max(PATIENCE_INTERVALS * interval);
    let server = start(options, memory, interval)?;
    let cell = Cell::connect(&server.address)?;
    let mut load = Load::new(cell.client(Options::default()), keys);
    for key in 0..keys {
        load.set(key, 1)?;
    }
    server.settle()?;

    progress("repair: scans of clean shards");
    // The first may have begun while the cell was being filled.
    let filled = Sum::of(&cell);
    let before = wait(&cell, patience, |now| now.each_scanned(&filled, 2))?;
    let after = wait(&cell, patience, |now| now.each_scanned(&before, 1))?;
    let scans = (after.scans - before.scans).max(1) as f64 / after.shards as f64;
    let clean_scan_bytes = ((after.bytes - before.bytes) as f64 / scans) as u64;
    let corpus = after.entry_bytes as f64;

    progress(&format!(
        "repair: a scan is {clean_scan_bytes} bytes; a backend hangs"
    ));
    let before = Sum::of(&cell);
    let signal = |signal| {
        let pid = Pid::from_raw(server.pids[VICTIM] as i32);
        pid.map(|pid| kill_process(pid, signal));
    };
    signal(Signal::STOP);
    // What one that is connected sends is in its ring, and executed later. One that
    // comes now has no way to it.
    load.client = Cell::connect(&server.address)?.client(Options::default());
    let missed = keys / MISSED_ONE_IN;
    let written: Result<(), ScenarioError> =
        (0..missed).try_for_each(|key| load.set(key * MISSED_ONE_IN, 2));
    signal(Signal::CONT);
    written?;
    let begin = Instant::now();
    let mut last = (begin, before.clone());
    let after = wait(&cell, patience, |now| {
        if now.mended() > last.1.mended() {
            last = (Instant::now(), now.clone());
        }
        now.each_scanned(&last.1, 2) && now.mended() > before.mended()
    })?;
    let repaired = after.mended() - before.mended();
    let (repaired_at, repaired_sum) = last;
    let intervals = (repaired_at - begin).as_secs_f64() / interval.as_secs_f64();
    let left = after.unrepaired;
    let moved = repaired_sum.bytes - before.bytes;
    progress(&format!(
        "repair: {repaired} of {missed} given back in {intervals:.2} intervals, {moved} bytes"
    ));
    server.kill(2);
    // One that has mapped no memory of the one that is dead: until its lease ends, that
    // would still be read.
    load.client = Cell::connect(&server.address)?.client(Options::default());
    let lost = load.count_lost();
    drop(server);

    progress("repair: full memory, with repair");
    let full = run_full(options, INTERVAL_FULL)?;
    progress("repair: full memory, without");
    let full_without = run_full(options, Duration::ZERO)?;
    Ok(RepairReport {
        keys,
        corpus_mib: corpus / (1 << 20) as f64,
        clean_scan_bytes,
        clean_scan_share: clean_scan_bytes as f64 / corpus,
        clean_scan_ms: before.scan_ms,
        missed,
        repaired,
        intervals,
        repair_share: moved as f64 / corpus,
        left,
        lost,
        full,
        full_without,
    })
}

fn start(
    options: &ScenarioOptions,
    memory: u64,
    interval: Duration,
) -> Result<Server, ScenarioError> {
    let interval = format!("{}s", interval.as_secs());
    Ok(Server::start(&ServerOptions {
        processes: true,
        more: vec!["--repair-interval".to_owned(), interval],
        is_silent: true,
        ..options.server("R=3.2", memory)
    })?)
}

/// Look-aside reads of skewed keys, three times as many as there is room for.
fn run_full(options: &ScenarioOptions, interval: Duration) -> Result<FullFigures, ScenarioError> {
    let keys: u64 = options.scaled(600_000, 150_000);
    let memory = options.scaled(256 << 20, 64 << 20);
    let server = start(options, memory, interval)?;
    let cell = Cell::connect(&server.address)?;
    let mut load = Load::new(cell.client(Options::default()), keys);
    for key in 0..keys {
        load.set(key, 1)?;
    }
    let before = Sum::of(&cell);
    let mut figures = FullFigures::default();
    // As many with repair as without: a busy machine does less in the same time.
    let gets = options.scaled(1_500_000, 100_000);
    let mut hits = 0;
    while figures.gets < gets {
        let key = load.next_key();
        let is_hit = load.get(key)?.is_some();
        figures.gets += 1;
        hits += u64::from(is_hit);
        if !is_hit || figures.gets.is_multiple_of(10) {
            load.set(key, 1)?;
            figures.sets += 1;
        }
    }
    let after = Sum::of(&cell);
    let sets = figures.sets as f64;
    let scans = after.scans - before.scans;
    let rounds = (scans as f64 / after.shards as f64).max(1.0);
    let of = |count: fn(&Sum) -> u64| (count(&after) - count(&before)) as f64;
    Ok(FullFigures {
        hit_percent: 100.0 * hits as f64 / figures.gets as f64,
        evictions: of(|sum| sum.evictions) / after.shards as f64 / sets,
        scans,
        scan_share: of(|sum| sum.bytes) / rounds / after.entry_bytes as f64,
        dirty: of(|sum| sum.dirty) / rounds,
        repaired: of(Sum::mended) / sets,
        evicted_lone: of(|sum| sum.evicted) / sets,
        ..figures
    })
}

/// What all backends say of repair, added up, of which this needs little.
#[derive(Debug, Clone, Default)]
struct Sum {
    shards: u64,
    scans: u64,
    by_shard: Vec<u64>,
    bytes: u64,
    given: u64,
    evicted: u64,
    dirty: u64,
    unrepaired: u64,
    backlog: u64,
    /// The longest of the last scans.
    scan_ms: u64,
    evictions: u64,
    /// Of the backend with most.
    entry_bytes: u64,
}

impl Sum {
    fn of(cell: &Cell) -> Sum {
        let mut sum = Sum::default();
        for backend in cell.stats() {
            let stats = backend.stats.unwrap_or_default();
            for member in stats.members {
                let repair = member.repair.unwrap_or_default();
                sum.shards += 1;
                sum.scans += repair.scans;
                sum.by_shard.push(repair.scans);
                sum.bytes += repair.bytes;
                sum.given += repair.installed + repair.erased + repair.renewed;
                sum.evicted += repair.evicted;
                sum.dirty += repair.dirty + repair.inquorate;
                sum.unrepaired += repair.scan_unrepaired;
                sum.backlog += repair.backlog;
                sum.scan_ms = sum.scan_ms.max(repair.scan_ms);
                sum.evictions += member.evictions.map_or(0, |evictions| evictions.capacity);
                sum.entry_bytes = sum.entry_bytes.max(member.entry_bytes);
            }
        }
        sum
    }

    /// Values and erasures that replicas were given.
    fn mended(&self) -> u64 {
        self.given
    }

    /// Whether each shard was scanned as often since, and nothing waits.
    fn each_scanned(&self, since: &Sum, times: u64) -> bool {
        let scanned = |(now, then): (&u64, &u64)| *now >= then + times;
        let is_whole = self.by_shard.len() == since.by_shard.len() && self.backlog == 0;
        is_whole && self.by_shard.iter().zip(&since.by_shard).all(scanned)
    }
}

/// Looks until it is enough.
fn wait(
    cell: &Cell,
    patience: Duration,
    mut is_enough: impl FnMut(&Sum) -> bool,
) -> Result<Sum, ScenarioError> {
    let begin = Instant::now();
    while begin.elapsed() < patience {
        let sum = Sum::of(cell);
        if is_enough(&sum) {
            return Ok(sum);
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    let why = format!("not within {patience:?}: {:?}", Sum::of(cell));
    Err(ScenarioError::Course(why))
}

/// One client, which knows what it has written last.
struct Load {
    client: Client,
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

    fn set(&mut self, key: u64, round: u32) -> Result<(), ScenarioError> {
        self.value[..4].copy_from_slice(&round.to_le_bytes());
        let name = key.to_le_bytes();
        let mut trouble = String::new();
        for _ in 0..ATTEMPTS_MAX {
            match self.client.set(&name, &self.value, SetOptions::default()) {
                Ok(Mutated::Stored { .. }) => {
                    self.rounds[key as usize] = round;
                    return Ok(());
                }
                other => trouble = format!("SET of {key}: {other:?}"),
            }
        }
        Err(ScenarioError::Course(trouble))
    }

    /// The round that was found, if any was.
    fn get(&mut self, key: u64) -> Result<Option<u32>, ScenarioError> {
        match self.client.get(&key.to_le_bytes()) {
            Ok(Lookup::Hit(hit)) => Ok(hit.value.first_chunk().map(|r| u32::from_le_bytes(*r))),
            Ok(Lookup::Miss(_)) => Ok(None),
            Err(error) => Err(ScenarioError::Course(format!("GET of {key}: {error}"))),
        }
    }

    /// A key; the lower, the more often.
    fn next_key(&mut self) -> u64 {
        // xorshift: any spread will do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let even = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        (even.powi(3) * self.rounds.len() as f64) as u64
    }

    /// Reads every key: how many are missing or old.
    fn count_lost(&mut self) -> u64 {
        let keys = 0..self.rounds.len() as u64;
        let wanted = self.rounds.clone();
        let mut is_lost = |key: &u64| {
            let found = self.get(*key).ok().flatten();
            found.is_none_or(|round| round < wanted[*key as usize])
        };
        keys.filter(|key| is_lost(key)).count() as u64
    }
}
