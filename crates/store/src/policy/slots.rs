//! The eviction metadata of every slot: one word each, threaded into lists.
//!
//! | bits | field | why |
//! |---|---|---|
//! | 0..28 | newer | link towards the newest end of the slot's list, [`NIL`] at the end |
//! | 28..56 | older | link towards the oldest end |
//! | 56..58 | queue | which list; 0 is none, so that zeroed memory is a set of empty slots |
//! | 58..62 | grade | the policy's own: an access count (S3-FIFO) or a coarse age (LRU, ARC) |
//! | 62..64 | displacement | the index's own: how far from its home bucket the entry stands |
//!
//! Eight bytes are the whole price of a policy per slot; ghosts come on top.
//! Nothing here allocates but [`Slots::with_count`] and [`Slots::resize`].

use trefoil_region::prefetch_read;

/// A link that leads nowhere.
const NIL: u32 = LINK_MASK as u32;

const LINK_BITS: u32 = 28;
const LINK_MASK: u64 = (1 << LINK_BITS) - 1;
const OLDER_SHIFT: u32 = LINK_BITS;
const QUEUE_SHIFT: u32 = OLDER_SHIFT + LINK_BITS;
const QUEUE_BITS: u32 = 2;
const GRADE_SHIFT: u32 = QUEUE_SHIFT + QUEUE_BITS;
const GRADE_BITS: u32 = 4;
const DISPLACEMENT_SHIFT: u32 = GRADE_SHIFT + GRADE_BITS;
const DISPLACEMENT_BITS: u32 = 2;

const QUEUE_MASK: u64 = (1 << QUEUE_BITS) - 1;
const GRADE_MASK: u64 = (1 << GRADE_BITS) - 1;
const DISPLACEMENT_MASK: u64 = (1 << DISPLACEMENT_BITS) - 1;

/// Slots that one policy can describe: every number that is not [`NIL`].
pub const SLOT_COUNT_MAX: u32 = NIL;

/// Different values of a grade.
pub(super) const GRADE_COUNT: u8 = 1 << GRADE_BITS;

const _: () = {
    assert!(DISPLACEMENT_SHIFT + DISPLACEMENT_BITS == u64::BITS);
    assert!(trefoil_layout::limits::SPILL_MAX as u64 <= DISPLACEMENT_MASK);
};

/// A list of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Queue {
    /// LRU's only list, ARC's T1, S3-FIFO's small queue.
    First = 1,
    /// ARC's T2, S3-FIFO's main queue.
    Second = 2,
}

#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    oldest: u32,
    count: u32,
}

const EMPTY: List = List {
    newest: NIL,
    oldest: NIL,
    count: 0,
};

/// All slots of one index, and the lists through them.
#[derive(Debug)]
pub(super) struct Slots {
    words: Vec<u64>,
    lists: [List; 2],
}

impl Slots {
    /// `slot_count` empty slots. Their memory is asked for zeroed, so it
    /// becomes resident only as slots are used.
    pub(super) fn with_count(slot_count: u32) -> Self {
        assert!(slot_count <= SLOT_COUNT_MAX, "links have 28 bits");
        Slots {
            words: vec![0; slot_count as usize],
            lists: [EMPTY; 2],
        }
    }

    /// More slots at the end. Fewer are not possible: a slot beyond the new
    /// end may be linked.
    pub(super) fn resize(&mut self, slot_count: u32) {
        assert!(slot_count <= SLOT_COUNT_MAX, "links have 28 bits");
        let more = (slot_count as usize).saturating_sub(self.words.len());
        self.words.reserve_exact(more);
        self.words.resize(self.words.len() + more, 0);
    }

    /// Bytes held, spare capacity included.
    pub(super) fn resident_bytes(&self) -> u64 {
        (self.words.capacity() * size_of::<u64>()) as u64
    }

    pub(super) fn slot_count(&self) -> u32 {
        self.words.len() as u32
    }

    pub(super) fn count(&self, queue: Queue) -> u32 {
        self.list(queue).count
    }

    /// Slots in any list.
    pub(super) fn count_all(&self) -> u32 {
        self.lists[0].count + self.lists[1].count
    }

    /// The list that holds `slot`; none if the slot is empty or does not exist.
    #[inline(always)]
    pub(super) fn queue(&self, slot: u32) -> Option<Queue> {
        match self.words.get(slot as usize)? >> QUEUE_SHIFT & QUEUE_MASK {
            1 => Some(Queue::First),
            2 => Some(Queue::Second),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn grade(&self, slot: u32) -> u8 {
        (self.words[slot as usize] >> GRADE_SHIFT & GRADE_MASK) as u8
    }

    #[inline(always)]
    pub(super) fn set_grade(&mut self, slot: u32, grade: u8) {
        self.set_field(slot, GRADE_SHIFT, GRADE_MASK, u64::from(grade));
    }

    /// See [`super::Policy::displacement`]. 0 for a slot that does not exist.
    #[inline]
    pub(super) fn displacement(&self, slot: u32) -> u8 {
        let word = self.words.get(slot as usize).copied().unwrap_or(0);
        (word >> DISPLACEMENT_SHIFT & DISPLACEMENT_MASK) as u8
    }

    #[inline]
    pub(super) fn set_displacement(&mut self, slot: u32, displacement: u8) {
        debug_assert!(u64::from(displacement) <= DISPLACEMENT_MASK);
        if slot < self.slot_count() {
            let value = u64::from(displacement) & DISPLACEMENT_MASK;
            self.set_field(slot, DISPLACEMENT_SHIFT, DISPLACEMENT_MASK, value);
        }
    }

    #[inline(always)]
    pub(super) fn oldest(&self, queue: Queue) -> Option<u32> {
        let slot = self.list(queue).oldest;
        (slot != NIL).then_some(slot)
    }

    /// Links an empty slot at the newest end. Ignores a slot that does not
    /// exist; one that was linked is unlinked first.
    #[inline]
    pub(super) fn push(&mut self, queue: Queue, slot: u32, grade: u8) {
        if slot >= self.slot_count() {
            return;
        }
        self.unlink(slot);
        let newest = self.list(queue).newest;
        let word = &mut self.words[slot as usize];
        *word = *word & (DISPLACEMENT_MASK << DISPLACEMENT_SHIFT)
            | u64::from(NIL)
            | u64::from(newest) << OLDER_SHIFT
            | (queue as u64) << QUEUE_SHIFT
            | u64::from(grade) << GRADE_SHIFT;
        if newest == NIL {
            self.list_mut(queue).oldest = slot;
        } else {
            self.set_field(newest, 0, LINK_MASK, u64::from(slot));
        }
        let list = self.list_mut(queue);
        list.newest = slot;
        list.count += 1;
    }

    /// Takes a slot out of its list and says which that was.
    #[inline]
    pub(super) fn unlink(&mut self, slot: u32) -> Option<Queue> {
        let queue = self.queue(slot)?;
        let word = self.words[slot as usize];
        let newer = (word & LINK_MASK) as u32;
        let older = (word >> OLDER_SHIFT & LINK_MASK) as u32;
        if newer == NIL {
            self.list_mut(queue).newest = older;
        } else {
            self.set_field(newer, OLDER_SHIFT, LINK_MASK, u64::from(older));
        }
        if older == NIL {
            self.list_mut(queue).oldest = newer;
        } else {
            self.set_field(older, 0, LINK_MASK, u64::from(newer));
        }
        self.list_mut(queue).count -= 1;
        self.words[slot as usize] = word & (DISPLACEMENT_MASK << DISPLACEMENT_SHIFT);
        Some(queue)
    }

    /// Makes a linked slot the newest of `queue`, wherever it was.
    #[inline(always)]
    pub(super) fn renew(&mut self, queue: Queue, slot: u32, grade: u8) {
        if self.list(queue).newest == slot {
            self.set_grade(slot, grade);
        } else {
            self.push(queue, slot, grade);
        }
    }

    /// Gives an item another slot, in the same place of its list.
    pub(super) fn relocate(&mut self, from: u32, to: u32) {
        if from == to || to >= self.slot_count() {
            return;
        }
        let Some(queue) = self.queue(from) else {
            return;
        };
        self.unlink(to);
        let displacement = DISPLACEMENT_MASK << DISPLACEMENT_SHIFT;
        let word = self.words[from as usize];
        let kept = self.words[to as usize] & displacement;
        self.words[to as usize] = word & !displacement | kept;
        self.words[from as usize] = word & displacement;
        let newer = (word & LINK_MASK) as u32;
        let older = (word >> OLDER_SHIFT & LINK_MASK) as u32;
        if newer == NIL {
            self.list_mut(queue).newest = to;
        } else {
            self.set_field(newer, OLDER_SHIFT, LINK_MASK, u64::from(to));
        }
        if older == NIL {
            self.list_mut(queue).oldest = to;
        } else {
            self.set_field(older, 0, LINK_MASK, u64::from(to));
        }
    }

    /// These slots under new numbers: lists, order and grades are kept, what
    /// `map` drops is left out, displacements start at 0.
    pub(super) fn rebuilt(
        &self,
        slot_count: u32,
        map: &mut dyn FnMut(u32) -> Option<u32>,
    ) -> Slots {
        let mut new = Slots::with_count(slot_count);
        for queue in [Queue::First, Queue::Second] {
            let mut slot = self.list(queue).oldest;
            while slot != NIL {
                if let Some(to) = map(slot) {
                    new.push(queue, to, self.grade(slot));
                }
                slot = (self.words[slot as usize] & LINK_MASK) as u32;
            }
        }
        new
    }

    /// Brings a slot's word nearer.
    #[inline(always)]
    pub(super) fn prefetch(&self, slot: u32) {
        if let Some(word) = self.words.get(slot as usize) {
            prefetch_read(std::ptr::from_ref(word).cast());
        }
    }

    #[inline(always)]
    fn list(&self, queue: Queue) -> &List {
        &self.lists[queue as usize - 1]
    }

    #[inline(always)]
    fn list_mut(&mut self, queue: Queue) -> &mut List {
        &mut self.lists[queue as usize - 1]
    }

    #[inline(always)]
    fn set_field(&mut self, slot: u32, shift: u32, mask: u64, value: u64) {
        let word = &mut self.words[slot as usize];
        *word = *word & !(mask << shift) | value << shift;
    }
}

#[cfg(test)]
impl Slots {
    /// The slots of a list, oldest first; checks that the links agree.
    pub(super) fn order(&self, queue: Queue) -> Vec<u32> {
        let mut order = Vec::new();
        let (mut before, mut slot) = (NIL, self.list(queue).oldest);
        while slot != NIL {
            let word = self.words[slot as usize];
            assert_eq!(self.queue(slot), Some(queue));
            assert_eq!((word >> OLDER_SHIFT & LINK_MASK) as u32, before);
            order.push(slot);
            before = slot;
            slot = (word & LINK_MASK) as u32;
        }
        assert_eq!(self.list(queue).newest, before);
        assert_eq!(self.list(queue).count as usize, order.len());
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_order_through_removal_and_renewal() {
        let mut slots = Slots::with_count(10);
        for slot in [4, 2, 9, 0] {
            slots.push(Queue::First, slot, 3);
        }
        slots.push(Queue::Second, 7, 15);
        slots.renew(Queue::First, 4, 1);
        assert_eq!(slots.order(Queue::First), [2, 9, 0, 4]);
        assert_eq!(slots.unlink(9), Some(Queue::First));
        assert_eq!(slots.unlink(9), None);
        slots.renew(Queue::Second, 2, 0);
        assert_eq!(slots.order(Queue::First), [0, 4]);
        assert_eq!(slots.order(Queue::Second), [7, 2]);
        assert_eq!((slots.grade(7), slots.grade(4)), (15, 1));
        assert_eq!(slots.count_all(), 4);
    }

    #[test]
    fn a_relocated_item_keeps_its_place() {
        let mut slots = Slots::with_count(10);
        slots.set_displacement(8, 2);
        for slot in [4, 2, 9] {
            slots.push(Queue::Second, slot, slot as u8);
        }
        for (from, to) in [(2, 8), (4, 0), (9, 1), (1, 1), (1, 10), (5, 6)] {
            slots.relocate(from, to);
        }
        assert_eq!(slots.order(Queue::Second), [0, 8, 1]);
        assert_eq!((slots.grade(8), slots.displacement(8)), (2, 2));
        // Whatever stood there leaves.
        slots.relocate(0, 8);
        assert_eq!(slots.order(Queue::Second), [8, 1]);
    }

    #[test]
    fn displacement_is_independent_of_the_lists() {
        let mut slots = Slots::with_count(4);
        slots.set_displacement(1, 3);
        slots.push(Queue::First, 1, 0);
        slots.push(Queue::First, 2, 0);
        slots.renew(Queue::First, 1, 5);
        assert_eq!((slots.displacement(1), slots.displacement(2)), (3, 0));
        slots.unlink(1);
        assert_eq!(slots.displacement(1), 3);
        slots.set_displacement(99, 1);
        assert_eq!(slots.displacement(99), 0);
    }

    #[test]
    fn numbers_that_name_nothing_change_nothing() {
        let mut slots = Slots::with_count(3);
        slots.push(Queue::First, 3, 0);
        slots.push(Queue::First, u32::MAX, 0);
        assert_eq!(slots.unlink(u32::MAX), None);
        assert_eq!(slots.queue(NIL), None);
        slots.prefetch(u32::MAX);
        assert_eq!(slots.count_all(), 0);
    }

    #[test]
    fn growing_keeps_everything_and_holds_no_spare() {
        let mut slots = Slots::with_count(3);
        slots.push(Queue::First, 2, 4);
        slots.resize(8);
        slots.resize(5);
        slots.push(Queue::First, 7, 0);
        assert_eq!(slots.order(Queue::First), [2, 7]);
        assert_eq!(slots.grade(2), 4);
        assert_eq!(slots.resident_bytes(), 64);
    }
}
