//! Which places of a partition were changed since somebody asked: for whoever copies it
//! while it goes on.

use std::ops::Range;

use crate::list::Position;
use trefoil_layout::KeyHash;

/// A partition's places are told apart in so many ranges: 8 KiB while they are watched.
const RANGE_BITS: u32 = 16;
const RANGE_COUNT: usize = 1 << RANGE_BITS;
/// Bits of a place below its range's number.
const INNER_BITS: u32 = Position::PLACE_BITS - RANGE_BITS;
/// Places of a range that are told apart from others by [`crate::Store::take_changes`].
pub const CHANGED_UNIT: u64 = 1 << INNER_BITS;

/// A bit for each range of places.
pub(crate) struct Changed {
    words: Box<[u64]>,
}

impl Changed {
    /// Nothing has changed.
    pub(crate) fn new() -> Self {
        Changed {
            words: vec![0; RANGE_COUNT / 64].into_boxed_slice(),
        }
    }

    /// Something was done to a key.
    pub(crate) fn note(&mut self, hash: KeyHash) {
        let range = (Position::place_of(hash) >> INNER_BITS) as usize;
        self.words[range / 64] |= 1 << (range % 64);
    }

    /// Adds what `other` knows.
    pub(crate) fn merge(&mut self, other: &Changed) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// The places that have changed, in order; neighbours together.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (number, &word) in self.words.iter().enumerate() {
            // Most words are empty, and whoever asks may hold everybody up.
            let mut left = word;
            while left != 0 {
                let range = number as u64 * 64 + u64::from(left.trailing_zeros());
                left &= left - 1;
                let begin = range << INNER_BITS;
                let end = begin + (1 << INNER_BITS);
                match ranges.last_mut() {
                    Some(last) if last.end == begin => last.end = end,
                    _ => ranges.push(begin..end),
                }
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_lies_in_the_ranges_and_little_else() {
        let mut changed = Changed::new();
        assert!(changed.ranges().is_empty());
        let hash = |place: u64| KeyHash {
            place: place << (64 - Position::PLACE_BITS),
            tag: 1,
        };
        let places = [
            0,
            5,
            1 << INNER_BITS,
            7 << INNER_BITS,
            (1 << Position::PLACE_BITS) - 1,
        ];
        for place in places {
            changed.note(hash(place));
        }
        let mut other = Changed::new();
        other.note(hash(3 << INNER_BITS));
        changed.merge(&other);
        let range = |from: u64, until: u64| from << INNER_BITS..until << INNER_BITS;
        let last = RANGE_COUNT as u64;
        assert_eq!(
            changed.ranges(),
            [range(0, 2), range(3, 4), range(7, 8), range(last - 1, last)]
        );
    }
}
