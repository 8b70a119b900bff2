//! The key points that most CPU time went to since the last report: heavy
//! hitters in bounded memory, forgotten with every report so that a key that
//! becomes hot shows in the next one.

use std::collections::HashMap;

/// Points kept. A key that matters to balancing takes a twentieth of a server
/// or more: a few hundred counters find it with certainty.
const POINTS_MAX: usize = 512;

/// What was counted for a point.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spike {
    pub(super) shared_ns: f64,
    pub(super) each_ns: f64,
    pub(super) requests: f64,
}

impl Spike {
    fn score(&self) -> f64 {
        self.shared_ns + self.each_ns
    }
}

/// Misra and Gries, weighted by time.
#[derive(Debug, Default)]
pub(super) struct Spikes {
    points: HashMap<u64, Spike>,
}

impl Spikes {
    pub(super) fn add(&mut self, point: u64, spent: Spike) {
        if let Some(spike) = self.points.get_mut(&point) {
            spike.shared_ns += spent.shared_ns;
            spike.each_ns += spent.each_ns;
            spike.requests += spent.requests;
            return;
        }
        if self.points.len() >= POINTS_MAX {
            self.shrink();
        }
        self.points.insert(point, spent);
    }

    /// Drops the lighter half. What is dropped was less than the median, so a
    /// point that carries a hundredth of everything is never among it.
    fn shrink(&mut self) {
        let mut scores: Vec<f64> = self.points.values().map(Spike::score).collect();
        let middle = scores.len() / 2;
        let (_, median, _) = scores.select_nth_unstable_by(middle, f64::total_cmp);
        let median = *median;
        self.points.retain(|_, spike| spike.score() > median);
    }

    /// The points that stand out, the most expensive first; starts anew.
    pub(super) fn take(&mut self, count_max: usize) -> Vec<(u64, Spike)> {
        let mut all: Vec<(u64, Spike)> = self.points.drain().collect();
        all.sort_unstable_by(|a, b| b.1.score().total_cmp(&a.1.score()).then(a.0.cmp(&b.0)));
        all.truncate(count_max);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_key_among_a_hundred_thousand_is_found() {
        let mut spikes = Spikes::default();
        let one = Spike {
            shared_ns: 100.0,
            each_ns: 0.0,
            requests: 1.0,
        };
        for i in 0..100_000u64 {
            spikes.add(i, one);
            if i % 20 == 0 {
                spikes.add(u64::MAX, one);
            }
        }
        let top = spikes.take(3);
        assert_eq!(top[0].0, u64::MAX);
        assert!(top[0].1.requests > 4_900.0, "{:?}", top[0]);
        assert!(top[1].1.requests < 10.0, "{:?}", top[1]);
        assert_eq!(spikes.take(3), []);
    }
}
