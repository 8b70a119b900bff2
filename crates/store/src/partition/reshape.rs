//! Larger and smaller indexes, and what else rewrites a whole window.
//!
//! A second window is filled while mutations wait and readers go on with the
//! first; then it is advertised, the first is poisoned bucket by bucket, and
//! its memory goes. A reader that looks at the first afterwards finds config
//! id 0 and takes the new window.
//!
//! The index keeps no key hashes, so every key is read again: entries are
//! taken in batches whose data is fetched ahead.

use super::Partition;
use crate::budget::Kind;
use crate::index::{Index, slot_number};
use crate::policy::{self, Policy, SLOT_COUNT_MAX};
use crate::shared::{Shared, lock};
use crate::side::{SideEntry, SideTable};
use trefoil_layout::bucket::{self, BUCKET_LEN, SLOT_COUNT};
use trefoil_layout::control::IndexWindow;
use trefoil_layout::limits::SPILL_MAX;
use trefoil_layout::{IndexEntry, KeyHash};

/// Share of the home slots in use, in percent, from which an index grows.
const LOAD_MAX: u64 = 80;
/// The same where growth has to evict: later, for evictions lower the load too.
const LOAD_MAX_FULL: u64 = 88;
/// Load at which a mutation does not wait for maintenance to grow the index.
const LOAD_URGENT: u64 = 92;
/// Side-table entries that make an index grow: one in this many items.
const SIDE_SHARE: u64 = 1000;
/// The same where growth has to evict.
const SIDE_SHARE_FULL: u64 = 100;
/// The same where a mutation does not wait.
const SIDE_SHARE_URGENT: u64 = 60;
/// Side-table entries that never matter.
const SIDE_COUNT_MIN: u64 = 8;
/// Load in percent under which an index is far too large.
const LOAD_MIN: u64 = 25;
/// The same while the store is beyond its limit: an index that is too large
/// would cost items.
const LOAD_MIN_EXCESS: u64 = 50;
/// Load in percent of an index that was made smaller.
const LOAD_SHRUNK: u64 = 65;
/// An index that would take less than this share of a partition's memory doubles.
const DOUBLING_SHARE: u64 = 32;
/// Buckets of a first index.
const BUCKET_COUNT_FIRST: u64 = 64;
/// Entries whose data is fetched ahead while a window is filled.
const BATCH: usize = 32;
/// Bytes fetched ahead of each: head and key.
const PREFETCH_LEN: usize = 128;
/// Items that making room for a window may evict at once.
const EVICTIONS_MAX: usize = 8192;
/// A slot without a new number.
const NOWHERE: u32 = u32::MAX;
/// Where in a new slot number its displacement is kept.
const DISPLACEMENT_SHIFT: u32 = 28;

const _: () = {
    assert!(SLOT_COUNT_MAX < 1 << DISPLACEMENT_SHIFT);
    assert!(SPILL_MAX < 1 << (32 - DISPLACEMENT_SHIFT));
};

/// Rounds a bucket count up so that its window fills whole frames.
fn whole_frames(shared: &Shared, bucket_count: u64) -> u64 {
    let frame_buckets = shared.regions.index.frame_len() / BUCKET_LEN as u64;
    (bucket_count + SPILL_MAX as u64).next_multiple_of(frame_buckets) - SPILL_MAX as u64
}

/// Bytes of the window of an index with at least `bucket_count` buckets.
pub(super) fn window_len(shared: &Shared, bucket_count: u64) -> u64 {
    IndexWindow::bytes(bucket_count).next_multiple_of(shared.regions.index.frame_len())
}

/// Buckets of the index of an empty partition: a small share of its memory.
pub(super) fn bucket_count_first(shared: &Shared) -> u64 {
    let share = shared.fair_len() / 64 / BUCKET_LEN as u64;
    whole_frames(shared, share.clamp(1, BUCKET_COUNT_FIRST))
}

/// Takes, charges and populates a window.
pub(super) fn acquire_window(
    shared: &Shared,
    bucket_count: u64,
    window_id: u64,
    epoch: u32,
) -> Option<IndexWindow> {
    let len = window_len(shared, bucket_count);
    if !shared.budget.try_charge(Kind::Index, len) {
        return None;
    }
    populate_window(shared, bucket_count, window_id, epoch)
}

/// The same for a window that is charged already; the charge is undone if
/// there is no memory.
fn populate_window(
    shared: &Shared,
    bucket_count: u64,
    window_id: u64,
    epoch: u32,
) -> Option<IndexWindow> {
    let len = window_len(shared, bucket_count);
    let offset = lock(&shared.windows).allocate_onward(len);
    let window = offset.filter(|offset| {
        let populated = shared.regions.index.populate_ahead(*offset..*offset + len);
        if populated.is_err() {
            lock(&shared.windows).release(*offset, len);
        }
        populated.is_ok()
    });
    if window.is_none() {
        shared.budget.release(Kind::Index, len);
    }
    window.map(|offset| IndexWindow {
        window_id,
        offset,
        bucket_count,
        epoch,
    })
}

/// Gives a window's memory back.
pub(super) fn release_window(shared: &Shared, index: &Index) {
    let len = window_len(shared, index.bucket_count());
    let offset = index.window.offset;
    let _ = shared.regions.index.punch(offset..offset + len);
    shared.budget.release(Kind::Index, len);
    lock(&shared.windows).release(offset, len);
}

/// Memory charged for a reshaping that is about to happen. It is populated
/// without the partition's lock.
#[derive(Debug)]
#[must_use]
pub(crate) struct Reservation {
    bucket_count: u64,
    private_len: u64,
    window: Option<IndexWindow>,
}

impl Reservation {
    /// Makes the window resident. On failure nothing stays charged.
    pub(crate) fn populate(mut self, shared: &Shared) -> Option<Self> {
        self.window = populate_window(shared, self.bucket_count, 0, 0);
        if self.window.is_none() {
            shared.budget.release(Kind::Private, self.private_len);
            return None;
        }
        Some(self)
    }
}

impl Partition {
    /// How many buckets the index should have, if not as many as it has.
    fn bucket_count_wanted(&self, shared: &Shared) -> Option<u64> {
        let now = self.index.bucket_count();
        let load = self.load();
        let side = self.side.count() as u64;
        let crowded = |share: u64| side > SIDE_COUNT_MIN && side * share > self.item_count;
        let excess = shared.budget.used() > shared.budget.limit();
        if load >= LOAD_MAX || crowded(SIDE_SHARE) {
            let share = IndexWindow::bytes(now) * DOUBLING_SHARE;
            let wanted = if share < shared.fair_len() {
                now * 2
            } else {
                now + (now / 4).max(1)
            };
            let wanted = whole_frames(shared, wanted);
            let fits = (wanted + SPILL_MAX as u64) * (SLOT_COUNT as u64) * 17 / 16
                < u64::from(SLOT_COUNT_MAX);
            let full = shared.budget.available() < self.reshape_len(shared, wanted);
            let due = !full || load >= LOAD_MAX_FULL || crowded(SIDE_SHARE_FULL);
            // While the store has to shrink, entries are evicted near their
            // home rather than everywhere for the sake of an index.
            return (fits && due && !excess).then_some(wanted);
        }
        let load_min = if excess { LOAD_MIN_EXCESS } else { LOAD_MIN };
        // The crawler leaves what it has not come to in one part of the hash
        // space: too much for a smaller index, which would grow again, and
        // have the crawler begin anew each time.
        let crawling = self.crawl.is_under_way() && !excess;
        if load < load_min && now > bucket_count_first(shared) && !crawling {
            let slots = self.item_count * 100 / LOAD_SHRUNK;
            let wanted = (slots / SLOT_COUNT as u64).max(bucket_count_first(shared));
            let wanted = whole_frames(shared, wanted);
            return (wanted < now).then_some(wanted);
        }
        None
    }

    fn load(&self) -> u64 {
        self.item_count * 100 / self.index.home_slot_count()
    }

    /// Whether a mutation should grow the index itself.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        let side = self.side.count() as u64;
        self.load() >= LOAD_URGENT
            || (side > 2 * SIDE_COUNT_MIN && side * SIDE_SHARE_URGENT > self.item_count)
    }

    /// Private bytes that exist only while the index is being replaced: the
    /// policy's second set of metadata and the map from old to new slots.
    fn reshape_private_len(&self, bucket_count: u64) -> u64 {
        let slots = (bucket_count + SPILL_MAX as u64) as u32 * SLOT_COUNT as u32;
        let old_slots = u64::from(self.index.slot_count()) + self.side.place_count() as u64;
        policy::slot_bytes(slots) + old_slots * 4
    }

    fn reshape_len(&self, shared: &Shared, bucket_count: u64) -> u64 {
        window_len(shared, bucket_count) + self.reshape_private_len(bucket_count)
    }

    /// Charges what a reshaping needs, if one is wanted; evicts for it within
    /// bounds. `None` also if there was no room yet: the index goes on as it is.
    pub(crate) fn reserve_reshape(&mut self, shared: &Shared) -> Option<Reservation> {
        let bucket_count = self.bucket_count_wanted(shared)?;
        let private_len = self.reshape_private_len(bucket_count);
        let len = window_len(shared, bucket_count);
        if bucket_count < self.index.bucket_count() && shared.budget.excess() > 0 {
            // The way down leads through both: the larger goes at once.
            shared.budget.charge(Kind::Index, len);
            shared.budget.charge(Kind::Private, private_len);
            return Some(Reservation {
                bucket_count,
                private_len,
                window: None,
            });
        }
        if !self.charge_with_room(shared, Kind::Index, len, EVICTIONS_MAX) {
            return None;
        }
        if !self.charge_with_room(shared, Kind::Private, private_len, EVICTIONS_MAX) {
            shared.budget.release(Kind::Index, len);
            return None;
        }
        Some(Reservation {
            bucket_count,
            private_len,
            window: None,
        })
    }

    /// Bytes that a wanted reshaping needs.
    pub(crate) fn reshape_bytes(&self, shared: &Shared) -> Option<u64> {
        let bucket_count = self.bucket_count_wanted(shared)?;
        Some(self.reshape_len(shared, bucket_count))
    }

    /// Whether a reshaping is wanted.
    pub(crate) fn wants_reshape(&self, shared: &Shared) -> bool {
        self.bucket_count_wanted(shared).is_some()
    }

    /// Moves the index into a reserved, populated window.
    pub(crate) fn reshape(&mut self, shared: &Shared, reservation: Reservation) {
        self.write_what_is_unwritten(shared);
        let Some(window) = reservation.window else {
            debug_assert!(false, "a reservation is populated before it is used");
            return;
        };
        let window = IndexWindow {
            epoch: self.epoch(),
            window_id: self.index.window.window_id,
            ..window
        };
        let space = &shared.regions.index;
        let new = Index::initialise(space, window, self.index.config_id);
        let mut filling = Filling {
            side: SideTable::default(),
            numbers: vec![NOWHERE; (self.index.slot_count() as usize) + self.side.place_count()],
            new,
        };
        self.fill(shared, &mut filling);
        let Filling { new, side, numbers } = filling;
        let slot_count = new.slot_count() + side.place_count() as u32;
        self.policy.rebuild(slot_count, &mut |old| {
            let packed = numbers.get(old as usize).copied().unwrap_or(NOWHERE);
            (packed != NOWHERE).then_some(packed & ((1 << DISPLACEMENT_SHIFT) - 1))
        });
        self.last_use.rebuild(numbers.iter().map(|packed| {
            (*packed != NOWHERE).then_some(packed & ((1 << DISPLACEMENT_SHIFT) - 1))
        }));
        for packed in numbers {
            let displacement = packed >> DISPLACEMENT_SHIFT;
            if packed != NOWHERE && displacement > 0 {
                let number = packed & ((1 << DISPLACEMENT_SHIFT) - 1);
                self.policy.set_displacement(number, displacement as u8);
            }
        }
        let old = std::mem::replace(&mut self.index, new);
        self.side = side;
        if self.advertised {
            self.advertise(shared, old.window.window_id);
        }
        old.poison(space);
        release_window(shared, &old);
        shared
            .budget
            .release(Kind::Private, reservation.private_len);
        self.crawl.restart();
        self.changes += 1;
        self.counts.index_reshapes += 1;
        self.settle_private(shared);
    }

    /// Copies every entry to its place in the new index.
    fn fill(&mut self, shared: &Shared, filling: &mut Filling) {
        let space = &shared.regions.index;
        let mut batch: Vec<(u32, IndexEntry)> = Vec::with_capacity(BATCH + SLOT_COUNT);
        for number in 0..self.index.buckets_in_all() {
            let words = self.index.bucket(space, number);
            for slot in 0..SLOT_COUNT {
                let entry = bucket::entry(&words, slot);
                if entry.tag == 0 {
                    continue;
                }
                if let Some(words) = shared.data().slice(entry.pointer.offset(), PREFETCH_LEN) {
                    words.prefetch(PREFETCH_LEN);
                }
                batch.push((slot_number(number, slot), entry));
            }
            if batch.len() >= BATCH {
                self.fill_batch(shared, filling, &mut batch);
            }
        }
        self.fill_batch(shared, filling, &mut batch);
        let base = self.index.slot_count();
        for (place, side) in self.side.iter() {
            filling.place(shared, base + place, side.hash, side.entry);
        }
    }

    fn fill_batch(
        &mut self,
        shared: &Shared,
        filling: &mut Filling,
        batch: &mut Vec<(u32, IndexEntry)>,
    ) {
        for (old, entry) in batch.drain(..) {
            let mut hash = self.hash_at(shared, entry.pointer.offset());
            debug_assert_eq!(hash.tag, entry.tag);
            hash.tag = entry.tag;
            filling.place(shared, old, hash, entry);
        }
    }

    /// Rewrites every bucket's config id and epoch and, if the epoch changed,
    /// advertises the window anew.
    pub(crate) fn restamp(&mut self, shared: &Shared, config_id: u32, epoch: u32) {
        let raised = epoch != self.epoch();
        self.index.restamp(&shared.regions.index, config_id, epoch);
        if raised && self.advertised {
            self.advertise(shared, self.index.window.window_id);
        }
    }

    /// Makes every bucket invalid for good.
    pub(crate) fn poison(&self, shared: &Shared) {
        self.index.poison(&shared.regions.index);
    }

    /// Takes the place of `old` in the control region; `old` is poisoned and
    /// gives everything back.
    pub(crate) fn replace(&mut self, shared: &Shared, old: &mut Partition) {
        old.advertised = false;
        self.advertise(shared, old.window_id());
        self.set_data_len(shared, self.data_len);
        old.poison(shared);
        old.release_all(shared);
        self.counts.add(&old.counts);
    }
}

/// A new index that is being filled.
struct Filling {
    new: Index,
    side: SideTable,
    /// New slot number and displacement, by old slot number.
    numbers: Vec<u32>,
}

impl Filling {
    fn place(&mut self, shared: &Shared, old: u32, hash: KeyHash, entry: IndexEntry) {
        let space = &shared.regions.index;
        let packed = match self.new.vacancy(space, hash) {
            Some(vacancy) => {
                self.new.insert(space, vacancy, entry);
                vacancy.number | u32::from(vacancy.displacement) << DISPLACEMENT_SHIFT
            }
            None => {
                let home = self.new.home(hash);
                self.new.set_overflowed(space, home, true);
                self.new.slot_count() + self.side.insert(SideEntry { hash, home, entry })
            }
        };
        self.numbers[old as usize] = packed;
    }
}
