//! A cell gets another number of backends: what those that are copied from
//! ([`Gathering`](crate::Gathering)) note for each process that copies, and whether their
//! copies go together.

use crate::handover::ShardState;
use crate::machine::Nonsense;
use crate::mutants::{self, Mutant};
use std::collections::BTreeMap;
use std::ops::Range;
use trefoil_layout::epoch;

/// Ranges of places, in order.
pub type Ranges = Vec<Range<u64>>;

/// What has changed at one backend, for each of those that copy from it. A store notes
/// changes once, and each of them asks at another time.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// By the number that a process is to have: of each shard, in order.
    of: BTreeMap<u32, Vec<Ranges>>,
}

impl Notes {
    /// One more, or one that begins anew: nothing has changed for it so far. Before that,
    /// what has changed is to be [noted](Notes::note) for the others.
    pub fn begin(&mut self, taker: u32, shard_count: usize) {
        self.of.insert(taker, vec![Vec::new(); shard_count]);
    }

    /// What [`shard_states`](crate::shard_states) has taken from the store.
    pub fn note(&mut self, states: &[ShardState]) {
        for changes in self.of.values_mut() {
            for (known, state) in changes.iter_mut().zip(states) {
                if !state.changes.is_empty() {
                    *known = union(known, &state.changes);
                }
            }
        }
    }

    /// What was noted for one of them since it asked last; nothing if it has not begun.
    pub fn take(&mut self, taker: u32) -> Option<Vec<Ranges>> {
        let changes = self.of.get_mut(&taker)?;
        Some(changes.iter_mut().map(std::mem::take).collect())
    }
}

/// Places that are in one of both, in order; neighbours together.
fn union(one: &[Range<u64>], other: &[Range<u64>]) -> Ranges {
    let mut all: Ranges = one.iter().chain(other).cloned().collect();
    all.sort_unstable_by_key(|range| range.start);
    let mut ranges = Ranges::new();
    for range in all {
        match ranges.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => ranges.push(range),
        }
    }
    ranges
}

/// The highest epoch of all, if the replicas of each shard are in one; nothing while they
/// are not, because somebody recovers just now. `epochs` are those of each backend's shards,
/// by its place in their cohorts, told when it had frozen.
pub fn one_epoch(epochs: &[Vec<u32>]) -> Result<Option<u32>, Nonsense> {
    let count = epochs.len();
    let copies = epochs.first().map_or(0, Vec::len);
    let all = || epochs.iter().flatten().copied();
    let (lowest, highest) = (
        all().min().unwrap_or_default(),
        all().max().unwrap_or_default(),
    );
    let is_even = epochs.iter().all(|of| of.len() == copies) && copies <= count;
    if !is_even || !epoch::are_of_one_cell(lowest, highest) {
        return Err(Nonsense("epochs that no cell is in"));
    }
    let of_shard = |shard: usize, place: usize| epochs[(shard + place) % count][place];
    let is_one = |shard| (1..copies).all(|place| of_shard(shard, place) == of_shard(shard, 0));
    let are_alike = (0..count).all(is_one) || mutants::is(Mutant::EpochsMixed);
    Ok(are_alike.then_some(highest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_once_and_in_order() {
        assert_eq!(union(&[], &[3..4, 6..7]), [3..4, 6..7]);
        assert_eq!(union(&[1..2, 5..7], &[2..3, 6..9]), [1..3, 5..9]);
        assert_eq!(union(&[4..8, 9..10], &[1..2, 5..6]), [1..2, 4..8, 9..10]);
    }

    #[test]
    fn each_that_copies_is_told_of_every_change_once() {
        let changed = |places: Range<u64>| {
            vec![ShardState {
                changes: std::iter::once(places).collect(),
                ..ShardState::default()
            }]
        };
        let mut notes = Notes::default();
        notes.begin(4, 1);
        notes.note(&changed(1..2));
        notes.begin(2, 1);
        notes.note(&changed(5..6));
        let one = |places: Range<u64>| -> Ranges { std::iter::once(places).collect() };
        assert_eq!(notes.take(2), Some(vec![one(5..6)]));
        assert_eq!(notes.take(4), Some(vec![vec![1..2, 5..6]]));
        assert_eq!(notes.take(4), Some(vec![Vec::new()]));
        assert_eq!(notes.take(3), None);
    }

    #[test]
    fn the_replicas_of_each_shard_have_to_be_in_one_epoch() {
        let (a, b, c) = (epoch::FIRST, 1 << 13 | 1, 2 << 13 | 1);
        // Backend 1 is the first of shard 1, the second of shard 0, the third of shard 3.
        let alike = vec![vec![b, a, a], vec![c, b, a], vec![a, c, b], vec![a, a, c]];
        assert_eq!(one_epoch(&alike), Ok(Some(c)));
        let mut raised = alike.clone();
        raised[2][1] = 3 << 13 | 1;
        assert_eq!(one_epoch(&raised), Ok(None));
        assert_eq!(one_epoch(&[vec![b]]), Ok(Some(b)));
        assert_eq!(one_epoch(&[vec![a], vec![a]]), Ok(Some(a)));
        // What nobody can be in.
        for nonsense in [vec![], vec![epoch::NONE], vec![u32::MAX], vec![a, a]] {
            assert!(one_epoch(&[vec![a], nonsense]).is_err());
        }
    }
}
