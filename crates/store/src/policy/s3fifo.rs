//! S3-FIFO (Yang et al., SOSP'23): three queues without reordering on access.
//!
//! New items enter a *small* queue of a tenth of the cache. At its end, items
//! that were accessed twice move on to the *main* queue, the others leave and
//! are remembered as ghosts; a key that returns while it is remembered enters
//! main directly. At main's end an item that was accessed since is put back,
//! with one access less to its name, and one that was not leaves for good. An
//! access only counts up to three, so it costs one word and no links.
//!
//! The ratios are of the number of resident items at the call for a victim:
//! exactly the capacity where that is counted in objects, and following the
//! size of the values where it is counted in bytes.
//!
//! Until the first victim nobody knows the capacity. The cache is filled so
//! that, whenever it turns out to be full, the oldest tenth stands in small and
//! everything newer in main.

use super::ghost::Ghosts;
use super::slots::{Queue, Slots};
use super::{GHOST_DROP_MAX, Policy, Retired};

const SMALL: Queue = Queue::First;
const MAIN: Queue = Queue::Second;

/// Accesses are counted up to here.
const FREQUENCY_MAX: u8 = 3;
/// Accesses that an item needs to move from small to main.
const PROMOTION_MIN: u8 = 2;
/// Items that one call for a victim moves at most, before it takes whichever
/// stands at main's end. Bounds the time under the partition's lock; the
/// search is usually one or two items long.
const MOVE_MAX: usize = 256;

/// Share of the resident items that small should hold.
const fn small_target(resident_count: u32) -> u32 {
    resident_count / 10
}

/// Ghosts kept, given the resident items.
const fn ghost_limit(resident_count: u32) -> u32 {
    (resident_count as u64 * 9 / 10) as u32
}

/// See the module.
#[derive(Debug)]
pub struct S3Fifo {
    pub(super) slots: Slots,
    ghosts: Ghosts,
    /// The key that `prepare` found among the ghosts, until it is inserted.
    returning: Option<u64>,
    /// No victim has been asked for yet.
    filling: bool,
}

impl S3Fifo {
    /// For slots 0 to `slot_count - 1`, all empty.
    pub fn new(slot_count: u32) -> Self {
        S3Fifo {
            slots: Slots::with_count(slot_count),
            ghosts: Ghosts::default(),
            returning: None,
            filling: true,
        }
    }

    /// The next to leave, still linked.
    fn choose(&mut self) -> Option<u32> {
        let small_target = small_target(self.slots.count_all());
        let mut shrink_main = self.slots.count(SMALL) < small_target;
        for _ in 0..MOVE_MAX {
            // Once at one queue, stay there: promotions fill main beyond its
            // share, and the next call for a victim makes up for it.
            if !shrink_main && let Some(slot) = self.slots.oldest(SMALL) {
                if self.slots.grade(slot) < PROMOTION_MIN {
                    return Some(slot);
                }
                self.slots.push(MAIN, slot, 0);
                continue;
            }
            shrink_main = true;
            let Some(slot) = self.slots.oldest(MAIN) else {
                return self.slots.oldest(SMALL);
            };
            let frequency = self.slots.grade(slot);
            if frequency == 0 {
                return Some(slot);
            }
            self.slots.push(MAIN, slot, frequency - 1);
        }
        self.slots.oldest(MAIN)
    }
}

impl Policy for S3Fifo {
    fn resize(&mut self, slot_count: u32) {
        self.slots.resize(slot_count);
    }

    fn retire(&mut self, space: u32) -> Retired {
        Retired::words(self.slots.retire(space))
    }

    fn prepare(&mut self, identity: u64) {
        if self.returning != Some(identity) {
            self.returning = self.ghosts.take(identity).then_some(identity);
        }
    }

    fn insert(&mut self, slot: u32, identity: u64) {
        if self.filling {
            self.slots.push(MAIN, slot, 0);
            if self.slots.count(SMALL) < small_target(self.slots.count_all())
                && let Some(oldest) = self.slots.oldest(MAIN)
            {
                self.slots.push(SMALL, oldest, self.slots.grade(oldest));
            }
            return;
        }
        let returns = self.returning.take() == Some(identity);
        self.slots.push(if returns { MAIN } else { SMALL }, slot, 0);
    }

    #[inline]
    fn access(&mut self, slot: u32) {
        if self.slots.queue(slot).is_some() {
            let frequency = self.slots.grade(slot);
            if frequency < FREQUENCY_MAX {
                self.slots.set_grade(slot, frequency + 1);
            }
        }
    }

    #[inline]
    fn remove(&mut self, slot: u32) {
        self.slots.unlink(slot);
    }

    fn relocate(&mut self, from: u32, to: u32) {
        self.slots.relocate(from, to);
    }

    fn candidate(&mut self) -> Option<u32> {
        self.filling = false;
        self.choose()
    }

    /// What leaves small is remembered.
    fn evict(&mut self, slot: u32, identity: u64) {
        let limit = ghost_limit(self.slots.count_all());
        if self.slots.unlink(slot) == Some(SMALL) && limit > 0 {
            for _ in 0..GHOST_DROP_MAX {
                if self.ghosts.count() >= limit {
                    self.ghosts.drop_oldest();
                }
            }
            self.ghosts.push(identity);
        }
    }

    fn victim_among(
        &mut self,
        slots: &[u32],
        identity_of: &mut dyn FnMut(u32) -> u64,
    ) -> Option<u32> {
        // Those that would leave at their queue's end before those that would
        // stay, and the least accessed of each.
        let rank = |slot: u32| {
            let frequency = self.slots.grade(slot);
            let stays = match self.slots.queue(slot)? {
                SMALL => frequency >= PROMOTION_MIN,
                MAIN => frequency > 0,
            };
            Some((stays, frequency))
        };
        let resident = |slot: &&u32| self.slots.queue(**slot).is_some();
        let &slot = slots
            .iter()
            .filter(resident)
            .min_by_key(|&&slot| rank(slot))?;
        self.evict(slot, identity_of(slot));
        Some(slot)
    }

    #[inline(always)]
    fn prefetch(&self, slot: u32) {
        self.slots.prefetch(slot);
    }

    fn resident_count(&self) -> u32 {
        self.slots.count_all()
    }

    fn resident_bytes(&self) -> u64 {
        self.slots.resident_bytes() + self.ghosts.resident_bytes()
    }

    #[inline]
    fn displacement(&self, slot: u32) -> u8 {
        self.slots.displacement(slot)
    }

    #[inline]
    fn set_displacement(&mut self, slot: u32, displacement: u8) {
        self.slots.set_displacement(slot, displacement);
    }
}
