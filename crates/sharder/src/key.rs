//! The hashed key space: points, and the half-open ranges that tile it.

use std::fmt;
use trefoil_layout::hash::KeyHasher;

/// Where a key lies in the hashed key space of 2^64 points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct KeyPoint(pub u64);

impl KeyPoint {
    /// The first point.
    pub const MIN: KeyPoint = KeyPoint(0);
    /// The last point.
    pub const MAX: KeyPoint = KeyPoint(u64::MAX);

    /// The point of a key. Routers and linklets of one corpus have to use the
    /// same hasher, seed included.
    #[inline]
    pub fn of(hasher: &KeyHasher, key: &[u8]) -> Self {
        KeyPoint(hasher.hash(key).place)
    }
}

impl fmt::Display for KeyPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The number of points of the whole key space.
pub const POINTS: u128 = 1 << 64;

/// A range of the key space, from its start up to but not including its end.
/// Never empty. The end of the last slice is 2^64, which is why ends are
/// `u128` outside and inclusive last points inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    start: u64,
    last: u64,
}

impl Slice {
    /// The whole key space.
    pub const ALL: Slice = Slice {
        start: 0,
        last: u64::MAX,
    };

    /// `[start, end)`; `None` if that is empty or reaches beyond 2^64.
    pub const fn new(start: KeyPoint, end: u128) -> Option<Self> {
        if end > POINTS || end <= start.0 as u128 {
            return None;
        }
        Some(Slice {
            start: start.0,
            last: (end - 1) as u64,
        })
    }

    /// The slice of exactly one point.
    pub const fn of_point(point: KeyPoint) -> Self {
        Slice {
            start: point.0,
            last: point.0,
        }
    }

    /// From `first` to `last`, both inside; swapped if they are the wrong way
    /// round.
    pub const fn spanning(first: KeyPoint, last: KeyPoint) -> Self {
        if first.0 <= last.0 {
            Slice {
                start: first.0,
                last: last.0,
            }
        } else {
            Slice {
                start: last.0,
                last: first.0,
            }
        }
    }

    /// Its first point.
    pub const fn start(self) -> KeyPoint {
        KeyPoint(self.start)
    }

    /// Its last point.
    pub const fn last(self) -> KeyPoint {
        KeyPoint(self.last)
    }

    /// The first point behind it; 2^64 for the last slice.
    pub const fn end(self) -> u128 {
        self.last as u128 + 1
    }

    /// How many points it has.
    pub const fn width(self) -> u128 {
        self.end() - self.start as u128
    }

    /// Its part of the whole key space.
    pub fn fraction(self) -> f64 {
        self.width() as f64 / POINTS as f64
    }

    /// Whether it is one point: a key of its own.
    pub const fn is_point(self) -> bool {
        self.start == self.last
    }

    /// Whether the point lies in it.
    pub const fn contains(self, point: KeyPoint) -> bool {
        self.start <= point.0 && point.0 <= self.last
    }

    /// The points that both have.
    pub fn intersection(self, other: Slice) -> Option<Slice> {
        let start = self.start.max(other.start);
        let last = self.last.min(other.last);
        (start <= last).then_some(Slice { start, last })
    }

    /// Cuts it before `point`; `None` if one side would be empty.
    pub fn split_before(self, point: KeyPoint) -> Option<(Slice, Slice)> {
        (self.start < point.0 && point.0 <= self.last).then(|| {
            (
                Slice {
                    start: self.start,
                    last: point.0 - 1,
                },
                Slice {
                    start: point.0,
                    last: self.last,
                },
            )
        })
    }

    /// The slice made of this one and the one that begins where it ends.
    pub fn join(self, next: Slice) -> Option<Slice> {
        (self.end() == u128::from(next.start)).then_some(Slice {
            start: self.start,
            last: next.last,
        })
    }

    /// The whole key space in `count` slices of almost equal width.
    pub fn tiles(count: usize) -> Vec<Slice> {
        let count = count.max(1) as u128;
        let edge = |i: u128| POINTS * i / count;
        (0..count)
            .filter_map(|i| Slice::new(KeyPoint(edge(i) as u64), edge(i + 1)))
            .collect()
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_point() {
            return write!(f, "key point {}", self.start());
        }
        match u64::try_from(self.end()) {
            Ok(end) => write!(f, "[{:016x}, {end:016x})", self.start),
            Err(_) => write!(f, "[{:016x}, 2^64)", self.start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_ends_of_the_key_space() {
        assert_eq!(Slice::ALL.width(), POINTS);
        assert_eq!(Slice::ALL.end(), POINTS);
        assert_eq!(Slice::new(KeyPoint::MIN, 0), None);
        assert_eq!(Slice::new(KeyPoint::MIN, POINTS + 1), None);
        assert_eq!(Slice::new(KeyPoint(5), 5), None);
        assert_eq!(Slice::new(KeyPoint::MIN, POINTS), Some(Slice::ALL));
        let last = Slice::new(KeyPoint::MAX, POINTS).unwrap();
        assert!(last.is_point() && last.contains(KeyPoint::MAX));
        assert_eq!(last, Slice::of_point(KeyPoint::MAX));
        assert_eq!(last.join(Slice::ALL), None);
        assert_eq!(Slice::ALL.split_before(KeyPoint::MIN), None);
        assert_eq!(
            Slice::ALL.to_string(),
            "[0000000000000000, 2^64)",
            "the end is named as what it is"
        );
    }

    proptest! {
        #[test]
        fn tiles_tile(count in 1usize..500) {
            let tiles = Slice::tiles(count);
            prop_assert_eq!(tiles.len(), count);
            prop_assert_eq!(tiles[0].start(), KeyPoint::MIN);
            prop_assert_eq!(tiles[count - 1].end(), POINTS);
            for pair in tiles.windows(2) {
                prop_assert_eq!(pair[0].end(), u128::from(pair[1].start().0));
            }
            let widest = tiles.iter().map(|slice| slice.width()).max().unwrap();
            let narrowest = tiles.iter().map(|slice| slice.width()).min().unwrap();
            prop_assert!(widest - narrowest <= 1);
        }

        #[test]
        fn cutting_and_joining_are_inverse(a in any::<u64>(), b in any::<u64>(), at in any::<u64>()) {
            let slice = Slice::spanning(KeyPoint(a), KeyPoint(b));
            match slice.split_before(KeyPoint(at)) {
                Some((left, right)) => {
                    prop_assert_eq!(left.join(right), Some(slice));
                    prop_assert!(right.contains(KeyPoint(at)) && !left.contains(KeyPoint(at)));
                    prop_assert_eq!(left.width() + right.width(), slice.width());
                    prop_assert_eq!(left.intersection(right), None);
                }
                None => prop_assert!(!slice.contains(KeyPoint(at)) || slice.start() == KeyPoint(at)),
            }
        }
    }
}
