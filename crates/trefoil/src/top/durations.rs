//! Quantiles of what a front door measured.

use std::collections::BTreeMap;
use trefoil_rpc::v1::DurationCount;

/// Durations of a while, by what they are below.
#[derive(Clone, Debug, Default)]
pub(super) struct Durations {
    counts: BTreeMap<u64, u64>,
}

impl Durations {
    /// Adds what has come since `before`.
    pub(super) fn add(&mut self, before: &[DurationCount], now: &[DurationCount]) {
        let known: BTreeMap<u64, u64> = before.iter().map(|d| (d.below_ns, d.count)).collect();
        for duration in now {
            let earlier = known.get(&duration.below_ns).copied().unwrap_or(0);
            let more = duration.count.saturating_sub(earlier);
            if more > 0 {
                *self.counts.entry(duration.below_ns).or_default() += more;
            }
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// What `share` of all were below, in microseconds; 0 if there were none.
    pub(super) fn quantile_us(&self, share: f64) -> f64 {
        let wanted = (self.count() as f64 * share).ceil() as u64;
        let mut sum = 0;
        for (below_ns, count) in &self.counts {
            sum += count;
            if sum >= wanted {
                return *below_ns as f64 / 1e3;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_came_in_between() {
        let count = |below_ns, count| DurationCount { below_ns, count };
        let before = [count(1000, 500)];
        let now = [count(1000, 590), count(2000, 9), count(50_000, 1)];
        let mut durations = Durations::default();
        durations.add(&before, &now);
        assert_eq!(durations.count(), 100);
        let quantiles = [0.5, 0.9, 0.99, 1.0].map(|share| durations.quantile_us(share));
        assert_eq!(quantiles, [1.0, 1.0, 2.0, 50.0]);
        assert_eq!(Durations::default().quantile_us(0.5), 0.0);
    }
}
