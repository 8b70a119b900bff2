//! Classes of items by their size, in which statistics are told: memcached's
//! slab classes with its default options, by its numbers, because people and
//! agents know those.
//!
//! An item is put into a class by the length of its data entry in memory, which
//! everybody who counts has at hand. memcached adds up key, value and a head of
//! its own; entries are whole granules, so the two sums differ by up to half a
//! granule, and an item at a class's edge may be counted in the class beside it.

use crate::data::{DATA_HEADER_LEN, encoded_len};
use crate::limits::GRANULE;

/// Classes are numbered from 1 to this.
pub const SIZE_CLASS_MAX: usize = 39;
/// Bytes of the pages that memcached cuts into chunks.
pub const CLASS_PAGE_LEN: u64 = 1 << 20;

/// Longest item of the first class.
const FIRST_LEN: usize = 96;
/// Longest item of the last one that is kept in one piece.
const LAST_LEN: usize = 512 << 10;
/// Lengths are rounded up to this, then grow by [`GROWTH`].
const ALIGNMENT: usize = 8;
/// Numerator and denominator.
const GROWTH: (usize, usize) = (5, 4);
/// What an item takes there beyond key and value: its head, its CAS unique, the
/// ends of key and value.
const HEAD_LEN: usize = 48 + 8 + 1 + 2;

/// Longest item by class; class 0 is none.
const LENS: [u32; SIZE_CLASS_MAX + 1] = {
    let mut lens = [0; SIZE_CLASS_MAX + 1];
    let mut class = 1;
    let mut len = FIRST_LEN;
    while len * GROWTH.0 < LAST_LEN * GROWTH.1 {
        len = len.next_multiple_of(ALIGNMENT);
        lens[class] = len as u32;
        len = len * GROWTH.0 / GROWTH.1;
        class += 1;
    }
    assert!(class == SIZE_CLASS_MAX);
    lens[class] = LAST_LEN as u32;
    lens
};

/// Entries up to so many granules are looked up in a table.
const TABLE_LEN: usize = 2048;

/// Class by an entry's length in granules.
static TABLE: [u8; TABLE_LEN] = {
    let mut table = [0; TABLE_LEN];
    let mut granules = 0;
    while granules < TABLE_LEN {
        table[granules] = search(granules * GRANULE) as u8;
        granules += 1;
    }
    table
};

/// The class of an entry of `len` bytes, a whole number of granules.
const fn search(len: usize) -> usize {
    let item_len = len + HEAD_LEN - DATA_HEADER_LEN - (GRANULE / 2 - 1);
    let (mut low, mut high) = (1, SIZE_CLASS_MAX);
    while low < high {
        let middle = (low + high) / 2;
        if LENS[middle] as usize >= item_len {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// The class of a data entry of `len` bytes.
#[inline]
pub fn of_entry(len: usize) -> usize {
    let granules = len.div_ceil(GRANULE);
    match TABLE.get(granules) {
        Some(class) => usize::from(*class),
        None => search(granules * GRANULE),
    }
}

/// The class of an item with a key and a value of these lengths.
#[inline]
pub fn of_item(key_len: usize, value_len: usize) -> usize {
    of_entry(encoded_len(key_len, value_len))
}

/// Bytes that memcached takes for each item of a class.
pub fn chunk_len(class: usize) -> u64 {
    u64::from(LENS[class])
}

/// What is counted of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCount {
    /// Items resident.
    pub items: u64,
    /// Bytes of their data entries.
    pub entry_bytes: u64,
    /// Items evicted so far, for whatever room.
    pub evicted: u64,
    /// Items removed or replaced after their time.
    pub expired: u64,
    /// Mutations refused for lack of memory.
    pub no_memory: u64,
}

/// The same for every class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassCounts([ClassCount; SIZE_CLASS_MAX + 1]);

impl Default for ClassCounts {
    fn default() -> Self {
        ClassCounts([ClassCount::default(); SIZE_CLASS_MAX + 1])
    }
}

impl ClassCounts {
    /// The counts of the class of data entries of `len` bytes.
    #[inline]
    pub fn of_entry_mut(&mut self, len: usize) -> &mut ClassCount {
        &mut self.0[of_entry(len)]
    }

    /// An item whose entry has `len` bytes came.
    #[inline]
    pub fn came(&mut self, len: usize) {
        let count = self.of_entry_mut(len);
        count.items += 1;
        count.entry_bytes += len as u64;
    }

    /// An item whose entry had `len` bytes is gone.
    #[inline]
    pub fn went(&mut self, len: usize) {
        let count = self.of_entry_mut(len);
        count.items -= 1;
        count.entry_bytes -= len as u64;
    }

    /// Class and counts, from 1 on.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &ClassCount)> {
        self.0.iter().enumerate().skip(1)
    }

    /// All counts.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut ClassCount> {
        self.0.iter_mut()
    }

    /// The counts of a class; `None` unless it is from 1 to [`SIZE_CLASS_MAX`].
    pub fn get_mut(&mut self, class: usize) -> Option<&mut ClassCount> {
        self.0.get_mut(class).filter(|_| class != 0)
    }

    /// Changes each count by the other's of the same class.
    pub fn zip(
        &mut self,
        other: &ClassCounts,
        mut change: impl FnMut(&mut ClassCount, &ClassCount),
    ) {
        for (count, other) in self.0.iter_mut().zip(&other.0) {
            change(count, other);
        }
    }

    /// Adds the counts of others.
    pub fn add(&mut self, other: &ClassCounts) {
        self.zip(other, |sum, more| {
            sum.items += more.items;
            sum.entry_bytes += more.entry_bytes;
            sum.evicted += more.evicted;
            sum.expired += more.expired;
            sum.no_memory += more.no_memory;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_memcacheds() {
        // As `memcached -vv` prints them.
        let first = [96, 120, 152, 192, 240, 304, 384, 480, 600, 752, 944, 1184];
        assert_eq!(LENS[1..=first.len()], first);
        let last = [202_152, 252_696, 315_872, 394_840, 524_288];
        assert_eq!(LENS[SIZE_CLASS_MAX + 1 - last.len()..], last);
        assert_eq!((chunk_len(1), chunk_len(31)), (96, 82_792));
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many lengths for an interpreter")]
    fn an_item_is_in_the_class_that_memcached_would_put_it_in_or_beside() {
        assert_eq!(of_item(3, 5), 1);
        assert_eq!(of_item(3, 66_560), 31);
        assert_eq!(of_item(3, 66_570), 31);
        assert_eq!(of_item(1, 1 << 20), SIZE_CLASS_MAX);
        for value_len in (0..100_000).chain([500_000, 600_000, 1 << 21]) {
            let len = 10 + value_len + HEAD_LEN;
            let exact = LENS.iter().skip(1).position(|max| *max as usize >= len);
            let exact = exact.map_or(SIZE_CLASS_MAX, |at| at + 1);
            let class = of_item(10, value_len);
            let near_edge = LENS
                .iter()
                .any(|edge| len.abs_diff(*edge as usize) <= GRANULE / 2);
            assert!(
                class == exact || (near_edge && class.abs_diff(exact) == 1),
                "{value_len}: {class}, exactly {exact}"
            );
        }
    }

    #[test]
    fn what_came_and_went_leaves_nothing() {
        let mut counts = ClassCounts::default();
        counts.came(48);
        counts.came(70_000);
        counts.of_entry_mut(48).evicted += 1;
        let mut sum = counts;
        sum.add(&counts);
        counts.went(48);
        counts.went(70_000);
        assert!(
            counts
                .iter()
                .all(|(_, count)| count.items == 0 && count.entry_bytes == 0)
        );
        let used: Vec<usize> = sum
            .iter()
            .filter(|(_, count)| count.items > 0)
            .map(|(class, _)| class)
            .collect();
        assert_eq!(used, [1, 31]);
        assert_eq!(
            sum.get_mut(1).map(|count| (count.items, count.evicted)),
            Some((2, 2))
        );
        assert_eq!(sum.get_mut(0), None);
        assert_eq!(sum.get_mut(SIZE_CLASS_MAX + 1), None);
    }
}
