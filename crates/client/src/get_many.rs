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
//! | settle | looks through the rest for the few keys that need it | their data, or what a miss leaves for a fill |
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
use crate::time;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use trefoil_client_core::data::{DataCheck, DataVerdict, judge};
use trefoil_client_core::get::MissReason;
use trefoil_client_core::mode::Mode;
use trefoil_client_core::quorum::{Vote, VoteDecision, decide_votes};
use trefoil_client_core::retry::Limits;
use trefoil_client_core::vote::IndexVote;
use trefoil_driver::inline::COARSE_LAG_NS;
use trefoil_driver::{Carrier, Owner, Purpose};
use trefoil_fabric::{Home, PREFETCH_LEN_MAX, RegionView};
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

/// Lookups under way where batches do not go. They begin with so many, and become one more for
/// each that was found short: on a way of milliseconds a further round trip costs more than all of
/// them.
const WINDOW_LEN_FIRST: usize = 128;
const WINDOW_LEN_MAX: usize = 512;
/// Items as long as this are fetched by a first window's lookups at most: what has come waits here
/// until its turn, and what goes by calls takes the places of others' calls.
const LONG_LEN: usize = 16 << 10;
/// Keys after which batches are tried again.
const STRETCH_LEN: usize = 8192;

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
    /// A replica that is not read, and its place in the key's cohort.
    unread: Option<(u32, u8)>,
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
        unread: None,
        state: State::Unclear,
    };
}

/// Lookups under way side by side, in the order in which they are handed out. Those that are
/// not, for whoever is called back may panic, give their places back.
struct Batch<'a> {
    client: &'a mut Client,
    /// Their places; none of those that were refused.
    under_way: VecDeque<Option<u32>>,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for at in self.under_way.drain(..).flatten() {
            self.client.driver.release(at);
        }
    }
}

impl Client {
    /// Looks up every key and calls `on` once for each, in order, with its
    /// index and result. The client's deadline is for all of them together: what
    /// has to wait longer is a failure.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut on: impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) {
        let begin = time::coarse_ns();
        let limits = self.driver.limits(begin);
        let mut done = 0;
        while done < keys.len() {
            self.settle_topology();
            let on_next = |index: usize, result: Result<Lookup<'_>, OpError>| {
                on(done + index, result);
            };
            let handed_out = self.get_overlapping(&keys[done..], on_next);
            done += handed_out;
            if handed_out == 0 {
                // Where a batch got nowhere, the next one hardly would either.
                let some = STRETCH_LEN.min(keys.len() - done);
                let on_next = |index: usize, result: Result<Lookup<'_>, OpError>| {
                    on(done + index, result);
                };
                self.get_side_by_side(&keys[done..done + some], limits, on_next);
                done += some;
            } else if let Some(key) = keys.get(done) {
                let now = time::coarse_ns();
                on(done, self.look_up(key.as_ref(), now, limits, Purpose::Use));
                done += 1;
            }
        }
    }

    /// Looks up many keys at once, each by itself, and hands them out in order. For each that is
    /// handed out another one begins.
    #[cold]
    fn get_side_by_side<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        limits: Limits,
        mut on: impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) {
        let mut batch = Batch {
            under_way: VecDeque::with_capacity(WINDOW_LEN_MAX.min(keys.len())),
            client: self,
        };
        let mut window_len = WINDOW_LEN_FIRST;
        let mut begun = 0;
        for (index, key) in keys.iter().enumerate() {
            while begun < keys.len() && batch.under_way.len() < window_len {
                let begins = batch.client.begin_lookup(keys[begun].as_ref(), limits);
                batch.under_way.push_back(begins);
                begun += 1;
            }
            match batch.under_way.pop_front().flatten() {
                Some(at) => {
                    let found = batch.client.waited_lookup(at);
                    window_len = match &found {
                        Ok(Lookup::Hit(hit)) if hit.value.len() >= LONG_LEN => WINDOW_LEN_FIRST,
                        _ => (window_len + 1).min(WINDOW_LEN_MAX),
                    };
                    on(index, found);
                }
                None => {
                    let refused = batch.client.check_lookup(key.as_ref());
                    on(index, Err(refused.expect_err("it was refused above")));
                }
            }
        }
    }

    /// Begins a lookup that is to be waited for; `None` if it is refused.
    fn begin_lookup(&mut self, key: &[u8], limits: Limits) -> Option<u32> {
        self.check_lookup(key).ok()?;
        let now = time::coarse_ns();
        let begun = (self.driver).get(key, now, limits, Purpose::Use, Owner::Batch);
        Some(match begun {
            Ok(inline) => self.driver.keep_for_waiter(&inline),
            Err(at) => at,
        })
    }

    /// Hands out keys up to the first that needs a lookup of its own; returns
    /// how many.
    pub(crate) fn get_overlapping<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        on: impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) -> usize {
        match self.driver.topology().mode().quorum() {
            1 => self.get_overlapped::<1, K>(keys, on),
            _ => self.get_overlapped::<2, K>(keys, on),
        }
    }

    fn get_overlapped<const V: usize, K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        on: impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) -> usize {
        let mut buffers = std::mem::take(&mut self.group_bytes);
        let handed_out = self.get_into::<V, K>(&mut buffers, keys, on);
        self.group_bytes = buffers;
        handed_out
    }

    #[inline]
    fn get_into<const V: usize, K: AsRef<[u8]>>(
        &mut self,
        buffers: &mut Vec<WordBuffer>,
        keys: &[K],
        mut on: impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) -> usize {
        if self.driver.options().carrier != Carrier::Auto || self.is_forked() {
            return 0;
        }
        let Some(backends) = self
            .driver
            .links()
            .iter()
            .map(|link| link.view().cloned())
            .collect::<Option<SmallVec<[_; BACKENDS_INLINE]>>>()
        else {
            return 0;
        };
        let topology = Arc::clone(self.driver.topology());
        // Of an immutable corpus one copy decides: none that is of another than is known.
        let is_known = |view: &Arc<RegionView>| view.config_id() == topology.id().config_id;
        let is_immutable = topology.mode() == Mode::R2Immutable;
        if is_immutable && !backends.iter().all(is_known) {
            return 0;
        }
        buffers.resize_with(GROUP_LEN, WordBuffer::default);
        let now_ms = time::coarse_unix_ms();
        let config_floor = topology.flush_floor();
        let copies = topology.mode().replica_count();
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
                    let hash = topology.hash(key);
                    item.unread = None;
                    let voters = if copies == 1 {
                        [(topology.placement().first(hash), 0); V]
                    } else {
                        let cohort = topology.cohort(hash);
                        let first = self.driver.turns().next(copies);
                        let at_rank = |rank: usize| {
                            let place = (first + rank) % copies;
                            (cohort.as_slice()[place], place)
                        };
                        if copies > V {
                            let (number, place) = at_rank(V);
                            item.unread = Some((number, place as u8));
                        }
                        std::array::from_fn(at_rank)
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
                        if !backends[number as usize].lease_alive(now + COARSE_LAG_NS) {
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
                            // All replicas are told, as of a single lookup.
                            for voter in 0..V {
                                if let Some(home) = item.homes[voter] {
                                    let number = item.backends[voter];
                                    let slot = item.slots[voter];
                                    self.driver.touch(number, home.partition(), slot);
                                }
                            }
                            if let Some((number, place)) = item.unread {
                                let place = usize::from(place);
                                self.driver.touch_by_name(number, place, item.hash);
                            }
                            self.driver.counters_mut().hits += 1;
                            self.driver.observe_sanely(version);
                            on(index, Ok(Lookup::Hit(Hit::new(entry, version))));
                        }
                        State::Absent => {
                            self.driver.counters_mut().misses += 1;
                            let stamps = self.driver.stamps_unseen(item.hash);
                            let miss = Miss::new(MissReason::Absent, stamps);
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
                        if item.state == State::Absent {
                            self.driver.prefetch_stamps(item.hash);
                        }
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
    /// First stage: where the key is read. Each voter is a backend and its place
    /// in the key's cohort.
    #[inline(always)]
    fn place(&mut self, hash: KeyHash, voters: [(u32, usize); V], mapped: &'a [Arc<RegionView>]) {
        self.hash = hash;
        self.backends = voters.map(|(backend, _)| backend);
        self.state = State::Placed;
        for (voter, (_, place)) in voters.into_iter().enumerate() {
            let home = self.reader(voter, mapped).home(place, hash);
            self.homes[voter] = home;
            match home {
                Some(home) => home.prefetch(hash),
                None => self.state = State::Unclear,
            }
        }
    }

    #[inline(always)]
    fn reader(&self, voter: usize, mapped: &'a [Arc<RegionView>]) -> &'a RegionView {
        &mapped[self.backends[voter] as usize]
    }

    /// Second stage: what the nearest lines say.
    #[inline(always)]
    fn glance(&mut self, mapped: &'a [Arc<RegionView>]) {
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

    fn look_further(&mut self, mapped: &'a [Arc<RegionView>]) {
        self.state = State::Far;
        for voter in 0..V {
            if let Some(home) = self.homes[voter] {
                self.reader(voter, mapped).prefetch_rest(self.hash, home);
            }
        }
    }

    /// Third stage: what the whole index says of a key that is still open.
    fn settle(&mut self, mapped: &'a [Arc<RegionView>]) {
        let mut votes = [Vote::None; V];
        for (voter, noted) in votes.iter_mut().enumerate() {
            let Some(home) = self.homes[voter] else {
                return;
            };
            let reader = self.reader(voter, mapped);
            let vote = reader.index_vote_in(home.partition(), self.hash);
            *noted = self.take(voter, vote, mapped);
        }
        self.decide(votes);
    }

    /// Notes what a vote tells. The first voter's data is fetched.
    #[inline(always)]
    fn take(&mut self, voter: usize, vote: IndexVote, mapped: &'a [Arc<RegionView>]) -> Vote {
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
