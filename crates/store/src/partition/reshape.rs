//! Larger and smaller indexes, and what else rewrites a whole window: a bounded
//! step under the partition's lock at a time, whoever takes it.
//!
//! ```text
//! Reserving ─► Populating ─► Filling ─► Retiring ─► given back
//!  memory is    a chunk of    entries    the old index is
//!  charged      the window    are        poisoned, a few
//!               at a time,    copied     buckets at a time
//!               no lock held
//! ```
//!
//! While the next index is being filled, readers use the present one alone: it
//! stays complete. An entry that stands in the next one, too, is changed in both
//! under one hold of the lock, the one that readers see first. What is new gets
//! into both at once. So the next index is complete when the walk over the
//! present one's slots has ended: then it is advertised.
//!
//! From that moment mutations change the new index only. Readers of the old one
//! are told so bucket by bucket, which takes many steps; so a mutation first
//! poisons the old home of its key ([`Partition::disown`]), whether the walk has
//! been there or not. A reader that finds config id 0 takes the new window.
//!
//! The index keeps no key hashes, so every key is read again: entries are
//! taken in batches whose data is fetched ahead.

use super::table::Table;
use super::wants::{LOAD_POINTLESS, whole_frames};
use super::{Partition, Stamp};
use crate::budget::Kind;
use crate::index::Index;
use crate::leaving::Window;
use crate::mutants::{self, Mutant};
use crate::policy::{self, Policy, SPACE};
use crate::shared::{Shared, lock};
use crate::space::Space;
use std::ops::Range;
use trefoil_layout::bucket::BUCKET_LEN;
use trefoil_layout::control::IndexWindow;
use trefoil_layout::{IndexEntry, KeyHash};

/// Buckets of a first index.
pub(super) const BUCKET_COUNT_FIRST: u64 = 64;
/// Slots whose entries one step copies.
const FILL_SLOTS: u32 = 128;
/// Bytes that one step charges or makes resident, unless a frame is longer.
const CHUNK_LEN: u64 = 256 << 10;
/// Headers that one step rewrites.
const HEADER_COUNT: u64 = 1024;
/// Items that one step evicts at most.
const EVICTIONS_MAX: u64 = 64;
/// Bytes fetched ahead of each entry: head and key.
const PREFETCH_LEN: usize = 128;
/// Entries fetched ahead at a time.
const BATCH: usize = 32;

/// Bytes of the window of an index with at least `bucket_count` buckets.
pub(super) fn window_len(shared: &Shared, bucket_count: u64) -> u64 {
    IndexWindow::bytes(bucket_count).next_multiple_of(shared.regions.index.frame_len())
}

/// A window of a new partition, charged, resident and with valid buckets.
pub(super) fn first_index(shared: &Shared, bucket_count: u64, stamp: Stamp) -> Option<Index> {
    let bucket_count = whole_frames(shared, bucket_count);
    let len = window_len(shared, bucket_count);
    let index = place(shared, bucket_count, stamp, 0)?;
    let populated = shared.budget.try_charge(Kind::Index, len) && {
        let range = index.window.offset..index.window.offset + len;
        let populated = shared.regions.index.populate_ahead(range).is_ok();
        if !populated {
            shared.budget.release(Kind::Index, len);
        }
        populated
    };
    if !populated {
        lock(&shared.windows).release(index.window.offset, len);
        return None;
    }
    Index::initialise(&shared.regions.index, 0..index.buckets_in_all(), &index);
    Some(index)
}

/// Offsets for an index. Nothing is resident there.
fn place(shared: &Shared, bucket_count: u64, stamp: Stamp, space: u32) -> Option<Index> {
    let len = window_len(shared, bucket_count);
    let offset = lock(&shared.windows).allocate_onward(len)?;
    let window = IndexWindow {
        window_id: 0,
        offset,
        bucket_count,
        epoch: stamp.epoch,
    };
    Some(Index {
        window,
        stamp,
        space,
    })
}

/// What a partition has no use for any more. To be released where nobody waits.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Retired {
    window: Option<Window>,
    /// Private bytes charged.
    private: u64,
    metadata: policy::Retired,
    times: Vec<u32>,
    numbers: Vec<u32>,
}

impl Retired {
    /// Gives everything back to the system, the window a part at a time
    /// ([`crate::leaving`]).
    pub(crate) fn release(self, shared: &Shared) {
        let Retired {
            window,
            private,
            metadata,
            times,
            numbers,
        } = self;
        drop((metadata, times, numbers));
        shared.budget.release(Kind::Private, private);
        if let Some(window) = window {
            shared.leaving.add(shared, window);
        }
    }
}

/// How far the next index is.
#[derive(Debug)]
pub(super) enum Moving {
    Reserving(Reserving),
    Populating(Populating),
    Filling(Filling),
    Retiring(Retiring),
}

#[derive(Debug)]
pub(super) struct Reserving {
    bucket_count: u64,
    /// Private bytes to be charged, and charged so far.
    private: u64,
    charged: u64,
}

#[derive(Debug)]
pub(super) struct Populating {
    next: Index,
    /// Bytes that are resident and initialised.
    done: u64,
    /// Bytes that are charged: what is beyond `done` is being made resident.
    charged: u64,
    private: u64,
}

#[derive(Debug)]
pub(super) struct Filling {
    pub(super) next: Table,
    /// The number in the next index by number in the present one, plus 1; 0 for
    /// an entry that stands in the present one only.
    numbers: Vec<u32>,
    /// Entries below this number of the present index stand in both.
    cursor: u32,
    /// Headers of the next index that have the present stamp.
    stamped: u64,
    private: u64,
}

#[derive(Debug)]
pub(super) struct Retiring {
    old: Index,
    /// Buckets that are poisoned.
    done: u64,
    retired: Retired,
}

/// What a step came to.
#[derive(Debug)]
pub(crate) enum Stepped {
    /// There is nothing to do.
    Idle,
    /// There is more to do.
    Went,
    /// This part of the next index is to become resident, with no lock held; then
    /// [`Partition::populated`] is told. Nobody takes another step meanwhile.
    Populates(Range<u64>),
    /// So many bytes are missing, which the partition cannot find by itself.
    Blocked(u64),
    /// It has ended: the index has been replaced.
    Done(Retired),
    /// It has ended: the index stays as it is.
    Aborted(Retired),
}

impl Moving {
    /// The number that the entry at `number` of the present index goes by.
    #[inline]
    pub(super) fn number_of(&self, number: u32) -> u32 {
        match self {
            Moving::Filling(filling) => filling.twin(number).unwrap_or(number),
            _ => number,
        }
    }
}

impl Filling {
    /// The number in the next index of the entry at `number` of the present one.
    #[inline]
    pub(super) fn twin(&self, number: u32) -> Option<u32> {
        let at = (number & !SPACE) as usize;
        self.numbers.get(at).copied().unwrap_or(0).checked_sub(1)
    }

    pub(super) fn note(&mut self, number: u32, twin: u32) {
        let at = (number & !SPACE) as usize;
        if at >= self.numbers.len() {
            // The side table has grown.
            self.numbers.resize(at + 1, 0);
        }
        self.numbers[at] = twin + 1;
    }

    pub(super) fn forget(&mut self, number: u32) {
        if let Some(twin) = self.numbers.get_mut((number & !SPACE) as usize) {
            *twin = 0;
        }
    }
}

/// For [`crate::Store::check`].
impl Filling {
    pub(super) fn has_passed(&self, number: u32) -> bool {
        number & !SPACE < self.cursor
    }

    pub(super) fn twin_count(&self) -> usize {
        self.numbers.iter().filter(|twin| **twin != 0).count()
    }
}

impl Retiring {
    /// Whether whoever still reads the old index finds this entry there, or is
    /// told not to believe it.
    pub(super) fn stands(&self, space: &Space, hash: KeyHash, entry: IndexEntry) -> bool {
        let words = self.old.bucket(space, self.old.home(hash));
        let header = trefoil_layout::bucket::header(&words);
        let found = self.old.find(space, hash).map(|(_, found)| found);
        header.config_id == 0 || found == Some(entry) || found.is_none() && header.overflowed
    }
}

/// The entry that a slot number of either index names.
pub(super) fn entry_of(
    table: &Table,
    moving: &Option<Box<Moving>>,
    space: &Space,
    number: u32,
) -> IndexEntry {
    match moving.as_deref() {
        Some(Moving::Filling(filling)) if filling.next.has(number) => {
            filling.next.entry(space, number)
        }
        _ => table.entry(space, number),
    }
}

impl Partition {
    #[inline]
    pub(super) fn filling(&self) -> Option<&Filling> {
        match self.moving.as_deref() {
            Some(Moving::Filling(filling)) => Some(filling),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn filling_mut(&mut self) -> Option<&mut Filling> {
        match self.moving.as_deref_mut() {
            Some(Moving::Filling(filling)) => Some(filling),
            _ => None,
        }
    }

    /// Takes one bounded step of what the index needs.
    pub(crate) fn reshape_step(&mut self, shared: &Shared) -> Stepped {
        if self.closed {
            return Stepped::Idle;
        }
        self.write_what_is_unwritten(shared);
        let stepped = match self.moving.as_deref() {
            None => self.begin_reshape(shared),
            Some(Moving::Reserving(_)) => self.reserve(shared),
            Some(Moving::Populating(_)) => self.populate(shared),
            Some(Moving::Filling(_)) => self.fill(shared),
            Some(Moving::Retiring(_)) => self.retire_some(shared),
        };
        self.settle_private(shared);
        stepped
    }

    fn begin_reshape(&mut self, shared: &Shared) -> Stepped {
        let Some(bucket_count) = self.bucket_count_wanted(shared) else {
            return Stepped::Idle;
        };
        let (metadata, numbers) = self.reshape_private_len(bucket_count);
        self.moving = Some(Box::new(Moving::Reserving(Reserving {
            bucket_count,
            private: metadata + numbers,
            charged: 0,
        })));
        Stepped::Went
    }

    /// Charges `bytes`, evicting a few items for them if need be. The way down
    /// leads through both indexes: the larger goes at once, so a smaller one
    /// may go beyond the limit, if nothing else makes room for it.
    #[expect(
        clippy::result_large_err,
        reason = "a step's result, passed on as it is"
    )]
    fn pay(
        &mut self,
        shared: &Shared,
        kind: Kind,
        bytes: u64,
        bucket_count: u64,
    ) -> Result<(), Stepped> {
        let shrinks = bucket_count < self.table.index.bucket_count();
        if shrinks && shared.budget.excess() > 0 {
            shared.budget.charge(kind, bytes);
            return Ok(());
        }
        let before = (shared.budget.used(), self.item_count);
        if self.charge_with_room(shared, kind, bytes, EVICTIONS_MAX) {
            return Ok(());
        }
        let gave = shared.budget.used() < before.0 || self.item_count < before.1;
        match gave {
            true => Err(Stepped::Went),
            // Nothing is left to evict, and an index that is too large may have taken the
            // room of all values: without a smaller one nothing could be stored any more.
            false if shrinks => {
                shared.budget.charge(kind, bytes);
                Ok(())
            }
            false => Err(Stepped::Blocked(bytes)),
        }
    }

    /// Whether the next index has become pointless.
    fn is_pointless(&self, shared: &Shared, bucket_count: u64) -> bool {
        let grows = bucket_count > self.table.index.bucket_count();
        let excess = shared.budget.used() > shared.budget.limit();
        let slots = bucket_count * trefoil_layout::bucket::SLOT_COUNT as u64;
        grows && excess || !grows && self.item_count * 100 > slots * LOAD_POINTLESS
    }

    fn reserve(&mut self, shared: &Shared) -> Stepped {
        let Some(Moving::Reserving(reserving)) = self.moving.as_deref() else {
            return Stepped::Idle;
        };
        let (bucket_count, private) = (reserving.bucket_count, reserving.private);
        let chunk = CHUNK_LEN.min(private - reserving.charged);
        if self.is_pointless(shared, bucket_count) {
            return self.abort_reshape();
        }
        if let Err(stepped) = self.pay(shared, Kind::Private, chunk, bucket_count) {
            return stepped;
        }
        let Some(Moving::Reserving(reserving)) = self.moving.as_deref_mut() else {
            return Stepped::Idle;
        };
        reserving.charged += chunk;
        if reserving.charged < private {
            return Stepped::Went;
        }
        let (stamp, space) = (self.table.index.stamp, self.table.index.space ^ SPACE);
        let Some(next) = place(shared, bucket_count, stamp, space) else {
            return self.abort_reshape();
        };
        self.moving = Some(Box::new(Moving::Populating(Populating {
            next,
            done: 0,
            charged: 0,
            private,
        })));
        Stepped::Went
    }

    /// Charges the next part of the window. The system may take long to make it
    /// resident, or the thread may lose its core there: nobody is to wait for that.
    fn populate(&mut self, shared: &Shared) -> Stepped {
        let Some(Moving::Populating(populating)) = self.moving.as_deref() else {
            return Stepped::Idle;
        };
        let bucket_count = populating.next.bucket_count();
        let (done, len) = (populating.done, window_len(shared, bucket_count));
        let space = &shared.regions.index;
        let chunk = CHUNK_LEN.max(space.frame_len()).min(len - done);
        if populating.charged > done {
            return Stepped::Idle;
        }
        if self.is_pointless(shared, bucket_count) {
            return self.abort_reshape();
        }
        if let Err(stepped) = self.pay(shared, Kind::Index, chunk, bucket_count) {
            return stepped;
        }
        let Some(Moving::Populating(populating)) = self.moving.as_deref_mut() else {
            return Stepped::Idle;
        };
        populating.charged = done + chunk;
        let from = populating.next.window.offset + done;
        Stepped::Populates(from..from + chunk)
    }

    /// What [`Stepped::Populates`] asked for is resident, or the system has no memory.
    pub(crate) fn populated(
        &mut self,
        shared: &Shared,
        range: Range<u64>,
        is_resident: bool,
    ) -> Stepped {
        if self.closed {
            return Stepped::Idle;
        }
        let Some(Moving::Populating(populating)) = self.moving.as_deref_mut() else {
            // The partition has ended, or another one stands in its place.
            return Stepped::Idle;
        };
        let (index, done) = (&populating.next, populating.done);
        let chunk = range.end - range.start;
        if index.window.offset + done != range.start || populating.charged != done + chunk {
            return Stepped::Idle;
        }
        if !is_resident {
            populating.charged = done;
            shared.budget.release(Kind::Index, chunk);
            return self.abort_reshape();
        }
        let bucket = |at: u64| (at / BUCKET_LEN as u64).min(index.buckets_in_all());
        Index::initialise(
            &shared.regions.index,
            bucket(done)..bucket(done + chunk),
            index,
        );
        let len = window_len(shared, index.bucket_count());
        populating.done += chunk;
        let is_whole = populating.done == len;
        self.work += chunk / BUCKET_LEN as u64;
        if is_whole {
            self.begin_filling(shared);
        }
        Stepped::Went
    }

    /// A step of a mutation, which does not leave the lock for it.
    pub(super) fn step_at_once(&mut self, shared: &Shared) -> Stepped {
        match self.reshape_step(shared) {
            Stepped::Populates(range) => {
                let populated = shared.regions.index.populate_ahead(range.clone());
                self.populated(shared, range, populated.is_ok())
            }
            stepped => stepped,
        }
    }

    fn begin_filling(&mut self, shared: &Shared) {
        let Some(Moving::Populating(populating)) = self.moving.take().map(|moving| *moving) else {
            return;
        };
        let next = Table::new(populating.next);
        self.policy.resize(next.end());
        // The policy's own account has the metadata from now on.
        let metadata =
            policy::slot_bytes(self.policy.kind(), next.index.slot_count()).min(populating.private);
        shared.budget.release(Kind::Private, metadata);
        self.moving = Some(Box::new(Moving::Filling(Filling {
            numbers: vec![0; (self.table.end() & !SPACE) as usize],
            cursor: 0,
            stamped: u64::MAX,
            private: populating.private - metadata,
            next,
        })));
    }

    /// Copies the next few entries.
    fn fill(&mut self, shared: &Shared) -> Stepped {
        let end = self.table.end() & !SPACE;
        let Some(Moving::Filling(filling)) = self.moving.as_deref_mut() else {
            return Stepped::Idle;
        };
        let first = filling.cursor;
        let last = end.min(first.saturating_add(FILL_SLOTS));
        filling.cursor = filling.cursor.max(last);
        if first < last {
            self.copy_entries(shared, first..last);
            return Stepped::Went;
        }
        if self.stamp_next(shared) {
            return Stepped::Went;
        }
        self.swap_tables(shared);
        Stepped::Went
    }

    fn copy_entries(&mut self, shared: &Shared, slots: Range<u32>) {
        let space = &shared.regions.index;
        let mut batch = [(0, IndexEntry::default()); BATCH];
        let mut at = slots.start;
        while at < slots.end {
            let mut count = 0;
            while at < slots.end && count < BATCH {
                let number = self.table.index.space | at;
                at += 1;
                let entry = self.table.entry(space, number);
                if entry.tag == 0 || self.newest_number(number) != number {
                    continue;
                }
                if let Some(words) = shared.data().slice(entry.pointer.offset(), PREFETCH_LEN) {
                    words.prefetch(PREFETCH_LEN);
                }
                batch[count] = (number, entry);
                count += 1;
            }
            for &(number, entry) in &batch[..count] {
                let mut hash = self.hash_at(shared, entry.pointer.offset());
                debug_assert_eq!(hash.tag, entry.tag);
                hash.tag = entry.tag;
                self.add_twin(shared, number, hash, entry);
            }
        }
        self.work += u64::from(slots.end - slots.start);
        // What was found before goes by another number now.
        self.changes += 1;
    }

    /// Puts an entry that stands at `number` of the present index into the next
    /// one, too, if there is one.
    pub(super) fn add_twin(
        &mut self,
        shared: &Shared,
        number: u32,
        hash: KeyHash,
        entry: IndexEntry,
    ) {
        let space = &shared.regions.index;
        let Some(Moving::Filling(filling)) = self.moving.as_deref_mut() else {
            return;
        };
        let policy = &mut self.policy;
        let next = &mut filling.next;
        let twin = match next.insert(space, policy, hash, entry) {
            Some(twin) => twin,
            None => next.insert_beside(space, policy, hash, entry),
        };
        filling.note(number, twin);
        self.relocate(number, twin);
    }

    /// Brings headers of the next index up to date, if the stamp has changed
    /// since they were written. `false` if they are.
    fn stamp_next(&mut self, shared: &Shared) -> bool {
        let stamp = self.table.index.stamp;
        let Some(Moving::Filling(filling)) = self.moving.as_deref_mut() else {
            return false;
        };
        let index = &mut filling.next.index;
        if index.stamp != stamp {
            index.stamp = stamp;
            index.window.epoch = stamp.epoch;
            filling.stamped = 0;
        }
        let count = index.buckets_in_all();
        if filling.stamped >= count {
            return false;
        }
        let end = count.min(filling.stamped + HEADER_COUNT);
        index.restamp(&shared.regions.index, filling.stamped..end);
        self.work += end - filling.stamped;
        filling.stamped = end;
        true
    }

    /// Advertises the next index, which is complete.
    fn swap_tables(&mut self, shared: &Shared) {
        let Some(Moving::Filling(filling)) = self.moving.take().map(|moving| *moving) else {
            return;
        };
        let old = std::mem::replace(&mut self.table, filling.next).index;
        self.stamping = None;
        if self.advertised {
            self.advertise(shared, old.window.window_id);
        }
        let mut retired = Retired {
            window: None,
            private: filling.private,
            metadata: self.policy.retire(old.space),
            times: self.last_use.retire(old.space),
            numbers: filling.numbers,
        };
        // Resident until they are dropped.
        let kept = retired.metadata.private_len() + (retired.times.capacity() * 4) as u64;
        shared.budget.charge(Kind::Private, kept);
        retired.private += kept;
        self.crawl.restart();
        self.changes += 1;
        self.counts.index_reshapes += 1;
        self.evicted_at_reshape = self.counts.evicted_capacity;
        // Nobody has seen the index of a corpus that is not served yet.
        let done = match self.advertised {
            true => 0,
            false => old.buckets_in_all(),
        };
        self.moving = Some(Box::new(Moving::Retiring(Retiring { old, done, retired })));
    }

    /// Tells readers of the old index that a key is not to be judged by it any
    /// more: before anything about the key changes.
    #[inline]
    pub(super) fn disown(&self, shared: &Shared, hash: KeyHash) {
        if mutants::is(Mutant::OldHomeBelieved) {
            return;
        }
        if let Some(Moving::Retiring(retiring)) = self.moving.as_deref() {
            let home = retiring.old.home(hash);
            retiring.old.poison(&shared.regions.index, home..home + 1);
        }
    }

    /// Poisons the next few buckets of an index that has been replaced; whether
    /// there were any.
    fn poison_some(&mut self, shared: &Shared) -> bool {
        let Some(Moving::Retiring(retiring)) = self.moving.as_deref_mut() else {
            return false;
        };
        let count = retiring.old.buckets_in_all();
        let end = count.min(retiring.done + HEADER_COUNT);
        let some = end - retiring.done;
        retiring
            .old
            .poison(&shared.regions.index, retiring.done..end);
        retiring.done = end;
        self.work += some;
        some > 0
    }

    fn retire_some(&mut self, shared: &Shared) -> Stepped {
        if self.poison_some(shared) {
            return Stepped::Went;
        }
        let Some(Moving::Retiring(retiring)) = self.moving.take().map(|moving| *moving) else {
            return Stepped::Idle;
        };
        let len = window_len(shared, retiring.old.bucket_count());
        Stepped::Done(Retired {
            window: Some(Window::whole(retiring.old.window.offset, len)),
            ..retiring.retired
        })
    }

    /// Gives the next index up. Only before anything stands in it.
    fn abort_reshape(&mut self) -> Stepped {
        let retired = match self.moving.take().map(|moving| *moving) {
            Some(Moving::Reserving(reserving)) => Retired {
                private: reserving.charged,
                ..Retired::default()
            },
            Some(Moving::Populating(populating)) => {
                let window = populating.next.window;
                let len = IndexWindow::bytes(window.bucket_count).max(populating.charged);
                Retired {
                    window: Some(Window {
                        offset: window.offset,
                        len,
                        resident: populating.charged,
                    }),
                    private: populating.private,
                    ..Retired::default()
                }
            }
            other => {
                self.moving = other.map(Box::new);
                return Stepped::Idle;
            }
        };
        Stepped::Aborted(retired)
    }

    /// Private bytes that the reshape under way has charged by itself.
    pub(super) fn reshape_private_charged(&self) -> u64 {
        match self.moving.as_deref() {
            None => 0,
            Some(Moving::Reserving(reserving)) => reserving.charged,
            Some(Moving::Populating(populating)) => populating.private,
            Some(Moving::Filling(filling)) => filling.private,
            Some(Moving::Retiring(retiring)) => retiring.retired.private,
        }
    }

    /// Bytes of the second window that it has charged.
    pub(super) fn reshape_window_charged(&self, shared: &Shared) -> u64 {
        match self.moving.as_deref() {
            None | Some(Moving::Reserving(_)) => 0,
            Some(Moving::Populating(populating)) => populating.charged,
            Some(Moving::Filling(filling)) => window_len(shared, filling.next.index.bucket_count()),
            Some(Moving::Retiring(retiring)) => window_len(shared, retiring.old.bucket_count()),
        }
    }

    /// What a reshape under way holds, for a partition that ends.
    pub(super) fn end_reshape(&mut self, shared: &Shared) {
        if let Stepped::Aborted(retired) = self.abort_reshape() {
            retired.release(shared);
            return;
        }
        let (index, retired) = match self.moving.take().map(|moving| *moving) {
            Some(Moving::Filling(filling)) => {
                let metadata = self.policy.retire(filling.next.index.space);
                let retired = Retired {
                    private: filling.private,
                    metadata,
                    numbers: filling.numbers,
                    ..Retired::default()
                };
                (filling.next.index, retired)
            }
            Some(Moving::Retiring(retiring)) => (retiring.old, retiring.retired),
            _ => return,
        };
        retired.release(shared);
        shared.leaving.add_index(shared, &index);
    }

    /// Changes what every bucket says of the whole partition. Mutations go by it
    /// at once; for readers it is in force when [`Partition::stamp_step`] has
    /// nothing to do any more.
    pub(crate) fn restamp(&mut self, stamp: Stamp) {
        if stamp != self.table.index.stamp {
            self.table.index.stamp = stamp;
            self.stamping = Some(0);
        }
    }

    /// Rewrites the next few headers; whether there are more.
    pub(crate) fn stamp_step(&mut self, shared: &Shared) -> bool {
        // Who still reads the index before this one goes by the old stamp there.
        if self.poison_some(shared) {
            return true;
        }
        let Some(first) = self.stamping else {
            return false;
        };
        let count = self.table.index.buckets_in_all();
        let end = count.min(first + HEADER_COUNT);
        self.table.index.restamp(&shared.regions.index, first..end);
        self.work += end - first;
        self.stamping = (end < count).then_some(end);
        if end < count {
            return true;
        }
        let epoch = self.epoch();
        if self.table.index.window.epoch != epoch {
            self.table.index.window.epoch = epoch;
            if self.advertised {
                self.advertise(shared, self.window_id());
            }
        }
        false
    }

    /// Makes every bucket invalid for good, at the end of all.
    pub(crate) fn poison(&mut self, shared: &Shared) {
        self.closed = true;
        let space = &shared.regions.index;
        let index = &self.table.index;
        index.poison(space, 0..index.buckets_in_all());
        if let Some(Moving::Retiring(retiring)) = self.moving.as_deref() {
            let old = &retiring.old;
            old.poison(space, 0..old.buckets_in_all());
        }
    }

    /// Takes the place of `old` in the control region; `old` is poisoned and
    /// gives everything back.
    pub(crate) fn replace(&mut self, shared: &Shared, old: &mut Partition) {
        old.advertised = false;
        self.advertise(shared, old.window_id());
        self.set_data_len(shared, self.data_len);
        self.count_pages(shared, 0);
        old.poison(shared);
        old.release_all(shared);
        self.counts.add(&old.counts);
    }
}
