//! Keys of copies that are not to be read yet.

use crate::ranges::{Key, keys_of};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use trefoil_sharder::{KeyPoint, ServerId, Slice};

/// Keys changed by orders that were not declared settled. `by_order` has each key once, with
/// the order that `keys` has of it: so what an owner settles costs as much as there is of it,
/// and nothing for all that is under way beside.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    /// By whom, which order.
    keys: BTreeMap<Key, (ServerId, u64)>,
    by_order: BTreeSet<(ServerId, u64, Key)>,
}

impl Dirty {
    /// A key was changed by this order, the last one of it.
    pub(super) fn add(&mut self, key: Key, owner: ServerId, order: u64) {
        if let Some((owner, order)) = self.keys.insert(key.clone(), (owner, order)) {
            self.by_order.remove(&(owner, order, key.clone()));
        }
        self.by_order.insert((owner, order, key));
    }

    /// All orders of an owner up to this one are settled.
    pub(super) fn settle(&mut self, owner: ServerId, order: u64) {
        let first = (owner, u64::MIN, (KeyPoint(0), Bytes::new()));
        let is_settled = |at: &(ServerId, u64, Key)| at.0 == owner && at.1 <= order;
        while let Some(next) = self.by_order.range(&first..).next()
            && is_settled(next)
        {
            let next = next.clone();
            self.by_order.remove(&next);
            self.keys.remove(&next.2);
        }
    }

    pub(super) fn has(&self, point: KeyPoint) -> bool {
        let mut keys = self.keys.range(keys_of(Slice::of_point(point)));
        keys.next().is_some()
    }

    pub(super) fn within(&self, slice: Slice) -> Vec<Key> {
        let keys = self.keys.range(keys_of(slice));
        keys.map(|(key, _)| key.clone()).collect()
    }

    /// Forgets what is in a range.
    pub(super) fn remove(&mut self, slice: Slice) {
        for (key, (owner, order)) in self.keys.extract_if(keys_of(slice), |_, _| true) {
            self.by_order.remove(&(owner, order, key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However keys are changed, settled and forgotten: those are left that a look at all
        /// of them leaves, and the index has just these.
        #[test]
        fn what_is_left(
            steps in prop::collection::vec((0u8..4, 0u64..3, 0u64..6, 0u64..5), 0..80),
        ) {
            let mut dirty = Dirty::default();
            let mut plain: BTreeMap<Key, (ServerId, u64)> = BTreeMap::new();
            for (step, owner, order, at) in steps {
                let owner = ServerId(owner);
                // The last points, too.
                let point = KeyPoint(u64::MAX - at / 2);
                match step {
                    0 | 1 => {
                        let key = (point, Bytes::from(vec![at as u8]));
                        dirty.add(key.clone(), owner, order);
                        plain.insert(key, (owner, order));
                    }
                    2 => {
                        dirty.settle(owner, order);
                        plain.retain(|_, (by, its)| *by != owner || *its > order);
                    }
                    _ => {
                        dirty.remove(Slice::of_point(point));
                        plain.retain(|(its, _), _| *its != point);
                    }
                }
                prop_assert_eq!(&dirty.keys, &plain);
                let by_order = plain.iter().map(|(key, &(owner, order))| (owner, order, key.clone()));
                prop_assert_eq!(&dirty.by_order, &by_order.collect());
                prop_assert_eq!(dirty.has(point), plain.keys().any(|(its, _)| *its == point));
            }
        }
    }
}
