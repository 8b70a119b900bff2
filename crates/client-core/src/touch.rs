//! Collecting touches: which items a client has read, for the backends'
//! eviction. A client has one [`TouchBuffer`] for each replica and partition.
//!
//! What waits here is not yet known to the backend, which may evict it
//! meanwhile. That costs nothing where a batch is a small part of the items,
//! and a lot where it is half of them: with LRU over 125 items in a partition,
//! batches of 64 cost 2.3 points of hit ratio, batches of 10 cost 0.2 (OLTP
//! trace, 8 partitions). So a batch is as long as the index has buckets, within
//! limits. Keys are spread evenly over the slots, hence the highest slot number
//! seen tells how large the index is.

use trefoil_layout::bucket::SLOT_COUNT;

/// Touches of one message.
pub const TOUCH_BATCH_MAX: usize = 64;
/// Touches of one message to the smallest partition: fewer would save nothing
/// there and cost a message each elsewhere, should all hot keys happen to stand
/// in low slots.
pub const TOUCH_BATCH_MIN: usize = 8;

/// Slot numbers touched in one partition's index.
#[derive(Clone, Debug)]
pub struct TouchBuffer {
    window_id: u64,
    count: usize,
    slots: [u32; TOUCH_BATCH_MAX],
    /// Highest slot touched in this window.
    slot_max: u32,
    /// One touch in `sample` is kept; the rest is not reported.
    sample: u32,
    state: u32,
}

/// A batch that is ready to be sent; borrowed from the buffer, which is empty
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TouchBatch<'a> {
    /// The index window whose slot numbers these are. The backend ignores the
    /// batch if it has another index by now.
    pub window_id: u64,
    /// See [`crate::vote::IndexVote::Present`].
    pub slots: &'a [u32],
}

impl TouchBuffer {
    /// An empty buffer that keeps one touch in `sample` (1: every one; 0 is
    /// taken as 1).
    pub const fn new(sample: u32) -> Self {
        TouchBuffer {
            window_id: 0,
            count: 0,
            slots: [0; TOUCH_BATCH_MAX],
            slot_max: 0,
            sample: if sample == 0 { 1 } else { sample },
            state: 0x9e37_79b9,
        }
    }

    /// Notes that `slot` was read through `window_id`; returns a batch when
    /// a batch is due. Touches of an older window are dropped: their slot
    /// numbers mean nothing any more.
    #[inline]
    pub fn touch(&mut self, window_id: u64, slot: u32) -> Option<TouchBatch<'_>> {
        if self.sample > 1 && !self.is_sampled() {
            return None;
        }
        if window_id != self.window_id {
            self.window_id = window_id;
            self.count = 0;
            self.slot_max = 0;
        }
        self.slots[self.count] = slot;
        self.count += 1;
        self.slot_max = self.slot_max.max(slot);
        self.is_due().then(|| self.take())
    }

    /// What has been collected so far, if anything: to be sent when a client
    /// goes idle or ends.
    pub fn flush(&mut self) -> Option<TouchBatch<'_>> {
        (self.count > 0).then(|| self.take())
    }

    #[inline]
    fn is_due(&self) -> bool {
        let buckets = self.slot_max as usize / SLOT_COUNT;
        self.count >= buckets.clamp(TOUCH_BATCH_MIN, TOUCH_BATCH_MAX)
    }

    fn take(&mut self) -> TouchBatch<'_> {
        let count = std::mem::take(&mut self.count);
        TouchBatch {
            window_id: self.window_id,
            slots: &self.slots[..count],
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

    /// Touches until a batch is due, after `slot` was touched.
    fn batch_len(buffer: &mut TouchBuffer, slot: u32) -> usize {
        (1..=TOUCH_BATCH_MAX)
            .find_map(|_| buffer.touch(4, slot).map(|batch| batch.slots.len()))
            .expect("a full buffer is a batch")
    }

    #[test]
    fn a_batch_is_in_order_and_leaves_nothing() {
        let mut buffer = TouchBuffer::new(1);
        let slots = || (0..TOUCH_BATCH_MAX as u32).map(|at| 10_000 - at);
        for slot in slots().take(TOUCH_BATCH_MAX - 1) {
            assert_eq!(buffer.touch(4, slot), None);
        }
        let batch = buffer.touch(4, slots().last().unwrap()).unwrap();
        assert_eq!(batch.window_id, 4);
        assert!(batch.slots.iter().copied().eq(slots()));
        assert_eq!(buffer.flush(), None);
    }

    #[test]
    fn small_partitions_get_small_batches() {
        for (slot, len) in [(0, 8), (149, 8), (300, 20), (900, 60), (u32::MAX, 64)] {
            let mut buffer = TouchBuffer::new(1);
            assert_eq!(batch_len(&mut buffer, slot), len, "slot {slot}");
            // What is known of the index outlives the batch.
            assert_eq!(batch_len(&mut buffer, 0), len, "slot {slot}");
            // A new index may be smaller.
            buffer.touch(6, 0);
            assert_eq!(buffer.slot_max, 0);
        }
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
    fn sampling_keeps_about_one_in_k() {
        let mut buffer = TouchBuffer::new(10);
        let kept: usize = (0..100_000)
            .filter_map(|slot| buffer.touch(2, slot).map(|batch| batch.slots.len()))
            .sum();
        assert!((9_000..11_000).contains(&kept), "{kept}");
    }
}
