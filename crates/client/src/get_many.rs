//! Many lookups at once: their cache misses overlap.
//!
//! A group of keys goes through three passes: hash and prefetch the buckets;
//! judge the buckets and prefetch the data; copy, judge, hand out. What a
//! bucket says and whether bytes are the value is decided by the same functions
//! as in a single lookup; a group only knows the outcomes that need nothing
//! else: a sound hit, or an absence that is agreed upon. Everything rarer (a
//! torn read, a side table, votes that differ, another host) takes the way of a
//! single lookup.

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

/// Lookups whose cache misses overlap: enough to hide the latency of memory,
/// few enough for the prefetched lines to stay in the nearest cache.
const GROUP: usize = 32;

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

impl Client {
    /// Looks up every key and calls `on` once for each, in order, with its
    /// index and result.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut on: impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) {
        for (group, keys) in keys.chunks(GROUP).enumerate() {
            let first = group * GROUP;
            if !self.is_all_shared() {
                for (index, key) in keys.iter().enumerate() {
                    on(first + index, self.get(key.as_ref()));
                }
                continue;
            }
            match self.mode {
                Mode::R1 => self.get_group::<1, K>(keys, first, &mut on),
                Mode::R2Immutable => self.get_group::<2, K>(keys, first, &mut on),
                Mode::R32 => self.get_group::<3, K>(keys, first, &mut on),
            }
        }
    }

    /// Whether every backend is read one-sidedly.
    fn is_all_shared(&self) -> bool {
        self.options.carrier == Carrier::Auto
            && self.links.iter().all(|link| link.shared().is_some())
    }

    fn get_group<const N: usize, K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        first: usize,
        on: &mut impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) {
        let mut places = [Place::default(); GROUP];
        for (place, key) in places.iter_mut().zip(keys) {
            let key = key.as_ref();
            if check_key(key).is_ok() {
                *place = self.place::<N>(key);
            }
        }
        let mut found = [Found::Unclear; GROUP];
        for ((found, place), key) in found.iter_mut().zip(&places).zip(keys) {
            if check_key(key.as_ref()).is_ok() {
                *found = self.read_index::<N>(place);
            }
        }
        let now_ms = time::coarse_unix_ms();
        for (index, key) in keys.iter().enumerate() {
            let key = key.as_ref();
            let check = DataCheck {
                key,
                now_ms,
                flush_floor: Version::ZERO,
            };
            if !self.hand_out::<N>(&places[index], found[index], &check, first + index, on) {
                on(first + index, self.get(key));
            }
        }
    }

    /// First pass: where the key is read, its buckets on their way.
    #[inline(always)]
    fn place<const N: usize>(&mut self, key: &[u8]) -> Place {
        let hash = self.hash(key);
        let cohort = self.cohort(hash);
        let copies = cohort.as_slice();
        let preferred = self.preferred();
        let first = copies[preferred % copies.len()];
        let second = copies[(preferred + 1) % copies.len()];
        if let Some(connection) = self.links[first as usize].shared() {
            connection.prefetch_bucket(hash);
        }
        if N == 3
            && let Some(connection) = self.links[second as usize].shared()
        {
            connection.prefetch_bucket(hash);
        }
        Place {
            hash,
            first,
            second,
        }
    }

    /// Second pass: what the buckets say, the data on its way.
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
                connection.prefetch_data(entry.pointer);
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

    /// Third pass; `false` if the lookup is not decided by it. Leases are
    /// checked after everything that this lookup has read.
    #[inline(always)]
    fn hand_out<const N: usize>(
        &mut self,
        place: &Place,
        found: Found,
        check: &DataCheck<'_>,
        index: usize,
        on: &mut impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) -> bool {
        match found {
            Found::Unclear => false,
            Found::Absent => {
                if !self.leases_alive::<N>(place) {
                    return false;
                }
                self.counters.misses += 1;
                let miss = self.miss(MissReason::Absent);
                on(index, Ok(Lookup::Miss(miss)));
                true
            }
            Found::Data {
                pointer,
                version,
                slots,
            } => {
                let Some((connection, bytes)) = self.links[place.first as usize].shared_and_bytes()
                else {
                    return false;
                };
                if connection.read_data(pointer, bytes).is_err() || !self.leases_alive::<N>(place) {
                    return false;
                }
                let link = &mut self.links[place.first as usize];
                let partition = link
                    .shared()
                    .map_or(0, |connection| connection.partition(place.hash));
                link.touch(partition, slots[0]);
                if N == 3 {
                    self.links[place.second as usize].touch(partition, slots[1]);
                }
                let bytes = self.links[place.first as usize].bytes.bytes();
                let DataVerdict::Hit(entry) = judge(bytes, place.hash.tag, version, check) else {
                    return false;
                };
                self.counters.hits += 1;
                self.clock.observe(version);
                on(index, Ok(Lookup::Hit(Hit::new(entry, version))));
                true
            }
        }
    }

    #[inline(always)]
    fn leases_alive<const N: usize>(&self, place: &Place) -> bool {
        let now = time::coarse_ns();
        let alive = |number: u32| {
            self.links[number as usize]
                .shared()
                .is_some_and(|c| Link::lease_alive(c, now))
        };
        alive(place.first) && (N < 3 || alive(place.second))
    }
}
