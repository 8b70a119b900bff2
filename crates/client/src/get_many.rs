//! Many lookups at once: their cache misses overlap.
//!
//! Each key goes through three steps: hash it and prefetch its buckets; judge
//! the buckets and prefetch its data; copy, judge, hand out. The steps of
//! different keys are interleaved, so that memory works for later keys while
//! the processor works on earlier ones:
//!
//! ```text
//! place     0 1 2 …  16 17 18 …  32 33 34
//! read            …   0  1  2 …  16 17 18
//! hand out                     …  0  1  2
//! ```
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

/// Keys between two steps of the same key: enough to hide the latency of
/// memory, few enough for the prefetched lines to stay in the nearest cache.
const DISTANCE: usize = 16;
/// Keys under way.
const WINDOW: usize = 2 * DISTANCE;

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
        let mut places = [Place::default(); WINDOW];
        let mut found = [Found::Unclear; WINDOW];
        for step in 0..keys.len() + WINDOW {
            // The slot that is placed anew is the one handed out in this step.
            if let Some(done) = step.checked_sub(WINDOW) {
                let key = keys[done].as_ref();
                let check = DataCheck {
                    key,
                    now_ms,
                    flush_floor: Version::ZERO,
                };
                let slot = done % WINDOW;
                if !self.hand_out::<N>(&places[slot], found[slot], &check, done, on) {
                    on(done, self.get(key));
                }
            }
            if let Some(index) = step
                .checked_sub(DISTANCE)
                .filter(|index| *index < keys.len())
            {
                let slot = index % WINDOW;
                found[slot] = match check_key(keys[index].as_ref()) {
                    Ok(()) => self.read_index::<N>(&places[slot]),
                    Err(_) => Found::Unclear,
                };
            }
            if let Some(key) = keys.get(step)
                && check_key(key.as_ref()).is_ok()
            {
                places[step % WINDOW] = self.place::<N>(key.as_ref());
            }
        }
    }

    /// First step: where the key is read, its buckets on their way.
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

    /// Second step: what the buckets say, the data on its way.
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

    /// Third step; `false` if the lookup is not decided by it. Leases are
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
