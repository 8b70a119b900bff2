//! The journal's rules over a disk: group commit, room, recovery. The calling order:
//!
//! ```text
//! open ─► (push … push, commit) … ─► release ─► …
//! ```

use crate::disk::{BLOCK_LEN, Blocks, Disk};
use crate::error::JournalError;
use crate::frame::{self, FRAME_BLOCKS_MAX, Frame, Head, PAYLOAD_LEN_MAX, Record};
use crate::mutants::{self, Mutant};
use crate::superblock::{COPIES, Copy, Superblock, VERSION};
use std::collections::VecDeque;
use std::io;

/// Fewest blocks of a ring: two of the longest frames, so that one always fits when
/// everything was released.
pub const BLOCK_COUNT_MIN: u64 = 2 * FRAME_BLOCKS_MAX as u64;

/// A frame that stands in the ring and may still be needed.
#[derive(Clone, Copy, Debug)]
struct Held {
    block: u64,
    number: u64,
    /// Position of its first request.
    position: u64,
    /// The position behind its last request.
    end: u64,
}

/// A journal. One thread drives it.
#[derive(Debug)]
pub struct Log<D> {
    disk: D,
    name: String,
    superblock: Superblock,
    held: VecDeque<Held>,
    /// Where the next frame goes, if it fits there.
    head_block: u64,
    next_number: u64,
    /// The position of the first request of the next frame.
    next_position: u64,
    frame: Frame,
    scratch: Blocks,
    is_failed: bool,
}

impl<D: Disk> Log<D> {
    /// Makes a zeroed disk the empty journal of this queue. `salt` is to be random.
    pub fn format(disk: &mut D, queue: u64, salt: u64) -> Result<(), JournalError> {
        let name = disk.name();
        let blocks = disk.block_count().map_err(|e| io_error(&name, "read", e))?;
        let block_count = blocks.saturating_sub(COPIES);
        assert!(
            block_count >= BLOCK_COUNT_MIN,
            "{block_count} blocks are too few"
        );
        let mut superblock = Superblock {
            queue,
            salt,
            block_count,
            generation: 0,
            epoch: 0,
            tail_block: 0,
            tail_number: 1,
            tail_position: 1,
        };
        let mut block = Blocks::new(1);
        for generation in 0..COPIES {
            superblock.generation = generation;
            superblock.encode(block.bytes_mut());
            disk.write(superblock.copy(), block.bytes())
                .map_err(|e| io_error(&name, "write", e))?;
        }
        disk.flush().map_err(|e| io_error(&name, "flush", e))
    }

    /// Opens a journal behind a state that has executed everything up to position
    /// `executed` (0: nothing), and gives what it has not executed to `replay`, in order.
    /// The queue's next life begins.
    pub fn open(
        mut disk: D,
        queue: u64,
        executed: u64,
        mut replay: impl FnMut(Record<'_>),
    ) -> Result<Self, JournalError> {
        let name = disk.name();
        let superblock = read_superblock(&mut disk, &name, queue)?;
        let mut log = Log {
            disk,
            name,
            superblock,
            held: VecDeque::new(),
            head_block: superblock.tail_block,
            next_number: superblock.tail_number,
            next_position: superblock.tail_position,
            frame: Frame::default(),
            scratch: Blocks::new(FRAME_BLOCKS_MAX),
            is_failed: false,
        };
        log.scan()?;
        if executed.saturating_add(1) < superblock.tail_position {
            return Err(JournalError::StateBehind {
                name: log.name,
                state: executed,
                oldest: superblock.tail_position,
            });
        }
        if executed >= log.next_position {
            return Err(JournalError::StateAhead {
                name: log.name,
                state: executed,
                last: log.next_position - 1,
            });
        }
        log.write_last_again()?;
        // Rule 6, of the superblock: before the other copy is written, this one is there.
        if !mutants::is(Mutant::NotRewritten) {
            log.put_superblock()?;
        }
        log.flush()?;
        log.superblock.epoch += 1;
        log.write_superblock()?;
        log.flush()?;
        for held in log.held.clone() {
            if held.end <= executed + 1 && !mutants::is(Mutant::ReplayedFromTail) {
                continue;
            }
            log.read_again(held)?;
            for record in frame::records(log.scratch.bytes()) {
                if record.position > executed || mutants::is(Mutant::ReplayedFromTail) {
                    replay(record);
                }
            }
        }
        Ok(log)
    }

    /// Which life of the queue this is.
    pub fn epoch(&self) -> u64 {
        self.superblock.epoch
    }

    /// The last position that was committed.
    pub fn last_position(&self) -> u64 {
        self.next_position - 1
    }

    /// Whether another request of so many bytes can be gathered. If not: commit if
    /// something is gathered, release otherwise.
    pub fn has_room(&self, payload_len: usize) -> bool {
        let blocks = self.frame.block_count_with(payload_len);
        payload_len <= PAYLOAD_LEN_MAX && blocks <= FRAME_BLOCKS_MAX && self.place(blocks).is_some()
    }

    /// Whether more than half of the ring is taken: time for a checkpoint.
    pub fn is_tight(&self) -> bool {
        let Some(oldest) = self.held.front() else {
            return false;
        };
        let taken = match self.head_block > oldest.block {
            true => self.head_block - oldest.block,
            false => self.superblock.block_count - oldest.block + self.head_block,
        };
        taken * 2 > self.superblock.block_count
    }

    /// Gathers a request for the next commit; its position.
    ///
    /// # Panics
    /// If [`Log::has_room`] says that there is none.
    pub fn push(&mut self, client_id: u64, request_id: u64, nilext: bool, payload: &[u8]) -> u64 {
        assert!(self.has_room(payload.len()), "the caller has asked");
        self.frame.push(client_id, request_id, nilext, payload);
        self.next_position + self.frame.record_count() - 1
    }

    /// Makes persistent what was gathered. Afterwards it may be acknowledged.
    pub fn commit(&mut self) -> Result<(), JournalError> {
        self.check()?;
        if self.frame.record_count() == 0 {
            return Ok(());
        }
        let blocks = self.frame.block_count();
        let block = self.place(blocks).expect("room for what was pushed");
        let held = Held {
            block,
            number: self.next_number,
            position: self.next_position,
            end: self.next_position + self.frame.record_count(),
        };
        let Superblock { salt, epoch, .. } = self.superblock;
        let bytes = self.frame.seal(salt, epoch, held.number, held.position);
        let taken = (bytes.len() / BLOCK_LEN) as u64;
        let written = self.disk.write(COPIES + block, bytes);
        self.frame.clear();
        self.try_io("write", written)?;
        if !mutants::is(Mutant::NotFlushed) {
            self.flush()?;
        }
        self.held.push_back(held);
        self.head_block = block + taken;
        self.next_number += 1;
        self.next_position = held.end;
        Ok(())
    }

    /// Gives back the room of everything up to this position: the state behind the queue
    /// has it, persistently.
    pub fn release(&mut self, position: u64) -> Result<(), JournalError> {
        self.check()?;
        let before = self.held.len();
        while self
            .held
            .front()
            .is_some_and(|held| held.end <= position + 1)
        {
            self.held.pop_front();
        }
        if self.held.len() == before {
            return Ok(());
        }
        let (block, number, position) = match self.held.front() {
            Some(held) => (held.block, held.number, held.position),
            None => (self.head_block, self.next_number, self.next_position),
        };
        self.superblock.tail_block = block;
        self.superblock.tail_number = number;
        self.superblock.tail_position = position;
        self.write_superblock()?;
        if mutants::is(Mutant::SuperblockNotFlushed) {
            return Ok(());
        }
        self.flush()
    }

    /// Where a frame of so many blocks can stand.
    fn place(&self, blocks: usize) -> Option<u64> {
        let (blocks, count) = (blocks as u64, self.superblock.block_count);
        let fits_at_head = self.head_block + blocks <= count;
        match self.held.front() {
            None if fits_at_head => Some(self.head_block),
            None => (blocks <= count).then_some(0),
            Some(oldest) if self.head_block > oldest.block => match fits_at_head {
                true => Some(self.head_block),
                false => (blocks <= oldest.block).then_some(0),
            },
            Some(oldest) => (self.head_block + blocks <= oldest.block).then_some(self.head_block),
        }
    }

    /// Finds the frames from the tail on.
    fn scan(&mut self) -> Result<(), JournalError> {
        let mut epoch = 0;
        loop {
            let candidates = [self.head_block, 0];
            let count = if self.head_block == 0 { 1 } else { 2 };
            let mut found = None;
            for &block in &candidates[..count] {
                let Some(head) = self.read_frame(block)? else {
                    continue;
                };
                let is_next =
                    head.number == self.next_number && head.position == self.next_position;
                if is_next || mutants::is(Mutant::NumberIgnored) {
                    found = Some((block, head));
                    break;
                }
            }
            let Some((block, head)) = found else { break };
            let is_of_life = head.epoch >= epoch && head.epoch <= self.superblock.epoch;
            if !is_of_life && !mutants::is(Mutant::EpochIgnored) {
                return Err(self.damaged("a frame is of a later life than the superblock"));
            }
            if mutants::is(Mutant::NumberIgnored) && self.held.len() > 1000 {
                break;
            }
            epoch = head.epoch;
            self.held.push_back(Held {
                block,
                number: head.number,
                position: head.position,
                end: head.end(),
            });
            self.head_block = block + head.block_count() as u64;
            self.next_number += 1;
            self.next_position = head.end();
        }
        self.look_for_later()
    }

    /// Rule 6. The frames before the last one were persistent when it was begun.
    fn write_last_again(&mut self) -> Result<(), JournalError> {
        let Some(last) = self.held.back().copied() else {
            return Ok(());
        };
        let head = self.read_again(last)?;
        if !mutants::is(Mutant::NotRewritten) {
            let bytes = &self.scratch.bytes()[..head.block_count() * BLOCK_LEN];
            let written = self.disk.write(COPIES + last.block, bytes);
            self.try_io("write", written)?;
        }
        Ok(())
    }

    /// Reads a frame that was whole a moment ago into the scratch blocks.
    fn read_again(&mut self, held: Held) -> Result<Head, JournalError> {
        let is_same = |head: &Head| {
            (head.number, head.position, head.end()) == (held.number, held.position, held.end)
        };
        let found = self.read_frame(held.block)?.filter(is_same);
        found.ok_or_else(|| self.damaged("a frame changed while it was read"))
    }

    /// A group is begun when the one before is persistent: a whole frame behind one that is
    /// not whole says that something acknowledged cannot be read.
    fn look_for_later(&mut self) -> Result<(), JournalError> {
        let count = self.superblock.block_count;
        let mut chunk = Blocks::new(FRAME_BLOCKS_MAX);
        let mut first = 0;
        while first < count {
            let blocks = (count - first).min(FRAME_BLOCKS_MAX as u64);
            let bytes = &mut chunk.bytes_mut()[..blocks as usize * BLOCK_LEN];
            let read = self.disk.read(COPIES + first, bytes);
            self.try_io("read", read)?;
            for (at, block) in bytes.chunks_exact(BLOCK_LEN).enumerate() {
                let is_later =
                    Head::decode(block).is_some_and(|head| head.number > self.next_number);
                if is_later && self.read_frame(first + at as u64)?.is_some() {
                    return Err(self.damaged("a frame amid others is not whole"));
                }
            }
            first += blocks;
        }
        Ok(())
    }

    /// Reads the frame at this block into the scratch blocks, if a whole one stands there.
    fn read_frame(&mut self, block: u64) -> Result<Option<Head>, JournalError> {
        let count = self.superblock.block_count;
        if block >= count {
            return Ok(None);
        }
        let first = &mut self.scratch.bytes_mut()[..BLOCK_LEN];
        let read = self.disk.read(COPIES + block, first);
        self.try_io("read", read)?;
        let Some(head) = Head::decode(self.scratch.bytes()) else {
            return Ok(None);
        };
        let blocks = head.block_count();
        if block + blocks as u64 > count {
            return Ok(None);
        }
        let bytes = &mut self.scratch.bytes_mut()[..blocks * BLOCK_LEN];
        let read = self.disk.read(COPIES + block, bytes);
        self.try_io("read", read)?;
        let is_whole = frame::is_whole(self.scratch.bytes(), self.superblock.salt);
        Ok(is_whole.then_some(head))
    }

    fn write_superblock(&mut self) -> Result<(), JournalError> {
        self.superblock.generation += match mutants::is(Mutant::SuperblockInPlace) {
            true => COPIES,
            false => 1,
        };
        self.put_superblock()
    }

    fn put_superblock(&mut self) -> Result<(), JournalError> {
        let mut block = Blocks::new(1);
        self.superblock.encode(block.bytes_mut());
        let written = self.disk.write(self.superblock.copy(), block.bytes());
        self.try_io("write", written)
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        let flushed = self.disk.flush();
        self.try_io("flush", flushed)
    }

    /// Rule 7.
    fn try_io(&mut self, doing: &'static str, result: io::Result<()>) -> Result<(), JournalError> {
        result.map_err(|error| {
            self.is_failed = true;
            io_error(&self.name, doing, error)
        })
    }

    fn check(&self) -> Result<(), JournalError> {
        if self.is_failed && !mutants::is(Mutant::FailureForgotten) {
            let name = self.name.clone();
            return Err(JournalError::Failed { name });
        }
        Ok(())
    }

    fn damaged(&self, what: &'static str) -> JournalError {
        let name = self.name.clone();
        JournalError::Damaged { name, what }
    }
}

fn io_error(name: &str, doing: &'static str, source: io::Error) -> JournalError {
    let name = name.to_owned();
    JournalError::Io {
        name,
        doing,
        source,
    }
}

/// The newer whole copy.
fn read_superblock<D: Disk>(
    disk: &mut D,
    name: &str,
    queue: u64,
) -> Result<Superblock, JournalError> {
    let foreign = || JournalError::Foreign { name: name.into() };
    let blocks = disk.block_count().map_err(|e| io_error(name, "read", e))?;
    if blocks < COPIES {
        return Err(foreign());
    }
    let mut block = Blocks::new(1);
    let mut newest: Option<Superblock> = None;
    let mut is_torn = false;
    let mut version = None;
    for copy in 0..COPIES {
        disk.read(copy, block.bytes_mut())
            .map_err(|e| io_error(name, "read", e))?;
        match Superblock::decode(block.bytes()) {
            Copy::Whole(found) => {
                newest = newest
                    .filter(|other| other.generation > found.generation)
                    .or(Some(found));
            }
            Copy::Version(found) => version = Some(found),
            Copy::Torn => is_torn = true,
            Copy::Foreign => {}
        }
    }
    if let Some(found) = version {
        let (name, known) = (name.into(), VERSION);
        return Err(JournalError::Version { name, found, known });
    }
    let Some(found) = newest else {
        let (name, what) = (name.into(), "neither copy of its superblock is whole");
        return Err(match is_torn {
            true => JournalError::Damaged { name, what },
            false => foreign(),
        });
    };
    if found.queue != queue {
        return Err(JournalError::OtherQueue {
            name: name.into(),
            found: found.queue,
            expected: queue,
        });
    }
    if found.block_count < BLOCK_COUNT_MIN {
        return Err(foreign());
    }
    if found.block_count > blocks - COPIES {
        return Err(JournalError::Damaged {
            name: name.into(),
            what: "its end is missing",
        });
    }
    Ok(found)
}
