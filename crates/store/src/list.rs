//! Listing: a walk over all items in the order of their places, a page at a
//! time.
//!
//! A position is a partition and a threshold in the hash space of its buckets,
//! not a bucket number: what stays throughout is listed even if the index is
//! replaced by a larger or smaller one between two pages.

use crate::config::Now;
use crate::partition::StoredItem;
use crate::store::Store;
use trefoil_layout::KeyHash;

/// How far the listing of a shard has come: its partitions before `partition`
/// and, in it, places below `place` are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Number of a partition, within its shard: the same at all backends that
    /// hold the shard.
    pub partition: u8,
    /// The upper [`Position::PLACE_BITS`] bits of a key hash's place.
    pub place: u64,
}

impl Position {
    /// Bits of `place`.
    pub const PLACE_BITS: u32 = trefoil_layout::hash::LISTED_PLACE_BITS;

    /// Where a key stands among [`crate::PLACES`].
    pub const fn place_of(hash: KeyHash) -> u64 {
        hash.place >> (u64::BITS - Self::PLACE_BITS)
    }

    /// As one number, below 2^48; the beginning is 0.
    pub fn to_number(self) -> u64 {
        u64::from(self.partition) << Self::PLACE_BITS | self.place
    }

    /// The position with this number.
    pub fn from_number(number: u64) -> Self {
        Position {
            partition: (number >> Self::PLACE_BITS) as u8,
            place: number & ((1 << Self::PLACE_BITS) - 1),
        }
    }
}

/// An item of a listing.
#[derive(Debug)]
pub struct ListedItem<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The rest.
    pub item: StoredItem<'a>,
}

impl Store {
    /// Lists items of a shard from `from` on and before `until`, about `count` of them,
    /// each at least once; where to go on, `None` at the end. No partition is
    /// kept locked for longer than a page takes.
    pub fn list(
        &self,
        now: Now,
        shard: usize,
        (from, until): (Position, Option<Position>),
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Option<Position> {
        let mut position = from;
        let mut left = count.max(1);
        let mut key = Vec::new();
        let cells = self.cells(shard);
        while let Some(cell) = cells.get(usize::from(position.partition)) {
            if self.is_revoked() {
                return None;
            }
            let places = match until {
                Some(until) if position >= until => break,
                Some(until) if position.partition == until.partition => position.place..until.place,
                _ => position.place..1 << Position::PLACE_BITS,
            };
            let mut slot = cell.enter();
            let next = slot
                .live
                .list(&self.shared, now, places, &mut left, &mut key, each);
            drop(slot);
            position = match next {
                Some(place) => Position { place, ..position },
                None => Position {
                    partition: position.partition + 1,
                    place: 0,
                },
            };
            if left == 0 {
                break;
            }
        }
        let done = usize::from(position.partition) >= cells.len()
            || until.is_some_and(|until| position >= until);
        (!done).then_some(position)
    }
}
