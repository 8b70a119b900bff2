//! A frame: the requests of one group commit, in one run of blocks.
//!
//! | word | field | why |
//! |---|---|---|
//! | 0 | magic | |
//! | 1 | checksum | of all that follows, seeded by the file's salt |
//! | 2 | epoch | in which life it was written |
//! | 3 | number | frames are counted from 1 on; one of an earlier lap has a lower number |
//! | 4 | first position | that of the first request; the others follow without gaps |
//! | 5 | record count | |
//! | 6 | length | bytes of the frame, this head included |
//! | 7 | records | one behind the other |
//!
//! A record: client id, request id, length of the payload in bytes (low half) and flags
//! (high half; 1: nilext), payload padded with zeros to whole words.

use crate::disk::{BLOCK_LEN, Blocks, set_word, word};
use crate::mutants::{self, Mutant};
use twox_hash::XxHash3_64;

/// "TFQFRAME", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TFQFRAME");
/// Blocks of the longest frame.
pub const FRAME_BLOCKS_MAX: usize = 64;
/// Bytes of the longest frame.
pub const FRAME_LEN_MAX: usize = FRAME_BLOCKS_MAX * BLOCK_LEN;

const WORD_MAGIC: usize = 0;
const WORD_CHECKSUM: usize = 1;
const WORD_EPOCH: usize = 2;
const WORD_NUMBER: usize = 3;
const WORD_POSITION: usize = 4;
const WORD_RECORD_COUNT: usize = 5;
const WORD_LENGTH: usize = 6;
/// Bytes of the head.
pub const HEAD_LEN: usize = 7 * 8;
const SUMMED: usize = WORD_EPOCH * 8;

/// Bytes of a record before its payload.
pub const RECORD_HEAD_LEN: usize = 3 * 8;
/// Longest payload, in bytes: one always fits into a frame.
pub const PAYLOAD_LEN_MAX: usize = 64 << 10;
const FLAG_NILEXT: u64 = 1 << 32;
const _: () = assert!(HEAD_LEN + RECORD_HEAD_LEN + PAYLOAD_LEN_MAX <= FRAME_LEN_MAX);

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its place in the order of the queue, over all lives.
    pub position: u64,
    /// Who sent it, in the life in which it was committed.
    pub client_id: u64,
    /// The client's name for it.
    pub request_id: u64,
    /// Whether its client went on without an answer.
    pub nilext: bool,
    /// The client's bytes.
    pub payload: &'a [u8],
}

/// What the head of a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// In which life it was written.
    pub epoch: u64,
    /// Which frame.
    pub number: u64,
    /// Position of its first request.
    pub position: u64,
    /// Requests in it.
    pub record_count: u64,
    /// Bytes.
    pub len: usize,
}

impl Head {
    /// What stands at the beginning of a block, if that may be a frame.
    pub fn decode(block: &[u8]) -> Option<Head> {
        let len = usize::try_from(word(block, WORD_LENGTH)).ok()?;
        let is_head = word(block, WORD_MAGIC) == MAGIC;
        (is_head && (HEAD_LEN..=FRAME_LEN_MAX).contains(&len)).then(|| Head {
            epoch: word(block, WORD_EPOCH),
            number: word(block, WORD_NUMBER),
            position: word(block, WORD_POSITION),
            record_count: word(block, WORD_RECORD_COUNT),
            len,
        })
    }

    /// Blocks of the frame.
    pub fn block_count(&self) -> usize {
        self.len.div_ceil(BLOCK_LEN)
    }

    /// The position behind its last request.
    pub fn end(&self) -> u64 {
        self.position.saturating_add(self.record_count)
    }
}

/// Bytes that a request takes.
pub fn record_len(payload_len: usize) -> usize {
    RECORD_HEAD_LEN + payload_len.next_multiple_of(8)
}

/// A frame that requests are gathered in.
#[derive(Debug)]
pub struct Frame {
    blocks: Blocks,
    len: usize,
    record_count: u64,
}

impl Default for Frame {
    fn default() -> Self {
        Frame {
            blocks: Blocks::new(FRAME_BLOCKS_MAX),
            len: HEAD_LEN,
            record_count: 0,
        }
    }
}

impl Frame {
    /// Requests in it.
    pub fn record_count(&self) -> u64 {
        self.record_count
    }

    /// Blocks that it takes.
    pub fn block_count(&self) -> usize {
        self.len.div_ceil(BLOCK_LEN)
    }

    /// Blocks that it takes once a request of so many bytes is added.
    pub fn block_count_with(&self, payload_len: usize) -> usize {
        (self.len + record_len(payload_len)).div_ceil(BLOCK_LEN)
    }

    /// Adds a request that fits.
    pub fn push(&mut self, client_id: u64, request_id: u64, nilext: bool, payload: &[u8]) {
        let len = record_len(payload.len());
        let record = &mut self.blocks.bytes_mut()[self.len..][..len];
        let flags = if nilext { FLAG_NILEXT } else { 0 };
        set_word(record, 0, client_id);
        set_word(record, 1, request_id);
        set_word(record, 2, payload.len() as u64 | flags);
        let (bytes, padding) = record[RECORD_HEAD_LEN..].split_at_mut(payload.len());
        bytes.copy_from_slice(payload);
        padding.fill(0);
        self.len += len;
        self.record_count += 1;
    }

    /// Completes the frame; whole blocks of it.
    pub fn seal(&mut self, salt: u64, epoch: u64, number: u64, position: u64) -> &[u8] {
        let (len, record_count) = (self.len, self.record_count);
        let whole = len.next_multiple_of(BLOCK_LEN);
        let bytes = &mut self.blocks.bytes_mut()[..whole];
        bytes[len..].fill(0);
        set_word(bytes, WORD_MAGIC, MAGIC);
        set_word(bytes, WORD_EPOCH, epoch);
        set_word(bytes, WORD_NUMBER, number);
        set_word(bytes, WORD_POSITION, position);
        set_word(bytes, WORD_RECORD_COUNT, record_count);
        set_word(bytes, WORD_LENGTH, len as u64);
        let sum = XxHash3_64::oneshot_with_seed(salt, &bytes[SUMMED..len]);
        set_word(bytes, WORD_CHECKSUM, sum);
        bytes
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = HEAD_LEN;
        self.record_count = 0;
    }
}

/// Whether these bytes are the whole frame that their head speaks of.
pub fn is_whole(bytes: &[u8], salt: u64) -> bool {
    let Some(head) = Head::decode(bytes) else {
        return false;
    };
    let Some(summed) = bytes.get(SUMMED..head.len) else {
        return false;
    };
    let is_sum = XxHash3_64::oneshot_with_seed(salt, summed) == word(bytes, WORD_CHECKSUM);
    (is_sum || mutants::is(Mutant::SumIgnored))
        && records(bytes).count() as u64 == head.record_count
}

/// The requests of a frame, up to the first that does not fit its length.
pub fn records(bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let head = Head::decode(bytes);
    let mut rest = head.and_then(|head| bytes.get(HEAD_LEN..head.len));
    let mut position = head.map_or(0, |head| head.position);
    std::iter::from_fn(move || {
        let bytes = rest?;
        if bytes.len() < RECORD_HEAD_LEN {
            return None;
        }
        let (len, flags) = (
            word(bytes, 2) & u64::from(u32::MAX),
            word(bytes, 2) >> 32 << 32,
        );
        let len = usize::try_from(len).ok()?;
        let payload = bytes[RECORD_HEAD_LEN..].get(..len)?;
        let record = Record {
            position,
            client_id: word(bytes, 0),
            request_id: word(bytes, 1),
            nilext: flags & FLAG_NILEXT != 0,
            payload,
        };
        position = position.checked_add(1)?;
        rest = bytes.get(record_len(len)..);
        Some(record)
    })
}
