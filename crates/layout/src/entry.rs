//! The index entry: what a bucket holds of each key.
//!
//! | offset | bytes | field | why |
//! |---|---|---|---|
//! | 0 | 8 | tag | recognises the key; 0 means an empty slot; published last, cleared first |
//! | 8 | 8 | version time | |
//! | 16 | 8 | version origin | |
//! | 24 | 8 | pointer | offset 41 bits, length 22 bits (both in granules), 1 bit spare and zero |
//!
//! 32 bytes, aligned, so that an entry never straddles a cache line.

use crate::limits::{GRANULE, POINTER_LEN_BITS, POINTER_OFFSET_BITS};
use crate::version::Version;

/// Bytes of an index entry.
pub const ENTRY_LEN: usize = 32;
/// Words of an index entry.
pub const ENTRY_WORDS: usize = ENTRY_LEN / 8;
pub(crate) const TAG: usize = 0;
pub(crate) const TIME: usize = 1;
pub(crate) const ORIGIN: usize = 2;
pub(crate) const POINTER: usize = 3;

const _: () = {
    assert!(64 % ENTRY_LEN == 0);
    assert!(POINTER + 1 == ENTRY_WORDS);
    assert!(POINTER_OFFSET_BITS + POINTER_LEN_BITS <= 64);
};

/// Where a data entry lies in its backend's data region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pointer(pub u64);

impl Pointer {
    /// A pointer to `len` bytes at `offset`; the length is rounded up to
    /// granules. `None` when either does not fit or the offset is not aligned.
    pub const fn new(offset: u64, len: usize) -> Option<Self> {
        let granules = len.div_ceil(GRANULE) as u64;
        let at = offset / GRANULE as u64;
        if !offset.is_multiple_of(GRANULE as u64)
            || granules == 0
            || granules >= 1 << POINTER_LEN_BITS
            || at >= 1 << POINTER_OFFSET_BITS
        {
            return None;
        }
        Some(Pointer(at | granules << POINTER_OFFSET_BITS))
    }

    /// Byte offset in the data region.
    #[inline]
    pub const fn offset(self) -> u64 {
        (self.0 & ((1 << POINTER_OFFSET_BITS) - 1)) * GRANULE as u64
    }

    /// Length in bytes, whole granules.
    #[inline]
    pub const fn len(self) -> usize {
        ((self.0 >> POINTER_OFFSET_BITS) & ((1 << POINTER_LEN_BITS) - 1)) as usize * GRANULE
    }

    /// Whether it points at nothing.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// One key in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IndexEntry {
    /// See [`crate::hash::KeyHash::tag`].
    pub tag: u64,
    /// The mutation that wrote it.
    pub version: Version,
    /// Where its data entry lies.
    pub pointer: Pointer,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointer_round_trips_and_refuses_what_does_not_fit() {
        let pointer = Pointer::new(0x1ff_ffff_ffff * 8, 17).unwrap();
        assert_eq!((pointer.offset(), pointer.len()), (0x1ff_ffff_ffff * 8, 24));
        assert_eq!(Pointer::new(4, 16), None);
        assert_eq!(Pointer::new(0, 0), None);
        assert_eq!(Pointer::new(1 << 44, 16), None);
        assert_eq!(Pointer::new(0, 1 << 25), None);
    }
}
