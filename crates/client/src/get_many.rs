//! Many lookups at once: their cache misses overlap.
//!
//! Each key goes through four stages, a group of keys at a time, and many
//! groups are under way: memory works for those behind while the processor
//! works on this one.
//!
//! | stage | does | and fetches ahead |
//! |---|---|---|
//! | place | hashes the key | the lines of its bucket that will most likely do |
//! | glance | looks for it in these | its data, or the rest of the bucket |
//! | settle | looks through the rest for the few keys that need it | their data |
//! | hand out | copies the data, judges it, calls back | |
//!
//! In groups and not key by key, because most of a random read's time here is
//! address translation: a prefetch that misses the TLB holds up everything
//! behind it until its page walk is done, unless other walks begin at once.
//!
//! What a bucket says and whether bytes are the value is decided by the same
//! functions as in a single lookup; here only the outcomes that need nothing
//! else are known: a sound hit, or an absence that is agreed upon. At anything
//! rarer (a torn read, a side table, votes that differ, another host) the batch
//! stops. That key takes the way of a single lookup, which may map memory anew,
//! and a new batch begins behind it: no batch mixes what it read before with
//! what it reads after.

use crate::client::{Client, check_key};
use crate::error::OpError;
use crate::get::{Hit, Lookup, Miss};
use crate::link::{Link, Mapped};
use crate::options::Carrier;
use crate::time;
use smallvec::SmallVec;
use trefoil_client_core::data::{DataCheck, DataVerdict, judge};
use trefoil_client_core::get::MissReason;
use trefoil_client_core::quorum::{Vote, VoteDecision, decide_votes};
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::shm::{Home, PREFETCH_LEN_MAX, Reader};
use trefoil_layout::{KeyHash, Version};
use trefoil_region::{SharedWords, WordBuffer};

/// Keys of a group: their page walks overlap, and their lines together are no
/// more than a core can wait for at a time.
const GROUP_LEN: usize = 6;
/// Groups between a group's place and its later stages: enough to hide the
/// latency of memory, few enough for what was fetched to stay in the nearest
/// cache.
const GLANCE_AFTER: usize = 3;
const SETTLE_AFTER: usize = GLANCE_AFTER + 2;
const HAND_OUT_AFTER: usize = SETTLE_AFTER + 2;
/// Groups under way.
const GROUP_COUNT: usize = HAND_OUT_AFTER + 1;

/// Backends of a cell that a batch reads without allocating.
const BACKENDS_INLINE: usize = 16;

/// How far a key has come.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// For a lookup of its own.
    #[default]
    Unclear,
    /// Has a place.
    Placed,
    /// Not where most keys are: the rest of the index has to say.
    Far,
    /// Its data is known to be at the pointer.
    Found,
    /// Agreed to be nowhere.
    Absent,
}

/// A key under way, of which `V` replicas decide together.
#[derive(Clone, Copy)]
struct Item<'a, const V: usize> {
    hash: KeyHash,
    version: Version,
    data: Option<SharedWords<'a>>,
    /// The replica that it is read from first, then the others that vote.
    backends: [u32; V],
    homes: [Option<Home<'a>>; V],
    slots: [u32; V],
    state: State,
}

impl<const V: usize> Item<'_, V> {
    const UNCLEAR: Self = Item {
        hash: KeyHash { place: 0, tag: 0 },
        version: Version::ZERO,
        data: None,
        backends: [0; V],
        homes: [None; V],
        slots: [0; V],
        state: State::Unclear,
    };
}

impl Client {
    /// Looks up every key and calls `on` once for each, in order, with its
    /// index and result.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut on: impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) {
        let mut done = 0;
        while done < keys.len() {
            let on_next = |index: usize, result: Result<Lookup<'_>, OpError>| {
                on(done + index, result);
            };
            let handed_out = match self.mode.quorum() {
                1 => self.get_overlapped::<1, K>(&keys[done..], on_next),
                _ => self.get_overlapped::<2, K>(&keys[done..], on_next),
            };
            done += handed_out;
            // Where a batch got nowhere, the next one hardly would either.
            let alone = if handed_out == 0 { GROUP_LEN } else { 1 };
            for key in keys[done..].iter().take(alone) {
                on(done, self.get(key.as_ref()));
                done += 1;
            }
        }
    }

    /// Hands out keys up to the first that needs a lookup of its own; returns
    /// how many.
    fn get_overlapped<const V: usize, K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut on: impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) -> usize {
        if self.options.carrier != Carrier::Auto {
            return 0;
        }
        let Some(mut backends) = self
            .links
            .iter_mut()
            .map(Link::mapped)
            .collect::<Option<SmallVec<[_; BACKENDS_INLINE]>>>()
        else {
            return 0;
        };
        let buffers = &mut self.group_bytes;
        buffers.resize_with(GROUP_LEN, WordBuffer::default);
        let now_ms = time::coarse_unix_ms();
        let config_floor = self.config.flush_floor;
        let copies = self.mode.replica_count();
        let mut under_way = [[Item::<V>::UNCLEAR; GROUP_LEN]; GROUP_COUNT];
        let group_count = keys.len().div_ceil(GROUP_LEN);
        for step in 0..group_count + HAND_OUT_AFTER {
            let group_at = |delay: usize| {
                let number = step.checked_sub(delay).filter(|n| *n < group_count)?;
                let first = number * GROUP_LEN;
                let len = GROUP_LEN.min(keys.len() - first);
                Some((first, number % GROUP_COUNT, len))
            };
            if let Some((first, at, len)) = group_at(0) {
                for (item, key) in under_way[at][..len].iter_mut().zip(&keys[first..]) {
                    let key = key.as_ref();
                    if check_key(key).is_err() {
                        *item = Item::UNCLEAR;
                        continue;
                    }
                    let hash = self.hasher.hash(key);
                    let voters = if copies == 1 {
                        [self.placement.first(hash); V]
                    } else {
                        let cohort = self.placement.cohort(hash);
                        let first = self.turns.next(copies);
                        std::array::from_fn(|rank| cohort.as_slice()[(first + rank) % copies])
                    };
                    item.place(hash, voters, &backends);
                }
            }
            if let Some((first, at, len)) = group_at(HAND_OUT_AFTER) {
                let items = &mut under_way[at][..len];
                for (item, buffer) in items.iter().zip(&mut *buffers) {
                    if let (State::Found, Some(data)) = (item.state, item.data) {
                        buffer.fill_from(data);
                    }
                }
                // Leases and flush floors are looked at after the reads.
                let now = time::coarse_ns();
                for (at, (item, buffer)) in items.iter().zip(&*buffers).enumerate() {
                    let index = first + at;
                    for number in item.backends {
                        if !backends[number as usize].lease_alive(now) {
                            return index;
                        }
                    }
                    match item.state {
                        State::Found => {
                            let reader = item.reader(0, &backends);
                            let check = DataCheck {
                                key: keys[index].as_ref(),
                                now_ms,
                                flush_floor: config_floor.max(reader.flush_floor()),
                            };
                            let (tag, version) = (item.hash.tag, item.version);
                            let DataVerdict::Hit(entry) =
                                judge(buffer.bytes(), tag, version, &check)
                            else {
                                return index;
                            };
                            for voter in 0..V {
                                if let Some(home) = &item.homes[voter] {
                                    backends[item.backends[voter] as usize]
                                        .touch(home.partition(), item.slots[voter]);
                                }
                            }
                            self.counters.hits += 1;
                            self.versions.observe(version);
                            on(index, Ok(Lookup::Hit(Hit::new(entry, version))));
                        }
                        State::Absent => {
                            self.counters.misses += 1;
                            let miss = Miss::new(MissReason::Absent, self.versions.next());
                            on(index, Ok(Lookup::Miss(miss)));
                        }
                        State::Unclear | State::Placed | State::Far => return index,
                    }
                }
            }
            if let Some((_, at, len)) = group_at(SETTLE_AFTER) {
                for item in &mut under_way[at][..len] {
                    if item.state == State::Far {
                        item.settle(&backends);
                    }
                }
            }
            if let Some((_, at, len)) = group_at(GLANCE_AFTER) {
                for item in &mut under_way[at][..len] {
                    if item.state == State::Placed {
                        item.glance(&backends);
                    }
                }
            }
        }
        keys.len()
    }
}

impl<'a, const V: usize> Item<'a, V> {
    /// First stage: where the key is read.
    #[inline(always)]
    fn place(&mut self, hash: KeyHash, backends: [u32; V], mapped: &[Mapped<'a>]) {
        self.hash = hash;
        self.backends = backends;
        self.state = State::Placed;
        for voter in 0..V {
            let home = self.reader(voter, mapped).home(hash);
            self.homes[voter] = home;
            match home {
                Some(home) => home.prefetch(hash),
                None => self.state = State::Unclear,
            }
        }
    }

    #[inline(always)]
    fn reader(&self, voter: usize, mapped: &[Mapped<'a>]) -> &'a Reader {
        mapped[self.backends[voter] as usize].reader
    }

    /// Second stage: what the nearest lines say.
    #[inline(always)]
    fn glance(&mut self, mapped: &[Mapped<'a>]) {
        let mut votes = [Vote::None; V];
        for (voter, noted) in votes.iter_mut().enumerate() {
            let Some(home) = self.homes[voter] else {
                return;
            };
            match self.reader(voter, mapped).glance(self.hash, home) {
                Some(vote) => *noted = self.take(voter, vote, mapped),
                None => return self.look_further(mapped),
            }
        }
        self.decide(votes);
    }

    fn look_further(&mut self, mapped: &[Mapped<'a>]) {
        self.state = State::Far;
        for voter in 0..V {
            if let Some(home) = self.homes[voter] {
                self.reader(voter, mapped).prefetch_rest(self.hash, home);
            }
        }
    }

    /// Third stage: what the whole index says of a key that is still open.
    fn settle(&mut self, mapped: &[Mapped<'a>]) {
        let mut votes = [Vote::None; V];
        for (voter, noted) in votes.iter_mut().enumerate() {
            let vote = self.reader(voter, mapped).index_vote(self.hash);
            *noted = self.take(voter, vote, mapped);
        }
        self.decide(votes);
    }

    /// Notes what a vote tells. The first voter's data is fetched.
    #[inline(always)]
    fn take(&mut self, voter: usize, vote: IndexVote, mapped: &[Mapped<'a>]) -> Vote {
        match vote {
            IndexVote::Present {
                slot_number,
                entry,
                epoch,
            } => {
                self.slots[voter] = slot_number;
                if voter == 0 {
                    self.version = entry.version;
                    self.data = self.reader(0, mapped).entry(entry.pointer).ok();
                    if let Some(data) = self.data {
                        data.prefetch(PREFETCH_LEN_MAX);
                    }
                }
                Vote::Present {
                    version: entry.version,
                    epoch,
                }
            }
            IndexVote::Absent { epoch } => Vote::Absent { epoch },
            _ => Vote::None,
        }
    }

    #[inline(always)]
    fn decide(&mut self, votes: [Vote; V]) {
        self.state = match decide_votes(&votes, V) {
            VoteDecision::Present { .. } if self.data.is_some() => State::Found,
            VoteDecision::Absent => State::Absent,
            _ => State::Unclear,
        };
    }
}
