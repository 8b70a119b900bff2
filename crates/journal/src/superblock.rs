//! The first two blocks of a journal: two copies of one superblock, written in turn.
//!
//! | word | field | why |
//! |---|---|---|
//! | 0 | magic | |
//! | 1 | version | of all of the journal's bytes |
//! | 2 | queue | whose journal it is |
//! | 3 | salt | a random number of this file: seeds every checksum, so that no client can make bytes that look like a frame, and no frame of another file is taken for one |
//! | 4 | block count | of the ring |
//! | 5 | generation | the higher one of two whole copies holds; odd and even ones stand in different copies |
//! | 6 | epoch | which life of the queue: one more at each opening |
//! | 7 | tail block | where the oldest frame stands that is kept |
//! | 8 | tail number | its number |
//! | 9 | tail position | the position of its first request |
//! | 10 | checksum | of the words before |

use crate::disk::{BLOCK_LEN, set_word, word};
use twox_hash::XxHash3_64;

/// "TFQJRNL1", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TFQJRNL1");
/// Of the bytes described here and in [`crate::frame`].
pub const VERSION: u64 = 1;
/// Copies, and blocks before the ring.
pub const COPIES: u64 = 2;

const WORD_MAGIC: usize = 0;
const WORD_VERSION: usize = 1;
const WORD_QUEUE: usize = 2;
const WORD_SALT: usize = 3;
const WORD_BLOCK_COUNT: usize = 4;
const WORD_GENERATION: usize = 5;
const WORD_EPOCH: usize = 6;
const WORD_TAIL_BLOCK: usize = 7;
const WORD_TAIL_NUMBER: usize = 8;
const WORD_TAIL_POSITION: usize = 9;
const WORD_CHECKSUM: usize = 10;
const _: () = assert!((WORD_CHECKSUM + 1) * 8 <= 512, "within one sector");

/// What a superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Whose journal it is.
    pub queue: u64,
    /// Seeds checksums.
    pub salt: u64,
    /// Blocks of the ring.
    pub block_count: u64,
    /// How often a superblock was written.
    pub generation: u64,
    /// Which life of the queue.
    pub epoch: u64,
    /// Block of the oldest frame kept, counted within the ring.
    pub tail_block: u64,
    /// Its number.
    pub tail_number: u64,
    /// Position of its first request.
    pub tail_position: u64,
}

/// What stands in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// A whole superblock of this version.
    Whole(Superblock),
    /// One of another version.
    Version(u64),
    /// One that was torn.
    Torn,
    /// Something else.
    Foreign,
}

impl Superblock {
    /// Which copy this generation stands in.
    pub fn copy(&self) -> u64 {
        self.generation % COPIES
    }

    /// Writes it into a zeroed block.
    pub fn encode(&self, into: &mut [u8]) {
        set_word(into, WORD_MAGIC, MAGIC);
        set_word(into, WORD_VERSION, VERSION);
        set_word(into, WORD_QUEUE, self.queue);
        set_word(into, WORD_SALT, self.salt);
        set_word(into, WORD_BLOCK_COUNT, self.block_count);
        set_word(into, WORD_GENERATION, self.generation);
        set_word(into, WORD_EPOCH, self.epoch);
        set_word(into, WORD_TAIL_BLOCK, self.tail_block);
        set_word(into, WORD_TAIL_NUMBER, self.tail_number);
        set_word(into, WORD_TAIL_POSITION, self.tail_position);
        let sum = XxHash3_64::oneshot_with_seed(self.salt, &into[..WORD_CHECKSUM * 8]);
        set_word(into, WORD_CHECKSUM, sum);
    }

    /// What a block holds.
    pub fn decode(block: &[u8]) -> Copy {
        assert!(block.len() >= BLOCK_LEN);
        if word(block, WORD_MAGIC) != MAGIC {
            return Copy::Foreign;
        }
        let version = word(block, WORD_VERSION);
        if version != VERSION {
            return Copy::Version(version);
        }
        let salt = word(block, WORD_SALT);
        let sum = XxHash3_64::oneshot_with_seed(salt, &block[..WORD_CHECKSUM * 8]);
        let found = Superblock {
            queue: word(block, WORD_QUEUE),
            salt,
            block_count: word(block, WORD_BLOCK_COUNT),
            generation: word(block, WORD_GENERATION),
            epoch: word(block, WORD_EPOCH),
            tail_block: word(block, WORD_TAIL_BLOCK),
            tail_number: word(block, WORD_TAIL_NUMBER),
            tail_position: word(block, WORD_TAIL_POSITION),
        };
        match sum == word(block, WORD_CHECKSUM) && found.tail_block <= found.block_count {
            true => Copy::Whole(found),
            false => Copy::Torn,
        }
    }
}
