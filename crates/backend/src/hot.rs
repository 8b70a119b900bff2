//! Which keys of a backend are asked for most. One-sided reads are not seen
//! here, but clients report them as touches: slot numbers, of which a sample is
//! looked up.

use std::sync::Mutex;
use std::time::Instant;
use trefoil_hot::{HotKey, HotKeys, Sample, Sampler};
use trefoil_layout::message::TOUCH_COUNT_MAX;
use trefoil_store::Store;

/// Sketch and sampler of one backend.
#[derive(Debug)]
pub(crate) struct Hot {
    since: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    sampler: Sampler,
    keys: HotKeys,
}

impl Hot {
    pub(crate) fn new(seed: u64) -> Self {
        Hot {
            since: Instant::now(),
            inner: Mutex::new(Inner {
                sampler: Sampler::new(seed),
                keys: HotKeys::new(),
            }),
        }
    }

    fn now_s(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }

    /// An operation on `key` by message. While somebody else is at it, it goes
    /// uncounted: no request waits for statistics.
    #[inline]
    pub(crate) fn message(&self, key: &[u8], value_len: usize) {
        let Ok(mut inner) = self.inner.try_lock() else {
            return;
        };
        if let Some(sample) = inner.sampler.tick(value_len as u64, || self.now_s()) {
            let now_s = self.now_s();
            inner.keys.record(key, sample, now_s);
        }
    }

    /// A report of touches. Their sizes are not known yet, so they are sampled
    /// as operations, and each brings its bytes along.
    pub(crate) fn touched(&self, store: &Store, partition: usize, window_id: u64, slots: &[u32]) {
        for slots in slots.chunks(TOUCH_COUNT_MAX) {
            self.touched_few(store, partition, window_id, slots);
        }
    }

    fn touched_few(&self, store: &Store, partition: usize, window_id: u64, slots: &[u32]) {
        let Ok(mut inner) = self.inner.try_lock() else {
            return;
        };
        let mut chosen = [0; TOUCH_COUNT_MAX];
        let mut weights = [0.0; TOUCH_COUNT_MAX];
        let mut count = 0;
        for &slot in slots {
            if let Some(sample) = inner.sampler.tick(0, || self.now_s()) {
                (chosen[count], weights[count]) = (slot, sample.ops);
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        let now_s = self.now_s();
        let keys = &mut inner.keys;
        store.keys_at(
            partition,
            window_id,
            &chosen[..count],
            &mut |place, key, len| {
                let ops = weights[place];
                let bytes = ops * len as f64;
                keys.record(key, Sample { ops, bytes }, now_s);
            },
        );
    }

    /// The hottest by operations and by bytes.
    pub(crate) fn top(&self, count: usize) -> Vec<HotKey> {
        let inner = self.inner.lock();
        let inner = inner.unwrap_or_else(std::sync::PoisonError::into_inner);
        inner.keys.top(count, self.now_s())
    }
}
