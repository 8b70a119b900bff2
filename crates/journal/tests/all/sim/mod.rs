//! A deterministic simulation: the real journal over a simulated disk, a service whose
//! requests are not idempotent, processes that are killed and power that is cut at any
//! access, under a seed.

mod dice;
mod disk;

pub(crate) use dice::Dice;
pub(crate) use disk::SimDisk;

use std::collections::HashSet;
use trefoil_journal::mutants::{self, Mutant};
use trefoil_journal::{JournalError, Log};

pub(crate) const QUEUE: u64 = 0x0de_5eed;
pub(crate) const SALT: u64 = 0x5a17;
const BLOCKS: u64 = 132;

/// What does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    /// An acknowledged request had no effect.
    Acknowledged,
    /// A request had its effect twice.
    Once,
    /// Effects are not in the order of positions.
    Order,
    /// A request that nobody has sent was executed, or in parts.
    Whole,
    /// Somebody was told of an effect that is gone.
    Told,
    /// A journal that was only interrupted does not open.
    Opens,
}

/// What happened, so that a run in which nothing happens is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) acknowledged: u64,
    pub(crate) replayed: u64,
    pub(crate) unacknowledged_executed: u64,
    pub(crate) lost: u64,
    pub(crate) cuts: u64,
    pub(crate) kills: u64,
    pub(crate) failures: u64,
    pub(crate) reads_failed: u64,
    pub(crate) releases: u64,
    pub(crate) laps: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, other: Stats) {
        self.acknowledged += other.acknowledged;
        self.replayed += other.replayed;
        self.unacknowledged_executed += other.unacknowledged_executed;
        self.lost += other.lost;
        self.cuts += other.cuts;
        self.kills += other.kills;
        self.failures += other.failures;
        self.reads_failed += other.reads_failed;
        self.releases += other.releases;
        self.laps += other.laps;
    }
}

/// Appends the number of each request to a list: twice the same is seen.
#[derive(Clone, Debug, Default)]
struct State {
    position: u64,
    effects: Vec<u64>,
}

struct World {
    dice: Dice,
    disk: SimDisk,
    persistent: State,
    acknowledged: Vec<u64>,
    sent: u64,
    /// Beginnings of the list that somebody was told of: their lengths and last numbers.
    told: Vec<(usize, u64)>,
    stats: Stats,
    violation: Option<(Property, String)>,
}

fn payload(id: u64, len: usize) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend((0..len).map(|at| (id as usize + at) as u8));
    bytes
}

impl World {
    fn violate(&mut self, property: Property, detail: String) {
        self.violation.get_or_insert((property, detail));
    }

    fn open(&mut self, volatile: &mut State) -> Result<Log<SimDisk>, JournalError> {
        let mut replayed = Vec::new();
        let log = Log::open(self.disk.clone(), QUEUE, volatile.position, |record| {
            replayed.push((record.position, record.request_id, record.payload.to_vec()));
        })?;
        for (position, id, bytes) in replayed {
            self.stats.replayed += 1;
            if bytes != payload(id, bytes.len().saturating_sub(8)) || id > self.sent {
                self.violate(Property::Whole, format!("{id} at {position}"));
            }
            volatile.position = volatile.position.max(position);
            volatile.effects.push(id);
        }
        Ok(log)
    }

    /// One life, until something ends it.
    fn live(&mut self) -> Result<(), JournalError> {
        let mut volatile = self.persistent.clone();
        let mut log = self.open(&mut volatile)?;
        // Groups of very different lengths: the ring is gone round often.
        let is_large = self.dice.once_in(2);
        // Its room is given back at the last moment, and used at once.
        let is_lazy = self.dice.once_in(3);
        loop {
            let mut group = Vec::new();
            for _ in 0..1 + self.dice.below(4) {
                let len = match is_large && self.dice.once_in(2) {
                    true => self.dice.below(60_000) as usize,
                    false => self.dice.below(200) as usize,
                };
                let bytes = payload(self.sent + 1, len);
                if !log.has_room(bytes.len()) {
                    break;
                }
                self.sent += 1;
                let position = log.push(1, self.sent, true, &bytes);
                group.push((position, self.sent));
            }
            let is_early = mutants::is(Mutant::ExecutedEarly);
            if is_early {
                self.execute(&mut volatile, &group);
            }
            if let Err(error) = log.commit() {
                return Err(self.fail(error, &mut log));
            }
            self.acknowledged.extend(group.iter().map(|(_, id)| id));
            self.stats.acknowledged += group.len() as u64;
            if !is_early {
                self.execute(&mut volatile, &group);
            }
            let is_full = group.is_empty();
            let is_due = log.is_tight() && self.dice.once_in(2) || self.dice.once_in(12);
            if is_full || is_due && !is_lazy {
                let is_early = mutants::is(Mutant::ReleasedEarly);
                if !is_early {
                    self.checkpoint(&volatile)?;
                }
                if let Err(error) = log.release(volatile.position) {
                    return Err(self.fail(error, &mut log));
                }
                if is_early {
                    self.checkpoint(&volatile)?;
                }
                self.stats.releases += 1;
            }
            if self.disk.writes() > 400 {
                self.disk.crash_soon(1);
            }
        }
    }

    /// The life ends, but for somebody who goes on as if nothing had been.
    fn fail(&mut self, error: JournalError, log: &mut Log<SimDisk>) -> JournalError {
        if !matches!(error, JournalError::Io { .. }) || !self.disk.is_up() {
            return error;
        }
        self.stats.failures += 1;
        for _ in 0..8 {
            self.sent += 1;
            let bytes = payload(self.sent, self.dice.below(40_000) as usize);
            if !log.has_room(bytes.len()) {
                break;
            }
            log.push(1, self.sent, true, &bytes);
            if log.commit().is_ok() {
                self.acknowledged.push(self.sent);
            }
        }
        error
    }

    fn execute(&mut self, volatile: &mut State, group: &[(u64, u64)]) {
        for (position, id) in group {
            volatile.position = *position;
            volatile.effects.push(*id);
        }
        if self.dice.once_in(3)
            && let Some(last) = volatile.effects.last()
        {
            self.told.push((volatile.effects.len(), *last));
        }
    }

    /// The service's own persistence: both or neither.
    fn checkpoint(&mut self, volatile: &State) -> Result<(), JournalError> {
        if mutants::is(Mutant::PositionApart) {
            self.persistent.effects = volatile.effects.clone();
            self.disk.step_of_another()?;
            self.persistent.position = volatile.position;
            return Ok(());
        }
        self.disk.step_of_another()?;
        self.persistent = volatile.clone();
        Ok(())
    }

    /// The last opening, undisturbed, and what came of it all.
    fn judge(&mut self) {
        self.disk.calm();
        let mut last = self.persistent.clone();
        if let Err(error) = self.open(&mut last) {
            self.violate(Property::Opens, error.to_string());
            return;
        }
        let effects = last.effects;
        let mut seen = HashSet::new();
        for id in &effects {
            if !seen.insert(*id) {
                self.violate(Property::Once, format!("{id}"));
            }
        }
        let acknowledged: HashSet<u64> = self.acknowledged.iter().copied().collect();
        for id in &acknowledged {
            if !seen.contains(id) {
                self.violate(Property::Acknowledged, format!("{id}"));
            }
        }
        if !effects.is_sorted() {
            self.violate(Property::Order, format!("{effects:?}"));
        }
        for (len, id) in std::mem::take(&mut self.told) {
            if effects.get(len - 1) != Some(&id) {
                self.violate(Property::Told, format!("{id} as number {len}"));
            }
        }
        let unknown = seen.difference(&acknowledged).count() as u64;
        self.stats.unacknowledged_executed += unknown;
        self.stats.lost += self.sent - seen.len() as u64;
    }
}

/// One run: a few lives, and an end.
pub(crate) fn run(seed: u64) -> (Stats, Option<(Property, String)>) {
    let dice = Dice::new(seed);
    let mut disk = SimDisk::new(BLOCKS, Dice::new(seed ^ 0xd15c));
    Log::format(&mut disk, QUEUE, SALT).expect("a calm disk");
    let mut world = World {
        dice,
        disk,
        persistent: State::default(),
        acknowledged: Vec::new(),
        sent: 0,
        told: Vec::new(),
        stats: Stats::default(),
        violation: None,
    };
    for _ in 0..2 + world.dice.below(4) {
        let accesses = match world.dice.below(4) {
            // Amid the recovery, too.
            0 => 1 + world.dice.below(24),
            _ => 1 + world.dice.below(200),
        };
        world.disk.crash_soon(accesses);
        let fails = world.dice.once_in(3);
        world.disk.fail_sometimes(fails);
        let ended = world.live();
        match ended {
            Err(JournalError::Io { .. } | JournalError::Failed { .. }) => {}
            Err(other) => {
                world.violate(Property::Opens, other.to_string());
                break;
            }
            Ok(()) => unreachable!("a life has no end of its own"),
        }
        if world.dice.once_in(2) {
            world.disk.cut_power();
            world.stats.cuts += 1;
        } else {
            world.disk.calm();
            world.stats.kills += 1;
        }
    }
    // What was in a cache only is gone at the end.
    if world.dice.once_in(2) && world.violation.is_none() {
        let mut volatile = world.persistent.clone();
        world.disk.calm();
        match world.open(&mut volatile) {
            Ok(_) => {
                // A read, right after the recovery.
                if let Some(last) = volatile.effects.last() {
                    world.told.push((volatile.effects.len(), *last));
                }
            }
            Err(error) => world.violate(Property::Opens, error.to_string()),
        }
        world.disk.cut_power();
    }
    if world.violation.is_none() {
        world.judge();
    }
    world.stats.laps = world.disk.laps();
    world.stats.reads_failed = world.disk.reads_failed();
    (world.stats, world.violation)
}
