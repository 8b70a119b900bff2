//! The objects of one server: a hash map cut by key point into locked parts.
//!
//! ```text
//!   point of the key ── top bits ──► part (mutex) ── tag ──► index ──► entries
//! ```
//!
//! Invariants:
//!
//! 1. A part holds a contiguous range of key points, so that a slice is a few
//!    whole parts and two that are cut: what moves is found without a second
//!    index.
//! 2. A value is published as an `Arc` and never changed while somebody else
//!    holds it: readers, and whoever marshals it for a move, work outside the
//!    lock.
//! 3. No lock is held while code of the application runs, but for
//!    [`Table::change`], whose closure says so.
//! 4. Reserved bytes are never more than the bound, unless a single value is
//!    all there is left to evict.

mod evict;
mod part;

pub(crate) use part::Entry;

use evict::Dice;
use part::Part;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use trefoil_layout::hash::KeyHash;
use trefoil_sharder::{KeyPoint, Slice};

/// Parts of the table; a power of two. Enough that two threads rarely meet,
/// also where a server has a hundredth of the key space.
const PART_COUNT: usize = 1 << PART_BITS;
const PART_BITS: u32 = 10;
/// Bytes of an entry beyond key and value: the entry, its place in the index
/// and two reference counts.
const ENTRY_OVERHEAD: usize = size_of::<Entry<()>>() + 8 + 2 * 16;

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
    /// Counts insertions: the clock of the eviction's ages.
    tick: AtomicU32,
    dice: Dice,
}

/// What [`Table::change`] does with an entry after its closure.
pub(crate) enum Then {
    /// Keeps it; it now weighs this much (with its key).
    Keep { weight: u64 },
    /// Takes it out.
    Remove,
}

/// An entry that is too large for the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge {
    pub(crate) weight: u64,
    pub(crate) bound: u64,
}

impl<V> Table<V> {
    /// One that reserves at most `bound` bytes.
    pub(crate) fn new(bound: u64) -> Self {
        Table {
            parts: (0..PART_COUNT).map(|_| Mutex::default()).collect(),
            bound,
            reserved: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            tick: AtomicU32::new(0),
            dice: Dice::default(),
        }
    }

    /// What an entry counts as.
    pub(crate) fn weight(key: &[u8], value: usize) -> u64 {
        (key.len() + value + ENTRY_OVERHEAD) as u64
    }

    fn part(&self, point: u64) -> MutexGuard<'_, Part<V>> {
        lock(&self.parts[part_of(point)])
    }

    /// Looks at an entry, under its lock.
    #[inline]
    pub(crate) fn with<R>(&self, key: Key<'_>, f: impl FnOnce(&Entry<V>) -> R) -> Option<R> {
        let now = self.tick.load(Ordering::Relaxed);
        let mut part = self.part(key.hash.place);
        part.find_mut(key).map(|entry| {
            entry.used_at = now;
            entry.reused = true;
            f(entry)
        })
    }

    /// The value, to be used outside the lock.
    #[inline]
    pub(crate) fn get(&self, key: Key<'_>) -> Option<Arc<V>> {
        self.with(key, |entry| Arc::clone(&entry.value))
    }

    /// Changes an entry in place, under its lock. The closure catches what
    /// panics inside it.
    pub(crate) fn change<R>(
        &self,
        key: Key<'_>,
        f: impl FnOnce(&mut Entry<V>) -> (Then, R),
    ) -> Option<R> {
        let now = self.tick.load(Ordering::Relaxed);
        let mut part = self.part(key.hash.place);
        let entry = part.find_mut(key)?;
        entry.used_at = now;
        entry.reused = true;
        let before = entry.weight;
        let (then, result) = f(entry);
        match then {
            Then::Keep { weight } => {
                entry.weight = weight;
                part.bytes = part.bytes + weight - before;
                drop(part);
                if weight > before {
                    self.reserved.fetch_add(weight - before, Ordering::Relaxed);
                } else {
                    self.reserved.fetch_sub(before - weight, Ordering::Relaxed);
                }
            }
            Then::Remove => {
                part.take(key);
                drop(part);
                self.released(before);
            }
        }
        Some(result)
    }

    /// Puts an entry in, in the place of one with the same key. Room is made
    /// first: what had to go is handed to `evicted`, outside any lock.
    pub(crate) fn put(
        &self,
        mut entry: Entry<V>,
        evicted: impl FnMut(Entry<V>),
    ) -> Result<Option<Entry<V>>, TooLarge> {
        self.reserve(entry.weight, evicted)?;
        let weight = entry.weight;
        entry.used_at = self
            .tick
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        let old = self.part(entry.hash.place).put(entry);
        match &old {
            Some(old) => {
                self.reserved.fetch_sub(old.weight, Ordering::Relaxed);
            }
            None => {
                self.entries.fetch_add(1, Ordering::Relaxed);
            }
        }
        debug_assert!(weight > 0);
        Ok(old)
    }

    /// Like [`Table::put`], but only where `admit` says so of what is there,
    /// both at one moment.
    pub(crate) fn put_if(
        &self,
        mut entry: Entry<V>,
        admit: impl FnOnce(Option<&Entry<V>>) -> bool,
        evicted: impl FnMut(Entry<V>),
    ) -> Result<bool, TooLarge> {
        self.reserve(entry.weight, evicted)?;
        let weight = entry.weight;
        entry.used_at = self
            .tick
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        let key_bytes = Arc::clone(&entry.key);
        let key = Key {
            bytes: &key_bytes,
            hash: entry.hash,
        };
        let mut part = self.part(entry.hash.place);
        if !admit(part.find_mut(key).map(|entry| &*entry)) {
            drop(part);
            self.reserved.fetch_sub(weight, Ordering::Relaxed);
            return Ok(false);
        }
        let old = part.put(entry);
        drop(part);
        match old {
            Some(old) => {
                self.reserved.fetch_sub(old.weight, Ordering::Relaxed);
            }
            None => {
                self.entries.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(true)
    }

    /// Takes an entry out.
    pub(crate) fn remove(&self, key: Key<'_>) -> Option<Entry<V>> {
        self.remove_if(key, |_| true)
    }

    /// Takes an entry out if `condition` holds of it.
    pub(crate) fn remove_if(
        &self,
        key: Key<'_>,
        condition: impl FnOnce(&Entry<V>) -> bool,
    ) -> Option<Entry<V>> {
        let taken = {
            let mut part = self.part(key.hash.place);
            match part.find_mut(key) {
                Some(entry) if condition(entry) => part.take(key),
                _ => None,
            }
        }?;
        self.released(taken.weight);
        Some(taken)
    }

    /// Takes out every entry of a slice that `condition` holds of.
    pub(crate) fn remove_slice(
        &self,
        slice: Slice,
        mut condition: impl FnMut(&Entry<V>) -> bool,
    ) -> Vec<Entry<V>> {
        let mut all = Vec::new();
        for index in parts_of(slice) {
            let taken = lock(&self.parts[index])
                .take_where(|entry| slice.contains(KeyPoint(entry.hash.place)) && condition(entry));
            for entry in taken {
                self.released(entry.weight);
                all.push(entry);
            }
        }
        all
    }

    /// Entries of a slice, in the order of their points, from the first behind
    /// `after`; those of one part at most, so that the lock is held briefly,
    /// and no more than `count_max`. Equal points are never torn apart. With
    /// it: the last point of which everything has been handed out.
    pub(crate) fn scan<R>(
        &self,
        slice: Slice,
        count_max: usize,
        pick: impl Fn(&Entry<V>) -> Option<R>,
    ) -> (Vec<R>, KeyPoint) {
        let index = part_of(slice.start().0);
        let part_last = last_of(index).min(slice.last().0);
        let here = Slice::spanning(slice.start(), KeyPoint(part_last));
        let part = lock(&self.parts[index]);
        let mut found: Vec<&Entry<V>> = part
            .entries()
            .filter(|entry| here.contains(KeyPoint(entry.hash.place)))
            .collect();
        let mut last = here.last();
        if found.len() > count_max {
            found.select_nth_unstable_by_key(count_max, |entry| entry.hash.place);
            // Everything at the last point comes along.
            let at = found[count_max].hash.place;
            last = KeyPoint(at);
            found.retain(|entry| entry.hash.place <= at);
        }
        found.sort_unstable_by_key(|entry| entry.hash.place);
        (found.into_iter().filter_map(pick).collect(), last)
    }

    /// Reserved bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// The most that it reserves.
    pub(crate) fn bound(&self) -> u64 {
        self.bound
    }

    /// Entries.
    pub(crate) fn len(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Reserved bytes of a slice. Points are spread evenly, so a large part
    /// that is cut counts by how much of it the slice has; a narrow cut (a hot
    /// key of its own) is counted out.
    pub(crate) fn bytes_in(&self, slice: Slice) -> u64 {
        parts_of(slice)
            .map(|index| {
                let whole = Slice::spanning(KeyPoint(first_of(index)), KeyPoint(last_of(index)));
                let part = lock(&self.parts[index]);
                let Some(cut) = whole.intersection(slice) else {
                    return 0;
                };
                if cut == whole {
                    return part.bytes;
                }
                let share = cut.width() as f64 / whole.width() as f64;
                if part.len() > COUNTED_OUT_MAX && share > SHARE_TRUSTED {
                    return (part.bytes as f64 * share) as u64;
                }
                part.entries()
                    .filter(|entry| cut.contains(KeyPoint(entry.hash.place)))
                    .map(|entry| entry.weight)
                    .sum()
            })
            .sum()
    }

    fn released(&self, weight: u64) {
        self.reserved.fetch_sub(weight, Ordering::Relaxed);
        self.entries.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reserves bytes, evicting until they fit.
    fn reserve(&self, weight: u64, mut evicted: impl FnMut(Entry<V>)) -> Result<(), TooLarge> {
        if weight > self.bound {
            return Err(TooLarge {
                weight,
                bound: self.bound,
            });
        }
        loop {
            let reserved = self.reserved.load(Ordering::Relaxed);
            if reserved + weight <= self.bound {
                let swap = self.reserved.compare_exchange_weak(
                    reserved,
                    reserved + weight,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                if swap.is_ok() {
                    return Ok(());
                }
                continue;
            }
            match self.evict() {
                Some(entry) => evicted(entry),
                None => {
                    // All that is reserved is on its way in, by others.
                    self.reserved.fetch_add(weight, Ordering::Relaxed);
                    return Ok(());
                }
            }
        }
    }

    /// Evicts until the bound holds again, after values have grown in place.
    pub(crate) fn trim(&self, mut evicted: impl FnMut(Entry<V>)) {
        while self.bytes() > self.bound {
            match self.evict() {
                Some(entry) => evicted(entry),
                None => return,
            }
        }
    }

    fn evict(&self) -> Option<Entry<V>> {
        let taken = evict::one(&self.parts, &self.dice, self.tick.load(Ordering::Relaxed))?;
        self.released(taken.weight);
        Some(taken)
    }
}

/// Entries up to which a cut part is counted out.
const COUNTED_OUT_MAX: usize = 4096;
/// Part of a part above which evenly spread points are trusted.
const SHARE_TRUSTED: f64 = 1.0 / 16.0;

fn lock<V>(part: &Mutex<Part<V>>) -> MutexGuard<'_, Part<V>> {
    // A panic under the lock comes from a closure of the application, which
    // leaves the part itself whole (see `Table::change`).
    part.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

const fn part_of(point: u64) -> usize {
    (point >> (64 - PART_BITS)) as usize
}

const fn first_of(part: usize) -> u64 {
    (part as u64) << (64 - PART_BITS)
}

const fn last_of(part: usize) -> u64 {
    first_of(part) | (u64::MAX >> PART_BITS)
}

fn parts_of(slice: Slice) -> std::ops::RangeInclusive<usize> {
    part_of(slice.start().0)..=part_of(slice.last().0)
}

#[cfg(test)]
mod tests;
