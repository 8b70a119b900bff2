//! When an index should have another size.

use super::Partition;
use super::reshape::{BUCKET_COUNT_FIRST, Moving, window_len};
use crate::policy::{self, SLOT_COUNT_MAX};
use crate::shared::Shared;
use trefoil_layout::bucket::{BUCKET_LEN, SLOT_COUNT};
use trefoil_layout::control::IndexWindow;
use trefoil_layout::limits::SPILL_MAX;

/// Share of the home slots in use, in percent, from which an index grows.
const LOAD_MAX: u64 = 80;
/// The same where growth has to evict: later, and by less, for every byte of
/// index is one of data. Simulated under churn: 0.3 to 0.5 % of the entries stand
/// in the side table at a load of 0.90.
const LOAD_MAX_FULL: u64 = 90;
/// A store with less than this share left grows as if it were full: the memory
/// that smaller indexes have just given back is for items.
const NEARLY_FULL_SHARE: u64 = 16;
/// By which part an index grows where growth has to evict.
const GROWTH_FULL: u64 = 32;
/// Growth that has to evict takes at most this share of the partition's data: where
/// items are about as small as their index entries, two indexes would take them all.
const GROWTH_COST_SHARE: u64 = 4;
/// A store with less than this left is full.
const FULL_LEN: u64 = 64 << 10;
/// Load in percent under which an index is too large for a full store.
const LOAD_MIN_FULL: u64 = 85;
/// A full store's index becomes smaller only after it has evicted one in this many
/// items since the last replacement. The memory of two indexes was paid for with
/// items, whose place others have yet to take.
const REFILLED_SHARE: u64 = 8;
/// Load in percent of an index that was made smaller in a full store.
const LOAD_SHRUNK_FULL: u64 = 88;
/// Load in percent above which an index that was to be smaller is pointless.
pub(super) const LOAD_POINTLESS: u64 = 92;
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

/// Rounds a bucket count up so that its window fills whole frames.
pub(super) fn whole_frames(shared: &Shared, bucket_count: u64) -> u64 {
    let frame_buckets = shared.regions.index.frame_len() / BUCKET_LEN as u64;
    (bucket_count + SPILL_MAX as u64).next_multiple_of(frame_buckets) - SPILL_MAX as u64
}

/// Whether an index of so many buckets has slots, side table included, that the policy
/// can number.
fn slots_fit(bucket_count: u64) -> bool {
    (bucket_count + SPILL_MAX as u64) * (SLOT_COUNT as u64) * 17 / 16 < u64::from(SLOT_COUNT_MAX)
}

/// Buckets of the index of an empty partition: a small share of its memory.
pub(super) fn bucket_count_first(shared: &Shared) -> u64 {
    let share = shared.fair_len() / 64 / BUCKET_LEN as u64;
    whole_frames(shared, share.clamp(1, BUCKET_COUNT_FIRST))
}

/// Items in an index of so many buckets where the store is full, about.
pub(super) fn items_of_full(bucket_count: u64) -> u32 {
    let slots = bucket_count.saturating_mul(SLOT_COUNT as u64);
    let slots = slots.min(SLOT_COUNT_MAX.into());
    (slots * LOAD_SHRUNK_FULL / 100) as u32
}

impl Partition {
    /// How many buckets the index should have, if not as many as it has.
    pub(super) fn bucket_count_wanted(&self, shared: &Shared) -> Option<u64> {
        let now = self.table.index.bucket_count();
        if let Some(wanted) = self.bucket_count_reserved(shared, now) {
            return Some(wanted);
        }
        let load = self.load();
        let side = self.table.side.count() as u64;
        let crowded = |share: u64| side > SIDE_COUNT_MIN && side * share > self.item_count;
        let excess = shared.budget.used() > shared.budget.limit();
        if load >= LOAD_MAX || crowded(SIDE_SHARE) {
            let share = IndexWindow::bytes(now) * DOUBLING_SHARE;
            let step = if share < shared.fair_len() {
                now
            } else {
                now / 4
            };
            let mut wanted = whole_frames(shared, now + step.max(1));
            let kept = self
                .reshape_len(shared, wanted)
                .max(shared.budget.limit() / NEARLY_FULL_SHARE);
            let available = shared.budget.available();
            let full = available < kept;
            let mut bearable = true;
            if full {
                wanted = whole_frames(shared, now + (now / GROWTH_FULL).max(1));
                let missing = self.reshape_len(shared, wanted).saturating_sub(available);
                bearable = missing * GROWTH_COST_SHARE <= self.data_len;
            }
            let fits = slots_fit(wanted);
            let due = !full || bearable && (load >= LOAD_MAX_FULL || crowded(SIDE_SHARE_FULL));
            // While the store has to shrink, entries are evicted near their
            // home rather than everywhere for the sake of an index.
            return (fits && due && !excess).then_some(wanted);
        }
        let full = shared.budget.available() < FULL_LEN.max(window_len(shared, now));
        let (load_min, load_shrunk) = match (excess, full) {
            (true, _) => (LOAD_MIN_EXCESS, LOAD_SHRUNK),
            (false, true) => (LOAD_MIN_FULL, LOAD_SHRUNK_FULL),
            (false, false) => (LOAD_MIN, LOAD_SHRUNK),
        };
        // The crawler leaves what it has not come to in one part of the hash
        // space: too much for a smaller index, which would grow again, and
        // have the crawler begin anew each time.
        let crawling = self.crawl.is_under_way() && !excess;
        // What was asked for beforehand has yet to be filled.
        let is_reserved = self.bucket_count_min > 0 && !excess;
        let waits = crawling || is_reserved || full && !excess && self.is_refilling();
        if load < load_min && now > bucket_count_first(shared) && !waits {
            let slots = self.item_count * 100 / load_shrunk;
            let wanted = (slots / SLOT_COUNT as u64).max(bucket_count_first(shared));
            let wanted = whole_frames(shared, wanted);
            return (wanted < now).then_some(wanted);
        }
        None
    }

    /// How many buckets were asked for beforehand, if there is memory for them.
    fn bucket_count_reserved(&self, shared: &Shared, now: u64) -> Option<u64> {
        if self.bucket_count_min <= now {
            return None;
        }
        let wanted = whole_frames(shared, self.bucket_count_min);
        // It is for items that are still to come: they need room, too.
        let kept = shared.budget.limit() / NEARLY_FULL_SHARE;
        let len = self.reshape_len(shared, wanted).saturating_add(kept);
        (len <= shared.budget.available() && slots_fit(wanted)).then_some(wanted)
    }

    /// Whether it may hold fewer items than it has room for, since its index was
    /// replaced.
    fn is_refilling(&self) -> bool {
        let evicted = self.counts.evicted_capacity - self.evicted_at_reshape;
        self.counts.index_reshapes > 0 && evicted * REFILLED_SHARE < self.item_count
    }

    fn load(&self) -> u64 {
        self.item_count * 100 / self.table.index.home_slot_count()
    }

    /// Whether a mutation should grow the index itself.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        let side = self.table.side.count() as u64;
        self.load() >= LOAD_URGENT
            || (side > 2 * SIDE_COUNT_MIN && side * SIDE_SHARE_URGENT > self.item_count)
    }

    /// Private bytes that exist only while the index is being replaced, beyond
    /// those of the present one: the policy's metadata of the next one, and the
    /// next numbers of the present slots.
    pub(super) fn reshape_private_len(&self, bucket_count: u64) -> (u64, u64) {
        let slots = (bucket_count + SPILL_MAX as u64) as u32 * SLOT_COUNT as u32;
        let now = u64::from(self.table.index.slot_count()) + self.table.side.place_count() as u64;
        (policy::slot_bytes(self.policy.kind(), slots), now * 4)
    }

    fn reshape_len(&self, shared: &Shared, bucket_count: u64) -> u64 {
        let (metadata, numbers) = self.reshape_private_len(bucket_count);
        window_len(shared, bucket_count) + metadata + numbers
    }

    /// Whether an index of another size is wanted.
    pub(crate) fn wants_reshape(&self, shared: &Shared) -> bool {
        self.bucket_count_wanted(shared).is_some()
    }

    /// Whether a mutation should take a step of it: maintenance does not keep
    /// up, or does not come.
    #[inline]
    pub(super) fn wants_step(&self) -> bool {
        self.is_crowded() || matches!(self.moving.as_deref(), Some(Moving::Retiring(_)))
    }
}
