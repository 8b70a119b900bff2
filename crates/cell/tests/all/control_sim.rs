//! Controllers, backends and spares over a store with leases, while everything goes wrong:
//! processes are killed and suspended, cut off from the store, the store is away, writes
//! arrive late. Time is simulated; a failure names its seed.

use crate::control::{config, registered, spare};
use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_cell::control::{
    Controller, Health, Key, Leader, Plan, Replacement, Rules, Spare, View,
};
use trefoil_cell::{CellConfig, Mode};

const TICK: u64 = 200;
const LEASE: u64 = 10_000;
const DEAD_AFTER: u64 = 20_000;
/// How long faults go on, and how long everything has to settle.
const TROUBLE: u64 = 400_000;
const PEACE: u64 = 200_000;
const SEEDS: u64 = 200;
/// Replacements that are remembered.
const REPLACEMENTS_KEPT: usize = 16;
/// At most, until a mutant is caught.
const SEEDS_OF_MUTANT: u64 = 2_000;

/// A rule that is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// The write does not name the leader.
    LeaderNotNamed,
    /// Nor the configuration that it follows.
    ConfigNotNamed,
    /// Nor that, nor the record of replacements, which is another key.
    RecordNotNamed,
    /// Nor that nobody is the backend.
    RegistrationNotNamed,
    /// Nor the spare.
    SpareNotNamed,
    /// What was counted before the store was away counts.
    OutageCounts,
    /// Nobody is asked how he is.
    HealthIgnored,
}

impl Mutant {
    const ALL: [Mutant; 7] = [
        Mutant::LeaderNotNamed,
        Mutant::ConfigNotNamed,
        Mutant::RecordNotNamed,
        Mutant::RegistrationNotNamed,
        Mutant::SpareNotNamed,
        Mutant::OutageCounts,
        Mutant::HealthIgnored,
    ];

    fn drops(self, key: &Key) -> bool {
        matches!(
            (self, key),
            (Mutant::LeaderNotNamed, Key::Leader)
                | (Mutant::ConfigNotNamed, Key::Config)
                | (Mutant::RecordNotNamed, Key::Config | Key::Replacements)
                | (Mutant::RegistrationNotNamed, Key::Backend(_))
                | (Mutant::SpareNotNamed, Key::Spare(_))
        )
    }
}

/// What must never be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Violation {
    /// Somebody is registered as the backend whose place is given away.
    Registered,
    /// It was gone for too short a time, or the store was away in that time.
    TooEarly,
    /// A write by one who does not lead.
    Unelected,
    /// A change of the configuration in between was undone.
    LostUpdate,
    /// A place for a process that is dead, or has one.
    NoSpare,
    /// A replacement is not remembered any more: the next one would not wait for it.
    Forgotten,
    /// Another copy was not whole, or the last replacement has not recovered.
    Quorum,
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Once in so many times.
    fn once_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A key's revision, and the end of its lease.
#[derive(Clone, Copy)]
struct Meta {
    revision: i64,
    lease_end: Option<u64>,
}

/// etcd, as far as this is about it.
struct Store {
    up: bool,
    up_since: u64,
    keys: BTreeMap<Key, Meta>,
    revision: i64,
    config: CellConfig,
    replacements: Vec<Replacement>,
    spares: BTreeMap<String, Spare>,
    /// Which process is the leader, or which backend.
    leader: usize,
    holders: BTreeMap<u32, usize>,
    gone_since: BTreeMap<u32, u64>,
}

impl Store {
    fn write(&mut self, key: &Key, lease_end: Option<u64>) -> i64 {
        self.revision += 1;
        let revision = self.revision;
        self.keys.insert(
            key.clone(),
            Meta {
                revision,
                lease_end,
            },
        );
        revision
    }

    fn revision_of(&self, key: &Key) -> i64 {
        self.keys.get(key).map_or(0, |meta| meta.revision)
    }

    fn remove(&mut self, key: &Key, now: u64) {
        self.keys.remove(key);
        match key {
            Key::Backend(number) => {
                self.holders.remove(number);
                self.gone_since.insert(*number, now);
            }
            Key::Spare(name) => drop(self.spares.remove(name)),
            _ => {}
        }
    }

    /// Leases end only while it is up.
    fn expire(&mut self, now: u64) {
        let is_over = |meta: &Meta| meta.lease_end.is_some_and(|end| end <= now);
        let over: Vec<Key> = self
            .keys
            .iter()
            .filter(|(_, meta)| is_over(meta))
            .map(|(key, _)| key.clone())
            .collect();
        over.iter().for_each(|key| self.remove(key, now));
    }

    /// Extends the lease of a key at this revision; whether it still is that.
    fn extend(&mut self, key: &Key, revision: i64, now: u64) -> bool {
        match self.keys.get_mut(key) {
            Some(meta) if meta.revision == revision => {
                meta.lease_end = Some(now + LEASE);
                true
            }
            _ => false,
        }
    }

    fn view(&self) -> View {
        let leader = self.keys.contains_key(&Key::Leader).then(|| Leader {
            name: self.leader.to_string(),
            process: 0,
            host: String::new(),
        });
        View {
            config: self.config.clone(),
            incarnations: BTreeMap::new(),
            backends: self.holders.keys().map(|n| (*n, registered())).collect(),
            spares: self.spares.values().cloned().collect(),
            leader,
            replacements: self.replacements.clone(),
            revisions: self
                .keys
                .iter()
                .map(|(k, m)| (k.clone(), m.revision))
                .collect(),
        }
    }
}

/// A backend, or a spare.
struct Process {
    spare: Spare,
    alive: bool,
    /// Until then it does nothing.
    stopped_until: u64,
    cut_off_until: u64,
    back_at: Option<u64>,
    key: Option<(Key, i64)>,
    /// The backend that it is, and since when it votes.
    serves: Option<(u32, u64)>,
    next_at: u64,
}

impl Process {
    fn runs(&self, now: u64) -> bool {
        self.alive && now >= self.stopped_until
    }
}

struct Deciding {
    controller: Controller,
    stopped_until: u64,
    cut_off_until: u64,
    leads: Option<i64>,
    next_at: u64,
}

/// A write on its way.
struct Late {
    arrives: u64,
    from: usize,
    plan: Plan,
    /// The configuration it was made from.
    before: CellConfig,
    decided: u64,
    up_since: u64,
    /// How the others really were when they were asked.
    was_whole: bool,
}

struct World {
    now: u64,
    rng: Rng,
    mutant: Option<Mutant>,
    store: Store,
    processes: Vec<Process>,
    controllers: Vec<Deciding>,
    late: Vec<Late>,
    violations: Vec<Violation>,
    replaced: u64,
    refused: u64,
}

impl World {
    fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut rng = Rng(seed);
        let count = [3, 5, 6][rng.below(3) as usize];
        let config = config(Mode::R32, count);
        let process = |mut own: Spare, addresses: Option<&CellConfig>, number: u32| {
            if let Some(config) = addresses {
                own.addresses = config.backends[number as usize].addresses.clone();
            }
            Process {
                spare: own,
                alive: true,
                stopped_until: 0,
                cut_off_until: 0,
                back_at: None,
                key: None,
                serves: addresses.map(|_| (number, 0)),
                next_at: 0,
            }
        };
        let backends = (0..count).map(|n| process(spare(&format!("b{n}")), Some(&config), n));
        let spares = (0..4).map(|n| process(spare(&format!("s{n}")), None, 0));
        let processes = backends.chain(spares).collect();
        let rules = Rules {
            dead_after: Duration::from_millis(DEAD_AFTER),
            replace_lost: false,
        };
        let deciding = |_| Deciding {
            controller: Controller::new(rules),
            stopped_until: 0,
            cut_off_until: 0,
            leads: None,
            next_at: 0,
        };
        let mut store = Store {
            up: true,
            up_since: 0,
            keys: BTreeMap::new(),
            revision: 0,
            config,
            replacements: Vec::new(),
            spares: BTreeMap::new(),
            leader: 0,
            holders: BTreeMap::new(),
            gone_since: BTreeMap::new(),
        };
        store.write(&Key::Config, None);
        World {
            now: 0,
            rng,
            mutant,
            store,
            processes,
            controllers: (0..3).map(deciding).collect(),
            late: Vec::new(),
            violations: Vec::new(),
            replaced: 0,
            refused: 0,
        }
    }

    fn run(mut self) -> Self {
        while self.now < TROUBLE + PEACE {
            self.now += TICK;
            match self.now < TROUBLE {
                true => self.trouble(),
                false => self.store_comes_back(),
            }
            if self.store.up {
                self.store.expire(self.now);
            }
            for index in 0..self.processes.len() {
                self.process(index);
            }
            for index in 0..self.controllers.len() {
                self.decide(index);
            }
            self.arrive();
        }
        self
    }

    fn trouble(&mut self) {
        let now = self.now;
        if self.rng.once_in(1500) && self.store.up {
            self.store.up = false;
            self.store.up_since = now + 1_000 + self.rng.below(40_000);
        }
        self.store_comes_back();
        if self.store.up && self.rng.once_in(200) {
            // A flush.
            let floor = self.store.config.flush_floor;
            self.store.config = self.store.config.flushed(floor).unwrap();
            self.store.write(&Key::Config, None);
        }
        let count = self.processes.len() as u64;
        if self.rng.once_in(400) {
            let back = self
                .rng
                .once_in(2)
                .then(|| now + 500 + self.rng.below(60_000));
            let index = self.rng.below(count) as usize;
            let process = &mut self.processes[index];
            (process.alive, process.back_at) = (false, back);
        }
        if self.rng.once_in(300) {
            let until = now + self.rng.below(60_000);
            let index = self.rng.below(count) as usize;
            match self.rng.once_in(2) {
                true => self.processes[index].stopped_until = until,
                false => self.processes[index].cut_off_until = until,
            }
        }
        if self.rng.once_in(100) {
            let until = now + self.rng.below(40_000);
            let index = self.rng.below(self.controllers.len() as u64) as usize;
            match self.rng.once_in(2) {
                true => self.controllers[index].stopped_until = until,
                false => self.controllers[index].cut_off_until = until,
            }
        }
    }

    fn store_comes_back(&mut self) {
        let now = self.now;
        if self.store.up || now < self.store.up_since {
            return;
        }
        self.store.up = true;
        // A member that comes back gives every lease its whole time again.
        for meta in self.store.keys.values_mut() {
            meta.lease_end = meta.lease_end.map(|_| now + LEASE);
        }
    }

    /// A process registers, renews, learns of its place.
    fn process(&mut self, index: usize) {
        let now = self.now;
        let process = &mut self.processes[index];
        if process.back_at.is_some_and(|at| now >= at) || now == TROUBLE && !process.alive {
            // Started again, empty, with what it was started with.
            (process.alive, process.back_at, process.key) = (true, None, None);
            process.serves = None;
        }
        let reaches = self.store.up && now >= process.cut_off_until;
        if !process.runs(now) || !reaches || now < process.next_at {
            return;
        }
        process.next_at = now + LEASE / 3;
        let addresses = &process.spare.addresses;
        let mut backends = self.store.config.backends.iter();
        let place = backends
            .find(|b| b.addresses == *addresses)
            .map(|b| b.number);
        let is_spare = process.spare.name.starts_with('s');
        let key = match place {
            Some(number) => Key::Backend(number),
            None if is_spare => Key::Spare(process.spare.name.clone()),
            None => {
                // Its place is another's: it never serves again. It is started as a spare.
                let name = format!("s{index}-{now}");
                (process.spare, process.serves) = (spare(&name), None);
                process.key = None;
                process.stopped_until = now + 5_000;
                return;
            }
        };
        if let Some((own, revision)) = &process.key
            && *own == key
            && self.store.extend(own, *revision, now)
        {
            return;
        }
        if self.store.revision_of(&key) != 0 {
            return;
        }
        if let Some((old, revision)) = process.key.take()
            && self.store.revision_of(&old) == revision
        {
            self.store.remove(&old, now);
        }
        let revision = self.store.write(&key, Some(now + LEASE));
        match &key {
            Key::Backend(number) => {
                self.store.holders.insert(*number, index);
                if process.serves.is_none_or(|(serves, _)| serves != *number) {
                    let takes = 1_000 + self.rng.below(10_000);
                    process.serves = Some((*number, now + takes));
                }
            }
            _ => {
                let spare = process.spare.clone();
                self.store.spares.insert(spare.name.clone(), spare);
            }
        }
        process.key = Some((key, revision));
    }

    /// How the process is that has a place, really.
    fn health(&self, number: u32) -> Health {
        let place = &self.store.config.backends[number as usize];
        let holder = self
            .processes
            .iter()
            .find(|p| p.spare.addresses == place.addresses);
        match holder {
            Some(process) if process.runs(self.now) => match process.serves {
                Some((serves, since)) if serves == number && self.now >= since => Health::Votes,
                Some((serves, _)) if serves == number => Health::Recovers,
                _ => Health::Silent,
            },
            _ => Health::Silent,
        }
    }

    fn decide(&mut self, index: usize) {
        let now = self.now;
        let deciding = &mut self.controllers[index];
        if now < deciding.stopped_until || now < deciding.next_at {
            return;
        }
        deciding.next_at = now + 1_000;
        if !self.store.up || now < deciding.cut_off_until {
            if self.mutant != Some(Mutant::OutageCounts) {
                deciding.controller.away();
            }
            return;
        }
        if let Some(revision) = deciding.leads
            && !self.store.extend(&Key::Leader, revision, now)
        {
            deciding.leads = None;
        }
        let view = self.store.view();
        let due = deciding.controller.look(Duration::from_millis(now), &view);
        if deciding.leads.is_none() {
            if view.revision(&Key::Leader) == 0 {
                let revision = self.store.write(&Key::Leader, Some(now + LEASE));
                self.store.leader = index;
                deciding.leads = Some(revision);
            }
            return;
        }
        if due.is_empty() {
            return;
        }
        let numbers: Vec<u32> = view.config.backends.iter().map(|b| b.number).collect();
        let really: BTreeMap<u32, Health> = numbers.iter().map(|n| (*n, self.health(*n))).collect();
        let mut asked = really.clone();
        // A question that is lost.
        for health in asked.values_mut() {
            if self.rng.once_in(10) {
                *health = Health::Silent;
            }
        }
        if self.mutant == Some(Mutant::HealthIgnored) {
            for (number, health) in &mut asked {
                *health = match due.contains(number) {
                    true => Health::Silent,
                    false => Health::Votes,
                };
            }
        }
        let deciding = &self.controllers[index];
        match deciding.controller.decide(&view, &due, &asked, now) {
            Ok(None) => {}
            Err(_) => self.refused += 1,
            Ok(Some(mut plan)) => {
                let backend = plan.replacement().unwrap().backend;
                let placement = view.config.placement();
                let shares = |other: u32| {
                    numbers.iter().any(|shard| {
                        let cohort = placement.cohort_of_shard(*shard);
                        let cohort = cohort.as_slice();
                        cohort.contains(&backend) && cohort.contains(&other)
                    })
                };
                let last = view.replacements.last().map(|last| last.backend);
                let has_to_vote = |n: &u32| *n != backend && (shares(*n) || Some(*n) == last);
                let mut others = numbers.iter().filter(|n| has_to_vote(n));
                let was_whole = others.all(|n| really[n] == Health::Votes);
                let mutant = self.mutant;
                plan.conditions
                    .retain(|(key, _)| !mutant.is_some_and(|m| m.drops(key)));
                let delay = match self.rng.once_in(2) {
                    true => 0,
                    false => self.rng.below(30_000),
                };
                // What makes a write late, as a rule.
                if self.rng.once_in(2) {
                    self.controllers[index].stopped_until = now + delay;
                }
                self.late.push(Late {
                    arrives: now + delay,
                    from: index,
                    plan,
                    before: view.config,
                    decided: now,
                    up_since: self.store.up_since,
                    was_whole,
                });
            }
        }
    }

    /// Writes that come to the store, however late.
    fn arrive(&mut self) {
        if !self.store.up {
            return;
        }
        let now = self.now;
        let (come, on_the_way) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|late| late.arrives <= now);
        self.late = on_the_way;
        let come: Vec<Late> = come;
        for late in come {
            let holds = |(key, revision): &(Key, i64)| self.store.revision_of(key) == *revision;
            if late.plan.conditions.iter().all(holds) {
                self.check(&late);
                self.store.config = late.plan.config;
                self.store.replacements = late.plan.replacements;
                self.store.write(&Key::Config, None);
                self.store.write(&Key::Replacements, None);
                self.replaced += 1;
            }
        }
    }

    fn check(&mut self, late: &Late) {
        let replacement = late.plan.replacement().unwrap();
        let (store, backend) = (&self.store, replacement.backend);
        let mut found = Vec::new();
        let mut must = |holds: bool, violation| {
            if !holds {
                found.push(violation);
            }
        };
        must(
            !store.keys.contains_key(&Key::Backend(backend)),
            Violation::Registered,
        );
        let gone_since = store.gone_since.get(&backend).copied().unwrap_or(0);
        let is_long = |since: u64| late.decided.saturating_sub(since) >= DEAD_AFTER;
        must(
            is_long(gone_since) && is_long(late.up_since) || gone_since > late.decided,
            Violation::TooEarly,
        );
        let leads = store.keys.contains_key(&Key::Leader) && store.leader == late.from;
        must(leads, Violation::Unelected);
        must(store.config == late.before, Violation::LostUpdate);
        let (_, remembered) = late.plan.replacements.split_last().unwrap();
        must(
            store.replacements.ends_with(remembered),
            Violation::Forgotten,
        );
        must(
            remembered.len() + 1 >= REPLACEMENTS_KEPT || remembered == store.replacements,
            Violation::Forgotten,
        );
        let spares = store.spares.values();
        let is_there = spares.into_iter().any(|s| s.addresses == replacement.to);
        let has_place = store
            .config
            .backends
            .iter()
            .any(|b| b.addresses == replacement.to);
        must(is_there && !has_place, Violation::NoSpare);
        must(late.was_whole, Violation::Quorum);
        self.violations.extend(found);
    }
}

#[test]
fn nobody_is_replaced_who_should_not_be() {
    let (mut replaced, mut refused) = (0, 0);
    for seed in 0..SEEDS {
        let world = World::new(seed, None).run();
        assert!(
            world.violations.is_empty(),
            "seed {seed}: {:?}",
            world.violations
        );
        replaced += world.replaced;
        refused += world.refused;
        // In the end every place is somebody's, if there was anybody for it.
        let holders = &world.store.holders;
        for backend in &world.store.config.backends {
            let number = backend.number;
            let is_whole = world.health(number) == Health::Votes && holders.contains_key(&number);
            let is_hopeless = world.store.spares.is_empty();
            assert!(
                is_whole || is_hopeless,
                "seed {seed}: nobody is backend {number}"
            );
        }
    }
    eprintln!("{replaced} replacements, {refused} times none");
    assert!(replaced > SEEDS && refused > SEEDS, "{replaced}, {refused}");
}

/// The record is a key of its own, and named as one: also where a plan does not see that the
/// configuration has changed, no replacement is forgotten.
#[test]
fn the_record_of_replacements_is_not_overwritten() {
    let mut undone = 0;
    for seed in 0..SEEDS {
        let world = World::new(seed, Some(Mutant::ConfigNotNamed)).run();
        let forgotten = world.violations.contains(&Violation::Forgotten);
        assert!(!forgotten, "seed {seed}");
        undone += u64::from(world.violations.contains(&Violation::LostUpdate));
    }
    assert!(undone > 0, "nothing was written late");
}

#[test]
fn each_rule_is_needed() {
    for mutant in Mutant::ALL {
        let expected = match mutant {
            Mutant::LeaderNotNamed => Violation::Unelected,
            Mutant::ConfigNotNamed => Violation::LostUpdate,
            Mutant::RecordNotNamed => Violation::Forgotten,
            Mutant::RegistrationNotNamed => Violation::Registered,
            Mutant::SpareNotNamed => Violation::NoSpare,
            Mutant::OutageCounts => Violation::TooEarly,
            Mutant::HealthIgnored => Violation::Quorum,
        };
        let finds = |seed: &u64| {
            World::new(*seed, Some(mutant))
                .run()
                .violations
                .contains(&expected)
        };
        let seed = (0..SEEDS_OF_MUTANT).find(finds);
        let seed = seed.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
        eprintln!("{mutant:?}: {expected:?} at seed {seed}");
    }
}
