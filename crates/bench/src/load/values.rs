//! Values that say whose they are and how new, so that a reader can tell a hit
//! from a wrong or stale one.
//!
//! ```text
//! len ≥ 24 : key 8 | sequence 8 | filler … | seal 8   (seal binds key, sequence, length)
//! len ≥ 16 : key 8 | sequence 8 | filler …
//! len ≥  8 : low 32 bits of key | low 32 bits of sequence | filler …
//! shorter  : filler; cannot be verified
//! ```
//!
//! Invariant: each key has one writer per run, whose sequence only rises. Two
//! writers of one key would make "older" undefined while their writes overlap.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::mix64;

/// What a value turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The key's own, and no older than it may be.
    Fresh,
    /// The key's own, but older than a write acknowledged before the lookup.
    Stale,
    /// Another key's, torn, or of a wrong length.
    Wrong,
    /// Too short to carry proof.
    Unverifiable,
}

/// Composes values in one reused buffer.
#[derive(Debug, Clone)]
pub struct ValueWriter {
    buffer: Vec<u8>,
}

impl ValueWriter {
    /// For values of up to `value_len_max` bytes. The filler is incompressible:
    /// a system that compresses gains nothing it would not gain in earnest.
    pub fn new(value_len_max: usize) -> Self {
        let filler = (0..value_len_max.div_ceil(8) as u64).flat_map(|i| mix64(i).to_le_bytes());
        Self {
            buffer: filler.take(value_len_max).collect(),
        }
    }

    /// The value of `key` at `sequence`; longer ones than promised to
    /// [`new`](Self::new) grow the buffer.
    pub fn compose(&mut self, key: u64, sequence: u64, value_len: usize) -> &[u8] {
        if value_len > self.buffer.len() {
            *self = Self::new(value_len);
        }
        let value = &mut self.buffer[..value_len];
        if value_len >= 16 {
            value[..8].copy_from_slice(&key.to_le_bytes());
            value[8..16].copy_from_slice(&sequence.to_le_bytes());
        } else if value_len >= 8 {
            value[..4].copy_from_slice(&(key as u32).to_le_bytes());
            value[4..8].copy_from_slice(&(sequence as u32).to_le_bytes());
        }
        if value_len >= 24 {
            value[value_len - 8..].copy_from_slice(&seal(key, sequence, value_len).to_le_bytes());
        }
        value
    }
}

fn seal(key: u64, sequence: u64, value_len: usize) -> u64 {
    mix64(mix64(key) ^ sequence ^ (value_len as u64) << 40)
}

/// Judges a hit on `key`, of which `acked` (0: none) was acknowledged before the
/// lookup began.
pub fn verify(value: &[u8], key: u64, acked: u64) -> Verdict {
    let word = |at: usize| {
        value
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    };
    if value.len() >= 16 {
        let sequence = word(8);
        if word(0) != key
            || value.len() >= 24 && word(value.len() - 8) != seal(key, sequence, value.len())
        {
            Verdict::Wrong
        } else if sequence < acked {
            Verdict::Stale
        } else {
            Verdict::Fresh
        }
    } else if value.len() >= 8 {
        let behind = (acked as u32).wrapping_sub((word(0) >> 32) as u32) as i32;
        if word(0) as u32 != key as u32 {
            Verdict::Wrong
        } else if acked != 0 && behind > 0 {
            Verdict::Stale
        } else {
            Verdict::Fresh
        }
    } else {
        Verdict::Unverifiable
    }
}

/// The newest sequence acknowledged for each key, shared by a run's threads.
#[derive(Debug)]
pub struct AckTable {
    acked: Box<[AtomicU64]>,
}

impl AckTable {
    /// Nothing acknowledged yet for any of `keys_count` keys.
    pub fn new(keys_count: u64) -> Self {
        Self {
            acked: (0..keys_count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// `sequence` has been acknowledged. Keys beyond the table are not tracked.
    #[inline]
    pub fn acknowledge(&self, key: u64, sequence: u64) {
        if let Some(acked) = self.acked.get(key as usize) {
            acked.fetch_max(sequence, AcqRel);
        }
    }

    /// What had been acknowledged for `key` by now; 0 is nothing. Read it before
    /// the lookup begins.
    #[inline]
    pub fn acked(&self, key: u64) -> u64 {
        self.acked
            .get(key as usize)
            .map_or(0, |acked| acked.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_prove_their_key_and_age() {
        let mut writer = ValueWriter::new(8);
        for value_len in [8, 15, 16, 23, 24, 100, 5000] {
            let value = writer.compose(7, 1 << 33 | 50, value_len).to_vec();
            assert_eq!(value.len(), value_len);
            let acked = 1u64 << 33;
            assert_eq!(verify(&value, 7, 0), Verdict::Fresh);
            assert_eq!(verify(&value, 7, acked | 50), Verdict::Fresh);
            assert_eq!(verify(&value, 7, acked | 51), Verdict::Stale);
            assert_eq!(verify(&value, 8, 0), Verdict::Wrong);
        }
        assert_eq!(verify(&[1; 7], 7, 9), Verdict::Unverifiable);
        assert_eq!(verify(&[], 7, 9), Verdict::Unverifiable);
    }

    #[test]
    fn torn_and_truncated_values_are_wrong() {
        let mut writer = ValueWriter::new(100);
        let old = writer.compose(7, 1, 100).to_vec();
        let new = writer.compose(7, 2, 100).to_vec();
        let torn = [&old[..50], &new[50..]].concat();
        assert_eq!(verify(&torn, 7, 0), Verdict::Wrong);
        assert_eq!(verify(&new[..99], 7, 0), Verdict::Wrong);
    }

    #[test]
    fn acknowledgements_never_fall() {
        let table = AckTable::new(3);
        assert_eq!(table.acked(1), 0);
        table.acknowledge(1, 9);
        table.acknowledge(1, 4);
        table.acknowledge(99, 4);
        assert_eq!((table.acked(1), table.acked(2), table.acked(99)), (9, 0, 0));
    }
}
