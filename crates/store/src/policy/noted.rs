//! Accesses that clients report in batches, noted until they matter.
//!
//! A recency list is exact if every access moves its item, and moving one is a
//! handful of random memory accesses, far more than the rest of a report. So a
//! reported access only adds to a small count, one byte per slot; the policy
//! learns of it when the item is about to leave, which is the first time that
//! the answer could differ: then it is accessed instead, and the next candidate
//! is asked for. This is how CLOCK approximates LRU, and CAR approximates ARC;
//! for S3-FIFO, which looks at its counts only at the ends of its queues, it
//! changes nothing.
//!
//! SLRU needs no notes: it executes a reported access as fast as one is noted.
//!
//! | bits | field |
//! |---|---|
//! | 0..2 | accesses noted, up to 3 |
//! | 7 | accessed at all since it was written |

use super::slots::{lengthen, space_of, within};
use super::{AnyPolicy, Policy, PolicyKind, Recency, Retired};

const COUNT_MAX: u8 = 3;
const WAS_ACCESSED: u8 = 1 << 7;

/// Items that one call for a victim passes over at most because of their
/// notes; bounds the time under the partition's lock.
const PASS_OVER_MAX: usize = 64;

/// A policy and the notes beside it.
#[derive(Debug)]
pub struct Noted {
    policy: AnyPolicy,
    /// Empty if the policy needs none.
    notes: [Vec<u8>; 2],
    /// Whether the latest victim was accessed since it was written.
    victim_was_accessed: bool,
}

/// Notes that a policy needs for so many slots.
fn note_count(kind: PolicyKind, slot_count: u32) -> usize {
    match kind {
        PolicyKind::Slru => 0,
        _ => slot_count as usize,
    }
}

impl Noted {
    /// For slots 0 to `slot_count - 1`, all empty.
    pub fn new(kind: PolicyKind, slot_count: u32) -> Self {
        Noted {
            policy: super::new(kind, slot_count),
            notes: [vec![0; note_count(kind, slot_count)], Vec::new()],
            victim_was_accessed: false,
        }
    }

    /// Notes an access of a slot. A number that names nothing changes nothing
    /// that matters.
    #[inline]
    pub fn note(&mut self, slot: u32) {
        if let AnyPolicy::Slru(policy) = &mut self.policy {
            policy.access(slot);
            return;
        }
        if let Some(note) = self.note_mut(slot) {
            let count = *note & COUNT_MAX;
            *note = WAS_ACCESSED | (count + u8::from(count < COUNT_MAX));
        }
    }

    /// The item in `slot` was written anew: an access, and the first of what
    /// is there now.
    #[inline]
    pub fn overwritten(&mut self, slot: u32) {
        if let AnyPolicy::Slru(policy) = &mut self.policy {
            policy.overwritten(slot);
            return;
        }
        self.policy.access(slot);
        if let Some(note) = self.note_mut(slot) {
            *note &= !WAS_ACCESSED;
        }
    }

    /// Whether the item in `slot` was accessed since it was written.
    pub fn was_accessed(&self, slot: u32) -> bool {
        if let AnyPolicy::Slru(policy) = &self.policy {
            return policy.was_accessed(slot);
        }
        let notes = self.notes.get(space_of(slot));
        let note = notes.and_then(|notes| notes.get(within(slot)));
        note.is_some_and(|note| note & WAS_ACCESSED != 0)
    }

    /// How the item in `slot` was used; only SLRU tells.
    pub fn recency(&self, slot: u32) -> Recency {
        match &self.policy {
            AnyPolicy::Slru(policy) => policy.recency(slot),
            _ => Recency::default(),
        }
    }

    /// A key that had no item stands in `slot` now: a copy of one that was used so.
    pub fn insert_copy(&mut self, slot: u32, identity: u64, recency: Recency) {
        match &mut self.policy {
            AnyPolicy::Slru(policy) => policy.insert_copy(slot, recency),
            policy => policy.insert(slot, identity),
        }
    }

    /// The item in `slot` was replaced by a copy of one that was used so.
    pub fn overwritten_by_copy(&mut self, slot: u32, recency: Recency) {
        match &mut self.policy {
            AnyPolicy::Slru(policy) => policy.insert_copy(slot, recency),
            _ => self.overwritten(slot),
        }
    }

    /// Whether a copy of an item that was used so would be the first to leave; only SLRU can
    /// tell, for the others a copy is as new as anything.
    pub fn would_leave_first(&self, recency: Recency) -> bool {
        match &self.policy {
            AnyPolicy::Slru(policy) => policy.would_leave_first(recency),
            _ => false,
        }
    }

    /// So many items are being copied from another replica; 0 if none are any more.
    pub fn expect(&mut self, count: u32) {
        if let AnyPolicy::Slru(policy) = &mut self.policy {
            policy.expect(count);
        }
    }

    /// Whether the item that was evicted last was accessed since it was written.
    pub fn victim_was_accessed(&self) -> bool {
        self.victim_was_accessed
    }

    /// Which policy it is.
    pub fn kind(&self) -> PolicyKind {
        match &self.policy {
            AnyPolicy::Slru(_) => PolicyKind::Slru,
            AnyPolicy::Lru(_) => PolicyKind::Lru,
            AnyPolicy::Arc(_) => PolicyKind::Arc,
            AnyPolicy::S3Fifo(_) => PolicyKind::S3Fifo,
        }
    }

    /// Tells the policy what was noted of `slot`; `false` if nothing was.
    fn settle(&mut self, slot: u32) -> bool {
        let Some(note) = self.note_mut(slot) else {
            return false;
        };
        let count = *note & COUNT_MAX;
        *note &= !COUNT_MAX;
        for _ in 0..count {
            self.policy.access(slot);
        }
        count > 0
    }

    #[inline(always)]
    fn note_mut(&mut self, slot: u32) -> Option<&mut u8> {
        self.notes.get_mut(space_of(slot))?.get_mut(within(slot))
    }

    fn forget(&mut self, slot: u32) {
        if let Some(note) = self.note_mut(slot) {
            *note = 0;
        }
    }
}

impl Policy for Noted {
    fn resize(&mut self, slot_count: u32) {
        self.policy.resize(slot_count);
        if self.kind() != PolicyKind::Slru {
            lengthen(&mut self.notes, slot_count);
        }
    }

    fn retire(&mut self, space: u32) -> Retired {
        Retired {
            notes: std::mem::take(&mut self.notes[space_of(space)]),
            ..self.policy.retire(space)
        }
    }

    #[inline]
    fn prepare(&mut self, identity: u64) {
        self.policy.prepare(identity);
    }

    #[inline]
    fn insert(&mut self, slot: u32, identity: u64) {
        self.policy.insert(slot, identity);
    }

    #[inline]
    fn access(&mut self, slot: u32) {
        if let Some(note) = self.note_mut(slot) {
            *note |= WAS_ACCESSED;
        }
        self.policy.access(slot);
    }

    #[inline]
    fn remove(&mut self, slot: u32) {
        self.policy.remove(slot);
        self.forget(slot);
    }

    fn relocate(&mut self, from: u32, to: u32) {
        self.policy.relocate(from, to);
        if let Some(note) = self.note_mut(from) {
            let moved = std::mem::take(note);
            if let Some(note) = self.note_mut(to) {
                *note = moved;
            }
        }
    }

    fn candidate(&mut self) -> Option<u32> {
        for _ in 0..PASS_OVER_MAX {
            let candidate = self.policy.candidate()?;
            if !self.settle(candidate) {
                return Some(candidate);
            }
        }
        self.policy.candidate()
    }

    fn evict(&mut self, slot: u32, identity: u64) {
        self.victim_was_accessed = self.was_accessed(slot);
        self.policy.evict(slot, identity);
        self.forget(slot);
    }

    fn victim_among(
        &mut self,
        slots: &[u32],
        identity_of: &mut dyn FnMut(u32) -> u64,
    ) -> Option<u32> {
        for &slot in slots {
            self.settle(slot);
        }
        if let AnyPolicy::Slru(policy) = &mut self.policy {
            let (victim, accessed) = policy.oldest_among(slots)?;
            self.victim_was_accessed = accessed;
            policy.remove(victim);
            return Some(victim);
        }
        let victim = self.policy.victim_among(slots, identity_of)?;
        self.victim_was_accessed = self.was_accessed(victim);
        self.forget(victim);
        Some(victim)
    }

    #[inline(always)]
    fn prefetch(&self, slot: u32) {
        self.policy.prefetch(slot);
    }

    fn resident_count(&self) -> u32 {
        self.policy.resident_count()
    }

    fn resident_bytes(&self) -> u64 {
        self.policy.resident_bytes() + (self.notes[0].capacity() + self.notes[1].capacity()) as u64
    }

    #[inline]
    fn displacement(&self, slot: u32) -> u8 {
        self.policy.displacement(slot)
    }

    #[inline]
    fn set_displacement(&mut self, slot: u32, displacement: u8) {
        self.policy.set_displacement(slot, displacement);
    }
}

#[cfg(test)]
mod tests {
    use super::super::SPACE;
    use super::*;

    fn identity(slot: u32) -> u64 {
        u64::from(slot)
    }

    fn filled(kind: PolicyKind, count: u32) -> Noted {
        let mut policy = Noted::new(kind, count);
        for slot in 0..count {
            policy.prepare(identity(slot));
            policy.insert(slot, identity(slot));
        }
        policy
    }

    #[test]
    fn what_was_noted_stays_and_what_was_not_leaves() {
        for kind in [PolicyKind::Lru, PolicyKind::Arc, PolicyKind::S3Fifo] {
            let mut policy = filled(kind, 40);
            let noted: Vec<u32> = (0..40).filter(|slot| slot % 2 == 0).collect();
            noted.iter().for_each(|slot| policy.note(*slot));
            noted.iter().for_each(|slot| policy.note(*slot));
            for _ in 0..20 {
                let victim = policy.victim(&mut identity).expect("it is full");
                assert_eq!(victim % 2, 1, "{kind}: {victim} was noted");
            }
        }
    }

    #[test]
    fn a_note_saves_an_item_once() {
        let mut policy = filled(PolicyKind::Lru, 2);
        [0, 0, 0, 0, 0]
            .into_iter()
            .for_each(|slot| policy.note(slot));
        assert_eq!(policy.victim(&mut identity), Some(1));
        assert_eq!(policy.victim(&mut identity), Some(0));
        assert_eq!(policy.victim(&mut identity), None);
    }

    #[test]
    fn notes_move_with_their_items_and_end_with_them() {
        let mut policy = filled(PolicyKind::Lru, 3);
        policy.resize(5);
        [0, 1].into_iter().for_each(|slot| policy.note(slot));
        policy.relocate(0, 4);
        assert!(policy.was_accessed(4) && !policy.was_accessed(0));
        policy.remove(1);
        policy.insert(1, 1);
        assert!(!policy.was_accessed(1));
        assert_eq!(policy.victim(&mut identity), Some(2));
        policy.resize(SPACE | 8);
        for slot in [0, 1, 3, 4] {
            policy.relocate(slot, SPACE | (slot + 2));
        }
        assert!(policy.retire(0).private_len() >= 5 * 9);
        assert!(policy.was_accessed(SPACE | 6) && !policy.was_accessed(SPACE | 3));
        assert!(!policy.was_accessed(4));
    }

    #[test]
    fn an_item_among_full_buckets_is_saved_by_its_note() {
        let mut policy = filled(PolicyKind::S3Fifo, 30);
        [5, 6].into_iter().for_each(|slot| policy.note(slot));
        assert_eq!(policy.victim_among(&[5, 6, 7], &mut identity), Some(7));
    }

    #[test]
    fn numbers_that_name_nothing_change_nothing() {
        let mut policy = Noted::new(PolicyKind::Arc, 3);
        [1, 2, 3, u32::MAX]
            .into_iter()
            .for_each(|slot| policy.note(slot));
        policy.insert(0, 0);
        assert_eq!(policy.victim(&mut identity), Some(0));
        assert_eq!(policy.victim(&mut identity), None);
    }
}
