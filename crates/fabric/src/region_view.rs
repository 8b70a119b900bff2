//! What a reader knows of a backend's memory: mapped regions, windows, config id.
//! One-sided reads through it make no system call, take no lock and allocate
//! nothing; the backend does not notice.
//!
//! The windows are private copies: nothing that the backend writes while a
//! read is under way can lead it outside the mappings. A view does not change:
//! a refresh makes another one of the same mappings, so threads may share it. It
//! serves clients that map memory, and would serve an engine that reads the same
//! memory for others.

use crate::agreement::Agreement;
use crate::port::{OutOfWindow, Refreshed};
use std::sync::Arc;
use trefoil_client_core::vote::{self, IndexVote, index_vote};
use trefoil_layout::bucket::{self, BUCKET_LEN, BUCKET_WORDS, SLOT_COUNT, beside_word, slot_word};
use trefoil_layout::control::{self, IndexWindow};
use trefoil_layout::limits::SPILL_MAX;
use trefoil_layout::words::Words;
use trefoil_layout::{KeyHash, Pointer, TopologyId, Version};
use trefoil_ordered::marks;
use trefoil_region::{Mapping, SharedBlock, SharedWords, WordBuffer};

/// Bytes of an entry that are fetched ahead of its copy; behind them the
/// processor's own prefetcher has understood.
pub const PREFETCH_LEN_MAX: usize = 4096;
/// Bytes whose cache misses a copy overlaps by itself: the loads of so few
/// lines are all in flight at once.
const COPY_AHEAD_LEN: usize = 512;
/// Looks at a window that is being changed, before the old copy is kept.
const WINDOW_ATTEMPT_COUNT: usize = 100;

/// The regions of one backend, mapped for reading.
#[derive(Clone, Debug)]
pub struct RegionView {
    agreement: Agreement,
    control: Mapping,
    index: Mapping,
    data: Mapping,
    windows: Box<[IndexWindow]>,
    config_id: u32,
    data_window: u64,
    /// Of a backend with a queue.
    marks: Option<Mapping>,
}

impl RegionView {
    /// A view of these regions, with the windows that they advertise now.
    pub fn new(agreement: Agreement, control: Mapping, index: Mapping, data: Mapping) -> Self {
        let mut view = RegionView {
            agreement,
            control,
            index,
            data,
            windows: vec![IndexWindow::default(); agreement.partition_count].into(),
            config_id: 0,
            data_window: 0,
            marks: None,
        };
        view.refresh();
        view
    }

    /// Has each vote preceded by a look at these marks.
    pub(crate) fn set_marks(&mut self, marks: Option<Mapping>) {
        self.marks = marks;
    }

    /// Whether a mutation of this key may be acknowledged and not executed, so that nothing
    /// is known from the backend's memory. To be asked before anything is read.
    #[inline(always)]
    pub fn is_pending(&self, hash: KeyHash) -> bool {
        match &self.marks {
            None => false,
            Some(words) => marks::is_pending(&words.words(), hash.tag),
        }
    }

    /// See [`Agreement::topology`].
    pub(crate) fn set_topology(&mut self, topology: TopologyId) {
        self.agreement.topology = topology;
    }

    /// What was agreed when the connection was made.
    #[inline(always)]
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Config id that buckets are expected to carry, as of the last refresh.
    #[inline(always)]
    pub fn config_id(&self) -> u32 {
        self.config_id
    }

    /// Whether the backend's lease on its memory runs at `now_monotonic_ns`
    /// ([`crate::clock::monotonic_ns`]). To be asked after the last read of an
    /// operation: memory of a dead backend stays readable.
    #[inline(always)]
    pub fn lease_alive(&self, now_monotonic_ns: u64) -> bool {
        control::lease_end_ns(&self.control.words()) > now_monotonic_ns
    }

    /// What is left of the lease at that time; 0 if it has ended.
    #[inline(always)]
    pub fn lease_left_ns(&self, now_monotonic_ns: u64) -> u64 {
        control::lease_end_ns(&self.control.words()).saturating_sub(now_monotonic_ns)
    }

    /// No version that is known of the partition's keys has a later time; see
    /// [`control::newest_ns`].
    #[inline]
    pub fn newest_ns(&self, partition: usize) -> u64 {
        control::newest_ns(&self.control.words(), partition)
    }

    /// In which epoch the backend acknowledges mutations of a key at present. `None`: it
    /// recovers, serves another configuration, or these windows are not its present ones.
    #[inline]
    pub fn acknowledges_in(&self, place: usize, hash: KeyHash, config_id: u32) -> Option<u32> {
        let home = self.home(place, hash)?;
        let header = bucket::header(&home.bucket.words());
        let serves = header.config_id == config_id && !header.recovering;
        // As in `absent`: the range may hold another partition's index by now.
        let partition = home.partition();
        let is_present = || self.is_window(partition, self.windows[partition].window_id);
        (serves && is_present()).then_some(header.epoch)
    }

    /// Whether the backend has moved to another process: this one takes nothing any more.
    #[inline(always)]
    pub fn has_moved(&self) -> bool {
        control::lease_end_ns(&self.control.words()) == control::LEASE_MOVED_NS
    }

    /// What the process calls itself that is about to take the backend's place; 0: nobody is.
    #[inline(always)]
    pub fn successor(&self) -> u64 {
        control::successor(&self.control.words())
    }

    /// Entries at or below this version are misses.
    #[inline(always)]
    pub fn flush_floor(&self) -> Version {
        control::flush_floor(&self.control.words())
    }

    /// Partitions of the backend.
    #[inline(always)]
    pub fn partition_count(&self) -> usize {
        self.agreement.partition_count
    }

    /// Partition of a key in whose cohort this backend has place `place`. What
    /// no cohort has is taken for the last place: a key of another backend is
    /// not found.
    #[inline(always)]
    pub fn partition(&self, place: usize, hash: KeyHash) -> usize {
        self.agreement.partition(place, hash)
    }

    /// What a fill at this backend must find again: see `layout::control::stamp`.
    #[inline]
    pub fn stamp(&self, place: usize, hash: KeyHash) -> u64 {
        self.stamp_in(self.partition(place, hash), hash)
    }

    /// The same where the partition is known already.
    #[inline]
    pub fn stamp_in(&self, partition: usize, hash: KeyHash) -> u64 {
        let count = self.windows.len();
        control::stamp(&self.control.words(), partition, count, hash)
    }

    /// Names a key of this partition to who has its index.
    #[inline(always)]
    pub fn name(&self, partition: usize, hash: KeyHash) -> u32 {
        hash.name(self.windows[partition].bucket_count)
    }

    /// Fetches what tells later whether a fill may replace what is there.
    #[inline]
    pub fn prefetch_stamp(&self, place: usize, hash: KeyHash) {
        let partition = self.partition(place, hash);
        let stamp = control::stamp_word(partition, self.windows.len(), hash);
        self.control.words().prefetch_word(stamp);
    }

    /// Id of the index window in use for a partition; 0 if there is none.
    #[inline(always)]
    pub fn window_id(&self, partition: usize) -> u64 {
        self.windows[partition].window_id
    }

    /// The view that others share, with windows and config id taken anew.
    #[cold]
    pub fn refresh_shared(shared: &mut Arc<Self>) -> Refreshed {
        let mut fresh = RegionView::clone(shared);
        let refreshed = fresh.refresh();
        if refreshed == Refreshed::Changed {
            *shared = Arc::new(fresh);
        }
        refreshed
    }

    /// Takes windows and config id from the control region anew.
    #[cold]
    pub fn refresh(&mut self) -> Refreshed {
        let words = self.control.words();
        let mut changed = Refreshed::Unchanged;
        let config_id = control::config_id(&words);
        let data_window = control::data_window(&words).min(self.data.len());
        if (config_id, data_window) != (self.config_id, self.data_window) {
            (self.config_id, self.data_window) = (config_id, data_window);
            changed = Refreshed::Changed;
        }
        for (partition, known) in self.windows.iter_mut().enumerate() {
            let Some(window) = settled_window(&words, partition) else {
                continue;
            };
            let window = usable(window, self.index.len());
            if window != *known {
                *known = window;
                changed = Refreshed::Changed;
            }
        }
        changed
    }

    /// What the index says about a key, judged from the live buckets.
    #[inline]
    pub fn index_vote(&self, place: usize, hash: KeyHash) -> IndexVote {
        self.index_vote_in(self.partition(place, hash), hash)
    }

    /// The same for a key whose partition is known already.
    #[inline(always)]
    pub fn index_vote_in(&self, partition: usize, hash: KeyHash) -> IndexVote {
        let window = &self.windows[partition];
        if self.is_pending(hash) {
            let epoch = window.epoch;
            return IndexVote::AskByMessage { epoch };
        }
        let vote = index_vote(hash, self.config_id, window.bucket_count, |bucket| {
            self.bucket(window, bucket).words()
        });
        match vote {
            IndexVote::Absent { .. } => self.absent(partition, vote),
            vote => vote,
        }
    }

    /// A range that held an index may hold another partition's by now, with
    /// headers that are in order: a reader that has been idle meanwhile finds
    /// none of its keys there. What it does find is judged by its tag and its data.
    fn absent(&self, partition: usize, vote: IndexVote) -> IndexVote {
        let words = self.control.words();
        words.fence_acquire();
        match control::window_id(&words, partition) == self.windows[partition].window_id {
            true => vote,
            false => IndexVote::ConfigChanged { found: 0 },
        }
    }

    /// Where a key's home bucket stands; `None` if its partition has no index
    /// at present.
    #[inline(always)]
    pub fn home(&self, place: usize, hash: KeyHash) -> Option<Home<'_>> {
        let partition = self.partition(place, hash);
        let window = &self.windows[partition];
        let number = hash.bucket(window.bucket_count);
        (window.bucket_count > 0).then(|| Home {
            bucket: self.bucket(window, number),
            // Slot numbers have 32 bits, so bucket numbers have fewer.
            number: number as u32,
            partition: partition as u16,
        })
    }

    /// What the lines that [`Home::prefetch`] fetches say, if that is enough:
    /// the key's presence.
    #[inline(always)]
    pub fn glance(&self, hash: KeyHash, home: Home<'_>) -> Option<IndexVote> {
        if self.is_pending(hash) {
            return None;
        }
        let words = home.bucket.words();
        vote::glance(hash, self.config_id, home.number.into(), &words)
    }

    /// Fetches the other lines that a vote may need: the rest of the bucket,
    /// and what a neighbour holds if the home has spilled. To be asked when
    /// the lines of [`Home::prefetch`] have come.
    pub fn prefetch_rest(&self, hash: KeyHash, home: Home<'_>) {
        let bucket = home.bucket.words();
        bucket.prefetch(BUCKET_LEN);
        if bucket::header(&bucket).spill > 0 {
            let window = &self.windows[usize::from(home.partition)];
            let neighbour = Home {
                bucket: self.bucket(window, u64::from(home.number) + 1),
                ..home
            };
            neighbour.prefetch(hash);
        }
    }

    /// Fetches the lines of the bucket that hold its header and the slots where
    /// nearly every key stands.
    #[inline(always)]
    pub fn prefetch_bucket(&self, place: usize, hash: KeyHash) {
        if let Some(home) = self.home(place, hash) {
            home.prefetch(hash);
        }
    }

    /// Fetches what a scan looks at first: [`RegionView::prefetch_bucket`], and the
    /// stamp.
    #[inline(always)]
    pub fn prefetch_scan(&self, place: usize, hash: KeyHash) {
        if let Some(home) = self.home(place, hash) {
            home.prefetch(hash);
            let stamp = control::stamp_word(home.partition(), self.windows.len(), hash);
            self.control.words().prefetch_word(stamp);
        }
    }

    /// Fetches the lines of a data entry.
    #[inline(always)]
    pub fn prefetch_data(&self, pointer: Pointer) {
        if let Ok(words) = self.entry(pointer) {
            words.prefetch(PREFETCH_LEN_MAX);
        }
    }

    /// Copies what `pointer` leads to into private memory, where it is to be
    /// validated. It may be torn, or something else by now.
    #[inline(always)]
    pub fn read_data(&self, pointer: Pointer, into: &mut WordBuffer) -> Result<(), OutOfWindow> {
        let words = self.entry(pointer)?;
        if pointer.len() > COPY_AHEAD_LEN {
            words.prefetch(PREFETCH_LEN_MAX);
        }
        into.fill_from(words);
        Ok(())
    }

    /// The live words of a data entry, to be copied before they are judged.
    #[inline(always)]
    pub fn entry(&self, pointer: Pointer) -> Result<SharedWords<'_>, OutOfWindow> {
        let (offset, len) = (pointer.offset(), pointer.len());
        if offset + len as u64 > self.data_window {
            return Err(OutOfWindow);
        }
        self.data.words().slice(offset, len).ok_or(OutOfWindow)
    }

    /// Live words of the control region.
    pub fn control_range(&self, offset: u64, len: usize) -> Result<SharedWords<'_>, OutOfWindow> {
        self.control.words().slice(offset, len).ok_or(OutOfWindow)
    }

    /// Live words of the data region that are advertised.
    pub fn data_range(&self, offset: u64, len: usize) -> Result<SharedWords<'_>, OutOfWindow> {
        let end = offset.checked_add(len as u64).ok_or(OutOfWindow)?;
        match end <= self.data_window {
            true => self.data.words().slice(offset, len).ok_or(OutOfWindow),
            false => Err(OutOfWindow),
        }
    }

    /// Whole live buckets of a partition's index, if that is still this window. Whether
    /// it is, [`RegionView::is_window`] says again after they were copied.
    pub fn index_range(
        &self,
        partition: usize,
        window_id: u64,
        offset: u64,
        len: usize,
    ) -> Result<SharedWords<'_>, OutOfWindow> {
        let window = self.windows.get(partition).ok_or(OutOfWindow)?;
        let window_end = window.offset + IndexWindow::bytes(window.bucket_count);
        let end = offset.checked_add(len as u64).ok_or(OutOfWindow)?;
        let is_inside = window.bucket_count > 0
            && window.window_id == window_id
            && (window.offset..window_end).contains(&offset)
            && end <= window_end
            && (offset - window.offset).is_multiple_of(BUCKET_LEN as u64)
            && len.is_multiple_of(BUCKET_LEN);
        match is_inside && self.is_window(partition, window_id) {
            true => self.index.words().slice(offset, len).ok_or(OutOfWindow),
            false => Err(OutOfWindow),
        }
    }

    /// Whether the partition's index is still advertised under this id.
    pub fn is_window(&self, partition: usize, window_id: u64) -> bool {
        let words = self.control.words();
        words.fence_acquire();
        partition < self.windows.len() && control::window_id(&words, partition) == window_id
    }

    /// A bucket below `bucket_count + SPILL_MAX`.
    #[inline(always)]
    fn bucket(&self, window: &IndexWindow, bucket: u64) -> SharedBlock<'_, BUCKET_WORDS> {
        self.index
            .words()
            .block(window.offset + bucket * BUCKET_LEN as u64)
            .expect("refresh() has checked that the whole window lies in the mapping")
    }
}

/// A key's home bucket, found once for several looks at it. Good for the
/// [`RegionView`] that found it.
#[derive(Clone, Copy)]
pub struct Home<'a> {
    bucket: SharedBlock<'a, BUCKET_WORDS>,
    number: u32,
    partition: u16,
}

impl Home<'_> {
    /// The key's partition.
    #[inline(always)]
    pub fn partition(&self) -> usize {
        self.partition.into()
    }

    /// Fetches the lines that hold the header and the slots where nearly every key
    /// stands.
    #[inline(always)]
    pub fn prefetch(&self, hash: KeyHash) {
        let words = self.bucket.words();
        words.prefetch_word(0);
        words.prefetch_word(slot_word(hash.home_slot()));
        words.prefetch_word(beside_word(hash.home_slot()));
    }
}

fn settled_window(words: &SharedWords<'_>, partition: usize) -> Option<IndexWindow> {
    (0..WINDOW_ATTEMPT_COUNT).find_map(|_| control::index_window(words, partition))
}

/// The window, or none at all if it does not lie inside the region or its slot
/// numbers would not fit.
fn usable(window: IndexWindow, index_len: u64) -> IndexWindow {
    let slots_fit = window
        .bucket_count
        .checked_add(SPILL_MAX as u64)
        .and_then(|buckets| buckets.checked_mul(SLOT_COUNT as u64))
        .is_some_and(|slots| slots <= u64::from(u32::MAX));
    let inside = slots_fit
        && window.offset.is_multiple_of(BUCKET_LEN as u64)
        && window
            .offset
            .checked_add(IndexWindow::bytes(window.bucket_count))
            .is_some_and(|end| end <= index_len);
    if inside {
        window
    } else {
        IndexWindow::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_outside_the_region_are_not_used() {
        let good = IndexWindow {
            window_id: 2,
            offset: 512,
            bucket_count: 4,
            epoch: 1,
        };
        assert_eq!(usable(good, 512 * 8), good);
        let none = IndexWindow::default();
        assert_eq!(usable(good, 512 * 8 - 1), none);
        for (offset, bucket_count) in [
            (8, 1),
            (u64::MAX - 511, 1),
            (0, u64::MAX),
            (0, u64::MAX / 512),
            (0, 1 << 29),
        ] {
            let bad = IndexWindow {
                offset,
                bucket_count,
                ..good
            };
            assert_eq!(usable(bad, u64::MAX), none, "{bad:?}");
        }
    }
}
