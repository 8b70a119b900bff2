//! Maintenance: what must happen off the path of requests, a bounded step at a
//! time. The backend calls it some ten to a hundred times a second, and at once
//! again while more work waits.

use crate::budget::{Cap, Kind};
use crate::config::Now;
use crate::partition::{Giver, NoRoom, Stepped};
use crate::shared::lock;
use crate::store::{Cell, Store};

/// Slots of each partition that one step examines for expired items.
const CRAWL_SLOTS: u32 = 1024;
/// Items that one step evicts from one partition to shrink the store.
const SHRINK_EVICTIONS: u64 = 512;
/// Bytes that one step takes from one partition to shrink the store.
const SHRINK_LEN: u64 = 4 << 20;
/// Steps that one call takes for indexes: some milliseconds of work, and more where
/// others use the core between them. Whoever calls has other things to do, too.
const RESHAPE_STEPS_MAX: usize = 256;
/// After so many of them it looks whether pages are free: some milliseconds.
const POPULATE_EVERY: usize = 64;
/// Bytes populated ahead under one system call.
const POPULATE_LEN: u64 = 1 << 20;
/// Bytes that the system is asked for by one call: many systems let nobody else have the core
/// before it is back.
const POPULATE_AT_ONCE_LEN: u64 = 64 << 10;

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// More work is waiting: call again soon.
    pub more: bool,
    /// Items removed after their time.
    pub expired: u64,
    /// Indexes replaced.
    pub reshaped: u64,
    /// Bytes given back to the system.
    pub released: u64,
    /// Bytes populated ahead of need.
    pub populated: u64,
}

impl Store {
    /// One bounded step of everything that waits.
    pub fn maintain(&self, now: Now) -> Maintained {
        self.maintain_in_parts(now, &mut || {})
    }

    /// The same. Between two parts of it no lock is held and `between` is called: the
    /// place to let others have the core. Most parts take ten to a hundred microseconds;
    /// those that ask the system for memory or give it back may take longer.
    pub fn maintain_in_parts(&self, now: Now, between: &mut dyn FnMut()) -> Maintained {
        let mut done = Maintained::default();
        if self.is_revoked() {
            return done;
        }
        let used_before = self.shared.budget.used();
        self.expire_step(now, &mut done, between);
        self.shrink_step(true, between);
        self.reshape_step(&mut done, between);
        self.release_leaving(between);
        let used = self.shared.budget.used();
        done.released = used_before.saturating_sub(used);
        done.more |= self.shared.budget.excess() > 0 && used < used_before;
        self.populate_step(&mut done, between);
        between();
        self.reclaim_holes(between);
        done
    }

    fn expire_step(&self, now: Now, done: &mut Maintained, between: &mut dyn FnMut()) {
        for cell in &self.partitions {
            let mut slot = cell.enter();
            done.expired += slot.live.crawl(&self.shared, now, CRAWL_SLOTS);
            done.more |= slot.live.is_flushing();
            drop(slot);
            between();
        }
    }

    /// Towards the limit, if it was lowered. Partitions whose index should be
    /// smaller give nothing else first, if that can wait.
    pub(crate) fn shrink_step(&self, can_wait: bool, between: &mut dyn FnMut()) {
        let shared = &self.shared;
        let excess = shared.budget.excess();
        if excess == 0 {
            return;
        }
        let data = &shared.regions.data;
        lock(&shared.runs).drop_spare(data, &shared.budget);
        lock(&shared.pool).shrink(data, &shared.budget, excess);
        for cell in &self.partitions {
            if shared.budget.excess() == 0 {
                break;
            }
            let mut slot = cell.enter();
            // A smaller index may be all that is needed.
            if !(can_wait && slot.live.wants_reshape(shared)) {
                slot.live.shed(shared, SHRINK_LEN, SHRINK_EVICTIONS);
                slot.live.settle_private(shared);
            }
            drop(slot);
            between();
        }
        if shared.budget.excess() > 0 {
            self.give_back_unit();
        }
    }

    /// Where memory comes and goes in huge pages: empties the one that holds
    /// least, one partition after the other, and gives it back. `false` if
    /// there was no need or not enough room elsewhere.
    pub(crate) fn give_back_unit(&self) -> bool {
        let Some(pages) = lock(&self.shared.pool).begin_drain() else {
            return false;
        };
        for cell in &self.partitions {
            let mut slot = cell.enter();
            slot.live.evacuate(&self.shared, pages.clone());
            if let Some(staged) = &mut slot.staged {
                staged.evacuate(&self.shared, pages.clone());
            }
        }
        let mut pool = lock(&self.shared.pool);
        pool.end_drain() && pool.shrink(&self.shared.regions.data, &self.shared.budget, 1) > 0
    }

    /// Grows what is crowded and shrinks what is far too large, a bounded step
    /// under the partition's lock at a time; those who wait go first.
    fn reshape_step(&self, done: &mut Maintained, between: &mut dyn FnMut()) {
        let mut steps = 0;
        for (number, cell) in self.partitions.iter().enumerate() {
            loop {
                if steps == RESHAPE_STEPS_MAX {
                    done.more = true;
                    return;
                }
                // Whoever stores something waits for the system where no page is free.
                if steps % POPULATE_EVERY == 0 {
                    self.populate_step(done, between);
                    between();
                }
                if self.is_revoked() {
                    return;
                }
                match self.reshape_step_of(cell, || {}) {
                    Stepped::Went => {
                        cell.give_way();
                        between();
                    }
                    Stepped::Idle | Stepped::Populates(_) => break,
                    Stepped::Blocked(bytes) => {
                        // The partition could not make room by itself.
                        let wanted = NoRoom {
                            bytes,
                            from: Giver::Richer,
                        };
                        let cap = self.shared.budget.cap();
                        if !self.take_room_elsewhere(number, wanted, cap, None) {
                            break;
                        }
                    }
                    Stepped::Done(retired) => {
                        retired.release(&self.shared);
                        self.release_leaving(between);
                        done.reshaped += 1;
                    }
                    Stepped::Aborted(retired) => {
                        retired.release(&self.shared);
                        break;
                    }
                }
                steps += 1;
            }
        }
    }

    /// Gives back what indexes that were replaced have left.
    fn release_leaving(&self, between: &mut dyn FnMut()) {
        while self.shared.leaving.release_step(&self.shared) {
            between();
        }
    }

    /// A step of what a partition's index needs; the system is asked for memory with
    /// no lock held, after `meanwhile`.
    pub(crate) fn reshape_step_of(&self, cell: &Cell, meanwhile: impl FnOnce()) -> Stepped {
        let stepped = cell.enter().live.reshape_step(&self.shared);
        match stepped {
            Stepped::Populates(range) => {
                meanwhile();
                let index = &self.shared.regions.index;
                let is_resident = index.populate_ahead(range.clone()).is_ok();
                let mut slot = cell.enter();
                slot.live.populated(&self.shared, range, is_resident)
            }
            stepped => stepped,
        }
    }

    /// Pages ahead of need, so that no writer waits for the system.
    fn populate_step(&self, done: &mut Maintained, between: &mut dyn FnMut()) {
        let shared = &self.shared;
        let mut pool = lock(&shared.pool);
        let ahead = shared.ahead_len();
        if pool.free_bytes() * 2 >= ahead || shared.budget.available() < 2 * POPULATE_LEN {
            return;
        }
        let wanted = (ahead - pool.free_bytes()).min(POPULATE_LEN);
        let count = pool.units_of(wanted);
        let Some(units) = pool.reserve(&shared.budget, Cap::Goal, count) else {
            return;
        };
        let range = pool.bytes_of(&units);
        drop(pool);
        let data = &shared.regions.data;
        let part = POPULATE_AT_ONCE_LEN.max(data.frame_len());
        let mut parts = range.clone().step_by(part as usize);
        let populated = parts.all(|from| {
            let is_there = data.populate_ahead(from..range.end.min(from + part));
            between();
            is_there.is_ok()
        });
        let mut pool = lock(&shared.pool);
        pool.settle(&shared.budget, units, populated);
        if populated {
            done.populated += range.end - range.start;
            done.more |=
                pool.free_bytes() * 2 < ahead && shared.budget.available() >= 2 * POPULATE_LEN;
        }
    }

    /// A reader that followed a stale pointer into a hole made the system put a
    /// page there; such pages are on no account. They are found by comparing
    /// the sums, and punched again.
    fn reclaim_holes(&self, between: &mut dyn FnMut()) {
        let shared = &self.shared;
        let (data, index) = (&shared.regions.data, &shared.regions.index);
        if let Some(object) = data.object() {
            let pool = lock(&shared.pool);
            let runs = lock(&shared.runs);
            let known = pool.resident_len() + runs.resident_len();
            if object.resident_len().is_ok_and(|resident| resident > known) {
                pool.punch_holes(data);
                runs.punch_holes(data);
            }
        }
        shared.leaving.retry_stuck();
        self.release_leaving(between);
        lock(&shared.runs).retry_stuck(data, &shared.budget);
        if let Some(object) = index.object() {
            let windows = lock(&shared.windows);
            let budget = &shared.budget;
            let known = budget.used_for(Kind::Index) + budget.used_for(Kind::Leaving);
            if object.resident_len().is_ok_and(|resident| resident > known) {
                for hole in windows.free_ranges() {
                    let _ = index.punch(hole);
                }
            }
        }
    }
}
