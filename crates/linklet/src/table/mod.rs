//! The objects of one server: a hash map cut by key point into locked parts.
//!
//! ```text
//!   point of the key ── top bits ──► part (mutex: rules, entries, index by tag)
//! ```
//!
//! Invariants:
//!
//! 1. A part holds a contiguous range of key points, so that a slice is a few
//!    whole parts and two that are cut: what moves is found without a second
//!    index.
//! 2. The rules by which keys are served stand beside the entries, under the
//!    same lock. [`Table::publish`] goes through every part, so once it has
//!    returned nobody acts by older rules.
//! 3. A value is published as an `Arc` and never changed while somebody else
//!    holds it: readers, and whoever marshals it for a move, work outside the
//!    lock.
//! 4. Bytes are reserved before an entry comes in, so they are never above the
//!    bound by more than one value.
//! 5. Nothing is evicted that the rules do not leave to this server's threads.
//! 6. A value that is on disk alone ([`Value`]) changes nothing else of its entry: neither
//!    version nor stamp nor end. Its bytes there are the application's own, as for a peer.

mod away;
mod evict;
mod part;
mod room;
mod sweep;
mod value;
mod visit;

pub(crate) use away::{Sent, Victim};
pub(crate) use part::Entry;
pub(crate) use room::{NoRoom, Room};
pub(crate) use sweep::{FoundOwned, Window};
pub(crate) use value::{Brought, Found, Value};
pub(crate) use visit::{Changed, Visit};

use crate::lifetime::Lifetimes;
use evict::Dice;
use part::Part;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use trefoil_layout::hash::KeyHash;
use trefoil_linklet_core::{Status, Table as Rules};
use trefoil_sharder::{KeyPoint, Slice};

/// Parts of the table; a power of two. Enough that two threads rarely meet,
/// also where a server has a hundredth of the key space.
const PART_COUNT: usize = 1 << PART_BITS;
const PART_BITS: u32 = 10;
/// Bytes of an entry beyond key and value: the entry, its place in the index
/// and two reference counts.
const ENTRY_OVERHEAD: usize = size_of::<Entry<()>>() + 8 + 2 * 16;
/// Entries up to which a cut part is counted out.
const COUNTED_OUT_MAX: usize = 4096;
/// Part of a part above which evenly spread points are trusted.
const SHARE_TRUSTED: f64 = 1.0 / 16.0;

/// A key with its hash: where it lies in the key space and what recognises it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) hash: KeyHash,
}

impl Key<'_> {
    pub(crate) fn point(&self) -> KeyPoint {
        KeyPoint(self.hash.place)
    }
}

/// See the page of this module.
pub(crate) struct Table<V> {
    parts: Box<[Mutex<Part<V>>]>,
    bound: u64,
    reserved: AtomicU64,
    entries: AtomicU64,
    /// Of these, those whose values are on disk alone.
    away: AtomicU64,
    /// Counts insertions: the clock of the eviction's ages.
    tick: AtomicU32,
    dice: Dice,
    lifetimes: Lifetimes<V>,
}

impl<V> Table<V> {
    /// One that reserves at most `bound` bytes, and lets nobody do anything
    /// yet.
    pub(crate) fn new(bound: u64, lifetimes: Lifetimes<V>) -> Self {
        let rules = Arc::new(Rules::nothing());
        let part = || Mutex::new(Part::new(Arc::clone(&rules)));
        Table {
            parts: (0..PART_COUNT).map(|_| part()).collect(),
            bound,
            reserved: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            away: AtomicU64::new(0),
            tick: AtomicU32::new(0),
            dice: Dice::default(),
            lifetimes,
        }
    }

    /// What an entry counts as.
    pub(crate) fn weight(key: &[u8], value: usize) -> u64 {
        (key.len() + value + ENTRY_OVERHEAD) as u64
    }

    /// From now on these rules hold.
    pub(crate) fn publish(&self, rules: &Arc<Rules>) {
        for part in &self.parts {
            lock(part).rules = Arc::clone(rules);
        }
    }

    /// Enters the part that a key lies in.
    #[inline]
    pub(crate) fn visit<'a>(&'a self, key: Key<'a>) -> Visit<'a, V> {
        let part = lock(&self.parts[part_of(key.hash.place)]);
        Visit::new(self, part, key)
    }

    /// Takes out every entry of a slice that `condition` holds of.
    pub(crate) fn remove_slice(
        &self,
        slice: Slice,
        mut condition: impl FnMut(&Entry<V>, Status) -> bool,
    ) -> Vec<Entry<V>> {
        let mut all = Vec::new();
        for index in parts_of(slice) {
            let mut part = lock(&self.parts[index]);
            let rules = Arc::clone(&part.rules);
            let taken = part.take_where(|entry| {
                let point = KeyPoint(entry.hash.place);
                slice.contains(point) && condition(entry, rules.status(point))
            });
            drop(part);
            for entry in taken {
                self.gone(&entry);
                all.push(entry);
            }
        }
        all
    }

    /// Changes what is noted of every entry of a slice.
    pub(crate) fn mark_slice(&self, slice: Slice, mut mark: impl FnMut(&mut Entry<V>)) {
        for index in parts_of(slice) {
            let mut part = lock(&self.parts[index]);
            part.entries_mut()
                .filter(|entry| slice.contains(KeyPoint(entry.hash.place)))
                .for_each(&mut mark);
        }
    }

    /// Entries of the beginning of a slice in the order of their points: those
    /// of one part at most, so that the lock is held briefly, and not many
    /// more than `count_max`; equal points are never torn apart. With it: the
    /// last point of which everything was seen.
    pub(crate) fn scan<R>(
        &self,
        slice: Slice,
        count_max: usize,
        pick: impl Fn(&Entry<V>) -> R,
    ) -> (Vec<R>, KeyPoint) {
        let index = part_of(slice.start().0);
        let part_last = last_of(index).min(slice.last().0);
        let here = Slice::spanning(slice.start(), KeyPoint(part_last));
        let part = lock(&self.parts[index]);
        let mut found: Vec<&Entry<V>> = part
            .entries()
            .filter(|entry| here.contains(KeyPoint(entry.hash.place)))
            .collect();
        let last = cut(&mut found, count_max, here.last());
        found.sort_unstable_by_key(|entry| entry.hash.place);
        (found.into_iter().map(pick).collect(), last)
    }

    /// How long objects may stay.
    pub(crate) fn lifetimes(&self) -> &Lifetimes<V> {
        &self.lifetimes
    }

    /// Reserved bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// The most that it reserves.
    pub(crate) fn bound(&self) -> u64 {
        self.bound
    }

    /// Entries, copies for others included.
    pub(crate) fn len(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Entries whose values are on disk alone.
    pub(crate) fn away(&self) -> u64 {
        self.away.load(Ordering::Relaxed)
    }

    /// Bytes of a slice, in memory and on disk. Points are spread evenly, so a large part that is cut
    /// counts by how much of it the slice has; a narrow cut (a hot key of its
    /// own) is counted out.
    pub(crate) fn bytes_in(&self, slice: Slice) -> u64 {
        parts_of(slice)
            .map(|index| {
                let whole = Slice::spanning(KeyPoint(first_of(index)), KeyPoint(last_of(index)));
                let part = lock(&self.parts[index]);
                let Some(cut) = whole.intersection(slice) else {
                    return 0;
                };
                let bytes = part.bytes + part.away;
                if cut == whole {
                    return bytes;
                }
                let share = cut.width() as f64 / whole.width() as f64;
                if part.len() > COUNTED_OUT_MAX && share > SHARE_TRUSTED {
                    return (bytes as f64 * share) as u64;
                }
                part.entries()
                    .filter(|entry| cut.contains(KeyPoint(entry.hash.place)))
                    .map(|entry| entry.weight + entry.away_bytes())
                    .sum()
            })
            .sum()
    }

    /// An entry is no longer in.
    fn gone(&self, entry: &Entry<V>) {
        self.reserved.fetch_sub(entry.weight, Ordering::Relaxed);
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.count_away(entry, -1);
    }

    /// An entry is in, or no longer, whose value may be on disk alone.
    fn count_away(&self, entry: &Entry<V>, by: i64) {
        if entry.value.away().is_some() {
            self.away.fetch_add(by as u64, Ordering::Relaxed);
        }
    }

    /// When an insertion takes place, in insertions.
    fn next_tick(&self) -> u32 {
        self.tick.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

fn lock<V>(part: &Mutex<Part<V>>) -> MutexGuard<'_, Part<V>> {
    // What panics under the lock is caught where it is called; entries and
    // index agree at every point where anything else could.
    part.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

const fn part_of(point: u64) -> usize {
    (point >> (64 - PART_BITS)) as usize
}

const fn first_of(part: usize) -> u64 {
    (part as u64) << (64 - PART_BITS)
}

/// Leaves about so many entries, those of the first points, and all of the last of these;
/// where that ends, `last` if nothing was left out.
fn cut<V>(found: &mut Vec<&Entry<V>>, count_max: usize, last: KeyPoint) -> KeyPoint {
    if found.len() <= count_max {
        return last;
    }
    found.select_nth_unstable_by_key(count_max, |entry| entry.hash.place);
    let at = found[count_max].hash.place;
    found.retain(|entry| entry.hash.place <= at);
    KeyPoint(at)
}

const fn last_of(part: usize) -> u64 {
    first_of(part) | (u64::MAX >> PART_BITS)
}

fn parts_of(slice: Slice) -> std::ops::RangeInclusive<usize> {
    part_of(slice.start().0)..=part_of(slice.last().0)
}

#[cfg(test)]
mod tests;
