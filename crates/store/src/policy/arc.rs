//! Adaptive replacement cache (Megiddo and Modha, FAST'03).
//!
//! T1 holds what was seen once lately, T2 what was seen again; B1 and B2
//! remember the keys that left them. A hit in B1 says that T1 is too small, a
//! hit in B2 that T2 is: the target for T1 follows.
//!
//! The paper's capacity c is counted in objects and constant. Here it is the
//! number of resident items at the latest call for a victim, which is the same
//! where capacity is counted in objects. Where it is counted in bytes, c moves
//! with the size of the values: the target then moves in proportion, and the
//! ghosts are trimmed to the new c by a few at each victim.

use super::age::AgeClock;
use super::ghost::Ghosts;
use super::slots::{Queue, Slots};
use super::{GHOST_DROP_MAX, Policy, Retired};

const T1: Queue = Queue::First;
const T2: Queue = Queue::Second;

/// Where a key was remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    B1,
    B2,
}

/// See the module.
#[derive(Debug)]
pub struct Arc {
    pub(super) slots: Slots,
    clock: AgeClock,
    b1: Ghosts,
    b2: Ghosts,
    /// c: resident items at the latest call for a victim.
    capacity: u32,
    /// p: wanted length of T1, from 0 to c.
    target: f64,
    /// The key that `prepare` found among the ghosts, until it is inserted.
    returning: Option<(u64, Memory)>,
}

impl Arc {
    /// For slots 0 to `slot_count - 1`, all empty.
    pub fn new(slot_count: u32) -> Self {
        Arc {
            slots: Slots::with_count(slot_count),
            clock: AgeClock::default(),
            b1: Ghosts::default(),
            b2: Ghosts::default(),
            capacity: 0,
            target: 0.0,
            returning: None,
        }
    }

    fn set_capacity(&mut self, resident_count: u32) {
        if resident_count != self.capacity {
            if self.capacity > 0 {
                self.target *= f64::from(resident_count) / f64::from(self.capacity);
            }
            self.capacity = resident_count;
        }
    }

    /// Keeps |T1| + |B1| within c and everything within 2c before one more
    /// ghost is made. False if there is no room for a ghost of T1, because T1
    /// alone fills c.
    fn make_room_for_ghost(&mut self) -> bool {
        let capacity = self.capacity;
        let once = self.slots.count(T1);
        if once + self.b1.count() >= capacity {
            for _ in 0..GHOST_DROP_MAX {
                if once + self.b1.count() >= capacity {
                    self.b1.drop_oldest();
                }
            }
            return once < capacity;
        }
        for _ in 0..GHOST_DROP_MAX {
            if self.slots.count_all() + self.b1.count() + self.b2.count() >= 2 * capacity {
                self.b2.drop_oldest();
            }
        }
        true
    }

    /// The list whose oldest should go.
    fn queue_to_shrink(&self) -> Queue {
        let once = f64::from(self.slots.count(T1));
        let from_b2 = matches!(self.returning, Some((_, Memory::B2)));
        if once > 0.0 && (once > self.target || (from_b2 && once >= self.target.floor())) {
            T1
        } else {
            T2
        }
    }

    /// Unlinks a slot and remembers its key.
    fn remember(&mut self, slot: u32, identity: u64) {
        match self.slots.unlink(slot) {
            Some(T1) => self.b1.push(identity),
            Some(T2) => self.b2.push(identity),
            None => {}
        }
    }
}

impl Policy for Arc {
    fn resize(&mut self, slot_count: u32) {
        self.slots.resize(slot_count);
    }

    fn retire(&mut self, space: u32) -> Retired {
        Retired::words(self.slots.retire(space))
    }

    fn prepare(&mut self, identity: u64) {
        if self.returning.is_some_and(|(key, _)| key == identity) {
            return;
        }
        let (b1, b2) = (f64::from(self.b1.count()), f64::from(self.b2.count()));
        self.returning = if self.b1.take(identity) {
            let capacity = f64::from(self.capacity);
            self.target = (self.target + (b2 / b1).max(1.0)).min(capacity);
            Some((identity, Memory::B1))
        } else if self.b2.take(identity) {
            self.target = (self.target - (b1 / b2).max(1.0)).max(0.0);
            Some((identity, Memory::B2))
        } else {
            None
        };
    }

    fn insert(&mut self, slot: u32, identity: u64) {
        let returns = self
            .returning
            .take()
            .is_some_and(|(key, _)| key == identity);
        let grade = self.clock.stamp_new(self.slots.count_all());
        self.slots.push(if returns { T2 } else { T1 }, slot, grade);
    }

    #[inline]
    fn access(&mut self, slot: u32) {
        if self.slots.queue(slot).is_some() {
            let grade = self
                .clock
                .stamp_again(self.slots.grade(slot), self.slots.count_all());
            self.slots.renew(T2, slot, grade);
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
        let resident_count = self.slots.count_all();
        self.set_capacity(resident_count);
        let only_once = self.slots.count(T1) == resident_count;
        if self.returning.is_none() && only_once {
            return self.slots.oldest(T1);
        }
        let preferred = self.slots.oldest(self.queue_to_shrink());
        preferred.or_else(|| self.slots.oldest(T1))
    }

    fn evict(&mut self, slot: u32, identity: u64) {
        if self.returning.is_none() && !self.make_room_for_ghost() {
            self.slots.unlink(slot);
        } else {
            self.remember(slot, identity);
        }
    }

    fn victim_among(
        &mut self,
        slots: &[u32],
        identity_of: &mut dyn FnMut(u32) -> u64,
    ) -> Option<u32> {
        let preferred = self.queue_to_shrink();
        let rank = |slot: u32| {
            let queue = self.slots.queue(slot)?;
            Some((queue == preferred, self.clock.age(&self.slots, slot)))
        };
        let ranked = slots.iter().filter_map(|&slot| Some((rank(slot)?, slot)));
        let (_, slot) = ranked.max_by_key(|&(rank, _)| rank)?;
        self.make_room_for_ghost();
        self.remember(slot, identity_of(slot));
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
        self.slots.resident_bytes() + self.b1.resident_bytes() + self.b2.resident_bytes()
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
