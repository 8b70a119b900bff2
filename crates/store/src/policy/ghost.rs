//! A queue of keys that are gone: what ARC and S3-FIFO remember of evictions.
//!
//! A key is remembered as a 32-bit fingerprint of its identity, so one lookup
//! in n ghosts is wrong with a chance of n / 2^32: a hint lost among hints.
//!
//! Two arrays: a *ring* of fingerprints in order of eviction, and an open
//! *table* from fingerprint to place in the ring.
//!
//! | table word, bits | field | why |
//! |---|---|---|
//! | 0..28 | place in the ring + 1 | 0 is an empty word |
//! | 28..32 | steps from the fingerprint's home, at most 15 | tells strangers apart, and where a word may move, without a look into the ring |
//!
//! Ten bytes per place: 4 in the ring, 1.5 table words of 4.
//!
//! A ghost that is taken out of the middle leaves a hole. Holes are closed by
//! a few steps of compaction at each push, so that no single operation pays
//! for all. The only operations that touch everything are those that change
//! the ring's size, by a quarter at least.
//!
//! Invariants, in positions (which only grow until the ring changes size;
//! the place is the position modulo the ring's length):
//! 1. tail <= write <= read <= head <= tail + ring length.
//! 2. From write to read, and outside of tail to head, there are only holes.
//! 3. The table has one word for each place that is not a hole, reachable from
//!    its home by probing onwards without meeting an empty word.

use trefoil_region::prefetch_read;

const HOLE: u32 = 0;
const VACANT: u32 = 0;

const PLACE_BITS: u32 = 28;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;
/// This many steps from home, or more.
const STEPS_MAX: usize = (u32::MAX >> PLACE_BITS) as usize;

/// Length of the first ring, and the least that a shrinking one keeps.
const RING_LEN_MIN: usize = 32;
/// Bounded by the table's bits for a place + 1.
const RING_LEN_MAX: usize = PLACE_MASK as usize;

/// Places that a push examines while there are holes. More than one, or the
/// compaction would never catch up with the pushes.
const COMPACT_STEPS: usize = 4;

/// How many drops ahead a ghost's word in the table is fetched.
const PREFETCH_DROP: u64 = 2;
/// The same, in insertions, while the table is rebuilt.
const PREFETCH_REBUILD: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    ring: Vec<u32>,
    table: Vec<u32>,
    tail: u64,
    write: u64,
    read: u64,
    head: u64,
    count: usize,
}

impl Ghosts {
    /// Ghosts remembered.
    pub(super) fn count(&self) -> u32 {
        self.count as u32
    }

    /// Bytes held, spare capacity included.
    pub(super) fn resident_bytes(&self) -> u64 {
        ((self.ring.capacity() + self.table.capacity()) * size_of::<u32>()) as u64
    }

    /// Remembers a key as the newest.
    pub(super) fn push(&mut self, identity: u64) {
        self.compact(COMPACT_STEPS);
        let len = self.ring.len();
        if self.head - self.tail == len as u64 {
            if len == RING_LEN_MAX {
                self.drop_oldest();
            } else {
                self.resize_ring((len + len / 4).clamp(RING_LEN_MIN, RING_LEN_MAX));
            }
        }
        let place = self.place(self.head);
        self.ring[place] = fingerprint(identity);
        self.head += 1;
        self.count += 1;
        self.table_insert(place);
    }

    /// Forgets a key that came back. Says whether it was remembered.
    pub(super) fn take(&mut self, identity: u64) -> bool {
        let wanted = fingerprint(identity);
        if self.count == 0 {
            return false;
        }
        let mut at = self.home(wanted);
        let mut steps = 0;
        loop {
            let word = self.table[at];
            if word == VACANT {
                return false;
            }
            if steps_of(word) == steps.min(STEPS_MAX) && self.ring[place_of(word)] == wanted {
                self.ring[place_of(word)] = HOLE;
                self.table_remove(at);
                self.count -= 1;
                return true;
            }
            at = self.next(at);
            steps += 1;
        }
    }

    /// Forgets the oldest.
    pub(super) fn drop_oldest(&mut self) {
        if self.count == 0 {
            return;
        }
        while self.ring[self.place(self.tail)] == HOLE {
            self.set_tail(self.tail + 1);
        }
        let ahead = self.ring[self.place(self.tail + PREFETCH_DROP)];
        self.prefetch_home(ahead);
        let place = self.place(self.tail);
        let at = self.table_find(place);
        self.ring[place] = HOLE;
        self.table_remove(at);
        self.count -= 1;
        self.set_tail(self.tail + 1);
        if self.ring.len() > RING_LEN_MIN && self.count < self.ring.len() / 2 {
            self.resize_ring((self.count + self.count / 4).max(RING_LEN_MIN));
        }
    }

    #[inline(always)]
    fn place(&self, position: u64) -> usize {
        (position % self.ring.len() as u64) as usize
    }

    fn set_tail(&mut self, tail: u64) {
        self.tail = tail;
        self.write = self.write.max(tail);
        self.read = self.read.max(tail);
        if self.write == tail {
            // The gap has become part of what lies behind the tail.
            self.tail = self.read;
            self.write = self.read;
        }
    }

    /// Moves ghosts towards the tail over the holes in front of them.
    fn compact(&mut self, step_count: usize) {
        for _ in 0..step_count {
            if self.head - self.tail == self.count as u64 {
                return;
            }
            if self.read == self.head {
                self.head = self.write;
                self.write = self.tail;
                self.read = self.tail;
                continue;
            }
            let from = self.place(self.read);
            let ghost = self.ring[from];
            if ghost != HOLE {
                let to = self.place(self.write);
                if from != to {
                    let at = self.table_find(from);
                    self.ring[from] = HOLE;
                    self.ring[to] = ghost;
                    self.table[at] = table_word(to, steps_of(self.table[at]));
                }
                self.write += 1;
            }
            self.read += 1;
        }
    }

    /// Another length of the ring, which all ghosts must fit; leaves no holes.
    /// The old table goes before the new one comes.
    fn resize_ring(&mut self, len: usize) {
        debug_assert!(len >= self.count);
        if !self.ring.is_empty() {
            let tail = self.place(self.tail);
            self.ring.rotate_left(tail);
        }
        self.ring.retain(|&ghost| ghost != HOLE);
        debug_assert_eq!(self.ring.len(), self.count);
        self.ring.reserve_exact(len - self.count);
        self.ring.resize(len, HOLE);
        self.ring.shrink_to_fit();
        (self.tail, self.write, self.read) = (0, 0, 0);
        self.head = self.count as u64;
        self.table = Vec::new();
        self.table = vec![VACANT; len + len / 2];
        for place in 0..self.count {
            if let Some(&ahead) = self.ring.get(place + PREFETCH_REBUILD) {
                self.prefetch_home(ahead);
            }
            self.table_insert(place);
        }
    }

    #[inline(always)]
    fn home(&self, ghost: u32) -> usize {
        ((u64::from(ghost) * self.table.len() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn prefetch_home(&self, ghost: u32) {
        prefetch_read((&raw const self.table[self.home(ghost)]).cast());
    }

    #[inline(always)]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.table.len() {
            0
        } else {
            at + 1
        }
    }

    /// Steps from `from` onwards to `to`.
    #[inline(always)]
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.table.len() - from
        }
    }

    fn table_insert(&mut self, place: usize) {
        let mut at = self.home(self.ring[place]);
        let mut steps = 0;
        while self.table[at] != VACANT {
            at = self.next(at);
            steps += 1;
        }
        self.table[at] = table_word(place, steps);
    }

    /// The table's word for a place that is not a hole.
    fn table_find(&self, place: usize) -> usize {
        let mut at = self.home(self.ring[place]);
        while place_of(self.table[at]) != place {
            at = self.next(at);
        }
        at
    }

    /// Empties a word and closes the gap, so that every other word stays
    /// reachable from its home.
    fn table_remove(&mut self, at: usize) {
        let mut gap = at;
        let mut probe = self.next(at);
        while self.table[probe] != VACANT {
            let word = self.table[probe];
            let steps = match steps_of(word) {
                STEPS_MAX => self.distance(self.home(self.ring[place_of(word)]), probe),
                steps => steps,
            };
            let back = self.distance(gap, probe);
            if steps >= back {
                self.table[gap] = table_word(place_of(word), steps - back);
                gap = probe;
            }
            probe = self.next(probe);
        }
        self.table[gap] = VACANT;
    }
}

/// Never [`HOLE`]. The identity is mixed once more: callers hand in whatever
/// tells their keys apart.
#[inline(always)]
fn fingerprint(identity: u64) -> u32 {
    let mixed = (identity ^ identity >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let folded = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((folded >> 32) as u32).max(HOLE + 1)
}

#[inline(always)]
fn table_word(place: usize, steps: usize) -> u32 {
    (place as u32 + 1) | (steps.min(STEPS_MAX) as u32) << PLACE_BITS
}

#[inline(always)]
fn place_of(word: u32) -> usize {
    // Nowhere, for a vacant word.
    ((word & PLACE_MASK) as usize).wrapping_sub(1)
}

#[inline(always)]
fn steps_of(word: u32) -> usize {
    (word >> PLACE_BITS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    impl Ghosts {
        fn check(&self, model: &VecDeque<u64>) {
            assert!(self.tail <= self.write && self.write <= self.read);
            assert!(self.read <= self.head);
            assert!(self.head - self.tail <= self.ring.len() as u64);
            let between = (self.tail..self.head).map(|at| self.ring[self.place(at)]);
            let ghosts: Vec<_> = between.filter(|&ghost| ghost != HOLE).collect();
            let expected: Vec<_> = model
                .iter()
                .map(|&identity| fingerprint(identity))
                .collect();
            assert_eq!(ghosts, expected);
            let words = self.table.iter().filter(|&&word| word != VACANT).count();
            assert_eq!((words, self.count), (model.len(), model.len()));
        }
    }

    #[test]
    fn agrees_with_a_plain_queue() {
        for seed in 0..20 {
            let mut random = super::super::reference::Random::new(seed);
            let limit = 1 + random.below(300) as usize;
            let take_percent = random.below(100);
            let mut ghosts = Ghosts::default();
            let mut model = VecDeque::new();
            for step in 0..4000u64 {
                if random.below(100) < take_percent && !model.is_empty() {
                    let at = random.below(model.len() as u64) as usize;
                    let identity = model.remove(at).unwrap();
                    assert!(ghosts.take(identity));
                    assert!(!ghosts.take(identity));
                } else {
                    ghosts.push(step);
                    model.push_back(step);
                }
                while model.len() > limit {
                    model.pop_front();
                    ghosts.drop_oldest();
                }
                if step % 16 == 0 {
                    ghosts.check(&model);
                }
            }
            ghosts.check(&model);
            // Holes do not make the ring grow without bound.
            assert!(
                ghosts.ring.len() <= (limit * 5 / 2).max(RING_LEN_MIN),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn memory_returns_when_ghosts_go() {
        let mut ghosts = Ghosts::default();
        (0..10_000).for_each(|identity| ghosts.push(identity));
        assert!(ghosts.resident_bytes() <= 10_000 * 10 * 5 / 4 + 16);
        (0..9_990).for_each(|_| ghosts.drop_oldest());
        assert!(ghosts.resident_bytes() < 1_000);
        assert!(ghosts.take(9_995) && !ghosts.take(9_980));
        (0..20).for_each(|_| ghosts.drop_oldest());
        assert_eq!(ghosts.count(), 0);
        assert!(!ghosts.take(9_996));
    }
}
