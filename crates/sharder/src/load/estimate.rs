//! The believed load of one slice: a total, and the points that stand out of
//! it. What is not at such a point is taken to be spread evenly, which is what
//! hashing does to many small keys.

use crate::key::{KeyPoint, Slice};
use crate::report::Load;

/// Points remembered in one slice.
const HOT_POINTS_MAX: usize = 32;
/// A point below this part of its slice's total does not stand out.
const HOT_PART_MIN: f64 = 0.001;

/// Load of a slice on all its servers (bytes: on each of them).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    /// All of it.
    pub(crate) total: Load,
    /// What is known of single points, in their order.
    pub(crate) hot: Vec<(KeyPoint, Load)>,
    /// Whether anything was ever reported; otherwise everything above is 0.
    pub(crate) known: bool,
}

impl Estimate {
    /// The load that is at no known point.
    fn rest(&self) -> Load {
        let hot = self
            .hot
            .iter()
            .fold(Load::default(), |sum, (_, load)| sum.plus(*load));
        self.total.minus(hot)
    }

    /// The believed load of `part`, a part of `own`.
    pub(crate) fn part(&self, own: Slice, part: Slice) -> Estimate {
        let hot: Vec<_> = self
            .hot
            .iter()
            .filter(|(point, _)| part.contains(*point))
            .copied()
            .collect();
        // Points and the rest may add up to more than the total, if they were
        // reported by different means: the parts then do so, too.
        let share = part.width() as f64 / own.width() as f64;
        let total = hot
            .iter()
            .fold(self.rest().times(share), |sum, (_, load)| sum.plus(*load));
        Estimate {
            total,
            hot: if part.is_point() { Vec::new() } else { hot },
            known: self.known,
        }
    }

    /// The load of this slice and of the one behind it, together.
    pub(crate) fn joined(&self, next: &Estimate) -> Estimate {
        Estimate {
            total: self.total.plus(next.total),
            hot: self.hot.iter().chain(&next.hot).copied().collect(),
            known: self.known && next.known,
        }
    }

    /// Moves towards what was reported now, by `weight`.
    pub(crate) fn learn(&mut self, total: Load, hot: &[(KeyPoint, Load)], weight: f64) {
        let weight = if self.known { weight } else { 1.0 };
        self.known = true;
        self.total = self.total.towards(total, weight);
        let mut merged: Vec<(KeyPoint, Load)> = Vec::with_capacity(self.hot.len() + hot.len());
        let (mut old, mut new) = (
            self.hot.iter().copied().peekable(),
            hot.iter().copied().peekable(),
        );
        loop {
            let (point, before, now) = match (old.peek().copied(), new.peek().copied()) {
                (None, None) => break,
                (Some((o, load)), Some((n, now))) if o == n => (o, load, now),
                (Some((o, load)), Some((n, _))) if o < n => (o, load, Load::default()),
                (Some((o, load)), None) => (o, load, Load::default()),
                (_, Some((n, now))) => (n, Load::default(), now),
            };
            old.next_if(|(o, _)| *o == point);
            new.next_if(|(n, _)| *n == point);
            merged.push((point, before.towards(now, weight)));
        }
        let total = self.total;
        merged.retain(|(_, load)| {
            load.cpu_of_one(1) > total.cpu_of_one(1) * HOT_PART_MIN
                || load.bytes > total.bytes * HOT_PART_MIN
        });
        if merged.len() > HOT_POINTS_MAX {
            merged.sort_by(|(_, a), (_, b)| {
                let key = |load: &Load| {
                    part_of(load.cpu_of_one(1), total.cpu_of_one(1))
                        .max(part_of(load.bytes, total.bytes))
                };
                key(b).total_cmp(&key(a))
            });
            merged.truncate(HOT_POINTS_MAX);
            merged.sort_by_key(|(point, _)| *point);
        }
        self.hot = merged;
    }

    /// The point before which `own` has to be cut so that both sides weigh
    /// about the same; `None` for a slice of one point.
    pub(crate) fn middle(&self, own: Slice, weigh: impl Fn(Load) -> f64) -> Option<KeyPoint> {
        if own.is_point() {
            return None;
        }
        let rest = weigh(self.rest()).max(0.0);
        let density = rest / own.width() as f64;
        let half = (rest
            + self
                .hot
                .iter()
                .map(|(_, load)| weigh(*load).max(0.0))
                .sum::<f64>())
            / 2.0;
        let clamp = |point: u128| {
            let lowest = u128::from(own.start().0) + 1;
            KeyPoint(point.clamp(lowest, u128::from(own.last().0)) as u64)
        };
        if !half.is_finite() || half <= 0.0 {
            return Some(clamp(u128::from(own.start().0) + own.width() / 2));
        }
        let mut passed = 0.0;
        let mut from = u128::from(own.start().0);
        for (point, load) in self.hot.iter().filter(|(point, _)| own.contains(*point)) {
            let at = u128::from(point.0);
            let run = at.saturating_sub(from) as f64 * density;
            if passed + run >= half {
                return Some(clamp(from + ((half - passed) / density) as u128));
            }
            passed += run;
            let weight = weigh(*load).max(0.0);
            if passed + weight >= half {
                // The half lies in this point: to the side that is lighter
                // without it.
                let before = (half - passed) < weight / 2.0;
                return Some(clamp(if before { at } else { at + 1 }));
            }
            passed += weight;
            from = at + 1;
        }
        let run = if density > 0.0 {
            ((half - passed) / density) as u128
        } else {
            0
        };
        Some(clamp(from.saturating_add(run)))
    }
}

fn part_of(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpu(cpu_shared: f64) -> Load {
        Load {
            cpu_shared,
            ..Load::default()
        }
    }

    fn slice(start: u64, end: u64) -> Slice {
        Slice::new(KeyPoint(start), u128::from(end)).unwrap()
    }

    fn estimate(total: f64, hot: &[(u64, f64)]) -> Estimate {
        Estimate {
            total: cpu(total),
            hot: hot.iter().map(|&(p, l)| (KeyPoint(p), cpu(l))).collect(),
            known: true,
        }
    }

    #[test]
    fn a_hot_point_goes_with_its_part() {
        let whole = estimate(10.0, &[(25, 6.0)]);
        let own = slice(0, 100);
        let left = whole.part(own, slice(0, 50));
        assert_eq!(left.total.cpu_shared, 8.0);
        assert_eq!(left.hot.len(), 1);
        assert_eq!(whole.part(own, slice(50, 100)).total.cpu_shared, 2.0);
        let point = whole.part(own, Slice::of_point(KeyPoint(25)));
        assert!((point.total.cpu_shared - 6.04).abs() < 1e-9);
        assert!(point.hot.is_empty(), "a point has no points in it");
    }

    #[test]
    fn the_middle_is_where_the_load_is() {
        let weigh = |load: Load| load.cpu_shared;
        let own = slice(0, 100);
        assert_eq!(estimate(10.0, &[]).middle(own, weigh), Some(KeyPoint(50)));
        assert_eq!(estimate(0.0, &[]).middle(own, weigh), Some(KeyPoint(50)));
        // 6 at point 25, 4 spread: 5 are passed inside the point, 1 before it.
        assert_eq!(
            estimate(10.0, &[(25, 6.0)]).middle(own, weigh),
            Some(KeyPoint(26))
        );
        // 2 at point 80: half of the rest is at 62.5.
        assert_eq!(
            estimate(10.0, &[(80, 2.0)]).middle(own, weigh),
            Some(KeyPoint(62))
        );
        assert_eq!(
            estimate(1.0, &[]).middle(Slice::of_point(KeyPoint(3)), weigh),
            None
        );
    }

    #[test]
    fn points_that_are_not_reported_again_fade() {
        let mut belief = Estimate::default();
        belief.learn(cpu(10.0), &[(KeyPoint(7), cpu(6.0))], 0.5);
        assert_eq!(belief, estimate(10.0, &[(7, 6.0)]), "the first is believed");
        belief.learn(cpu(4.0), &[(KeyPoint(9), cpu(1.0))], 0.5);
        assert_eq!(belief, estimate(7.0, &[(7, 3.0), (9, 0.5)]));
        for _ in 0..20 {
            belief.learn(cpu(4.0), &[], 0.5);
        }
        assert!(belief.hot.is_empty());
    }

    proptest! {
        #[test]
        fn parts_add_up(
            total in 1.0f64..100.0,
            hot in prop::collection::btree_map(0u64..1000, 0.0f64..3.0, 0..8),
            at in 1u64..1000,
        ) {
            let hot: Vec<_> = hot.into_iter().collect();
            let sum: f64 = hot.iter().map(|(_, load)| load).sum();
            let whole = estimate(total.max(sum), &hot);
            let own = slice(0, 1000);
            let (left, right) = own.split_before(KeyPoint(at)).unwrap();
            let both = whole.part(own, left).total.cpu_shared + whole.part(own, right).total.cpu_shared;
            prop_assert!((both - whole.total.cpu_shared).abs() < 1e-6);
        }

        #[test]
        fn the_middle_halves(
            total in 1.0f64..100.0,
            hot in prop::collection::btree_map(0u64..1000, 0.0f64..3.0, 0..8),
        ) {
            let hot: Vec<_> = hot.into_iter().collect();
            let sum: f64 = hot.iter().map(|(_, load)| load).sum();
            let largest = hot.iter().map(|(_, load)| *load).fold(0.0, f64::max);
            let whole = estimate(total.max(sum), &hot);
            let own = slice(0, 1000);
            let at = whole.middle(own, |load| load.cpu_shared).unwrap();
            let (left, right) = own.split_before(at).expect("inside");
            let left = whole.part(own, left).total.cpu_shared;
            let right = whole.part(own, right).total.cpu_shared;
            // No cut can be better than the largest indivisible piece; points
            // have a width, of a thousandth here, which the cut leaves out.
            let piece = largest + whole.total.cpu_shared * 0.02;
            prop_assert!((left - right).abs() <= piece, "{left} {right}");
        }
    }
}
