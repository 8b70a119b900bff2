//! Least recently used: one list; an access makes its slot the newest, the
//! oldest is the victim. Exact, given every access.

use super::age::AgeClock;
use super::slots::{Queue, Slots};
use super::{Policy, Retired};

/// See the module.
#[derive(Debug)]
pub struct Lru {
    pub(super) slots: Slots,
    clock: AgeClock,
}

impl Lru {
    /// For slots 0 to `slot_count - 1`, all empty.
    pub fn new(slot_count: u32) -> Self {
        Lru {
            slots: Slots::with_count(slot_count),
            clock: AgeClock::default(),
        }
    }
}

impl Policy for Lru {
    fn resize(&mut self, slot_count: u32) {
        self.slots.resize(slot_count);
    }

    fn retire(&mut self, space: u32) -> Retired {
        Retired::words(self.slots.retire(space))
    }

    #[inline]
    fn prepare(&mut self, _identity: u64) {}

    #[inline]
    fn insert(&mut self, slot: u32, _identity: u64) {
        let grade = self.clock.stamp_new(self.slots.count_all());
        self.slots.push(Queue::First, slot, grade);
    }

    #[inline]
    fn access(&mut self, slot: u32) {
        if self.slots.queue(slot).is_some() {
            let grade = self
                .clock
                .stamp_again(self.slots.grade(slot), self.slots.count_all());
            self.slots.renew(Queue::First, slot, grade);
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
        self.slots.oldest(Queue::First)
    }

    #[inline]
    fn evict(&mut self, slot: u32, _identity: u64) {
        self.slots.unlink(slot);
    }

    fn victim_among(
        &mut self,
        slots: &[u32],
        _identity_of: &mut dyn FnMut(u32) -> u64,
    ) -> Option<u32> {
        let resident = slots
            .iter()
            .filter(|&&slot| self.slots.queue(slot).is_some());
        let &slot = resident.max_by_key(|&&slot| self.clock.age(&self.slots, slot))?;
        self.slots.unlink(slot);
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
        self.slots.resident_bytes()
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
