//! The store: partitions behind their locks, and what concerns all of them.

use crate::budget::{Budget, Cap, Kind};
use crate::classes::Classes;
use crate::config::{Now, StoreConfig, StoreError};
use crate::evictions::Evictions;
use crate::leaving::Leaving;
use crate::partition::{Effort, Found as FoundHere, Giver, Partition, ROOM_WORK_MAX, Room, Stamp};
use crate::policy::Recency;
use crate::pool::PagePool;
use crate::ranges::RangeAllocator;
use crate::read::Access;
use crate::runs::{LONG_LEN, RunPool};
use crate::shared::{PageTable, Shared, lock};
use crate::space::Regions;
use crate::stats::MutationKind;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use trefoil_layout::control::{self, ControlShape};
use trefoil_layout::data::{DataEntry, EXPIRY_MS_MAX, ITEM_FLAGS_ALLOWED};
use trefoil_layout::limits::{
    CLOCK_AHEAD_NS_MAX, KEY_LEN_MAX, PARTITION_COUNT_MAX, VALUE_LEN_LIMIT,
};
use trefoil_layout::op::{Ack, Action, Found, LookupAnswer, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHash, Version, epoch};
use trefoil_region::WordBuffer;

/// How often a mutation asks other partitions for room before it is refused.
/// Each time one of them gave, so only a crowd of other writers can use it up.
pub(crate) const ROOM_ATTEMPTS_MAX: usize = 64;
/// How often it asks for a page of another partition before it evicts at home.
const PAGE_ATTEMPTS_MAX: usize = 8;
/// Holds of its partition's lock that one mutation takes at most. Each makes some
/// room: only a crowd of other writers can use them up.
const HOLDS_MAX: usize = 1 << 16;

/// A partition, and the corpus that is being loaded to take its place.
pub(crate) struct Slot {
    pub(crate) live: Partition,
    pub(crate) staged: Option<Box<Partition>>,
}

/// Keeps the locks of two partitions out of one another's cache lines.
#[repr(align(128))]
pub(crate) struct Cell {
    slot: Mutex<Slot>,
    /// Threads that wait for the lock.
    waiting: AtomicU32,
}

/// How long a thread that has many steps to do lets those go first who wait.
const GIVE_WAY_MAX: u32 = 200;

impl Cell {
    fn new(live: Partition) -> Self {
        Cell {
            slot: Mutex::new(Slot { live, staged: None }),
            waiting: AtomicU32::new(0),
        }
    }

    /// Takes the lock.
    #[inline]
    pub(crate) fn enter(&self) -> MutexGuard<'_, Slot> {
        let mut slot = match self.slot.try_lock() {
            Ok(slot) => slot,
            Err(_) => self.wait(),
        };
        slot.live.begin_hold();
        if let Some(staged) = &mut slot.staged {
            staged.begin_hold();
        }
        slot
    }

    /// The lock, if it is free.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<MutexGuard<'_, Slot>> {
        self.slot.try_lock().ok()
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, Slot> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let slot = lock(&self.slot);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        slot
    }

    /// For whoever is about to take the lock again and again: a thread that
    /// waits has to be woken first, which takes longer than a step, so it would
    /// find the lock taken each time.
    pub(crate) fn give_way(&self) {
        for _ in 0..GIVE_WAY_MAX {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// See the crate's page.
pub struct Store {
    pub(crate) shared: Shared,
    pub(crate) partitions: Box<[Cell]>,
    pub(crate) revoked: AtomicBool,
    /// Whether somebody has asked how items are used.
    pub(crate) keeps_last_use: AtomicBool,
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
        let shard_count = config.shards.shard_count();
        if !count.is_multiple_of(shard_count) {
            return Err(StoreError::PartitionsOfShards {
                partition_count: count,
                shard_count,
            });
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
            evictions: Evictions::default(),
            budget: Budget::new(config.memory_limit),
            page_table: PageTable::new(pages_len / page_len),
            pool: Mutex::new(PagePool::new(page_len, pages_len, data_frame)),
            runs: Mutex::new(RunPool::new(regions.runs_range(), data_frame)),
            windows: Mutex::new(RangeAllocator::new(0..regions.index.len())),
            leaving: Leaving::default(),
            room_turn: Mutex::default(),
            holds: (0..count).map(|_| Default::default()).collect(),
            reloading: Default::default(),
            copies_evict: Default::default(),
            config,
            regions,
        };
        let words = shared.regions.control.words();
        let shape = ControlShape {
            partition_count: count,
            shard_count,
            incarnation: shared.config.incarnation,
        };
        let mut partitions = Vec::with_capacity(count);
        for number in 0..count {
            let stamp = Stamp {
                config_id: shared.config.config_id,
                epoch: shared.config.epoch,
                recovering: false,
            };
            let objects_max = objects_max(&shared.config, number);
            let mut live = Partition::new(&shared, number, stamp, objects_max)?;
            live.advertise(&shared, 0);
            partitions.push(Cell::new(live));
        }
        control::set_data_window(&words, shared.regions.data.len());
        control::set_flush_floor(&words, shared.config.flush_floor);
        control::initialise(&words, shape, shared.config.config_id);
        let store = Store {
            shared,
            partitions: partitions.into_boxed_slice(),
            revoked: AtomicBool::new(false),
            keeps_last_use: AtomicBool::new(false),
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

    /// Shards: partition `number` belongs to shard
    /// `number / (partition_count / shard_count)`.
    pub fn shard_count(&self) -> usize {
        self.shared.config.shards.shard_count()
    }

    /// Partitions of each shard.
    pub(crate) fn sub_count(&self) -> usize {
        self.partitions.len() / self.shard_count()
    }

    /// A key's hash and partition; a key of none of this backend's shards is
    /// refused.
    #[inline]
    pub(crate) fn place(&self, key: &[u8]) -> Result<(KeyHash, usize), Rejection> {
        let hash = self.shared.config.hasher.hash(key);
        match self.shared.config.shards.local(hash) {
            Some(shard) => Ok((hash, hash.partition(shard, self.sub_count()))),
            None => Err(Rejection::WrongShard),
        }
    }

    /// Whether the version of a mutation is one that may come from outside.
    pub(crate) fn check_clock(now: Now, mutation: &Mutation<'_>) -> Result<(), Rejection> {
        match mutation.version.time_ns > now.unix_ns.saturating_add(CLOCK_AHEAD_NS_MAX) {
            true => Err(Rejection::ClockAhead),
            false => Ok(()),
        }
    }

    /// Whether the form of a mutation is acceptable, whatever is stored.
    pub(crate) fn check_form(&self, mutation: &Mutation<'_>) -> Result<(), Rejection> {
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
        self.execute(now, mutation, kind, Recency::default(), refused)
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
        self.execute(
            now,
            &mutation,
            MutationKind::Load,
            Recency::default(),
            Ok(()),
        )
    }

    pub(crate) fn execute(
        &self,
        now: Now,
        mutation: &Mutation<'_>,
        kind: MutationKind,
        recency: Recency,
        refused: Result<(), Rejection>,
    ) -> Ack {
        let mut refused = refused.and_then(|()| self.check_form(mutation));
        if kind != MutationKind::Load {
            refused = refused.and_then(|()| Self::check_clock(now, mutation));
        }
        let (hash, number) = match self.place(mutation.entry.key) {
            Ok(place) => place,
            Err(rejection) => return of_no_shard(rejection),
        };
        let entry_len = mutation.entry.encoded_len();
        let mut effort = Effort {
            own: false,
            cap: match entry_len as u64 {
                LONG_LEN.. => Cap::Goal,
                _ => self.shared.budget.cap(),
            },
            paid: 0,
            dispensable: None,
        };
        let mut pages_asked_for = 0;
        // Who makes room for long does so alone, and what it has made is its own:
        // two who each have half of what they need would both be refused.
        let mut turn = None;
        let is_run = || self.shared.classes.of(entry_len).is_none();
        let (mut attempts, mut holds) = (0, 0);
        while attempts < ROOM_ATTEMPTS_MAX && holds < HOLDS_MAX {
            holds += 1;
            let (no_room, made) = {
                let mut slot = self.partitions[number].enter();
                let Slot { live, staged } = &mut *slot;
                let (target, served) = match staged {
                    Some(staged) if kind == MutationKind::Load => (&mut **staged, Some(live)),
                    _ => (&mut *live, None),
                };
                // A corpus that is loaded is not served yet, whatever its shards are
                // waiting for; what recovery installs comes in by a way of its own.
                let is_load = kind == MutationKind::Load;
                let of_corpus = is_load && self.shared.config.immutable;
                let imports = target.is_recovering() && is_load && !of_corpus;
                let recovers = target.is_recovering() && !imports && !of_corpus;
                let result = match refused {
                    Err(rejection) => Ok(Outcome::Rejected(rejection)),
                    Ok(()) if self.is_revoked() => Ok(Outcome::Rejected(Rejection::WrongShard)),
                    Ok(()) if target.is_frozen() => Ok(Outcome::Rejected(Rejection::UnknownConfig)),
                    // What it keeps without an answer is the same as a copy of the message
                    // that comes late, when it has recovered.
                    Ok(()) if recovers && !target.keeps(mutation.action) => {
                        Ok(Outcome::Rejected(Rejection::Recovering))
                    }
                    Ok(()) if imports => {
                        target.import(&self.shared, now, hash, mutation, recency, &mut effort)
                    }
                    Ok(()) => target.mutate(&self.shared, now, hash, mutation, &mut effort),
                };
                match result {
                    Ok(mut outcome) => {
                        if recovers && refused.is_ok() {
                            outcome = Outcome::Rejected(Rejection::Recovering);
                        }
                        let retired = target.after_mutation(&self.shared, kind, &outcome);
                        let ack = Ack {
                            epoch: target.epoch(),
                            outcome,
                        };
                        drop(slot);
                        if effort.paid > 0 {
                            let budget = &self.shared.budget;
                            budget.release(Kind::Promised, effort.paid);
                        }
                        drop(turn);
                        if let Some(retired) = retired {
                            retired.release(&self.shared);
                        }
                        self.shared.leaving.release_step(&self.shared);
                        if self.shared.budget.excess() > 0 {
                            self.give_back_unit();
                        }
                        return ack;
                    }
                    // Beside the next corpus, the one that is served gives back what it
                    // does not use.
                    Err(mut no_room) => {
                        let made = served.map(|live| {
                            live.make_room(&self.shared, no_room.bytes, effort.cap, ROOM_WORK_MAX)
                        });
                        if turn.is_some() && is_run() {
                            let (budget, cap) = (&self.shared.budget, effort.cap);
                            let more = budget.charge_some(Kind::Promised, no_room.bytes, cap);
                            effort.paid += more;
                            no_room.bytes -= more;
                        }
                        (no_room, made.unwrap_or(Room::Lacking))
                    }
                }
            };
            // Where others take each page that is given, rather one too few.
            pages_asked_for += usize::from(no_room.from == Giver::AboveQuota);
            effort.own |= pages_asked_for == PAGE_ATTEMPTS_MAX;
            if no_room.bytes + effort.paid > self.shared.budget.evictable() {
                break;
            }
            let is_run = is_run();
            if turn.is_none() && is_run {
                turn = Some(lock(&self.shared.room_turn));
                effort.cap = Cap::Goal;
                continue;
            }
            if no_room.from == Giver::Itself || made == Room::Again {
                self.partitions[number].give_way();
                if !is_run {
                    // The limit may have changed meanwhile.
                    effort.cap = self.shared.budget.cap();
                }
                continue;
            }
            attempts += 1;
            let paid = (turn.is_some() && is_run).then_some(&mut effort.paid);
            if made == Room::Made || self.take_room_elsewhere(number, no_room, effort.cap, paid) {
                continue;
            }
            if no_room.from != Giver::Any && !effort.own {
                effort.own = true;
            } else if turn.is_none() {
                // Another one may be holding what was evicted for it.
                turn = Some(lock(&self.shared.room_turn));
                effort.cap = self.shared.budget.cap();
            } else {
                // There would be room: somebody stores something meanwhile, and then
                // that can go.
                std::thread::yield_now();
            }
        }
        self.shared.budget.release(Kind::Promised, effort.paid);
        drop(turn);
        let mut slot = self.partitions[number].enter();
        let outcome = Outcome::Rejected(Rejection::NoMemory);
        slot.live.count_no_memory(entry_len);
        let retired = slot.live.after_mutation(&self.shared, kind, &outcome);
        let epoch = slot.live.epoch();
        drop(slot);
        if let Some(retired) = retired {
            retired.release(&self.shared);
        }
        Ack { epoch, outcome }
    }

    /// A lookup by message; it also reaches what stands in the side table. The
    /// answer's data lies in `into`.
    pub fn lookup<'b>(&self, now: Now, key: &[u8], into: &'b mut WordBuffer) -> LookupAnswer<'b> {
        self.look_up(now, key, into, Access::Use)
    }

    /// The same, of which neither the eviction policy nor the counts learn.
    pub fn peek<'b>(&self, now: Now, key: &[u8], into: &'b mut WordBuffer) -> LookupAnswer<'b> {
        self.look_up(now, key, into, Access::Peek)
    }

    fn look_up<'b>(
        &self,
        now: Now,
        key: &[u8],
        into: &'b mut WordBuffer,
        access: Access,
    ) -> LookupAnswer<'b> {
        let refused = if key.is_empty() {
            Some(Rejection::KeyEmpty)
        } else if key.len() > KEY_LEN_MAX {
            Some(Rejection::KeyTooLong)
        } else if self.is_revoked() {
            Some(Rejection::WrongShard)
        } else {
            None
        };
        let (hash, number) = match self.place(key) {
            Ok(place) => place,
            Err(rejection) => {
                return LookupAnswer {
                    epoch: epoch::NONE,
                    found: Found::Rejected(refused.unwrap_or(rejection)),
                };
            }
        };
        let mut slot = self.partitions[number].enter();
        let epoch = slot.live.epoch();
        let recovering = slot.live.is_recovering().then_some(Rejection::Recovering);
        if let Some(rejection) = refused.or(recovering) {
            return LookupAnswer {
                epoch,
                found: Found::Rejected(rejection),
            };
        }
        let is_use = access == Access::Use;
        let found = slot.live.lookup(&self.shared, now, hash, key, into, is_use);
        if is_use {
            slot.live.count_lookup(found);
        }
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
            cell.enter().live.touch(window_id, slots);
        }
    }

    /// One access, told to the eviction policy at this very moment: what a
    /// report of touches would come to if it were never late.
    pub fn access(&self, partition: usize, window_id: u64, slot: u32) {
        if let Some(cell) = self.partitions.get(partition) {
            cell.enter().live.access(window_id, slot);
        }
    }

    /// Whether it was [revoked](Store::revoke). If it was not after something was looked
    /// at, that was as it had been all the time.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// What a fill that begins now must find again ([`control::stamp`]).
    pub fn stamp(&self, key: &[u8]) -> u64 {
        let Ok((hash, number)) = self.place(key) else {
            return 0;
        };
        let slot = self.partitions[number].enter();
        slot.live.key_stamp(&self.shared, hash)
    }

    /// The bound of the key with this hash: nothing older is stored of it. `None` for a
    /// key of another backend.
    pub fn bound(&self, hash: KeyHash) -> Option<Version> {
        let shard = self.shared.config.shards.local(hash)?;
        let number = hash.partition(shard, self.sub_count());
        let slot = self.partitions[number].enter();
        Some(slot.live.bound_of(&self.shared, hash))
    }

    /// The version of the value that stands under this hash, if there is one.
    pub fn held(&self, hash: KeyHash) -> Option<Version> {
        let shard = self.shared.config.shards.local(hash)?;
        let number = hash.partition(shard, self.sub_count());
        self.partitions[number]
            .enter()
            .live
            .held(&self.shared, hash)
    }

    /// The partition that a key belongs to and its floor: what is known of
    /// keys of which nothing else is known. `None` for a key of another backend.
    pub fn floor(&self, key: &[u8]) -> Option<(usize, Version)> {
        let (_, number) = self.place(key).ok()?;
        Some((number, self.partitions[number].enter().live.floor()))
    }
}

/// The answer to a mutation of a key that this backend has no shard for.
pub(crate) fn of_no_shard(rejection: Rejection) -> Ack {
    Ack {
        epoch: epoch::NONE,
        outcome: Outcome::Rejected(rejection),
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
