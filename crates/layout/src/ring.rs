//! One client's message rings: a shared object that the *server* creates and
//! seals, with a ring of requests and a ring of answers.
//!
//! | word | field | writer | why |
//! |---|---|---|---|
//! | 0 | magic | server, before the client gets it | |
//! | 16 | requests written | client | bytes, ever growing; the ring position is this modulo the ring's length |
//! | 32 | requests read | server | |
//! | 48 | answers written | server | |
//! | 64 | answers read | client | |
//! | 80 | sleeping | server | odd while the server sleeps; every sleep has its own number, so that a client rings the bell once a sleep |
//! | 81 | blocked | server | 1 if the server has left requests unread because the answer ring has no room |
//! | 82 | left | server | 1 once it takes nothing more: every request that it has executed is answered |
//! | 96 | waiting | client | odd while the client sleeps, numbered likewise |
//! | 512 | request ring | client | a power of two of bytes |
//! | then | answer ring | server | a power of two of bytes |
//!
//! What different sides write stands 128 bytes apart: neighbouring cache lines
//! are fetched in pairs.
//!
//! A record is one word with the message's length in bytes, then the message,
//! padded to whole words. It may run over the ring's end and go on at its
//! beginning: both sides copy into and out of private memory anyway, so
//! nothing needs to be contiguous and no marker has to skip the end.
//!
//! # Thread safety
//! 1. A ring has one producer and one consumer. The producer alone moves
//!    *written*, the consumer alone *read*.
//! 2. A record is complete before *written* is moved over it (release); it is
//!    copied out before *read* is moved over it (release). A producer that dies
//!    half-way leaves nothing visible.
//! 3. Each side keeps its own cursor in private memory and believes nothing of
//!    the other's: a cursor that runs backwards, ahead of what is possible, or
//!    between words, or a length that does not fit, means a broken ring.
//! 4. Whoever goes to sleep announces it, fences, and looks at the ring again;
//!    whoever wrote fences and looks at the announcement. One of them sees the
//!    other.

use crate::message::MESSAGE_LEN_MAX;
use crate::words::{Words, WordsMut};

/// "TFRINGS" and a digit, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TFRINGS1");

/// Bytes of a request ring unless configured otherwise.
pub const REQUEST_RING_LEN_DEFAULT: u32 = 128 * 1024;
/// Bytes of an answer ring unless configured otherwise.
pub const ANSWER_RING_LEN_DEFAULT: u32 = 128 * 1024;
/// Shortest ring: holds the longest message.
pub const RING_LEN_MIN: u32 = 128 * 1024;
/// Longest ring.
pub const RING_LEN_MAX: u32 = 64 * 1024 * 1024;

const APART: usize = 16;
const WORD_MAGIC: usize = 0;
const WORD_REQUESTS_WRITTEN: usize = APART;
const WORD_REQUESTS_READ: usize = 2 * APART;
const WORD_ANSWERS_WRITTEN: usize = 3 * APART;
const WORD_ANSWERS_READ: usize = 4 * APART;
const WORD_SLEEPING: usize = 5 * APART;
const WORD_BLOCKED: usize = WORD_SLEEPING + 1;
const WORD_LEFT: usize = WORD_SLEEPING + 2;
const WORD_WAITING: usize = 6 * APART;
const WORD_RINGS: usize = 512;

const _: () = {
    assert!(APART * 8 == 128);
    assert!(WORD_WAITING + APART <= WORD_RINGS);
    assert!(
        (WORD_RINGS * 8).is_multiple_of(4096),
        "rings begin on a page"
    );
    assert!(record_len(MESSAGE_LEN_MAX) <= RING_LEN_MIN as u64);
    assert!(RING_LEN_MIN.is_power_of_two() && RING_LEN_MAX.is_power_of_two());
    assert!(REQUEST_RING_LEN_DEFAULT.is_power_of_two());
    assert!(ANSWER_RING_LEN_DEFAULT.is_power_of_two());
    assert!(ANSWER_RING_LEN_DEFAULT >= RING_LEN_MIN);
};

/// Bytes that a message of `len` bytes takes in a ring.
pub const fn record_len(len: usize) -> u64 {
    8 + (len as u64).next_multiple_of(8)
}

/// The lengths of both rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    request_len: u32,
    answer_len: u32,
}

impl Default for Geometry {
    fn default() -> Self {
        Geometry {
            request_len: REQUEST_RING_LEN_DEFAULT,
            answer_len: ANSWER_RING_LEN_DEFAULT,
        }
    }
}

impl Geometry {
    /// Both in bytes, powers of two between [`RING_LEN_MIN`] and
    /// [`RING_LEN_MAX`]; `None` otherwise.
    pub const fn new(request_len: u32, answer_len: u32) -> Option<Self> {
        if valid_len(request_len) && valid_len(answer_len) {
            Some(Geometry {
                request_len,
                answer_len,
            })
        } else {
            None
        }
    }

    /// Bytes of the request ring.
    pub const fn request_len(self) -> u32 {
        self.request_len
    }

    /// Bytes of the answer ring.
    pub const fn answer_len(self) -> u32 {
        self.answer_len
    }

    /// Where the request ring begins in the object: on a page.
    pub const fn requests_offset(self) -> u64 {
        WORD_RINGS as u64 * 8
    }

    /// Where the answer ring begins, likewise.
    pub const fn answers_offset(self) -> u64 {
        self.requests_offset() + self.request_len as u64
    }

    /// Bytes of the whole object.
    pub const fn object_len(self) -> u64 {
        WORD_RINGS as u64 * 8 + self.request_len as u64 + self.answer_len as u64
    }

    const fn requests(self) -> Ring {
        Ring {
            written: WORD_REQUESTS_WRITTEN,
            read: WORD_REQUESTS_READ,
            first: WORD_RINGS,
            word_count: self.request_len as usize / 8,
        }
    }

    const fn answers(self) -> Ring {
        Ring {
            written: WORD_ANSWERS_WRITTEN,
            read: WORD_ANSWERS_READ,
            first: WORD_RINGS + self.request_len as usize / 8,
            word_count: self.answer_len as usize / 8,
        }
    }
}

const fn valid_len(len: u32) -> bool {
    len.is_power_of_two() && len >= RING_LEN_MIN && len <= RING_LEN_MAX
}

/// Marks a fresh, zeroed object as rings; the client gets it only afterwards.
pub fn initialise<W: WordsMut + ?Sized>(words: &W) {
    words.store_release(WORD_MAGIC, MAGIC);
}

/// Whether the object is what [`initialise`] made.
pub fn is_initialised<W: Words + ?Sized>(words: &W) -> bool {
    words.load_acquire(WORD_MAGIC) == MAGIC
}

/// The other side broke the protocol; nothing in this ring can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side of the message ring wrote nonsense into it")]
pub struct RingBroken;

/// Where one ring's words stand in the object.
#[derive(Clone, Copy, Debug)]
struct Ring {
    written: usize,
    read: usize,
    first: usize,
    word_count: usize,
}

impl Ring {
    const fn len(&self) -> u64 {
        self.word_count as u64 * 8
    }

    /// Splits `count` words from cursor `at` on into the part before the
    /// ring's end, (first word, words), and the words that go on at its beginning.
    #[inline(always)]
    const fn split(&self, at: u64, count: usize) -> (usize, usize, usize) {
        let from = (at / 8) as usize & (self.word_count - 1);
        let before_end = self.word_count - from;
        let head = if count < before_end {
            count
        } else {
            before_end
        };
        (self.first + from, head, count - head)
    }
}

/// The writing end of a ring, with its private cursors.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    written: u64,
    read_seen: u64,
}

impl Producer {
    /// The client's end of the requests.
    pub fn requests(geometry: Geometry) -> Self {
        Self::new(geometry.requests())
    }

    /// The server's end of the answers.
    pub fn answers(geometry: Geometry) -> Self {
        Self::new(geometry.answers())
    }

    fn new(ring: Ring) -> Self {
        Producer {
            ring,
            written: 0,
            read_seen: 0,
        }
    }

    /// Whether a message of `len` bytes fits now.
    #[inline]
    pub fn has_room<W: Words + ?Sized>(
        &mut self,
        words: &W,
        len: usize,
    ) -> Result<bool, RingBroken> {
        let used_max = match self.ring.len().checked_sub(record_len(len)) {
            Some(used_max) => used_max,
            None => return Ok(false),
        };
        Ok(self.written - self.read_seen <= used_max || self.used(words)? <= used_max)
    }

    /// Bytes that the consumer has not read yet.
    #[inline]
    pub fn used<W: Words + ?Sized>(&mut self, words: &W) -> Result<u64, RingBroken> {
        let read = words.load_acquire(self.ring.read);
        let advance = read.wrapping_sub(self.read_seen);
        if advance > self.written - self.read_seen || !read.is_multiple_of(8) {
            return Err(RingBroken);
        }
        self.read_seen = read;
        Ok(self.written - read)
    }

    /// At least the bytes that the consumer has not read yet, from private memory.
    #[inline]
    pub fn used_max(&self) -> u64 {
        self.written - self.read_seen
    }

    /// Appends a message of `len` bytes that stand in `message`; `false` if it
    /// does not fit now.
    #[inline]
    pub fn push<W: WordsMut + ?Sized>(
        &mut self,
        words: &W,
        message: &[u64],
        len: usize,
    ) -> Result<bool, RingBroken> {
        assert!(len <= MESSAGE_LEN_MAX);
        if !self.has_room(words, len)? {
            return Ok(false);
        }
        let count = len.div_ceil(8);
        let (at, _, _) = self.ring.split(self.written, 1);
        words.store(at, len as u64);
        let (at, head, _) = self.ring.split(self.written + 8, count);
        let (head, tail) = message[..count].split_at(head);
        words.store_run(at, head);
        words.store_run(self.ring.first, tail);
        self.written += record_len(len);
        words.store_release(self.ring.written, self.written);
        Ok(true)
    }
}

/// The reading end of a ring, with its private cursors.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    read: u64,
    written_seen: u64,
    released: u64,
}

impl Consumer {
    /// The server's end of the requests.
    pub fn requests(geometry: Geometry) -> Self {
        Self::new(geometry.requests())
    }

    /// The client's end of the answers.
    pub fn answers(geometry: Geometry) -> Self {
        Self::new(geometry.answers())
    }

    fn new(ring: Ring) -> Self {
        Consumer {
            ring,
            read: 0,
            written_seen: 0,
            released: 0,
        }
    }

    /// Whether a message (or nonsense) waits.
    #[inline(always)]
    pub fn has_message<W: Words + ?Sized>(&self, words: &W) -> bool {
        self.read != self.written_seen || words.load(self.ring.written) != self.read
    }

    /// Copies the next message to the front of `into`, which holds
    /// [`MESSAGE_LEN_MAX`] bytes, and returns its length in bytes. Its room
    /// goes back to the producer with [`Consumer::release`].
    #[inline]
    pub fn pop<W: Words + ?Sized>(
        &mut self,
        words: &W,
        into: &mut [u64],
    ) -> Result<Option<usize>, RingBroken> {
        if self.read == self.written_seen {
            let written = words.load_acquire(self.ring.written);
            let ahead = written.wrapping_sub(self.read);
            if ahead > self.ring.len() || !written.is_multiple_of(8) {
                return Err(RingBroken);
            }
            if ahead == 0 {
                return Ok(None);
            }
            self.written_seen = written;
        }
        let (at, _, _) = self.ring.split(self.read, 1);
        let len = words.load(at);
        if len > MESSAGE_LEN_MAX as u64 {
            return Err(RingBroken);
        }
        let len = len as usize;
        if record_len(len) > self.written_seen - self.read {
            return Err(RingBroken);
        }
        let count = len.div_ceil(8);
        let (at, head, _) = self.ring.split(self.read + 8, count);
        let (head, tail) = into[..count].split_at_mut(head);
        words.load_run(at, head);
        words.load_run(self.ring.first, tail);
        self.read += record_len(len);
        Ok(Some(len))
    }

    /// Gives the room of all popped messages back; returns whether there was any.
    #[inline]
    pub fn release<W: WordsMut + ?Sized>(&mut self, words: &W) -> bool {
        let any = self.released != self.read;
        if any {
            self.released = self.read;
            words.store_release(self.ring.read, self.read);
        }
        any
    }
}

/// Announces that the server sleeps: `number` is odd and new. The caller then
/// calls [`Words::fence_full`] and looks at every ring once more.
#[inline]
pub fn set_sleeping<W: WordsMut + ?Sized>(words: &W, number: u64, blocked: bool) {
    words.store(WORD_BLOCKED, u64::from(blocked));
    words.store_release(WORD_SLEEPING, number);
}

/// The server's announcement: (number, blocked). To be read after
/// [`Words::fence_full`].
#[inline]
pub fn sleeping<W: Words + ?Sized>(words: &W) -> (u64, bool) {
    let number = words.load_acquire(WORD_SLEEPING);
    (number, words.load(WORD_BLOCKED) != 0)
}

/// Announces that the server takes no request any more: whatever is not answered by now is
/// never executed.
pub fn set_left<W: WordsMut + ?Sized>(words: &W) {
    words.store_release(WORD_LEFT, 1);
}

/// Whether the server has announced that. Answers that are read after it are all there are.
pub fn has_left<W: Words + ?Sized>(words: &W) -> bool {
    words.load_acquire(WORD_LEFT) == 1
}

/// Announces that the client waits (odd) or no longer waits (even).
#[inline]
pub fn set_waiting<W: WordsMut + ?Sized>(words: &W, number: u64) {
    words.store_release(WORD_WAITING, number);
}

/// The client's announcement; to be read after [`Words::fence_full`].
#[inline]
pub fn waiting<W: Words + ?Sized>(words: &W) -> u64 {
    words.load(WORD_WAITING)
}

#[cfg(test)]
mod tests;
