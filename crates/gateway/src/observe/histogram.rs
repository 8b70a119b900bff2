//! Durations, counted in buckets whose width is an eighth of their value.

use super::block::bump;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of each power of two.
const SUB_COUNT: usize = 8;
const SUB_BITS: u32 = SUB_COUNT.ilog2();
/// Everything below 2 to this, in nanoseconds, is one bucket.
const EXPONENT_MIN: u32 = 7;
/// The last bucket begins below 2 to this (17 s) and has no end.
const EXPONENT_MAX: u32 = 34;
/// Buckets of a histogram.
pub(super) const BUCKET_COUNT: usize = 1 + (EXPONENT_MAX - EXPONENT_MIN) as usize * SUB_COUNT;

/// Written by one thread.
#[derive(Debug)]
pub(super) struct Histogram {
    sum_ns: AtomicU64,
    buckets: [AtomicU64; BUCKET_COUNT],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            sum_ns: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKET_COUNT],
        }
    }
}

impl Histogram {
    #[inline]
    pub(super) fn record(&self, ns: u64) {
        bump(&self.sum_ns, ns);
        bump(&self.buckets[index(ns)], 1);
    }

    pub(super) fn add_to(&self, sum: &mut Durations) {
        sum.sum_ns += self.sum_ns.load(Ordering::Relaxed);
        for (sum, bucket) in sum.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
    }
}

/// The bucket of a duration.
#[inline]
fn index(ns: u64) -> usize {
    if ns < 1 << EXPONENT_MIN {
        return 0;
    }
    let exponent = ns.ilog2();
    let sub = (ns >> (exponent - SUB_BITS)) as usize % SUB_COUNT;
    let index = 1 + (exponent - EXPONENT_MIN) as usize * SUB_COUNT + sub;
    index.min(BUCKET_COUNT - 1)
}

/// What a bucket's durations are below.
fn upper_ns(index: usize) -> u64 {
    let (octave, sub) = (index as u32 / SUB_COUNT as u32, index % SUB_COUNT);
    ((SUB_COUNT + sub) as u64) << (EXPONENT_MIN + octave - SUB_BITS)
}

/// Sums of histograms.
#[derive(Clone, Debug)]
pub(super) struct Durations {
    pub(super) sum_ns: u64,
    buckets: [u64; BUCKET_COUNT],
}

impl Default for Durations {
    fn default() -> Self {
        Durations {
            sum_ns: 0,
            buckets: [0; BUCKET_COUNT],
        }
    }
}

impl Durations {
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The buckets that are not empty, with what their durations are below.
    pub(super) fn filled(&self) -> impl Iterator<Item = (u64, u64)> {
        let filled = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        filled.map(|(index, count)| (upper_ns(index), *count))
    }

    /// Counts between bounds, each a power of two of nanoseconds, and beyond
    /// the last: Prometheus's buckets, exactly.
    pub(super) fn between(&self, bounds_ns: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; bounds_ns.len() + 1];
        for (upper, count) in self.filled() {
            let place = bounds_ns.partition_point(|bound| *bound < upper);
            counts[place] += count;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_is_below_its_bound_and_not_below_the_one_before() {
        let mut last = 0;
        for ns in (0..5_000u64).chain((1..2_000).map(|n| n * 7_654_321)) {
            let index = index(ns);
            assert!(index < BUCKET_COUNT && index >= last.min(index));
            if index < BUCKET_COUNT - 1 {
                assert!(ns < upper_ns(index), "{ns}");
                assert!(index == 0 || ns >= upper_ns(index - 1), "{ns}");
                assert!(index == 0 || upper_ns(index) - ns <= ns / 8 + 1, "{ns}");
            }
            last = index;
        }
        assert_eq!(index(u64::MAX), BUCKET_COUNT - 1);
        assert_eq!(upper_ns(BUCKET_COUNT - 1), 1 << EXPONENT_MAX);
    }

    #[test]
    fn counts_between_bounds_are_exact_at_powers_of_two() {
        let histogram = Histogram::default();
        for ns in [100, 1023, 1024, 2047, 2048, 1 << 40] {
            histogram.record(ns);
        }
        let mut sum = Durations::default();
        histogram.add_to(&mut sum);
        assert_eq!(sum.between(&[1024, 2048, 4096]), [2, 2, 1, 1]);
        assert_eq!(sum.count(), 6);
        assert_eq!(sum.sum_ns, 100 + 1023 + 1024 + 2047 + 2048 + (1 << 40));
    }
}
