//! A coarse age for slots of a recency list.
//!
//! A list tells who is oldest, not which of two slots is older; a victim among
//! a few given slots needs the latter. So every slot carries, as its grade,
//! the tick at which it was last renewed. A tick passes when an eighth of the
//! resident slots has been renewed. Ages beyond 15 ticks wrap and then look
//! young: the choice among given slots is a good one, not the exact one.

use super::slots::{GRADE_COUNT, Slots};

/// Renewals in a tick, as a fraction of the resident slots.
const TICKS_PER_TURNOVER: u32 = 8;

/// The ticking clock of one policy.
#[derive(Debug, Default)]
pub(super) struct AgeClock {
    tick: u8,
    renewed_count: u32,
}

impl AgeClock {
    /// The grade of a slot that is being inserted.
    #[inline(always)]
    pub(super) fn stamp_new(&mut self, resident_count: u32) -> u8 {
        self.renewed_count += 1;
        if self.renewed_count > resident_count / TICKS_PER_TURNOVER {
            self.renewed_count = 0;
            self.tick = (self.tick + 1) % GRADE_COUNT;
        }
        self.tick
    }

    /// The new grade of a resident slot that is being renewed. A slot counts
    /// once per tick, so a few hot ones do not age all others.
    #[inline(always)]
    pub(super) fn stamp_again(&mut self, grade: u8, resident_count: u32) -> u8 {
        if grade == self.tick {
            grade
        } else {
            self.stamp_new(resident_count)
        }
    }

    /// Ticks since `slot` was renewed.
    pub(super) fn age(&self, slots: &Slots, slot: u32) -> u8 {
        (self.tick + GRADE_COUNT - slots.grade(slot)) % GRADE_COUNT
    }
}
