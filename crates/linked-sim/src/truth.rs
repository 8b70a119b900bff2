//! What is true of every key, known to nobody in the simulation: the newest
//! acknowledged commit, and the newest owner.

use crate::violation::Property;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use trefoil_linklet_core::Loss;
use trefoil_sharder::{AssignmentVersion, KeyPoint};

/// What happened to one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Asked for; no server has begun it, and nobody can see it.
    Asked,
    /// Under way: it may be seen any time from now on.
    Pending,
    /// It was the newest commit once.
    Done,
}

/// One key.
#[derive(Debug)]
pub(crate) struct KeyTruth {
    pub(crate) point: KeyPoint,
    pub(crate) key: Bytes,
    /// The write that is its value; `None` if it has none.
    pub(crate) current: Option<u64>,
    /// The newest owner's token.
    pub(crate) epoch: Option<AssignmentVersion>,
    /// Servers that had `current` when it was committed; 0 if a map has given
    /// the key to a single server since.
    pub(crate) copies: usize,
    /// How many servers had died then.
    pub(crate) deaths: usize,
    /// When a map had a single server for it, or one that may have no room for a copy.
    pub(crate) thin_at: Duration,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) keys: Vec<KeyTruth>,
    /// By write number: of which key, its value afterwards, what became of it.
    writes: Vec<(usize, bool, Fate)>,
    /// Removals under way, with their keys.
    removals: BTreeSet<(usize, u64)>,
}

pub(crate) type Broken = (Property, String);

impl Truth {
    /// Everything is dealt anew, for nobody remembered anything: what there was is
    /// lost, and nobody knows what that is.
    pub(crate) fn begin_anew(&mut self) {
        for truth in &mut self.keys {
            truth.current = None;
            truth.copies = 0;
        }
    }

    /// All copies of a key were made anew since the last death, or should have been.
    pub(crate) fn restored(&mut self, key: usize, deaths: usize) {
        self.keys[key].copies = 2;
        self.keys[key].deaths = deaths;
    }

    /// A new write of a key, which somebody asks for.
    pub(crate) fn ask(&mut self, key: usize, removes: bool) -> u64 {
        self.writes.push((key, removes, Fate::Asked));
        self.writes.len() as u64 - 1
    }

    /// A server has begun a write.
    pub(crate) fn begin(&mut self, write: u64) {
        let (key, removes, fate) = &mut self.writes[write as usize];
        assert_eq!(*fate, Fate::Asked, "nothing is begun twice");
        *fate = Fate::Pending;
        if *removes {
            self.removals.insert((*key, write));
        }
    }

    /// A write takes effect.
    pub(crate) fn done(&mut self, write: u64) {
        let (key, removes, fate) = &mut self.writes[write as usize];
        *fate = Fate::Done;
        if *removes {
            self.removals.remove(&(*key, write));
        }
        self.keys[*key].current = (!*removes).then_some(write);
    }

    /// Whether a value that is not the newest commit may be seen: because of
    /// a write of unknown fate, which it reveals.
    pub(crate) fn reveals(&self, key: usize, seen: Option<u64>) -> Option<u64> {
        match seen {
            Some(write) => {
                let stores = self.writes[write as usize] == (key, false, Fate::Pending);
                stores.then_some(write)
            }
            None => {
                let mut removals = self.removals.range((key, 0)..);
                let first = removals.next().filter(|(of, _)| *of == key);
                first.map(|(_, write)| *write)
            }
        }
    }

    /// How many writes took effect.
    pub(crate) fn commits(&self) -> u64 {
        let done = self
            .writes
            .iter()
            .filter(|(_, _, fate)| *fate == Fate::Done);
        done.count() as u64
    }

    /// A read that has to be of the newest commit.
    pub(crate) fn read(&mut self, key: usize, seen: Option<u64>) -> Result<(), Broken> {
        let current = self.keys[key].current;
        if seen == current {
            return Ok(());
        }
        match self.reveals(key, seen) {
            Some(write) => {
                self.done(write);
                Ok(())
            }
            None => Err((
                Property::Fresh,
                format!("a read of key {key} returned {seen:?}, the newest commit is {current:?}"),
            )),
        }
    }

    /// How many reports cover a key.
    pub(crate) fn reports(&self, key: usize, losses: &[Loss]) -> usize {
        let truth = &self.keys[key];
        let covers = |loss: &Loss| {
            let ranges = loss.ranges.iter();
            let in_ranges = ranges.filter(|slice| slice.contains(truth.point)).count();
            let by_name = loss.keys.iter();
            in_ranges + by_name.filter(|(_, key)| *key == truth.key).count()
        };
        losses.iter().map(covers).sum()
    }
}
