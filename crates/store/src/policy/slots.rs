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
//! While an index is replaced, its items move one by one to numbers of the next
//! one: a number says by its highest bit, [`SPACE`], in which of two arrays its
//! slot is, and lists run through both. When the old array is empty it goes.
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

/// The bit of a slot number that tells two indexes apart.
pub const SPACE: u32 = 1 << SPACE_SHIFT;
const SPACE_SHIFT: u32 = LINK_BITS - 1;

/// Slots of one index that a policy can describe: no number is [`NIL`].
pub const SLOT_COUNT_MAX: u32 = SPACE - 1;

/// The number without its [`SPACE`].
#[inline(always)]
pub(super) const fn within(slot: u32) -> usize {
    (slot & (SPACE - 1)) as usize
}

/// Which of two arrays a number belongs to; more than 1 for nonsense.
#[inline(always)]
pub(super) const fn space_of(slot: u32) -> usize {
    (slot >> SPACE_SHIFT) as usize
}

/// Makes an array as long as the number after its last one says. One that is
/// empty is asked for zeroed, so that it becomes resident only as it is used.
pub(super) fn lengthen<T: Clone + Default>(arrays: &mut [Vec<T>; 2], slot_count: u32)
where
    Vec<T>: Zeroed,
{
    let len = within(slot_count);
    assert!(len <= SLOT_COUNT_MAX as usize, "links have 28 bits");
    let array = &mut arrays[space_of(slot_count)];
    if array.is_empty() {
        *array = Zeroed::zeroed(len);
    } else if len > array.len() {
        array.reserve_exact(len - array.len());
        array.resize(len, T::default());
    }
}

/// Arrays that can be had zeroed without touching them.
pub(super) trait Zeroed {
    fn zeroed(len: usize) -> Self;
}

impl Zeroed for Vec<u64> {
    fn zeroed(len: usize) -> Self {
        vec![0; len]
    }
}

impl Zeroed for Vec<u16> {
    fn zeroed(len: usize) -> Self {
        vec![0; len]
    }
}

impl Zeroed for Vec<u8> {
    fn zeroed(len: usize) -> Self {
        vec![0; len]
    }
}

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
    words: [Vec<u64>; 2],
    lists: [List; 2],
}

impl Slots {
    /// `slot_count` empty slots. Their memory is asked for zeroed, so it
    /// becomes resident only as slots are used.
    pub(super) fn with_count(slot_count: u32) -> Self {
        let mut slots = Slots {
            words: Default::default(),
            lists: [EMPTY; 2],
        };
        slots.resize(slot_count);
        slots
    }

    /// More slots at the end of the space that `slot_count` is of. Fewer are not
    /// possible: a slot beyond the new end may be linked.
    pub(super) fn resize(&mut self, slot_count: u32) {
        lengthen(&mut self.words, slot_count);
    }

    /// Takes the slots of a space away, of which none is linked any more.
    pub(super) fn retire(&mut self, space: u32) -> Vec<u64> {
        std::mem::take(&mut self.words[space_of(space)])
    }

    /// Bytes held, spare capacity included.
    pub(super) fn resident_bytes(&self) -> u64 {
        let capacity = |words: &Vec<u64>| words.capacity() * size_of::<u64>();
        self.words.iter().map(capacity).sum::<usize>() as u64
    }

    #[inline(always)]
    fn get(&self, slot: u32) -> Option<&u64> {
        self.words.get(space_of(slot))?.get(within(slot))
    }

    #[inline(always)]
    fn word(&self, slot: u32) -> u64 {
        self.words[space_of(slot)][within(slot)]
    }

    #[inline(always)]
    fn word_mut(&mut self, slot: u32) -> &mut u64 {
        &mut self.words[space_of(slot)][within(slot)]
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
        match self.get(slot)? >> QUEUE_SHIFT & QUEUE_MASK {
            1 => Some(Queue::First),
            2 => Some(Queue::Second),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn grade(&self, slot: u32) -> u8 {
        (self.word(slot) >> GRADE_SHIFT & GRADE_MASK) as u8
    }

    #[inline(always)]
    pub(super) fn set_grade(&mut self, slot: u32, grade: u8) {
        self.set_field(slot, GRADE_SHIFT, GRADE_MASK, u64::from(grade));
    }

    /// See [`super::Policy::displacement`]. 0 for a slot that does not exist.
    #[inline]
    pub(super) fn displacement(&self, slot: u32) -> u8 {
        let word = self.get(slot).copied().unwrap_or(0);
        (word >> DISPLACEMENT_SHIFT & DISPLACEMENT_MASK) as u8
    }

    #[inline]
    pub(super) fn set_displacement(&mut self, slot: u32, displacement: u8) {
        debug_assert!(u64::from(displacement) <= DISPLACEMENT_MASK);
        if self.get(slot).is_some() {
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
        if self.get(slot).is_none() {
            return;
        }
        self.unlink(slot);
        let newest = self.list(queue).newest;
        let word = self.word_mut(slot);
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
        let word = self.word(slot);
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
        *self.word_mut(slot) = word & (DISPLACEMENT_MASK << DISPLACEMENT_SHIFT);
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
        if from == to || self.get(to).is_none() {
            return;
        }
        let Some(queue) = self.queue(from) else {
            return;
        };
        self.unlink(to);
        let displacement = DISPLACEMENT_MASK << DISPLACEMENT_SHIFT;
        let word = self.word(from);
        let kept = self.word(to) & displacement;
        *self.word_mut(to) = word & !displacement | kept;
        *self.word_mut(from) = word & displacement;
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

    /// Brings a slot's word nearer.
    #[inline(always)]
    pub(super) fn prefetch(&self, slot: u32) {
        if let Some(word) = self.get(slot) {
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
        let word = self.word_mut(slot);
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
            let word = self.word(slot);
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
    fn items_move_to_another_space_and_keep_their_order() {
        let mut slots = Slots::with_count(4);
        for slot in 0..4 {
            slots.push(Queue::First, slot, slot as u8);
        }
        slots.set_displacement(1, 3);
        slots.resize(SPACE | 10);
        for (from, to) in [(2, 9), (0, 0), (3, 4)] {
            slots.relocate(from, SPACE | to);
        }
        let order = [SPACE, 1, SPACE | 9, SPACE | 4];
        assert_eq!(slots.order(Queue::First), order);
        assert_eq!((slots.grade(SPACE | 9), slots.displacement(1)), (2, 3));
        slots.unlink(1);
        slots.push(Queue::First, SPACE | 1, 1);
        assert_eq!(slots.retire(0).len(), 4);
        assert_eq!((slots.queue(2), slots.displacement(1)), (None, 0));
        // And back.
        slots.resize(2);
        slots.relocate(SPACE | 9, 1);
        assert_eq!(slots.order(Queue::First), [SPACE, 1, SPACE | 4, SPACE | 1]);
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
        slots.push(Queue::First, SPACE, 0);
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
