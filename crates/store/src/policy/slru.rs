//! Segmented LRU by coarse ages: what was used once and what was used again are
//! two segments, and within a segment the oldest leaves.
//!
//! There are no lists. A slot has a *stamp*, the tick of its latest use; victims
//! are found by a hand that sweeps the slots. So an item costs two bytes, a use
//! writes two bytes, and a reported read is executed when the report comes.
//!
//! | bits | field | why |
//! |---|---|---|
//! | 0..2 | displacement | the index's own: how far from its home bucket the entry stands |
//! | 2 | again | used since it was inserted: which segment |
//! | 3 | accessed | read since it was written |
//! | 4..16 | stamp | 1 to 4095 and on from 1; 0 is an empty slot, so that zeroed memory is a set of them |
//!
//! **Ticks** pass with insertions, 512 in the time in which as many items are
//! inserted as are resident. Stamps go round after eight such times; what
//! is older than six is kept at six by a few slots looked at in each tick.
//!
//! **Copies** of another replica's items come with their ages, and no time passes by
//! them. What clients write meanwhile counts against the items that will be resident: by
//! the few that are, ages would pass many times as fast as at the source, and what was
//! written or copied first would leave as if it were old.
//!
//! **Victims.** Items used once should be [`ONCE_SHARE`] of all: if they are more,
//! one of them leaves, else one of the others; but what was used again and then not
//! for two such times goes first. A segment's oldest part (at least
//! one in [`BAND_SHARE`]) is its *band*. The hand goes through the slots once for
//! each band, and takes what is in it; then the next band is chosen.
//!
//! **Replicas evict alike**, for slots are in the order of key hashes whatever an
//! index's size: band by band, and within a band by hash, victims are the same on
//! all replicas that have seen the same uses. One that is somewhat ahead of
//! another differs from it by as many items as it is ahead, and by no more. That
//! is also why nothing is remembered of what has left: replicas that differ by a
//! few items would remember different ones, and differ by more and more
//! (simulated: ghosts turned 0.1 % more room into 5 to 25 % different items).

use super::slots::{SPACE, lengthen, space_of, within};
use super::{Policy, Recency, Retired};

/// Share of the items that were used once, in percent. Simulated on OLTP and on
/// Zipf 0.99 with deletes: from 20 to 50 % hit ratios differ by a point; the best
/// over both is here.
const ONCE_SHARE: u64 = 35;
/// Ticks in the time in which as many items are inserted as are resident.
const TICKS: u32 = 512;
/// Stamps, of which 0 is none. Ages are counted modulo this.
const STAMP_COUNT: u16 = 1 << (u16::BITS - STAMP_SHIFT);
/// Ages beyond this are this.
const AGE_MAX: u16 = STAMP_COUNT / 4 * 3;
/// What was used again is of no use any more at this age.
const AGE_STALE: u16 = 2 * TICKS as u16;
/// Ticks in which every slot is looked at for its age: far fewer than lie
/// between [`AGE_MAX`] and [`STAMP_COUNT`].
const AGING_TICKS: usize = 512;
/// The part of a segment that is its oldest.
const BAND_SHARE: u32 = 256;
/// Groups of stamps that are counted together: at most and at least, and slots
/// for each, for a small index is to have small counts.
const GROUP_COUNT_MAX: usize = STAMP_COUNT as usize / 2;
const GROUP_COUNT_MIN: usize = 16;
const GROUP_SLOTS: usize = 8;
/// Slots that the hand compares at once.
const CHUNK: usize = 64;

const DISPLACEMENT_MASK: u16 = 3;
const AGAIN: u16 = 1 << 2;
const ACCESSED: u16 = 1 << 3;
const STAMP_SHIFT: u32 = 4;
/// Everything but the stamp.
const FLAGS_MASK: u16 = (1 << STAMP_SHIFT) - 1;

const _: () = {
    assert!(trefoil_layout::limits::SPILL_MAX as u16 <= DISPLACEMENT_MASK);
    assert!(AGE_STALE < AGE_MAX);
    assert!(AGING_TICKS < (STAMP_COUNT - AGE_MAX) as usize);
};

const fn stamp_of(word: u16) -> u16 {
    word >> STAMP_SHIFT
}

const fn segment_of(word: u16) -> usize {
    (word & AGAIN != 0) as usize
}

/// Items of one segment, and its hand.
#[derive(Debug)]
struct Segment {
    count: u32,
    /// Items by groups of stamps: a power of two.
    by_stamp: Box<[u32]>,
    /// Two to this power is how many stamps a group has.
    group_shift: u32,
    /// The band's newest stamp; 0 if none was chosen.
    edge: u16,
    /// The next slot that the hand looks at, by [`Slru::at`].
    hand: usize,
}

fn group_count(slot_count: u32) -> usize {
    (slot_count as usize / GROUP_SLOTS)
        .clamp(GROUP_COUNT_MIN, GROUP_COUNT_MAX)
        .next_power_of_two()
}

/// Bytes for so many slots.
pub(super) fn bytes(slot_count: u32) -> u64 {
    let counts = 2 * group_count(slot_count) * size_of::<u32>();
    u64::from(slot_count) * size_of::<u16>() as u64 + counts as u64
}

impl Segment {
    fn new(slot_count: u32) -> Self {
        Segment {
            count: 0,
            by_stamp: vec![0; group_count(slot_count)].into(),
            group_shift: (STAMP_COUNT as usize / group_count(slot_count)).ilog2(),
            edge: 0,
            hand: 0,
        }
    }

    #[inline(always)]
    fn came(&mut self, stamp: u16) {
        self.count += 1;
        self.by_stamp[usize::from(stamp >> self.group_shift)] += 1;
    }

    #[inline(always)]
    fn went(&mut self, stamp: u16) {
        self.count -= 1;
        self.by_stamp[usize::from(stamp >> self.group_shift)] -= 1;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Slru {
    /// By space; see [`SPACE`].
    words: [Vec<u16>; 2],
    /// The space that the hands begin with: the newer one, for items move there
    /// in the order of their hashes.
    newer: usize,
    segments: [Segment; 2],
    /// The present tick, as a stamp.
    now: u16,
    /// Insertions in it.
    inserted: u32,
    /// The next slot whose age is looked at.
    aged: usize,
    /// Items of the second segment that are of no use any more.
    stale: u32,
    /// Items that will be resident when what is being copied has come.
    expected: u32,
}

impl Slru {
    /// For slots 0 to `slot_count - 1`, all empty.
    pub fn new(slot_count: u32) -> Self {
        Slru {
            words: [vec![0; slot_count as usize], Vec::new()],
            newer: 0,
            segments: [Segment::new(slot_count), Segment::new(slot_count)],
            now: 1,
            inserted: 0,
            aged: 0,
            stale: 0,
            expected: 0,
        }
    }

    /// So many items are being copied from another replica; 0 if none are any more.
    pub(super) fn expect(&mut self, count: u32) {
        self.expected = count;
    }

    fn count(&self) -> u32 {
        self.segments[0].count + self.segments[1].count
    }

    #[inline(always)]
    fn word(&self, slot: u32) -> Option<u16> {
        let words = self.words.get(space_of(slot))?;
        words.get(within(slot)).copied()
    }

    #[inline(always)]
    fn word_mut(&mut self, slot: u32) -> Option<&mut u16> {
        self.words.get_mut(space_of(slot))?.get_mut(within(slot))
    }

    /// Slots of both spaces.
    fn slot_count(&self) -> usize {
        self.words[0].len() + self.words[1].len()
    }

    /// The slot at a place of the order in which hands go.
    fn at(&self, place: usize) -> u32 {
        let first = self.words[self.newer].len();
        let (space, within) = if place < first {
            (self.newer, place)
        } else {
            (1 - self.newer, place - first)
        };
        (space as u32 * SPACE) | within as u32
    }

    /// Counts the items anew, in as many groups as that many slots should have.
    fn recount(&mut self, slot_count: u32) {
        for segment in &mut self.segments {
            *segment = Segment {
                edge: segment.edge,
                hand: segment.hand,
                ..Segment::new(slot_count)
            };
        }
        for word in self.words.iter().flatten() {
            if stamp_of(*word) != 0 {
                self.segments[segment_of(*word)].came(stamp_of(*word));
            }
        }
    }

    /// Ticks since `stamp`.
    #[inline(always)]
    fn age(&self, stamp: u16) -> u16 {
        self.now.wrapping_sub(stamp) % STAMP_COUNT
    }

    /// The stamp of a use so many ticks ago.
    fn stamp_at(&self, age: u16) -> u16 {
        (self.now.wrapping_sub(age) % STAMP_COUNT).max(1)
    }

    /// Gives an item another stamp and flags.
    #[inline(always)]
    fn renew(&mut self, slot: u32, flags: u16, stamp: u16) {
        let Some(word) = self.word_mut(slot) else {
            return;
        };
        let before = *word;
        *word = before & DISPLACEMENT_MASK | flags | stamp << STAMP_SHIFT;
        self.segments[segment_of(before)].went(stamp_of(before));
        self.segments[segment_of(flags)].came(stamp);
    }

    /// Takes an item out; `false` if there was none.
    #[inline]
    fn take(&mut self, slot: u32) -> bool {
        let Some(word) = self.word_mut(slot) else {
            return false;
        };
        let before = *word;
        if stamp_of(before) == 0 {
            return false;
        }
        *word &= DISPLACEMENT_MASK;
        self.segments[segment_of(before)].went(stamp_of(before));
        true
    }

    /// A tick passes.
    #[cold]
    fn tick(&mut self) {
        self.inserted = 0;
        self.now = ((self.now + 1) % STAMP_COUNT).max(1);
        for segment in &mut self.segments {
            if segment.edge == self.now {
                segment.edge = 0;
            }
        }
        self.stale = self.count_stale();
        let len = self.slot_count();
        let oldest = self.stamp_at(AGE_MAX);
        for _ in 0..len / AGING_TICKS + 1 {
            self.aged = if self.aged + 1 < len {
                self.aged + 1
            } else {
                0
            };
            let slot = self.at(self.aged);
            let word = self.word(slot).unwrap_or(0);
            if stamp_of(word) != 0 && self.age(stamp_of(word)) > AGE_MAX {
                self.renew(slot, word & (AGAIN | ACCESSED), oldest);
            }
        }
    }

    /// The newest stamp of a segment's next band.
    fn choose_edge(&self, segment: &Segment) -> u16 {
        let wanted = segment.count / BAND_SHARE + 1;
        let group_count = segment.by_stamp.len();
        let newest_group = usize::from(self.now >> segment.group_shift);
        let mut sum = 0;
        // From the group after the newest, which is the oldest.
        for step in 1..group_count {
            let group = (newest_group + step) % group_count;
            sum += segment.by_stamp[group];
            if sum >= wanted {
                return (((group + 1) << segment.group_shift) - 1) as u16;
            }
        }
        self.now
    }

    fn count_stale(&self) -> u32 {
        let segment = &self.segments[1];
        let group_count = segment.by_stamp.len();
        let newest_group = usize::from(self.now >> segment.group_shift);
        let stale_groups = usize::from((STAMP_COUNT - AGE_STALE) >> segment.group_shift);
        // From the group after the newest, which is the oldest.
        (1..stale_groups)
            .map(|step| segment.by_stamp[(newest_group + step) % group_count])
            .sum()
    }

    /// The segment that gives.
    fn giving(&self) -> usize {
        self.giving_of([0, 1].map(|of| self.segments[of].count))
    }

    /// The same, if they had so many items.
    fn giving_of(&self, counts: [u32; 2]) -> usize {
        if self.stale > 0 && counts[1] > 0 {
            return 1;
        }
        let [once, again] = counts.map(u64::from);
        usize::from(once == 0 || (again > 0 && once * 100 <= ONCE_SHARE * (once + again)))
    }

    /// The next slot from `first` of the segment's band.
    fn find(&self, segment: usize, first: usize, age_min: u16) -> Option<usize> {
        let again = if segment == 1 { AGAIN } else { 0 };
        let now = self.now << STAMP_SHIFT;
        let age_min = age_min << STAMP_SHIFT;
        let is_victim = |word: u16| {
            let age = now.wrapping_sub(word & !FLAGS_MASK);
            (age >= age_min) & (word & AGAIN == again) & (word > FLAGS_MASK)
        };
        let mut base = 0;
        for space in [self.newer, 1 - self.newer] {
            let words = &self.words[space];
            let from = first.saturating_sub(base).min(words.len());
            for (at, chunk) in words[from..].chunks(CHUNK).enumerate() {
                // Without a branch for each, so that many are compared at once.
                if chunk.iter().fold(false, |any, word| any | is_victim(*word)) {
                    let within = chunk.iter().position(|word| is_victim(*word))?;
                    return Some(base + from + at * CHUNK + within);
                }
            }
            base += words.len();
        }
        None
    }

    /// Who should leave of some slots, and whether it was read since it was written.
    pub(super) fn oldest_among(&self, slots: &[u32]) -> Option<(u32, bool)> {
        let giving = self.giving();
        let rank = |slot: u32| {
            let word = self.word(slot)?;
            let stamp = stamp_of(word);
            (stamp != 0).then(|| (segment_of(word) == giving, self.age(stamp)))
        };
        let ranked = slots.iter().filter_map(|&slot| Some((rank(slot)?, slot)));
        let (_, slot) = ranked.max_by_key(|&(rank, _)| rank)?;
        Some((slot, self.was_accessed(slot)))
    }

    /// Whether the item was read since it was written.
    pub(super) fn was_accessed(&self, slot: u32) -> bool {
        self.word(slot).is_some_and(|word| word & ACCESSED != 0)
    }

    /// How it was used: its flags, and its age where others keep the stamp.
    pub(super) fn recency(&self, slot: u32) -> Recency {
        let word = self.word(slot).unwrap_or(0);
        if stamp_of(word) == 0 {
            return Recency::default();
        }
        let age = self.age(stamp_of(word)).min(AGE_MAX);
        Recency(age << STAMP_SHIFT | word & (AGAIN | ACCESSED))
    }

    /// A copy of an item that was used so stands in the slot now. No time passes by it.
    pub(super) fn insert_copy(&mut self, slot: u32, recency: Recency) {
        if self.word(slot).is_none() {
            return;
        }
        self.take(slot);
        let stamp = self.stamp_at((recency.0 >> STAMP_SHIFT).min(AGE_MAX));
        let flags = recency.0 & (AGAIN | ACCESSED);
        if let Some(word) = self.word_mut(slot) {
            *word |= flags | stamp << STAMP_SHIFT;
            self.segments[segment_of(flags)].came(stamp);
        }
    }

    /// Whether a copy of an item that was used so would be among the first to leave: the
    /// segment that gives is its own, with it counted there, and it is older than the band.
    /// It would be of the band then; which of that leaves first is chance.
    pub(super) fn would_leave_first(&self, recency: Recency) -> bool {
        let own = segment_of(recency.0);
        let segment = &self.segments[own];
        let mut counts = [0, 1].map(|of| self.segments[of].count);
        counts[own] += 1;
        if segment.count == 0 || self.giving_of(counts) != own {
            return false;
        }
        let edge = match segment.edge {
            0 => self.choose_edge(segment),
            edge => edge,
        };
        (recency.0 >> STAMP_SHIFT).min(AGE_MAX) > self.age(edge)
    }

    /// The item was written anew: a use, and not yet read.
    #[inline]
    pub(super) fn overwritten(&mut self, slot: u32) {
        self.access(slot);
        if let Some(word) = self.word_mut(slot) {
            *word &= !ACCESSED;
        }
    }
}

impl Policy for Slru {
    fn resize(&mut self, slot_count: u32) {
        let space = space_of(slot_count);
        let comes = self.words.get(space).is_some_and(|words| words.is_empty());
        lengthen(&mut self.words, slot_count);
        if comes {
            if self.words[1 - space].is_empty() {
                self.newer = space;
            } else if self.newer != space {
                // The hands go on where they are.
                self.newer = space;
                for segment in &mut self.segments {
                    segment.hand += self.words[space].len();
                }
            }
            let slot_count = within(slot_count) as u32;
            if group_count(slot_count) != self.segments[0].by_stamp.len() {
                self.recount(slot_count);
            }
        }
    }

    fn retire(&mut self, space: u32) -> Retired {
        let space = space_of(space);
        let stamps = std::mem::take(&mut self.words[space]);
        if self.newer == space {
            self.newer = 1 - space;
            for segment in &mut self.segments {
                segment.hand = segment.hand.saturating_sub(stamps.len());
            }
        }
        Retired {
            stamps,
            ..Retired::default()
        }
    }

    #[inline]
    fn prepare(&mut self, _identity: u64) {}

    #[inline]
    fn insert(&mut self, slot: u32, _identity: u64) {
        if self.word(slot).is_none() {
            return;
        }
        self.take(slot);
        self.inserted += 1;
        if self.inserted > self.count().max(self.expected) / TICKS {
            self.tick();
        }
        let now = self.now;
        if let Some(word) = self.word_mut(slot) {
            *word |= now << STAMP_SHIFT;
            self.segments[0].came(now);
        }
    }

    #[inline]
    fn access(&mut self, slot: u32) {
        let flags = AGAIN | ACCESSED;
        let newest = self.now << STAMP_SHIFT | flags;
        let word = self.word(slot).unwrap_or(0);
        if stamp_of(word) != 0 && word & !DISPLACEMENT_MASK != newest {
            self.renew(slot, flags, self.now);
        }
    }

    #[inline]
    fn remove(&mut self, slot: u32) {
        self.take(slot);
    }

    fn relocate(&mut self, from: u32, to: u32) {
        if from == to || self.word(to).is_none() {
            return;
        }
        let word = self.word(from).unwrap_or(0);
        if stamp_of(word) == 0 {
            return;
        }
        self.take(to);
        if let Some(place) = self.word_mut(to) {
            *place |= word & !DISPLACEMENT_MASK;
        }
        if let Some(place) = self.word_mut(from) {
            *place &= DISPLACEMENT_MASK;
        }
    }

    fn candidate(&mut self) -> Option<u32> {
        if self.count() == 0 {
            return None;
        }
        let segment = self.giving();
        // What is left of a band may be renewed or gone by now; a band that was
        // just chosen has something.
        for _ in 0..2 {
            let edge = self.segments[segment].edge;
            if edge != 0 {
                let first = self.segments[segment].hand;
                if let Some(place) = self.find(segment, first, self.age(edge)) {
                    self.segments[segment].hand = place;
                    return Some(self.at(place));
                }
            }
            let edge = self.choose_edge(&self.segments[segment]);
            self.segments[segment].edge = edge;
            self.segments[segment].hand = 0;
        }
        let edge = self.segments[segment].edge;
        let place = self.find(segment, 0, self.age(edge))?;
        Some(self.at(place))
    }

    fn evict(&mut self, slot: u32, _identity: u64) {
        let again = self.word(slot).is_some_and(|word| word & AGAIN != 0);
        self.stale = self.stale.saturating_sub(u32::from(again));
        self.remove(slot);
    }

    fn victim_among(
        &mut self,
        slots: &[u32],
        _identity_of: &mut dyn FnMut(u32) -> u64,
    ) -> Option<u32> {
        let (slot, _) = self.oldest_among(slots)?;
        self.remove(slot);
        Some(slot)
    }

    #[inline(always)]
    fn prefetch(&self, slot: u32) {
        let words = self.words.get(space_of(slot));
        if let Some(word) = words.and_then(|words| words.get(within(slot))) {
            trefoil_region::prefetch_read(std::ptr::from_ref(word).cast());
        }
    }

    fn resident_count(&self) -> u32 {
        self.count()
    }

    fn resident_bytes(&self) -> u64 {
        let counts = self.segments.iter().map(|s| s.by_stamp.len());
        let counts = counts.sum::<usize>() * size_of::<u32>();
        let words = self.words[0].capacity() + self.words[1].capacity();
        (words * size_of::<u16>() + counts) as u64
    }

    #[inline]
    fn displacement(&self, slot: u32) -> u8 {
        (self.word(slot).unwrap_or(0) & DISPLACEMENT_MASK) as u8
    }

    #[inline]
    fn set_displacement(&mut self, slot: u32, displacement: u8) {
        debug_assert!(u16::from(displacement) <= DISPLACEMENT_MASK);
        if let Some(word) = self.word_mut(slot) {
            *word = *word & !DISPLACEMENT_MASK | u16::from(displacement) & DISPLACEMENT_MASK;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::Random;
    use super::*;

    fn victim(policy: &mut Slru) -> Option<u32> {
        policy.victim(&mut u64::from)
    }

    #[test]
    fn what_was_used_once_and_long_ago_leaves_first() {
        let mut policy = Slru::new(2000);
        for slot in 0..1000 {
            policy.insert(slot, 0);
        }
        for slot in 0..1000 {
            if slot % 2 == 0 {
                policy.access(slot);
            }
        }
        for slot in 1000..1100 {
            policy.insert(slot, 0);
        }
        // 600 of 1100 were used once: the oldest of these leave, in the order of
        // their ages as far as that is known.
        for nth in 0..200 {
            let slot = victim(&mut policy).expect("it is full");
            assert_eq!(slot % 2, 1, "{slot} was used again");
            assert!(slot < 2 * nth + 64, "{slot} is the {nth}. victim");
        }
        assert_eq!(policy.resident_count(), 900);
    }

    #[test]
    fn what_was_used_again_leaves_when_what_was_used_once_is_few() {
        let mut policy = Slru::new(100);
        for slot in 0..100 {
            policy.insert(slot, 0);
        }
        (0..80).for_each(|slot| policy.access(slot));
        for _ in 0..10 {
            let slot = victim(&mut policy).expect("it is full");
            assert!(slot < 80, "{slot} is one of few that were used once");
        }
    }

    #[test]
    fn every_item_leaves_once_and_nonsense_changes_nothing() {
        let mut policy = Slru::new(64);
        policy.insert(64, 0);
        policy.insert(u32::MAX, 0);
        policy.access(7);
        policy.remove(7);
        policy.relocate(7, 8);
        assert_eq!(victim(&mut policy), None);
        for slot in 0..64 {
            policy.set_displacement(slot, (slot % 4) as u8);
            policy.insert(slot, 0);
        }
        for slot in [3, 3, 64, u32::MAX] {
            policy.access(slot);
        }
        let mut gone = [false; 64];
        while let Some(slot) = victim(&mut policy) {
            assert!(!std::mem::replace(&mut gone[slot as usize], true));
            assert_eq!(policy.displacement(slot), (slot % 4) as u8);
        }
        assert!(gone.iter().all(|gone| *gone));
    }

    #[test]
    fn ages_survive_as_many_ticks_as_one_likes() {
        let mut policy = Slru::new(1200);
        (0..1000).for_each(|slot| policy.insert(slot, 0));
        (0..1000).for_each(|slot| policy.access(slot));
        // Others come and go for many rounds of the stamps.
        for _ in 0..20_000 {
            for slot in 1000..1010 {
                policy.insert(slot, 0);
                policy.remove(slot);
            }
        }
        policy.access(77);
        let among: Vec<u32> = (70..80).collect();
        for _ in 0..9 {
            let left = policy
                .victim_among(&among, &mut u64::from)
                .expect("there are ten");
            assert_ne!(left, 77, "it was used last");
        }
        assert_eq!(policy.resident_count(), 991);
    }

    #[test]
    fn no_time_passes_by_copies_and_little_by_what_is_written_among_them() {
        let mut policy = Slru::new(20_000);
        policy.expect(10_000);
        policy.insert(0, 0);
        let copied = Recency(5 << STAMP_SHIFT | AGAIN);
        for slot in 1..10_000 {
            policy.insert_copy(slot, copied);
        }
        assert_eq!(policy.recency(1), copied);
        let ticks_by_copies = policy.recency(0).0 >> STAMP_SHIFT;
        assert_eq!(ticks_by_copies, 0);
        // By the thousand that is there each would be another tick.
        let mut policy = Slru::new(20_000);
        policy.expect(10_000);
        (0..1000).for_each(|slot| policy.insert(slot, 0));
        assert!(policy.recency(0).0 >> STAMP_SHIFT <= 1000 / (10_000 / 512));
        policy.expect(0);
        (1000..1512).for_each(|slot| policy.insert(slot, 0));
        assert!(policy.recency(0).0 >> STAMP_SHIFT > 200);
    }

    #[test]
    fn items_keep_their_ages_while_they_move_to_another_index() {
        let mut policy = Slru::new(20_000);
        (0..10_000).for_each(|slot| policy.insert(slot, 0));
        policy.resize(SPACE | 30_000);
        for slot in 0..5000 {
            policy.relocate(slot, SPACE | (slot + 7));
        }
        for _ in 0..500 {
            let slot = victim(&mut policy).expect("it is full");
            assert!(slot & SPACE != 0 && within(slot) < 600, "{slot}");
        }
        for slot in 5000..10_000 {
            policy.relocate(slot, SPACE | (slot + 7));
        }
        assert_eq!(policy.retire(0).private_len(), 40_000);
        let mut gone = 0;
        while let Some(slot) = victim(&mut policy) {
            assert!(slot & SPACE != 0, "{slot}");
            gone += 1;
        }
        assert_eq!(gone, 9500);
        policy.resize(100);
        policy.insert(3, 0);
        assert_eq!(victim(&mut policy), Some(3));
    }

    /// Replicas whose indexes differ in size, with touches that come in batches
    /// of different lengths, and one of which has a thousandth more room.
    #[test]
    fn replicas_that_see_the_same_uses_evict_alike() {
        const KEYS: u64 = 40_000;
        let rooms = [10_000, 10_000, 10_010];
        let mut policies = [13_000, 12_000, 14_000].map(Slru::new);
        let mut slots: [Vec<Option<u32>>; 3] = std::array::from_fn(|_| vec![None; KEYS as usize]);
        let mut keys: [Vec<u64>; 3] = std::array::from_fn(|at| vec![0; policies[at].slot_count()]);
        let mut reported: [Vec<u64>; 3] = Default::default();
        let mut random = Random::new(3);
        for _ in 0..600_000 {
            let key = random.skewed(KEYS);
            let held = (0..3)
                .filter(|at| slots[*at][key as usize].is_some())
                .count();
            for at in 0..3 {
                let policy = &mut policies[at];
                if held >= 2 {
                    reported[at].push(key);
                    if reported[at].len() >= [64, 50, 37][at] {
                        for key in reported[at].drain(..) {
                            if let Some(slot) = slots[at][key as usize] {
                                policy.access(slot);
                            }
                        }
                    }
                } else if let Some(slot) = slots[at][key as usize] {
                    policy.overwritten(slot);
                } else {
                    if policy.resident_count() == rooms[at] {
                        let slot = victim(policy).expect("it is full");
                        slots[at][keys[at][slot as usize] as usize] = None;
                    }
                    // Near where its hash puts it, as in an index.
                    let len = policy.slot_count() as u64;
                    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let mut slot = ((u128::from(hash) * u128::from(len)) >> 64) as u32;
                    while policy.word(slot).is_some_and(|word| stamp_of(word) != 0) {
                        slot = (slot + 1) % len as u32;
                    }
                    policy.insert(slot, key);
                    slots[at][key as usize] = Some(slot);
                    keys[at][slot as usize] = key;
                }
            }
        }
        let held = |key: &usize| (0..3).filter(|at| slots[*at][*key].is_some()).count();
        let all = (0..KEYS as usize).filter(|key| held(key) > 0).count();
        let differ = (0..KEYS as usize)
            .filter(|key| (1..3).contains(&held(key)))
            .count();
        assert!(differ * 100 <= all, "{differ} of {all}");
    }
}
