//! Everything but the clients: backends with their stores, messages on their
//! way, time, and the troubles that the profile calls for.
//!
//! All of it can be reached through shared references, because things happen
//! at a backend while a client's read of its memory is under way: the reader's
//! words ([`crate::reads`]) call [`Env::interleave`] between two loads.

use crate::profile::Profile;
use crate::rng::Rng;
use crate::stats::{Mark, Stats};
use crate::trace::Trace;
use crate::value;
use std::cell::{Cell, RefCell};
use trefoil_client_core::clock::VersionClock;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Ack, Action, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHash, KeyHasher, ShardMap, Version};
use trefoil_store::{Now, Regions, Store, StoreConfig};

/// The moment at which every run begins, in nanoseconds since the Unix epoch.
pub(crate) const BEGIN_UNIX_NS: u64 = 1_700_000_000_000_000_000;

/// Home buckets of a small store's first index (a page of buckets, less the
/// spill buckets).
const BUCKETS_FIRST: u64 = 5;

/// A key whose history is checked.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) bytes: Vec<u8>,
    pub(crate) hash: KeyHash,
    /// Its replicas' members begin here in [`Env::members`].
    pub(crate) first_member: usize,
}

/// One backend's part in one cohort: a shard of its store.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) backend: usize,
    /// Its place in the cohort: its store's own number for the shard.
    pub(crate) place: usize,
}

/// How far an incarnation of a backend is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Executes messages and votes, but for shards that are recovering.
    Serving,
    /// Executes nothing any more; its memory stays readable.
    Dead,
}

/// One incarnation of a backend: its store, with all its shards, and what others
/// may still map of it.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) store: Store,
    pub(crate) backend: usize,
    pub(crate) life: Cell<Life>,
    /// The end of a dead one's lease. The living renew theirs.
    pub(crate) lease_end_ns: Cell<u64>,
}

/// A mutation on its way to a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) member: usize,
    pub(crate) client: usize,
    pub(crate) operation: u32,
    pub(crate) replica: usize,
    pub(crate) action: Action,
    pub(crate) key: usize,
    pub(crate) version: Version,
    pub(crate) expiry_ms: u64,
    /// A second arrival of one message.
    pub(crate) is_copy: bool,
    /// Does not arrive before this step.
    pub(crate) due: u64,
}

/// An answer on its way to a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) client: usize,
    pub(crate) operation: u32,
    pub(crate) replica: usize,
    pub(crate) version: Version,
    pub(crate) ack: Ack,
    /// Does not arrive before this step.
    pub(crate) due: u64,
}

/// See the module.
pub(crate) struct Env<'t> {
    pub(crate) profile: Profile,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace<'t>,
    pub(crate) time_ns: Cell<u64>,
    pub(crate) step: Cell<u64>,
    pub(crate) keys: Vec<Key>,
    pub(crate) members: Vec<Member>,
    pub(crate) instances: Vec<Instance>,
    /// Each backend's incarnation now: the last one made for it.
    pub(crate) serving: Vec<usize>,
    pub(crate) messages: RefCell<Vec<Message>>,
    pub(crate) answers: RefCell<Vec<Answer>>,
    pub(crate) stats: RefCell<Stats>,
    /// Each client's operation now: a message of another one is late.
    pub(crate) operations: Vec<Cell<u32>>,
    /// The backend that is to crash next, if it was chosen.
    pub(crate) victim: Cell<Option<usize>>,
    /// The client whose GET is to be all that is under way in a calm run,
    /// messages of what has ended apart: it must find a quorum.
    pub(crate) alone: Cell<Option<usize>>,
    /// That GET found survivors that disagree: what it does next, still alone, is
    /// a CAS that expects no value.
    pub(crate) heals: Cell<bool>,
    /// Keys that nobody watches, and the first members of their cohorts.
    fillers: Vec<(Vec<u8>, usize)>,
    filler_clock: RefCell<VersionClock>,
    value: RefCell<Vec<u8>>,
    /// Loads until something happens in the middle of a read.
    pub(crate) countdown: Cell<u32>,
}

impl<'t> Env<'t> {
    pub(crate) fn new(profile: Profile, rng: Rng, trace: Trace<'t>) -> Self {
        let hasher = KeyHasher::default();
        let mut env = Env {
            time_ns: Cell::new(1),
            step: Cell::new(0),
            keys: Vec::new(),
            members: Vec::new(),
            instances: Vec::new(),
            serving: Vec::new(),
            messages: RefCell::default(),
            answers: RefCell::default(),
            stats: RefCell::default(),
            operations: vec![Cell::new(0); profile.clients],
            victim: Cell::new(None),
            alone: Cell::new(None),
            heals: Cell::new(false),
            fillers: Vec::new(),
            filler_clock: RefCell::new(VersionClock::new(0xf1_11e5)),
            value: RefCell::default(),
            countdown: Cell::new(u32::MAX),
            profile,
            rng,
            trace,
        };
        env.place_keys(hasher);
        for backend in 0..env.profile.backends {
            let instance = env.instance(backend);
            env.instances.push(instance);
            env.serving.push(backend);
        }
        for filler in 0..env.profile.fillers_first {
            let first = env.fillers[filler].1;
            for member in first..first + env.profile.replicas {
                env.write_filler(env.current(member), filler);
            }
        }
        env
    }

    /// Chooses keys that live in at most two cohorts, and makes the members of
    /// these.
    fn place_keys(&mut self, hasher: KeyHasher) {
        let profile = &self.profile;
        let backends = profile.backends as u64;
        let placement = profile.placement();
        let first = self.rng.below(backends) as u32;
        let second = if profile.crowded {
            first
        } else {
            self.rng.below(backends) as u32
        };
        let mut cohorts: Vec<u32> = Vec::new();
        let mut name = self.rng.below(1 << 20);
        // Where the first key lives, for crowded runs.
        let mut home = None;
        let place = |hash: KeyHash| {
            (
                hash.sub_partition(profile.partitions),
                hash.bucket(BUCKETS_FIRST),
            )
        };
        while self.keys.len() < profile.keys {
            name += 1;
            let bytes = format!("key-{name}").into_bytes();
            let hash = hasher.hash(&bytes);
            let shard = placement.first(hash);
            let fits = shard == first || shard == second;
            if !fits || (profile.crowded && home.is_some_and(|home| home != place(hash))) {
                continue;
            }
            home = Some(place(hash));
            let cohort = cohorts.iter().position(|c| *c == shard);
            let cohort = cohort.unwrap_or_else(|| {
                cohorts.push(shard);
                cohorts.len() - 1
            });
            self.keys.push(Key {
                bytes,
                hash,
                first_member: cohort * profile.replicas,
            });
        }
        for shard in &cohorts {
            let cohort = placement.cohort_of_shard(*shard);
            for (place, backend) in cohort.as_slice().iter().enumerate() {
                let backend = *backend as usize;
                self.members.push(Member { backend, place });
            }
        }
        while self.fillers.len() < profile.filler_keys {
            name += 1;
            let bytes = format!("filler-{name}").into_bytes();
            let hash = hasher.hash(&bytes);
            let shard = placement.first(hash);
            if let Some(cohort) = cohorts.iter().position(|c| *c == shard)
                && (!profile.crowded || home == Some(place(hash)))
            {
                self.fillers.push((bytes, cohort * profile.replicas));
            }
        }
    }

    /// A backend was away while some keys were written, some replicas have
    /// evicted, and then another backend dies. Gives what the replicas of each
    /// key hold; the one that dies comes last.
    pub(crate) fn part_survivors(&self) -> Vec<[Option<Version>; 3]> {
        let victim = self.rng.index(self.profile.backends);
        let mut held = Vec::new();
        for (key, about) in self.keys.iter().enumerate() {
            let versions = [2, 1].map(|seconds| {
                let time_ns = BEGIN_UNIX_NS - seconds * 10_000_000_000;
                Version::new(time_ns, 7, key as u32)
            });
            let mut of_key = Vec::new();
            for place in 0..3 {
                let member = about.first_member + place;
                let version = self.rng.pick(&[None, Some(versions[0]), Some(versions[1])]);
                if let Some(version) = version {
                    self.execute(
                        self.current(member),
                        &Message {
                            member,
                            client: 0,
                            operation: 0,
                            replica: place,
                            action: Action::Set,
                            key,
                            version,
                            expiry_ms: 0,
                            is_copy: false,
                            due: 0,
                        },
                    );
                }
                of_key.push((self.members[member].backend == victim, version));
            }
            of_key.sort_by_key(|(dies, _)| *dies);
            held.push([of_key[0].1, of_key[1].1, of_key[2].1]);
        }
        self.crash(victim);
        for instance in &self.instances {
            instance.lease_end_ns.set(match instance.life.get() {
                Life::Dead => 0,
                _ => u64::MAX,
            });
        }
        held
    }

    /// A fresh, empty incarnation.
    pub(crate) fn instance(&self, backend: usize) -> Instance {
        let profile = &self.profile;
        let shards = profile.replicas as u64;
        let partition_count = profile.partitions * profile.replicas;
        let config = StoreConfig {
            partition_count,
            shards: ShardMap::new(profile.placement(), backend as u32),
            config_id: 1,
            incarnation: self.instances.len() as u64 + 1,
            policy: profile.policy,
            memory_limit: profile.memory_max * shards,
            value_len_max: 64 << 10,
            objects_max: (profile.objects_max > 0)
                .then_some(profile.objects_max * partition_count as u64),
            tombstone_count_max: profile.tombstones,
            ..StoreConfig::default()
        };
        let store = Store::new(config, Regions::heap(profile.memory_max * shards))
            .expect("every profile's memory holds an empty store");
        Instance {
            store,
            backend,
            life: Cell::new(Life::Serving),
            lease_end_ns: Cell::new(u64::MAX),
        }
    }

    /// The wall clock of all backends.
    pub(crate) fn now(&self) -> Now {
        Now::at(BEGIN_UNIX_NS + self.time_ns.get())
    }

    pub(crate) fn pass_time(&self) {
        let passed = self.rng.below(self.profile.step_ns);
        self.time_ns.set(self.time_ns.get() + passed);
    }

    /// When something that is sent now can arrive.
    pub(crate) fn due(&self) -> u64 {
        let delay = if self.rng.chance(self.profile.delay) {
            self.rng.below(self.profile.delay_steps)
        } else {
            0
        };
        self.step.get() + delay
    }

    pub(crate) fn mark(&self, mark: Mark) {
        self.stats.borrow_mut().add_mark(mark, 1);
    }

    /// Whether a replica of this key is down.
    pub(crate) fn is_any_down(&self, key: usize) -> bool {
        let first = self.keys[key].first_member;
        (first..first + self.profile.replicas)
            .any(|member| self.current(member).life.get() == Life::Dead)
    }

    /// The incarnation of a member that messages reach.
    pub(crate) fn current(&self, member: usize) -> &Instance {
        &self.instances[self.current_number(member)]
    }

    /// Its number.
    pub(crate) fn current_number(&self, member: usize) -> usize {
        self.serving[self.members[member].backend]
    }

    /// Brings a mutation to its member, and its answer on the way.
    pub(crate) fn deliver(&self, message: Message) {
        let instance = self.current(message.member);
        if instance.life.get() == Life::Dead {
            return;
        }
        if self.operations[message.client].get() != message.operation {
            self.mark(Mark::LateMessage);
        }
        if message.is_copy {
            self.mark(Mark::Copy);
        }
        let ack = self.execute(instance, &message);
        if self.rng.chance(self.profile.spite) {
            self.victim.set(Some(self.members[message.member].backend));
        }
        if ack.outcome == Outcome::Rejected(Rejection::ClockAhead) {
            self.mark(Mark::ClockAhead);
        }
        self.trace.line(Some(message.key), || {
            format!(
                "member {} executes {:?} {:?} of client {}{}: {:?} in epoch {}",
                message.member,
                message.action,
                message.version,
                message.client,
                if message.is_copy { " (again)" } else { "" },
                ack.outcome,
                ack.epoch
            )
        });
        if !self.rng.chance(self.profile.answer_loss) {
            self.answers.borrow_mut().push(Answer {
                client: message.client,
                operation: message.operation,
                replica: message.replica,
                version: message.version,
                ack,
                due: self.due(),
            });
        }
    }

    fn execute(&self, instance: &Instance, message: &Message) -> Ack {
        let mut bytes = self.value.borrow_mut();
        bytes.clear();
        if message.action != Action::Erase {
            let len_max = self.profile.value_len;
            value::write(message.key, message.version, len_max, &mut bytes);
        }
        let mutation = Mutation {
            action: message.action,
            version: message.version,
            entry: DataEntry {
                expiry_ms: message.expiry_ms,
                key: &self.keys[message.key].bytes,
                value: &bytes,
                ..DataEntry::default()
            },
        };
        instance.store.mutate(self.now(), &mutation)
    }

    /// Another key is written at one replica only, as if its other messages
    /// were lost: memory fills, floors rise, neighbours move. A backend that does
    /// not hold it refuses.
    fn write_filler(&self, instance: &Instance, filler: usize) {
        let mut clock = self.filler_clock.borrow_mut();
        let version = clock
            .next(self.now().unix_ns)
            .expect("no run is so long that a client id is used up");
        let value = [0u8; 2_000];
        let len = self.rng.index(self.profile.filler_len + 1);
        let mutation = Mutation {
            action: Action::Set,
            version,
            entry: DataEntry {
                key: &self.fillers[filler].0,
                value: &value[..len],
                ..DataEntry::default()
            },
        };
        instance.store.mutate(self.now(), &mutation);
    }

    /// Something happens at this backend while its memory is being read.
    pub(crate) fn interleave(&self, instance: &Instance) {
        if instance.life.get() == Life::Dead {
            return;
        }
        self.mark(Mark::ReadInterleaved);
        let waiting = {
            let mut messages = self.messages.borrow_mut();
            let wanted = |message: &Message| {
                self.members[message.member].backend == instance.backend
                    && message.due <= self.step.get()
            };
            let found = messages.iter().position(wanted);
            found.map(|at| messages.swap_remove(at))
        };
        match waiting {
            Some(message) => self.deliver(message),
            None => self.disturb(instance),
        }
    }

    /// Something happens at a backend that no client has asked for.
    pub(crate) fn disturb(&self, instance: &Instance) {
        if instance.life.get() != Life::Serving {
            return;
        }
        let profile = &self.profile;
        if self.rng.chance(profile.filler) {
            self.write_filler(instance, self.rng.index(self.fillers.len()));
        } else if self.rng.chance(profile.config_change) {
            let id = 1 + self.rng.below(1_000) as u32;
            self.trace.line(None, || {
                format!("backend {} takes configuration {id}", instance.backend)
            });
            instance.store.set_config_id(id);
        } else {
            instance.store.maintain(self.now());
        }
    }

    /// A backend dies. Its memory stays readable, and believed until the lease
    /// ends.
    pub(crate) fn crash(&self, backend: usize) {
        let lease_ns = self
            .rng
            .below(self.profile.lease_steps * self.profile.step_ns);
        let end = self.time_ns.get() + lease_ns;
        for instance in &self.instances {
            if instance.backend == backend && instance.life.get() == Life::Serving {
                instance.life.set(Life::Dead);
                instance.lease_end_ns.set(end);
                self.trace.line(None, || {
                    format!("backend {backend} crashes, lease until {end}")
                });
            }
        }
    }
}
