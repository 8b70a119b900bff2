//! What two replicas that have not lost a shard make of it together, for the third
//! (DESIGN section 4, rules 9 and 10): the higher bound of each key, and a value only
//! if both hold it at that version.

use std::collections::HashMap;
use trefoil_layout::{KeyHash, Version};

/// What one replica knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Its bound.
    pub(super) version: Version,
    /// It has a value, of this version.
    pub(super) is_value: bool,
}

/// What comes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merged {
    /// Both hold the value that the first one told.
    Value,
    /// It has no value, and nothing older than this is to be stored.
    Bound(Version),
}

/// What the second replica holds of the keys of one page.
#[derive(Debug, Default)]
pub(super) struct Second(HashMap<KeyHash, Held>);

impl Second {
    /// It holds this, too.
    pub(super) fn holds(&mut self, hash: KeyHash, held: Held) {
        self.0.insert(hash, held);
    }

    /// What comes of a key of which the first replica holds `first`. Each key once.
    pub(super) fn merge(&mut self, hash: KeyHash, first: Held) -> Merged {
        match self.0.remove(&hash) {
            Some(second) if first == second && first.is_value => Merged::Value,
            Some(second) => Merged::Bound(first.version.max(second.version)),
            None => Merged::Bound(first.version),
        }
    }

    /// Keys of which the first replica holds nothing, and their bounds.
    pub(super) fn rest(self) -> impl Iterator<Item = (KeyHash, Version)> {
        self.0.into_iter().map(|(hash, held)| (hash, held.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_of_two_that_agree_and_a_bound_of_all_others() {
        let hash = |tag| KeyHash { place: 5, tag };
        let held = |time_ns, is_value| Held {
            version: Version::new(time_ns, 1, 1),
            is_value,
        };
        let bound = |time_ns| Merged::Bound(Version::new(time_ns, 1, 1));
        let mut second = Second::default();
        for (tag, theirs) in [
            (1, held(7, true)),
            (2, held(9, true)),
            (3, held(3, true)),
            (4, held(7, false)),
            (6, held(7, false)),
            (7, held(4, true)),
        ] {
            second.holds(hash(tag), theirs);
        }
        assert_eq!(second.merge(hash(1), held(7, true)), Merged::Value);
        assert_eq!(
            second.merge(hash(2), held(7, true)),
            bound(9),
            "newer there"
        );
        assert_eq!(
            second.merge(hash(3), held(7, true)),
            bound(7),
            "older there"
        );
        assert_eq!(
            second.merge(hash(4), held(7, true)),
            bound(7),
            "expired there"
        );
        assert_eq!(
            second.merge(hash(5), held(7, true)),
            bound(7),
            "evicted there"
        );
        assert_eq!(
            second.merge(hash(6), held(7, false)),
            bound(7),
            "expired at both"
        );
        let rest: Vec<_> = second.rest().collect();
        assert_eq!(rest, [(hash(7), Version::new(4, 1, 1))]);
    }
}
