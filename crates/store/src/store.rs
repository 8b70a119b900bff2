//! The store: partitions behind their locks, and what concerns all of them.

use crate::budget::{Budget, Kind};
use crate::classes::Classes;
use crate::config::{Now, StoreConfig, StoreError};
use crate::partition::{CheckError, Effort, Found as FoundHere, NoRoom, Partition};
use crate::pool::PagePool;
use crate::ranges::RangeAllocator;
use crate::runs::RunPool;
use crate::shared::{PageTable, Shared, lock};
use crate::space::Regions;
use crate::stats::{MutationKind, Resident, StoreStats};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use trefoil_layout::control::{self, ControlShape};
use trefoil_layout::data::{DataEntry, EXPIRY_MS_MAX, ITEM_FLAGS_ALLOWED};
use trefoil_layout::limits::{
    CLOCK_AHEAD_NS_MAX, KEY_LEN_MAX, PARTITION_COUNT_MAX, VALUE_LEN_LIMIT,
};
use trefoil_layout::op::{Ack, Action, Found, LookupAnswer, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHash, Version};
use trefoil_region::WordBuffer;

/// How often a mutation asks other partitions for room before it is refused.
/// Each time one of them gave, so only a crowd of other writers can use it up.
const ROOM_ATTEMPTS_MAX: usize = 64;
/// Items that one partition evicts at most to give room to another.
const EVICTIONS_MAX: usize = 1 << 22;

/// A partition, and the corpus that is being loaded to take its place.
pub(crate) struct Slot {
    pub(crate) live: Partition,
    pub(crate) staged: Option<Box<Partition>>,
}

/// Keeps the locks of two partitions out of one another's cache lines.
#[repr(align(128))]
pub(crate) struct Cell(pub(crate) Mutex<Slot>);

/// See the crate's page.
pub struct Store {
    pub(crate) shared: Shared,
    pub(crate) partitions: Box<[Cell]>,
    revoked: AtomicBool,
}

impl Store {
    /// An empty store in `regions`, whose control region it initialises. The
    /// lease in it is the backend's to set and renew.
    pub fn new(config: StoreConfig, regions: Regions) -> Result<Store, StoreError> {
        let count = config.partition_count;
        if config.config_id == 0 {
            return Err(StoreError::ConfigId);
        }
        if count == 0 || count > PARTITION_COUNT_MAX {
            return Err(StoreError::PartitionCount(count));
        }
        if config.value_len_max > VALUE_LEN_LIMIT {
            return Err(StoreError::ValueLen(config.value_len_max));
        }
        if config.memory_limit > regions.memory_max() {
            return Err(StoreError::LimitTooLarge {
                limit: config.memory_limit,
                max: regions.memory_max(),
            });
        }
        let (page_len, pages_len) = (regions.page_len(), regions.pages_len());
        let data_frame = regions.data.frame_len();
        let shared = Shared {
            classes: Classes::new(page_len as usize),
            budget: Budget::new(config.memory_limit),
            page_table: PageTable::new(pages_len / page_len),
            pool: Mutex::new(PagePool::new(page_len, pages_len, data_frame)),
            runs: Mutex::new(RunPool::new(regions.runs_range(), data_frame)),
            windows: Mutex::new(RangeAllocator::new(0..regions.index.len())),
            data_lens: (0..count).map(|_| Default::default()).collect(),
            config,
            regions,
        };
        let words = shared.regions.control.words();
        let shape = ControlShape {
            partition_count: count,
            incarnation: shared.config.incarnation,
        };
        let mut partitions = Vec::with_capacity(count);
        for number in 0..count {
            let mut live = Partition::new(
                &shared,
                number,
                shared.config.config_id,
                shared.config.epoch,
                objects_max(&shared.config, number),
            )?;
            live.advertise(&shared, 0);
            partitions.push(Cell(Mutex::new(Slot { live, staged: None })));
        }
        control::set_data_window(&words, shared.regions.data.len());
        control::initialise(&words, shape, shared.config.config_id);
        let store = Store {
            shared,
            partitions: partitions.into_boxed_slice(),
            revoked: AtomicBool::new(false),
        };
        if store.shared.budget.available() < 2 * page_len {
            return Err(StoreError::LimitTooSmall {
                limit: store.shared.budget.limit(),
                needed: store.shared.budget.used() + 2 * count as u64 * page_len,
                partition_count: count,
            });
        }
        Ok(store)
    }

    /// What the store was told when it was made.
    pub fn config(&self) -> &StoreConfig {
        &self.shared.config
    }

    /// The memory that it lives in.
    pub fn regions(&self) -> &Regions {
        &self.shared.regions
    }

    /// Partitions.
    pub fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    fn place(&self, key: &[u8]) -> (KeyHash, usize) {
        let hash = self.shared.config.hasher.hash(key);
        (hash, hash.partition(self.partitions.len()))
    }

    /// Whether the form of a mutation is acceptable, whatever is stored.
    fn check_form(&self, now: Now, mutation: &Mutation<'_>) -> Result<(), Rejection> {
        let entry = &mutation.entry;
        if entry.key.is_empty() {
            return Err(Rejection::KeyEmpty);
        }
        if entry.key.len() > KEY_LEN_MAX {
            return Err(Rejection::KeyTooLong);
        }
        if entry.value.len() > self.shared.config.value_len_max {
            return Err(Rejection::ValueTooLong);
        }
        if entry.expiry_ms > EXPIRY_MS_MAX || entry.item_flags & !ITEM_FLAGS_ALLOWED != 0 {
            return Err(Rejection::BadItem);
        }
        if mutation.version.time_ns > now.unix_ns.saturating_add(CLOCK_AHEAD_NS_MAX) {
            return Err(Rejection::ClockAhead);
        }
        Ok(())
    }

    /// Executes one mutation by the rules of DESIGN section 4.
    pub fn mutate(&self, now: Now, mutation: &Mutation<'_>) -> Ack {
        let kind = MutationKind::of(mutation.action);
        let refused = if self.shared.config.immutable {
            Err(Rejection::Immutable)
        } else {
            Ok(())
        };
        self.execute(now, mutation, kind, refused)
    }

    /// Loads one item of an immutable corpus: a SET that `immutable` does not
    /// refuse. Between [`Store::begin_reload`] and [`Store::finish_reload`] it
    /// goes to the corpus that is not served yet.
    pub fn load(&self, now: Now, entry: &DataEntry<'_>, version: Version) -> Ack {
        let mutation = Mutation {
            action: Action::Set,
            version,
            entry: *entry,
        };
        self.execute(now, &mutation, MutationKind::Load, Ok(()))
    }

    fn execute(
        &self,
        now: Now,
        mutation: &Mutation<'_>,
        kind: MutationKind,
        refused: Result<(), Rejection>,
    ) -> Ack {
        let refused = refused.and_then(|()| self.check_form(now, mutation));
        let (hash, number) = self.place(mutation.entry.key);
        let mut effort = Effort {
            own: false,
            cap: self.shared.budget.cap(),
        };
        for _ in 0..ROOM_ATTEMPTS_MAX {
            let (no_room, gave) = {
                let mut slot = lock(&self.partitions[number].0);
                let Slot { live, staged } = &mut *slot;
                let (target, served) = match staged {
                    Some(staged) if kind == MutationKind::Load => (&mut **staged, Some(live)),
                    _ => (&mut *live, None),
                };
                let result = match refused {
                    Err(rejection) => Ok(Outcome::Rejected(rejection)),
                    Ok(()) if self.is_revoked() => Ok(Outcome::Rejected(Rejection::WrongShard)),
                    Ok(()) => target.mutate(&self.shared, now, hash, mutation, effort),
                };
                match result {
                    Ok(outcome) => {
                        target.after_mutation(&self.shared, kind, &outcome);
                        let ack = Ack {
                            epoch: target.epoch(),
                            outcome,
                        };
                        drop(slot);
                        if self.shared.budget.excess() > 0 {
                            self.give_back_unit();
                        }
                        return ack;
                    }
                    // The corpus that is served makes way for the next one.
                    Err(no_room) => (
                        no_room,
                        served.is_some_and(|live| {
                            live.make_room(&self.shared, no_room.bytes, effort.cap, EVICTIONS_MAX)
                        }),
                    ),
                }
            };
            if !gave && !self.take_room_elsewhere(number, no_room, effort.cap) {
                if effort.own || !no_room.poor {
                    break;
                }
                effort.own = true;
            }
        }
        let mut slot = lock(&self.partitions[number].0);
        let outcome = Outcome::Rejected(Rejection::NoMemory);
        slot.live.after_mutation(&self.shared, kind, &outcome);
        Ack {
            epoch: slot.live.epoch(),
            outcome,
        }
    }

    /// Has the richest other partition make room; one lock at a time.
    pub(crate) fn take_room_elsewhere(&self, number: usize, wanted: NoRoom, cap: u64) -> bool {
        if self.give_back_unit() {
            return true;
        }
        let lens = &self.shared.data_lens;
        let mut others: [(u64, usize); PARTITION_COUNT_MAX] = [(0, 0); PARTITION_COUNT_MAX];
        let others = &mut others[..lens.len()];
        for (at, other) in others.iter_mut().enumerate() {
            *other = (lens[at].load(Ordering::Relaxed), at);
        }
        others.sort_unstable_by(|a, b| b.cmp(a));
        let own = lens
            .get(number)
            .map_or(0, |len| len.load(Ordering::Relaxed));
        for &(len, at) in others.iter() {
            // A poor partition that is as rich as the richest evicts itself.
            if at == number || len == 0 || (wanted.poor && len <= own) {
                continue;
            }
            let mut slot = lock(&self.partitions[at].0);
            let gave = slot
                .live
                .make_room(&self.shared, wanted.bytes, cap, EVICTIONS_MAX);
            slot.live.settle_private(&self.shared);
            if gave {
                return true;
            }
        }
        false
    }

    /// A lookup by message; it also reaches what stands in the side table. The
    /// answer's data lies in `into`.
    pub fn lookup<'b>(&self, now: Now, key: &[u8], into: &'b mut WordBuffer) -> LookupAnswer<'b> {
        let refused = if key.is_empty() {
            Some(Rejection::KeyEmpty)
        } else if key.len() > KEY_LEN_MAX {
            Some(Rejection::KeyTooLong)
        } else if self.is_revoked() {
            Some(Rejection::WrongShard)
        } else {
            None
        };
        let (hash, number) = self.place(key);
        let mut slot = lock(&self.partitions[number].0);
        let epoch = slot.live.epoch();
        if let Some(rejection) = refused {
            return LookupAnswer {
                epoch,
                found: Found::Rejected(rejection),
            };
        }
        let found = slot.live.lookup(&self.shared, now, hash, key, into);
        slot.live.count_lookup(found);
        drop(slot);
        let found = match found {
            FoundHere::Present(version) => Found::Present {
                version,
                data: into.bytes(),
            },
            FoundHere::Absent => Found::Absent,
        };
        LookupAnswer { epoch, found }
    }

    /// Accesses that a client made by one-sided reads: slot numbers of one
    /// window. A stale window and numbers that mean nothing are ignored.
    pub fn touch(&self, partition: usize, window_id: u64, slots: &[u32]) {
        if let Some(cell) = self.partitions.get(partition) {
            lock(&cell.0).live.touch(window_id, slots);
        }
    }

    /// Changes the memory limit, at most to what the regions were made for;
    /// returns the limit now in force. Writers keep to it at once; what is
    /// beyond it goes over the next [`Store::maintain`] calls.
    pub fn set_memory_limit(&self, bytes: u64) -> u64 {
        let limit = bytes.min(self.shared.regions.memory_max());
        self.shared.budget.set_limit(limit);
        limit
    }

    /// The memory limit in force, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.shared.budget.limit()
    }

    /// Charges `bytes` that the caller is about to make resident, evicting for
    /// them if need be. `false` if they do not fit.
    pub fn charge(&self, bytes: u64) -> bool {
        let nobody = usize::MAX;
        let wanted = NoRoom { bytes, poor: false };
        let cap = self.shared.budget.cap();
        for _ in 0..ROOM_ATTEMPTS_MAX {
            if self
                .shared
                .budget
                .try_charge_within(Kind::Extra, bytes, cap)
            {
                return true;
            }
            if !self.take_room_elsewhere(nobody, wanted, cap) {
                break;
            }
        }
        false
    }

    /// Gives back what [`Store::charge`] charged.
    pub fn release(&self, bytes: u64) {
        self.shared.budget.release(Kind::Extra, bytes);
    }

    /// Raises the shard's epoch: every bucket header and window record is
    /// rewritten, one partition after the other.
    pub fn raise_epoch(&self, epoch: u32) {
        for cell in &self.partitions {
            let mut slot = lock(&cell.0);
            let config_id = slot.live.config_id();
            if !self.is_revoked() && epoch > slot.live.epoch() {
                slot.live.restamp(&self.shared, config_id, epoch);
            }
        }
    }

    /// Serves another cell configuration from now on. Id 0 is ignored: it is
    /// never issued.
    pub fn set_config_id(&self, id: u32) {
        if id == 0 || self.is_revoked() {
            return;
        }
        for cell in &self.partitions {
            let mut slot = lock(&cell.0);
            let epoch = slot.live.epoch();
            slot.live.restamp(&self.shared, id, epoch);
        }
        control::set_config_id(&self.shared.regions.control.words(), id);
    }

    /// A clean end: every bucket is poisoned and the lease revoked, so that
    /// clients who still map the memory stop at once. Everything is refused
    /// from now on.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
        let control = self.shared.regions.control.words();
        control::set_lease_end_ns(&control, 0);
        control::set_config_id(&control, 0);
        for cell in &self.partitions {
            lock(&cell.0).live.poison(&self.shared);
        }
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// The partition that a key belongs to and its floor: what is known of
    /// keys of which nothing else is known.
    pub fn floor(&self, key: &[u8]) -> (usize, Version) {
        let (_, number) = self.place(key);
        (number, lock(&self.partitions[number].0).live.floor())
    }

    /// State and counts.
    pub fn stats(&self) -> StoreStats {
        let budget = &self.shared.budget;
        let mut stats = StoreStats {
            memory_limit: budget.limit(),
            resident: Resident {
                pages: budget.used_for(Kind::Pages),
                pages_free: lock(&self.shared.pool).free_bytes(),
                runs: budget.used_for(Kind::Runs),
                index: budget.used_for(Kind::Index),
                private: budget.used_for(Kind::Private),
                extra: budget.used_for(Kind::Extra),
            },
            runs: lock(&self.shared.runs).count(),
            ..StoreStats::default()
        };
        for cell in &self.partitions {
            lock(&cell.0).live.add_stats(&mut stats);
        }
        stats
    }

    /// Checks the invariants of every partition and that the account is the sum
    /// of what is charged. For tests: nobody else may enter the store meanwhile.
    pub fn check(&self) -> Result<(), CheckError> {
        let (mut private, mut index) = (0, 0);
        for cell in &self.partitions {
            let slot = lock(&cell.0);
            for partition in std::iter::once(&slot.live).chain(slot.staged.as_deref()) {
                partition.check(&self.shared)?;
                let charged = partition.charged(&self.shared);
                private += charged.0;
                index += charged.1;
            }
        }
        let budget = &self.shared.budget;
        let pages = lock(&self.shared.pool).resident_len();
        for (kind, sum) in [
            (Kind::Private, private),
            (Kind::Index, index),
            (Kind::Pages, pages),
        ] {
            if budget.used_for(kind) != sum {
                return Err(CheckError {
                    partition: usize::MAX,
                    what: format!(
                        "{kind:?}: {} bytes on the account, {sum} counted",
                        budget.used_for(kind)
                    ),
                });
            }
        }
        Ok(())
    }
}

/// A partition's share of the capacity in objects.
pub(crate) fn objects_max(config: &StoreConfig, number: usize) -> Option<u64> {
    let count = config.partition_count as u64;
    let split = |max: u64| (max / count + u64::from((number as u64) < max % count)).max(1);
    config.objects_max.map(split)
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}
