//! What one client counts while it runs, and what a run's clients add up to.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::Verdict;
use super::timeline::{Timeline, TimelineWriter};

/// Slower than this is recorded as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Latencies are kept apart by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A lookup, or one batch of lookups.
    Get,
    /// A write or a removal.
    Set,
}

/// Counts and latencies of a run.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// Keys operated on, failed ones included.
    pub ops: u64,
    /// Operations that ended in an error.
    pub failed: u64,
    /// Lookups that found a value.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Hits older than a write acknowledged before the lookup began, during
    /// warm-up too.
    pub stale: u64,
    /// Hits whose value was not the key's, during warm-up too.
    pub wrong: u64,
    /// Hits too short to verify.
    pub unverified: u64,
    /// Writes that a newer one preceded.
    pub superseded: u64,
    /// Writes of unknown fate.
    pub indeterminate: u64,
    /// Retries by cause, since the run began.
    pub retries: BTreeMap<String, u64>,
    /// First error met, in words.
    pub first_error: Option<String>,
    /// Measured time.
    pub elapsed: Duration,
    /// Latencies of lookups.
    pub get: Histogram<u64>,
    /// Latencies of writes.
    pub set: Histogram<u64>,
    /// The run in slots of a tenth of a second.
    pub timeline: Timeline,
}

impl RunResult {
    fn empty() -> Self {
        Self {
            ops: 0,
            failed: 0,
            hits: 0,
            misses: 0,
            stale: 0,
            wrong: 0,
            unverified: 0,
            superseded: 0,
            indeterminate: 0,
            retries: BTreeMap::new(),
            first_error: None,
            elapsed: Duration::ZERO,
            get: histogram(3),
            set: histogram(3),
            timeline: Timeline::default(),
        }
    }

    /// Adds another client of the same run.
    pub fn merge(&mut self, other: &Self) {
        self.ops += other.ops;
        self.failed += other.failed;
        self.hits += other.hits;
        self.misses += other.misses;
        self.stale += other.stale;
        self.wrong += other.wrong;
        self.unverified += other.unverified;
        self.superseded += other.superseded;
        self.indeterminate += other.indeterminate;
        for (cause, count) in &other.retries {
            *self.retries.entry(cause.clone()).or_default() += count;
        }
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        self.elapsed = self.elapsed.max(other.elapsed);
        // Same bounds by construction, so adding cannot fail.
        let _ = self.get.add(&other.get);
        let _ = self.set.add(&other.set);
        self.timeline.merge(&other.timeline);
    }
}

/// All recorders use the same bounds, within what the crate accepts.
fn histogram<C: hdrhistogram::Counter>(digits: u8) -> Histogram<C> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, digits)
        .unwrap_or_else(|error| unreachable!("constant histogram bounds: {error}"))
}

/// Counts for one client.
#[derive(Debug)]
pub(super) struct Recorder {
    result: RunResult,
    timeline: TimelineWriter,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            result: RunResult::empty(),
            timeline: TimelineWriter::new(histogram(2)),
        }
    }

    /// Forgets a warm-up, but not what must never happen.
    pub(super) fn restart(&mut self) {
        let (stale, wrong) = (self.result.stale, self.result.wrong);
        *self = Self::new();
        (self.result.stale, self.result.wrong) = (stale, wrong);
    }

    /// Notes operations that succeeded; true at the beginning of a new slot.
    #[inline]
    pub(super) fn succeeded(&mut self, kind: Kind, ops: u64, latency_ns: u64, now_ns: u64) -> bool {
        self.result.ops += ops;
        match kind {
            Kind::Get => self.result.get.saturating_record(latency_ns),
            Kind::Set => self.result.set.saturating_record(latency_ns),
        }
        self.timeline.note(now_ns, ops, Some(latency_ns))
    }

    #[cold]
    pub(super) fn failed(&mut self, ops: u64, now_ns: u64, error: impl FnOnce() -> String) -> bool {
        self.result.ops += ops;
        self.result.failed += ops;
        self.result.first_error.get_or_insert_with(error);
        self.timeline.note(now_ns, ops, None)
    }

    #[inline]
    pub(super) fn hit(&mut self, verdict: Verdict) {
        self.result.hits += 1;
        match verdict {
            Verdict::Fresh => {}
            Verdict::Stale => self.result.stale += 1,
            Verdict::Wrong => self.result.wrong += 1,
            Verdict::Unverifiable => self.result.unverified += 1,
        }
    }

    #[inline]
    pub(super) fn missed(&mut self) {
        self.result.misses += 1;
    }

    pub(super) fn superseded(&mut self) {
        self.result.superseded += 1;
    }

    pub(super) fn indeterminate(&mut self) {
        self.result.indeterminate += 1;
    }

    pub(super) fn finish(mut self, elapsed: Duration, retries: BTreeMap<String, u64>) -> RunResult {
        self.result.elapsed = elapsed;
        self.result.retries = retries;
        self.result.timeline = self.timeline.finish();
        self.result
    }
}
