//! Values that say who wrote them.
//!
//! ```text
//! value   : key 4 | writer 4 | sequence 4 | length 4 | filler … | checksum 8
//! counter : decimal, origin × 1,000,000,000 + count; origin = writer × 2^22 + sequence
//! ```
//!
//! The filler differs from write to write, and the checksum covers all before
//! it: a value put together from two is told apart.

use crate::event::Mark;
use twox_hash::XxHash3_64;

const HEAD_LEN: usize = 16;
const CHECKSUM_LEN: usize = 8;
/// The shortest value that carries a mark.
pub const MARKED_LEN_MIN: usize = HEAD_LEN + CHECKSUM_LEN;
/// Fillers begin anywhere in this many bytes.
const FILLER_LEN: usize = 1 << 20;
/// A counter's values lie this far from those of another origin.
const COUNTS: u64 = 1_000_000_000;
const SEQUENCE_BITS: u32 = 22;
/// Writers that a counter's value can name.
const WRITERS_MAX: u64 = 1 << 12;

// The largest counter fits memcached's 64 bits.
const _: () = assert!((WRITERS_MAX << SEQUENCE_BITS).checked_mul(COUNTS).is_some());

/// Composes values in one reused buffer.
#[derive(Debug)]
pub struct ValueMaker {
    filler: Vec<u8>,
    buffer: Vec<u8>,
}

impl Default for ValueMaker {
    fn default() -> Self {
        ValueMaker::new()
    }
}

impl ValueMaker {
    /// With an incompressible filler.
    pub fn new() -> Self {
        let words = (0..2 * FILLER_LEN as u64 / 8)
            .flat_map(|at| trefoil_bench::load::mix64(at).to_le_bytes());
        ValueMaker {
            filler: words.collect(),
            buffer: Vec::new(),
        }
    }

    /// The value of a write; at least [`MARKED_LEN_MIN`] bytes.
    pub fn value(&mut self, key: u32, mark: Mark, len: usize) -> &[u8] {
        let len = len.max(MARKED_LEN_MIN);
        self.buffer.clear();
        for word in [key, mark.writer, mark.sequence, len as u32] {
            self.buffer.extend_from_slice(&word.to_le_bytes());
        }
        let salt = u64::from(mark.writer) << 32 | u64::from(mark.sequence);
        let mut at = trefoil_bench::load::mix64(salt) as usize % FILLER_LEN;
        let mut left = len - MARKED_LEN_MIN;
        while left > 0 {
            let part = left.min(FILLER_LEN);
            self.buffer.extend_from_slice(&self.filler[at..at + part]);
            left -= part;
            at = 0;
        }
        let checksum = XxHash3_64::oneshot(&self.buffer);
        self.buffer.extend_from_slice(&checksum.to_le_bytes());
        &self.buffer
    }
}

/// What a value turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// One write's bytes.
    As(Mark),
    /// Torn, another key's, or of nobody at all.
    Corrupt,
}

/// Reads the mark of a value of `key`.
pub fn marked(key: u32, value: &[u8]) -> Marked {
    let word = |at: usize| {
        let bytes = value.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map(u32::from_le_bytes)
    };
    let body_len = value.len().saturating_sub(CHECKSUM_LEN);
    let (body, checksum) = value.split_at(body_len);
    let is_whole = value.len() >= MARKED_LEN_MIN
        && checksum == XxHash3_64::oneshot(body).to_le_bytes()
        && word(0) == Some(key)
        && word(12) == Some(value.len() as u32);
    match (word(4), word(8)) {
        (Some(writer), Some(sequence)) if is_whole => Marked::As(Mark::new(writer, sequence)),
        _ => Marked::Corrupt,
    }
}

/// A counter's first value.
pub(crate) fn counter_origin(mark: Mark) -> u64 {
    let writer = u64::from(mark.writer) % WRITERS_MAX;
    let sequence = u64::from(mark.sequence) % (1 << SEQUENCE_BITS);
    (writer << SEQUENCE_BITS | sequence) * COUNTS
}

/// Reads the mark of a counter.
pub(crate) fn counter_marked(value: &[u8]) -> Marked {
    let text = std::str::from_utf8(value).ok();
    // memcached pads what has become shorter with blanks.
    let number = text.and_then(|text| text.trim_end().parse::<u64>().ok());
    match number {
        Some(number) if number >= COUNTS => {
            let origin = number / COUNTS;
            Marked::As(Mark {
                writer: (origin >> SEQUENCE_BITS) as u32,
                sequence: (origin & ((1 << SEQUENCE_BITS) - 1)) as u32,
                count: (number % COUNTS) as u32,
            })
        }
        _ => Marked::Corrupt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_their_write_and_nothing_else_does() {
        let mut maker = ValueMaker::new();
        let mark = Mark::new(7, 9);
        for len in [0, MARKED_LEN_MIN, 100, 5_000, 300_000, 3 << 20] {
            let value = maker.value(3, mark, len).to_vec();
            assert_eq!(value.len(), len.max(MARKED_LEN_MIN));
            assert_eq!(marked(3, &value), Marked::As(mark));
            assert_eq!(marked(4, &value), Marked::Corrupt);
            assert_eq!(marked(3, &value[1..]), Marked::Corrupt);
            assert_eq!(marked(3, &value[..value.len() - 1]), Marked::Corrupt);
        }
        assert_eq!(marked(3, &[]), Marked::Corrupt);
    }

    #[test]
    fn values_torn_anywhere_are_corrupt() {
        let mut maker = ValueMaker::new();
        let one = maker.value(3, Mark::new(7, 9), 1_000).to_vec();
        let other = maker.value(3, Mark::new(7, 10), 1_000).to_vec();
        for at in [1, 9, 17, 500, 995] {
            let torn = [&one[..at], &other[at..]].concat();
            if torn != one && torn != other {
                assert_eq!(marked(3, &torn), Marked::Corrupt, "{at}");
            }
        }
    }

    #[test]
    fn counters_name_their_origin() {
        let mark = Mark::new(4_000, 4_000_000);
        let first = counter_origin(mark);
        assert_eq!(
            counter_marked(first.to_string().as_bytes()),
            Marked::As(mark)
        );
        assert_eq!(
            counter_marked(format!("{}  ", first + 17).as_bytes()),
            Marked::As(Mark { count: 17, ..mark })
        );
        assert_eq!(counter_marked(b"12"), Marked::Corrupt);
        assert_eq!(counter_marked(b"x"), Marked::Corrupt);
    }
}
