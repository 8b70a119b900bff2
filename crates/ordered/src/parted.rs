//! Producers without a lane, which a queue knows so that they may come again: so many of them
//! all together, and of whom there are most is forgotten first. So an owner whose producers
//! come and go makes a queue forget its own, and nobody else's.
//!
//! An owner is an identity and a host of it. First identities are compared, then the hosts of
//! the one that has most; there the producer goes that parted first.

use crate::worker::{OwnerId, ProducerId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Producers without a lane that are known.
pub const PARTED_MAX: usize = 4096;

/// A producer that has parted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Former {
    pub(crate) id: ProducerId,
    /// Earlier attempts than this are out of date.
    pub(crate) attempt_min: u64,
    /// The number of its last request, which is executed.
    pub(crate) placed: u64,
}

/// Of one owner, those that parted last behind, each with when that was.
type Own = VecDeque<(u64, Former)>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Parted {
    of_owner: BTreeMap<OwnerId, Own>,
    count: usize,
    /// How many have parted, ever.
    total: u64,
}

impl Parted {
    pub(crate) fn find(&self, id: ProducerId) -> Option<Former> {
        let mut all = self.of_owner.values().flatten();
        all.find(|(_, former)| former.id == id)
            .map(|(_, former)| *former)
    }

    pub(crate) fn push(&mut self, owner: OwnerId, former: Former) {
        self.total += 1;
        let own = self.of_owner.entry(owner).or_default();
        own.push_back((self.total, former));
        self.count += 1;
        if self.count > PARTED_MAX {
            self.forget_one();
        }
    }

    /// It has a lane.
    pub(crate) fn remove(&mut self, id: ProducerId) {
        self.of_owner.retain(|_, own| {
            let before = own.len();
            own.retain(|(_, former)| former.id != id);
            self.count -= before - own.len();
            !own.is_empty()
        });
    }

    fn forget_one(&mut self) {
        let mut of_identity = BTreeMap::new();
        for ([identity, _], own) in &self.of_owner {
            *of_identity.entry(*identity).or_insert(0) += own.len();
        }
        let of_all = |owner: &OwnerId| of_identity.get(&owner[0]).copied().unwrap_or(0);
        // Of equals, who has the one that parted first.
        let parted = |own: &Own| Reverse(own.front().map_or(u64::MAX, |(when, _)| *when));
        let most = self
            .of_owner
            .iter()
            .max_by_key(|(owner, own)| (of_all(owner), own.len(), parted(own)));
        let Some(owner) = most.map(|(owner, _)| *owner) else {
            return;
        };
        if let Some(own) = self.of_owner.get_mut(&owner) {
            own.pop_front();
            self.count -= 1;
            if own.is_empty() {
                self.of_owner.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The producer of this number parts.
    fn part(parted: &mut Parted, owner: OwnerId, number: usize) {
        let former = Former {
            id: [number as u64, 0],
            attempt_min: 1,
            placed: number as u64,
        };
        parted.push(owner, former);
    }

    #[test]
    fn who_comes_and_goes_makes_nobody_else_forgotten() {
        let mut parted = Parted::default();
        let is_known = |parted: &Parted, number: usize| parted.find([number as u64, 0]).is_some();
        // Another identity, and another host of the same one.
        part(&mut parted, [1, 1], 0);
        part(&mut parted, [2, 1], 1);
        for number in 2..3 * PARTED_MAX {
            part(&mut parted, [2, 2], number);
        }
        assert_eq!(parted.count, PARTED_MAX);
        assert!(is_known(&parted, 0) && is_known(&parted, 1));
        // Its own oldest ones have gone.
        let first = 2 * PARTED_MAX + 2;
        assert!(!is_known(&parted, first - 1) && is_known(&parted, first));
        // By another name, from as many hosts as there are producers.
        for number in 0..PARTED_MAX {
            part(&mut parted, [3, number as u64], 4 * PARTED_MAX + number);
        }
        assert!(is_known(&parted, 0) && is_known(&parted, 1));
        parted.remove([0, 0]);
        assert!(!is_known(&parted, 0));
        let counted: usize = parted.of_owner.values().map(VecDeque::len).sum();
        assert_eq!((parted.count, counted), (PARTED_MAX - 1, PARTED_MAX - 1));
    }
}
