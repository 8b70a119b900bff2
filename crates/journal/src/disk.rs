//! What a journal is written to: whole blocks, and a flush.

use std::io;

/// Bytes of a block: the unit of all reads and writes, and their alignment in memory.
pub const BLOCK_LEN: usize = 4096;

/// Blocks that survive a power cut once they were flushed. What was written and not flushed
/// may be there afterwards, or not, or in parts.
pub trait Disk {
    /// What to call it in errors.
    fn name(&self) -> String;
    /// Blocks of it.
    fn block_count(&mut self) -> io::Result<u64>;
    /// Reads whole blocks.
    fn read(&mut self, block: u64, into: &mut [u8]) -> io::Result<()>;
    /// Writes whole blocks.
    fn write(&mut self, block: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes persistent what was written before.
    fn flush(&mut self) -> io::Result<()>;
}

/// Bytes that begin at a multiple of [`BLOCK_LEN`] in memory, as transfers without the
/// system's cache need them. They are never moved.
#[derive(Debug)]
pub struct Blocks {
    bytes: Vec<u8>,
    first: usize,
    len: usize,
}

impl Blocks {
    /// So many zeroed blocks.
    pub fn new(count: usize) -> Self {
        let len = count * BLOCK_LEN;
        let bytes = vec![0; len + BLOCK_LEN];
        let first = bytes.as_ptr().align_offset(BLOCK_LEN);
        assert!(first < BLOCK_LEN, "a byte pointer can be aligned");
        Blocks { bytes, first, len }
    }

    /// All of them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.first..][..self.len]
    }

    /// All of them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.first..][..self.len]
    }
}

/// The word at this index.
pub(crate) fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..][..8]);
    u64::from_le_bytes(word)
}

/// Stores the word at this index.
pub(crate) fn set_word(bytes: &mut [u8], index: usize, value: u64) {
    bytes[index * 8..][..8].copy_from_slice(&value.to_le_bytes());
}
