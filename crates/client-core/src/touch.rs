//! Collecting touches: which items a client has read, for the backends'
//! eviction. A client has one [`TouchBuffer`] for each replica and partition.
//!
//! A lookup of three copies reads two and is reported to all three. Where the item
//! stands at the third it has not seen, and to look would cost it cache misses: there
//! the key's name is reported ([`trefoil_layout::KeyHash::name`]), and the backend
//! looks. Reads are counted alike in both forms, so that all replicas hear of the
//! same reads at the same time.

/// Touches of one message.
pub const TOUCH_BATCH_MAX: usize = 64;

/// Mutations of one partition after which its touches are reported, however
/// few. A touch that is still waiting protects nothing, and it is mutations
/// that evict: where a partition holds few items, a full batch would come long
/// after the items in it have gone. Beside eight mutations one message more is
/// nothing.
pub const MUTATIONS_MAX: u32 = 8;

/// Items touched in one partition's index.
#[derive(Clone, Debug)]
pub struct TouchBuffer {
    window_id: u64,
    slot_count: usize,
    name_count: usize,
    /// Slots from the front, names from the back.
    numbers: [u32; TOUCH_BATCH_MAX],
    /// Mutations since the latest batch.
    mutation_count: u32,
    /// One touch in `sample` is kept; the rest is not reported.
    sample: u32,
    state: u32,
}

/// A batch that is ready to be sent; borrowed from the buffer, which is empty
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TouchBatch<'a> {
    /// The index window whose slot numbers and names these are. The backend
    /// ignores the batch if it has another index by now.
    pub window_id: u64,
    /// See [`crate::vote::IndexVote::Present`].
    pub slots: &'a [u32],
    /// Of items whose slots are not known.
    pub names: &'a [u32],
}

impl TouchBuffer {
    /// An empty buffer that keeps one touch in `sample` (1: every one; 0 is
    /// taken as 1).
    pub const fn new(sample: u32) -> Self {
        TouchBuffer {
            window_id: 0,
            slot_count: 0,
            name_count: 0,
            numbers: [0; TOUCH_BATCH_MAX],
            mutation_count: 0,
            sample: if sample == 0 { 1 } else { sample },
            state: 0x9e37_79b9,
        }
    }

    /// Notes that `slot` was read through `window_id`; returns a batch when
    /// the buffer is full. Touches of an older window are dropped: their slot
    /// numbers mean nothing any more.
    #[inline(always)]
    pub fn touch(&mut self, window_id: u64, slot: u32) -> Option<TouchBatch<'_>> {
        if !self.is_wanted(window_id) {
            return None;
        }
        self.numbers[self.slot_count] = slot;
        self.slot_count += 1;
        (self.count() == TOUCH_BATCH_MAX).then(|| self.take())
    }

    /// The same of an item that was read at other replicas.
    #[inline(always)]
    pub fn touch_by_name(&mut self, window_id: u64, name: u32) -> Option<TouchBatch<'_>> {
        if !self.is_wanted(window_id) {
            return None;
        }
        self.name_count += 1;
        self.numbers[TOUCH_BATCH_MAX - self.name_count] = name;
        (self.count() == TOUCH_BATCH_MAX).then(|| self.take())
    }

    /// Whether a touch is kept; those of another window are not.
    #[inline(always)]
    fn is_wanted(&mut self, window_id: u64) -> bool {
        if self.sample > 1 && !self.is_sampled() {
            return false;
        }
        if window_id != self.window_id {
            self.window_id = window_id;
            (self.slot_count, self.name_count) = (0, 0);
        }
        true
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.slot_count + self.name_count
    }

    /// Notes that the partition is about to be sent a mutation; returns what
    /// should be sent before it.
    #[inline]
    pub fn mutated(&mut self) -> Option<TouchBatch<'_>> {
        // A client may write for months and read nothing here.
        self.mutation_count = self.mutation_count.saturating_add(1);
        (self.mutation_count >= MUTATIONS_MAX && self.count() > 0).then(|| self.take())
    }

    /// What has been collected so far, if anything: to be sent when a client
    /// goes idle or ends.
    pub fn flush(&mut self) -> Option<TouchBatch<'_>> {
        (self.count() > 0).then(|| self.take())
    }

    fn take(&mut self) -> TouchBatch<'_> {
        let slot_count = std::mem::take(&mut self.slot_count);
        let name_count = std::mem::take(&mut self.name_count);
        self.mutation_count = 0;
        TouchBatch {
            window_id: self.window_id,
            slots: &self.numbers[..slot_count],
            names: &self.numbers[TOUCH_BATCH_MAX - name_count..],
        }
    }

    /// Random rather than every k-th, so that a loop over the keys does not
    /// touch the same ones each time.
    #[inline]
    fn is_sampled(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        (u64::from(self.state) * u64::from(self.sample)) >> 32 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_is_a_batch() {
        let mut buffer = TouchBuffer::new(1);
        for slot in 0..TOUCH_BATCH_MAX as u32 - 1 {
            assert_eq!(buffer.touch(4, slot), None);
        }
        let batch = buffer.touch(4, 63).unwrap();
        assert_eq!((batch.window_id, batch.slots.len()), (4, 64));
        assert!(batch.slots.iter().copied().eq(0..64));
        assert_eq!(buffer.flush(), None);
    }

    #[test]
    fn mutations_do_not_overtake_touches_for_long() {
        let mut buffer = TouchBuffer::new(1);
        for _ in 0..MUTATIONS_MAX {
            assert_eq!(buffer.mutated(), None);
        }
        buffer.touch(2, 5);
        assert_eq!(buffer.mutated().unwrap().slots, [5]);
        buffer.touch(2, 6);
        for _ in 1..MUTATIONS_MAX {
            assert_eq!(buffer.mutated(), None);
        }
        assert_eq!(buffer.mutated().unwrap().slots, [6]);
    }

    #[test]
    fn who_only_writes_does_so_for_ever() {
        let mut buffer = TouchBuffer::new(1);
        buffer.mutation_count = u32::MAX;
        assert_eq!(buffer.mutated(), None);
        buffer.touch(2, 5);
        assert_eq!(buffer.mutated().unwrap().slots, [5]);
    }

    #[test]
    fn a_new_window_drops_the_old_ones() {
        let mut buffer = TouchBuffer::new(0);
        buffer.touch(4, 1);
        buffer.touch(6, 2);
        let batch = buffer.flush().unwrap();
        assert_eq!((batch.window_id, batch.slots), (6, &[2][..]));
    }

    #[test]
    fn slots_and_names_fill_a_batch_together() {
        let mut buffer = TouchBuffer::new(1);
        for n in 0..TOUCH_BATCH_MAX as u32 / 2 - 1 {
            assert_eq!(buffer.touch(4, n), None);
            assert_eq!(buffer.touch_by_name(4, 1000 + n), None);
        }
        assert_eq!(buffer.touch(4, 31), None);
        let batch = buffer.touch_by_name(4, 1031).unwrap();
        assert!(batch.slots.iter().copied().eq(0..32));
        assert!(batch.names.iter().rev().copied().eq(1000..1032));
        assert_eq!(buffer.flush(), None);
        for n in 1..TOUCH_BATCH_MAX as u32 {
            assert_eq!(buffer.touch_by_name(4, n), None);
        }
        assert!(buffer.touch_by_name(4, 64).unwrap().slots.is_empty());
        buffer.touch_by_name(4, 3);
        buffer.touch(6, 2);
        let batch = buffer.flush().unwrap();
        assert_eq!((batch.slots, batch.names), (&[2][..], &[][..]));
    }

    #[test]
    fn sampling_keeps_about_one_in_k() {
        let mut buffer = TouchBuffer::new(10);
        let kept: usize = (0..100_000)
            .filter_map(|slot| buffer.touch(2, slot).map(|batch| batch.slots.len()))
            .sum();
        assert!((9_000..11_000).contains(&kept), "{kept}");
    }
}
