//! Many lookups at once: their cache misses overlap.
//!
//! Each key goes through three steps: hash it and prefetch its buckets; judge
//! the buckets and prefetch its data; copy, judge, hand out. Keys take them in
//! groups, and three groups are under way, so that memory works for the next
//! groups while the processor works on this one:
//!
//! ```text
//! place       0 1 2 3
//! hand out        0 1 2 3
//! read index    0 1 2 3
//! ```
//!
//! In groups and not key by key, because most of a random read's time here is
//! address translation: a prefetch that misses the TLB holds up everything
//! behind it until its page walk is done, unless other walks begin at once.
//!
//! What a bucket says and whether bytes are the value is decided by the same
//! functions as in a single lookup; here only the outcomes that need nothing
//! else are known: a sound hit, or an absence that is agreed upon. Everything
//! rarer (a torn read, a side table, votes that differ, another host) takes the
//! way of a single lookup.

use crate::client::{Client, check_key};
use crate::error::OpError;
use crate::get::{Hit, Lookup};
use crate::link::Link;
use crate::options::Carrier;
use crate::time;
use trefoil_client_core::data::{DataCheck, DataVerdict, judge};
use trefoil_client_core::get::MissReason;
use trefoil_client_core::mode::Mode;
use trefoil_client_core::quorum::{Vote, VoteDecision, decide_votes};
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::{KeyHash, Pointer, Version};
use trefoil_region::WordBuffer;

/// Keys of a group: their page walks overlap, and their lines together are no
/// more than a core can wait for at a time.
const GROUP_LEN: usize = 4;
/// Groups between two steps of the same key: enough to hide the latency of
/// memory, few enough for the prefetched lines to stay in the nearest cache.
const DISTANCE: usize = 4;
/// Groups under way.
const GROUP_COUNT: usize = 2 * DISTANCE + 1;

/// Which replicas a key is read from: one, or two that have to agree.
#[derive(Clone, Copy, Default)]
struct Place {
    hash: KeyHash,
    first: u32,
    second: u32,
}

/// What the buckets say of a key.
#[derive(Clone, Copy)]
enum Found {
    Data {
        pointer: Pointer,
        version: Version,
        slots: [u32; 2],
    },
    Absent,
    /// For a lookup of its own.
    Unclear,
}

/// Keys that are handed out together.
struct Group<'a, K> {
    keys: &'a [K],
    indexes: std::ops::Range<usize>,
    places: &'a [Place; GROUP_LEN],
    found: &'a [Found; GROUP_LEN],
}

impl Client {
    /// Looks up every key and calls `on` once for each, in order, with its
    /// index and result.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut on: impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) {
        if !self.is_all_shared() {
            for (index, key) in keys.iter().enumerate() {
                on(index, self.get(key.as_ref()));
            }
            return;
        }
        match self.mode {
            Mode::R1 => self.get_interleaved::<1, K>(keys, &mut on),
            Mode::R2Immutable => self.get_interleaved::<2, K>(keys, &mut on),
            Mode::R32 => self.get_interleaved::<3, K>(keys, &mut on),
        }
    }

    /// Whether every backend is read one-sidedly.
    fn is_all_shared(&self) -> bool {
        self.options.carrier == Carrier::Auto
            && self.links.iter().all(|link| link.shared().is_some())
    }

    fn get_interleaved<const N: usize, K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        on: &mut impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) {
        let now_ms = time::coarse_unix_ms();
        // Taken out, so that a hit may borrow from it while the client counts.
        let mut buffers = std::mem::take(&mut self.group_bytes);
        buffers.resize_with(GROUP_LEN, WordBuffer::default);
        let mut places = [[Place::default(); GROUP_LEN]; GROUP_COUNT];
        let mut found = [[Found::Unclear; GROUP_LEN]; GROUP_COUNT];
        let group = |number: usize| {
            let first = (number * GROUP_LEN).min(keys.len());
            first..(first + GROUP_LEN).min(keys.len())
        };
        let count = keys.len().div_ceil(GROUP_LEN);
        for step in 0..count + GROUP_COUNT - 1 {
            let places_now = &mut places[step % GROUP_COUNT];
            for (place, index) in places_now.iter_mut().zip(group(step)) {
                *place = self.place::<N>(keys[index].as_ref());
            }
            let placed = group(step).len();
            self.prefetch_buckets::<N>(&places_now[..placed]);
            if let Some(done) = step.checked_sub(2 * DISTANCE) {
                let group = Group {
                    keys,
                    indexes: group(done),
                    places: &places[done % GROUP_COUNT],
                    found: &found[done % GROUP_COUNT],
                };
                self.hand_out::<N, K>(&group, &mut buffers, now_ms, on);
            }
            if let Some(reading) = step.checked_sub(DISTANCE) {
                let found = &mut found[reading % GROUP_COUNT];
                let places = &places[reading % GROUP_COUNT];
                for (at, index) in group(reading).enumerate() {
                    found[at] = match check_key(keys[index].as_ref()) {
                        Ok(()) => self.read_index::<N>(&places[at]),
                        Err(_) => Found::Unclear,
                    };
                }
                self.prefetch_data(&places[..], &found[..group(reading).len()]);
            }
        }
        self.group_bytes = buffers;
    }

    /// First step: where the key is read.
    #[inline(always)]
    fn place<const N: usize>(&mut self, key: &[u8]) -> Place {
        if check_key(key).is_err() {
            return Place::default();
        }
        let hash = self.hash(key);
        let cohort = self.cohort(hash);
        let copies = cohort.as_slice();
        let preferred = self.preferred();
        let next = if preferred + 1 < copies.len() {
            preferred + 1
        } else {
            0
        };
        Place {
            hash,
            first: copies[preferred],
            second: copies[next],
        }
    }

    #[inline(always)]
    fn prefetch_buckets<const N: usize>(&self, places: &[Place]) {
        for place in places {
            if let Some(connection) = self.links[place.first as usize].shared() {
                connection.prefetch_bucket(place.hash);
            }
            if N == 3
                && let Some(connection) = self.links[place.second as usize].shared()
            {
                connection.prefetch_bucket(place.hash);
            }
        }
    }

    #[inline(always)]
    fn prefetch_data(&self, places: &[Place], found: &[Found]) {
        for (place, found) in places.iter().zip(found) {
            if let Found::Data { pointer, .. } = *found
                && let Some(connection) = self.links[place.first as usize].shared()
            {
                connection.prefetch_data(pointer);
            }
        }
    }

    /// Second step: what the buckets say.
    #[inline(always)]
    fn read_index<const N: usize>(&mut self, place: &Place) -> Found {
        let Some(connection) = self.links[place.first as usize].shared() else {
            return Found::Unclear;
        };
        let mut slots = [0; 2];
        match connection.index_vote(place.hash) {
            IndexVote::Present {
                slot_number,
                entry,
                epoch,
            } => {
                slots[0] = slot_number;
                if N == 3 {
                    let Some(slot) = self.confirm(place, entry.version, epoch) else {
                        return Found::Unclear;
                    };
                    slots[1] = slot;
                }
                Found::Data {
                    pointer: entry.pointer,
                    version: entry.version,
                    slots,
                }
            }
            IndexVote::Absent { .. } if N < 3 || self.confirm_absent(place) => Found::Absent,
            _ => Found::Unclear,
        }
    }

    /// The second replica's slot, if it agrees.
    #[inline(always)]
    fn confirm(&self, place: &Place, version: Version, epoch: u32) -> Option<u32> {
        let connection = self.links[place.second as usize].shared()?;
        let IndexVote::Present {
            slot_number,
            entry,
            epoch: other,
        } = connection.index_vote(place.hash)
        else {
            return None;
        };
        let votes = [
            Vote::Present { version, epoch },
            Vote::Present {
                version: entry.version,
                epoch: other,
            },
        ];
        matches!(decide_votes(&votes, 2), VoteDecision::Present { .. }).then_some(slot_number)
    }

    fn confirm_absent(&self, place: &Place) -> bool {
        let second = self.links[place.second as usize].shared();
        second.is_some_and(|c| matches!(c.index_vote(place.hash), IndexVote::Absent { .. }))
    }

    /// Third step. Leases are checked after everything that a group has read.
    #[inline(always)]
    fn hand_out<const N: usize, K: AsRef<[u8]>>(
        &mut self,
        group: &Group<'_, K>,
        buffers: &mut [WordBuffer],
        now_ms: u64,
        on: &mut impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) {
        let items = group.places.iter().zip(group.found);
        let mut is_read = [false; GROUP_LEN];
        for (((place, found), buffer), is_read) in items
            .take(group.indexes.len())
            .zip(&mut *buffers)
            .zip(&mut is_read)
        {
            *is_read = match found {
                Found::Data { pointer, .. } => self.links[place.first as usize]
                    .shared()
                    .is_some_and(|connection| connection.read_data(*pointer, buffer).is_ok()),
                Found::Absent => true,
                Found::Unclear => false,
            };
        }
        let now = time::coarse_ns();
        for (at, index) in group.indexes.clone().enumerate() {
            let (place, found) = (&group.places[at], group.found[at]);
            let key = group.keys[index].as_ref();
            // Looked up after the reads: what was flushed before is known.
            let first = self.links[place.first as usize].shared();
            let flush_floor = first.map_or(Version::ZERO, |c| c.reader().flush_floor());
            let check = DataCheck {
                key,
                now_ms,
                flush_floor: self.config.flush_floor.max(flush_floor),
            };
            if !is_read[at] || !self.leases_alive::<N>(place, now) {
                on(index, self.get(key));
                continue;
            }
            match found {
                Found::Data { version, slots, .. } => {
                    let bytes = buffers[at].bytes();
                    let DataVerdict::Hit(entry) = judge(bytes, place.hash.tag, version, &check)
                    else {
                        on(index, self.get(key));
                        continue;
                    };
                    self.touch_group::<N>(place, slots);
                    self.counters.hits += 1;
                    self.clock.observe(version);
                    on(index, Ok(Lookup::Hit(Hit::new(entry, version))));
                }
                _ => {
                    self.counters.misses += 1;
                    let miss = self.miss(MissReason::Absent);
                    on(index, Ok(Lookup::Miss(miss)));
                }
            }
        }
    }

    #[inline(always)]
    fn touch_group<const N: usize>(&mut self, place: &Place, slots: [u32; 2]) {
        let link = &mut self.links[place.first as usize];
        let partition = link
            .shared()
            .map_or(0, |connection| connection.partition(place.hash));
        link.touch(partition, slots[0]);
        if N == 3 {
            self.links[place.second as usize].touch(partition, slots[1]);
        }
    }

    #[inline(always)]
    fn leases_alive<const N: usize>(&self, place: &Place, coarse_now_ns: u64) -> bool {
        let alive = |number: u32| {
            self.links[number as usize]
                .shared()
                .is_some_and(|c| Link::lease_alive(c, coarse_now_ns))
        };
        alive(place.first) && (N < 3 || alive(place.second))
    }
}
