//! How a run went over time: what a summary would average away.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Length of a slot.
pub const TIMELINE_SLOT: Duration = Duration::from_millis(100);
const SLOT_NS: u64 = TIMELINE_SLOT.as_nanos() as u64;
/// Slots beyond these (more than a day) are not kept.
const SLOTS_MAX: usize = 1_000_000;

/// One slot of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TimelineSlot {
    /// Milliseconds from the run's start to the slot's.
    pub start_ms: u64,
    /// Operations that ended in it.
    pub ops: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Latency of the others, 99th percentile; 0 where there are none.
    pub p99_ns: u64,
}

/// All slots of a run, in order, none missing in between.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Timeline {
    /// The slots.
    pub slots: Vec<TimelineSlot>,
}

impl Timeline {
    /// Adds another client's slots. Percentiles do not add up: the slower
    /// client's stands for both, which errs on the honest side.
    pub fn merge(&mut self, other: &Self) {
        for (i, slot) in other.slots.iter().enumerate() {
            match self.slots.get_mut(i) {
                Some(own) => {
                    own.ops += slot.ops;
                    own.failed += slot.failed;
                    own.p99_ns = own.p99_ns.max(slot.p99_ns);
                }
                None => self.slots.push(*slot),
            }
        }
    }
}

/// Fills a time line while a run goes on.
#[derive(Debug)]
pub(super) struct TimelineWriter {
    timeline: Timeline,
    latencies: Histogram<u32>,
    ops: u64,
    failed: u64,
    slot_end_ns: u64,
}

impl TimelineWriter {
    pub(super) fn new(latencies: Histogram<u32>) -> Self {
        Self {
            timeline: Timeline {
                slots: Vec::with_capacity(4096),
            },
            latencies,
            ops: 0,
            failed: 0,
            slot_end_ns: SLOT_NS,
        }
    }

    /// Notes operations that ended at `now_ns` of the run; true when this began a
    /// new slot. No latency: they failed.
    #[inline]
    pub(super) fn note(&mut self, now_ns: u64, ops: u64, latency_ns: Option<u64>) -> bool {
        let is_new_slot = now_ns >= self.slot_end_ns;
        if is_new_slot {
            self.close_until(now_ns);
        }
        self.ops += ops;
        match latency_ns {
            Some(latency_ns) => self.latencies.saturating_record(latency_ns),
            None => self.failed += ops,
        }
        is_new_slot
    }

    #[cold]
    fn close_until(&mut self, now_ns: u64) {
        while now_ns >= self.slot_end_ns && self.timeline.slots.len() < SLOTS_MAX {
            self.close_slot();
        }
    }

    fn close_slot(&mut self) {
        let p99_ns = if self.latencies.is_empty() {
            0
        } else {
            self.latencies.value_at_quantile(0.99)
        };
        self.timeline.slots.push(TimelineSlot {
            start_ms: (self.slot_end_ns - SLOT_NS) / 1_000_000,
            ops: self.ops,
            failed: self.failed,
            p99_ns,
        });
        if !self.latencies.is_empty() {
            self.latencies.reset();
        }
        (self.ops, self.failed) = (0, 0);
        self.slot_end_ns += SLOT_NS;
    }

    pub(super) fn finish(mut self) -> Timeline {
        if self.ops > 0 {
            self.close_slot();
        }
        self.timeline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer() -> TimelineWriter {
        TimelineWriter::new(Histogram::new_with_bounds(1, 60_000_000_000, 2).unwrap())
    }

    #[test]
    fn slots_are_complete_and_say_what_happened() {
        let mut writer = writer();
        for i in 0..100 {
            assert!(!writer.note(i, 1, Some(1_000)));
        }
        assert!(writer.note(3 * SLOT_NS + 5, 2, None));
        writer.note(3 * SLOT_NS + 6, 1, Some(9_000));
        let slots = writer.finish().slots;
        assert_eq!(
            slots
                .iter()
                .map(|s| (s.start_ms, s.ops, s.failed))
                .collect::<Vec<_>>(),
            [(0, 100, 0), (100, 0, 0), (200, 0, 0), (300, 3, 2)]
        );
        assert!((990..1_010).contains(&slots[0].p99_ns));
        assert_eq!(slots[1].p99_ns, 0);
        assert!((8_900..9_100).contains(&slots[3].p99_ns));
    }

    #[test]
    fn merged_clients_add_up_and_keep_the_slower_tail() {
        let (mut a, mut b) = (writer(), writer());
        a.note(1, 1, Some(100));
        b.note(1, 1, Some(900));
        b.note(SLOT_NS, 1, None);
        let (mut a, b) = (a.finish(), b.finish());
        a.merge(&b);
        assert_eq!(a.slots.len(), 2);
        assert_eq!(a.slots[0].ops, 2);
        assert!(a.slots[0].p99_ns >= 890);
        assert_eq!(a.slots[1].failed, 1);
    }
}
