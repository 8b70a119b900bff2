//! What is known of one server with copies.

use super::declined::Declined;
use crate::pause::Pause;
use crate::ranges::{RangeSet, keys_of};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use trefoil_sharder::{KeyPoint, Slice};

/// A server with copies.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    /// What it may have copies of.
    pub(crate) held: RangeSet,
    /// What it is known to have complete copies of.
    pub(super) synced: RangeSet,
    /// Copies made by a former owner, which has to be told of the new one.
    pub(super) attach: RangeSet,
    pub(super) excluding: RangeSet,
    /// Not wanted there by this owner; not offered again for now.
    pub(super) refused: RangeSet,
    pub(super) declined: Declined,
    /// To be there, and could not be stored when it was sent; neither held nor
    /// confirmed. Sent again at `retry_at`, or with the next commit.
    pub(super) failed: RangeSet,
    /// Of these, and of nothing else, what is to be sent again when it is its turn.
    pub(super) again: RangeSet,
    /// Up to here it was sent again last; all have their turn.
    pub(super) last_again: Option<KeyPoint>,
    pub(super) pause: Pause,
    pub(super) retry_at: Option<Duration>,
    /// Copies of these it refused, and has not stored since: from when on.
    pub(super) refusing: BTreeMap<KeyPoint, Duration>,
    /// Of these, those that it had no room for.
    pub(super) no_room: BTreeSet<KeyPoint>,
    /// Of these it was sent no value, for it could not be marshalled here: nobody
    /// could store that.
    pub(super) unmarshalled: RangeSet,
    /// Keys committed that it is to be told of when there is room on the way to
    /// it: with what they are by then.
    pub(super) untold: BTreeSet<(KeyPoint, Bytes)>,
    /// The last order.
    pub(super) last: u64,
    /// Not confirmed.
    pub(super) orders: VecDeque<(u64, Order)>,
    pub(super) applies: Applies,
    pub(super) last_apply: u64,
    pub(super) settled: u64,
}

/// Orders of commits that are not settled: each has one commit, and each commit the last order
/// of it. Both ways are kept, so that neither an order nor what is settled costs a look at all
/// that is under way.
#[derive(Debug, Default)]
pub(super) struct Applies {
    commits: BTreeMap<u64, u64>,
    orders: BTreeMap<u64, u64>,
}

impl Applies {
    /// An order tells of a commit. Told once more, it is settled with the last order of it.
    fn tell(&mut self, order: u64, commit: u64) {
        if let Some(before) = self.orders.insert(commit, order) {
            self.commits.remove(&before);
        }
        self.commits.insert(order, commit);
    }

    /// These commits are settled.
    fn settle(&mut self, commits: &[u64]) {
        for commit in commits {
            if let Some(order) = self.orders.remove(commit) {
                self.commits.remove(&order);
            }
        }
    }

    /// The commit of an order, if that is the last one of it.
    pub(super) fn commit(&self, order: u64) -> Option<u64> {
        self.commits.get(&order).copied()
    }

    fn is_empty(&self) -> bool {
        self.commits.is_empty()
    }

    /// The first order whose commit is not settled.
    fn first(&self) -> Option<u64> {
        self.commits.keys().next().copied()
    }
}

/// What an order was about.
#[derive(Debug)]
pub(crate) enum Order {
    Fill(RangeSet),
    Attach(RangeSet),
    Exclude(RangeSet),
    Apply {
        point: KeyPoint,
        key: Bytes,
        proposal: Option<u64>,
    },
}

impl Follower {
    /// Notes an order; its number.
    pub(super) fn note(&mut self, order: Order) -> u64 {
        self.last += 1;
        let id = self.last;
        if let Order::Apply { proposal, .. } = order {
            if let Some(number) = proposal {
                self.applies.tell(id, number);
            }
            self.last_apply = id;
        }
        self.orders.push_back((id, order));
        id
    }

    /// Where among those that are not confirmed an order is.
    pub(super) fn order_at(&self, id: u64) -> Option<usize> {
        // They are given in the order of their numbers.
        self.orders.binary_search_by_key(&id, |(id, _)| *id).ok()
    }

    /// Whether it is told of commits: it has a copy that is not being dropped.
    pub(super) fn follows(&self, point: KeyPoint) -> bool {
        self.held.has(point) && !self.excluding.has(point)
    }

    /// Whether what is committed now will be in its copy.
    pub(crate) fn keeps(&self, point: KeyPoint) -> bool {
        self.follows(point) && !self.failed.has(point)
    }

    /// Whether it will be given a copy with the next commit, if it is to have
    /// one: it has none, and has not just shown that it cannot store it.
    pub(crate) fn takes(&self, point: KeyPoint) -> bool {
        !self.held.has(point) && !self.failed.has(point)
    }

    /// Whether it could not store this.
    pub(super) fn fails(&self, point: KeyPoint) -> bool {
        self.failed.has(point)
    }

    /// Whether it has no room for what is new in a slice: it has refused some of it.
    pub(crate) fn is_full(&self, slice: Slice) -> bool {
        let mut points = self.no_room.range(slice.start()..=slice.last());
        points.next().is_some()
    }

    /// Keys of a range that it may not have been told of.
    pub(super) fn unconfirmed(&self, ranges: &RangeSet) -> Vec<(KeyPoint, Bytes)> {
        let keys = self.orders.iter().filter_map(|(_, order)| match order {
            Order::Apply { point, key, .. } if ranges.has(*point) => Some((*point, key.clone())),
            _ => None,
        });
        keys.collect()
    }

    /// Takes out keys of a range that it has not been told of.
    pub(super) fn take_untold(&mut self, ranges: &RangeSet) -> Vec<(KeyPoint, Bytes)> {
        let mut taken = Vec::new();
        for (slice, ()) in ranges.iter() {
            taken.extend(self.untold.extract_if(keys_of(slice), |_| true));
        }
        taken
    }

    /// The parts of a range of which it has, or may soon have, no complete copy:
    /// one that is being dropped counts for nothing, wanted again or not.
    pub(super) fn incomplete(&self, slice: Slice) -> Vec<Slice> {
        let mut parts = self.synced.gaps(slice);
        parts.extend(self.excluding.common(slice));
        parts
    }

    /// The parts of these ranges that copies on their way to it are of.
    pub(super) fn filled_within(&self, ranges: &RangeSet) -> Vec<Slice> {
        let mut filled = Vec::new();
        for (_, order) in &self.orders {
            if let Order::Fill(set) = order {
                filled.extend(set.iter().flat_map(|(slice, ())| ranges.common(slice)));
            }
        }
        filled
    }

    /// It has a copy of this, or is not to have one any more: it refuses nothing of it.
    pub(super) fn stored(&mut self, slice: Slice) {
        let within = self.refusing.range(slice.start()..=slice.last());
        for point in within.map(|(&point, _)| point).collect::<Vec<_>>() {
            self.refusing.remove(&point);
            self.no_room.remove(&point);
        }
    }

    /// It has stored this. If it could not before, there is room now: it is sent the rest.
    pub(super) fn stored_now(&mut self, now: Duration, slice: Slice) {
        self.declined.stored(now, slice);
        let before = self.refusing.len();
        self.stored(slice);
        if self.refusing.len() < before {
            self.pause = Pause::default();
            self.retry_at = (!self.failed.is_empty()).then_some(now);
        }
    }

    /// What it could not store of this is sent anew, is in another copy, or is not to be there.
    pub(super) fn forget_failed(&mut self, part: Slice) {
        self.failed.remove(part);
        self.again.remove(part);
    }

    /// It has a copy of this that could not store something. It is told anew what is
    /// under way, or nothing is any more.
    pub(super) fn expect_again(&mut self, part: Slice) {
        self.forget_failed(part);
        self.synced.add(part);
    }

    /// Where it has a copy that could not store a commit, and is not being dropped.
    pub(super) fn kept_as_it_was(&self) -> RangeSet {
        let mut kept = RangeSet::default();
        for (slice, ()) in self.failed.iter() {
            self.held.common(slice).for_each(|part| kept.add(part));
            kept.remove_all(self.excluding.common(slice));
        }
        kept
    }

    /// Somebody else is the owner of these now.
    pub(super) fn let_go(&mut self, ranges: &[Slice]) {
        for &slice in ranges {
            self.held.remove(slice);
            self.synced.remove(slice);
            self.attach.remove(slice);
            self.excluding.remove(slice);
            self.refused.remove(slice);
            self.declined.forget(slice);
            self.forget_failed(slice);
            self.unmarshalled.remove(slice);
            self.stored(slice);
            for (_, order) in &mut self.orders {
                match order {
                    Order::Fill(set) | Order::Attach(set) | Order::Exclude(set) => {
                        set.remove(slice);
                    }
                    Order::Apply { .. } => {}
                }
            }
        }
    }

    /// These commits are settled; returns the order up to which all are, if
    /// that is news.
    pub(super) fn settled(&mut self, numbers: &[u64]) -> Option<u64> {
        if self.applies.is_empty() && self.last_apply <= self.settled {
            return None;
        }
        self.applies.settle(numbers);
        let first = self.applies.first();
        let upto = first.map_or(self.last_apply, |first| first - 1);
        (upto > self.settled).then(|| {
            self.settled = upto;
            upto
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However often commits are told and settled: those are left that a look at all of
        /// them leaves.
        #[test]
        fn what_is_not_settled(
            steps in prop::collection::vec((0u8..3, 0u64..8, 0u64..8), 0..60),
        ) {
            let mut applies = Applies::default();
            let mut plain: BTreeMap<u64, u64> = BTreeMap::new();
            for (order, (step, commit, other)) in steps.into_iter().enumerate() {
                let order = order as u64;
                if step < 2 {
                    applies.tell(order, commit);
                    plain.retain(|_, told| *told != commit);
                    plain.insert(order, commit);
                } else {
                    applies.settle(&[commit, other]);
                    plain.retain(|_, told| *told != commit && *told != other);
                }
                prop_assert_eq!(&applies.commits, &plain);
                let orders = plain.iter().map(|(&order, &commit)| (commit, order));
                prop_assert_eq!(&applies.orders, &orders.collect());
                prop_assert_eq!(applies.first(), plain.keys().next().copied());
            }
        }
    }
}
