//! A request in its slot, and the answer in the one beside it.
//!
//! A request slot (no more than [`SLOT_USED_LEN_MAX`] bytes of it are used, which
//! one packet of any carrier holds):
//!
//! | word | field | why |
//! |---|---|---|
//! | 0 | mark | the sequence; stored after the request was published, so that the server sees it where it looks anyway |
//! | 1 | checksum | of words 4 on, bound to epoch, sequence and position |
//! | 2 | position | the ticket |
//! | 3 | sequence | the client's own count of slots, from 1 |
//! | 4 | client id | |
//! | 5 | request id | the client's name for the request; the same if it is sent again |
//! | 6 | length of the payload in bytes (low half), flags (high half) | flag 1: nilext |
//! | 7 | payload | padded with zeros to whole words |
//!
//! An answer slot: word 0 the sequence, word 1 the length in bytes, then the answer.

use crate::lane::{SLOT_USED_LEN_MAX, Terms};
use trefoil_layout::words::{Words, WordsMut};
use trefoil_region::WordBuffer;
use twox_hash::XxHash3_64;

/// Longest request, in bytes.
pub const PAYLOAD_LEN_MAX: usize = 1440;
/// Longest answer, in bytes.
pub const ANSWER_LEN_MAX: usize = 1440;

const MARK: usize = 0;
const CHECKSUM: usize = 1;
const POSITION: usize = 2;
const SEQUENCE: usize = 3;
const CLIENT_ID: usize = 4;
const REQUEST_ID: usize = 5;
const LENGTH_FLAGS: usize = 6;
/// Words before the payload.
pub const HEAD_WORDS: usize = 7;
/// The words from here on are summed; those before are bound to the sum.
const SUMMED: usize = CLIENT_ID;

const FLAG_NILEXT: u64 = 1 << 32;

const ANSWER_SEQUENCE: usize = 0;
const ANSWER_LENGTH: usize = 1;
const ANSWER_BYTES: usize = 2;

const _: () = {
    assert!(MARK == 0 && CHECKSUM == 1 && POSITION == 2 && SEQUENCE == 3);
    assert!(SUMMED == SEQUENCE + 1 && LENGTH_FLAGS + 1 == HEAD_WORDS);
    assert!(HEAD_WORDS * 8 + PAYLOAD_LEN_MAX <= SLOT_USED_LEN_MAX);
    assert!(ANSWER_BYTES * 8 + ANSWER_LEN_MAX <= SLOT_USED_LEN_MAX);
    assert!(PAYLOAD_LEN_MAX.is_multiple_of(8) && ANSWER_LEN_MAX.is_multiple_of(8));
};

/// What a slot says of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The client's count of slots.
    pub sequence: u64,
    /// Whose.
    pub client_id: u64,
    /// The client's name for it.
    pub request_id: u64,
    /// Bytes of the payload.
    pub len: usize,
    /// Whether its answer does not depend on its execution.
    pub nilext: bool,
}

/// A slot that does not validate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a client published a slot that does not validate")]
pub struct SlotInvalid;

/// Folds epoch, sequence and position into a sum. Each step is a bijection of the
/// running value, so a difference in any single one always shows.
#[inline(always)]
fn bind(mut x: u64, epoch: u64, sequence: u64, position: u64) -> u64 {
    for word in [epoch, sequence, position] {
        x = (x ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 32;
    }
    x
}

/// Writes a request without its position; returns the sum that
/// [`give_position`] binds. `image` is room for it.
///
/// # Panics
/// If the payload is longer than [`PAYLOAD_LEN_MAX`].
#[inline]
pub fn write<W: WordsMut + ?Sized>(
    words: &W,
    terms: Terms,
    head: Head,
    payload: &[u8],
    image: &mut WordBuffer,
) -> u64 {
    assert!(payload.len() == head.len && head.len <= PAYLOAD_LEN_MAX);
    let summed_words = HEAD_WORDS - SUMMED;
    let whole = summed_words * 8 + head.len.next_multiple_of(8);
    let image_words = image.prepare(whole);
    image_words[CLIENT_ID - SUMMED] = head.client_id;
    image_words[REQUEST_ID - SUMMED] = head.request_id;
    let flags = if head.nilext { FLAG_NILEXT } else { 0 };
    image_words[LENGTH_FLAGS - SUMMED] = head.len as u64 | flags;
    if image_words.len() > summed_words
        && let Some(last) = image_words.last_mut()
    {
        *last = 0;
    }
    image.bytes_mut()[summed_words * 8..][..head.len].copy_from_slice(payload);
    let first = terms.slot(head.sequence);
    words.store(first + SEQUENCE, head.sequence);
    words.store_run(first + SUMMED, image.words());
    XxHash3_64::oneshot(image.bytes())
}

/// Completes a request that [`write`] wrote.
#[inline(always)]
pub fn give_position<W: WordsMut + ?Sized>(
    words: &W,
    terms: Terms,
    sequence: u64,
    position: u64,
    sum: u64,
) {
    let first = terms.slot(sequence);
    words.store(first + POSITION, position);
    let checksum = bind(sum, terms.epoch, sequence, position);
    words.store(first + CHECKSUM, checksum);
}

/// Whether the mark of this sequence's slot is set: it is published.
#[inline(always)]
pub fn is_marked<W: Words + ?Sized>(words: &W, terms: Terms, sequence: u64) -> bool {
    words.load_acquire(terms.slot(sequence) + MARK) == sequence
}

/// Sets the mark, after the request was published.
#[inline(always)]
pub fn mark<W: WordsMut + ?Sized>(words: &W, terms: Terms, sequence: u64) {
    words.store_release(terms.slot(sequence) + MARK, sequence);
}

/// Copies the request of this sequence into private memory, each word loaded once,
/// and validates the copy. Its payload is [`payload`] of `image`.
#[inline]
pub fn read<W: Words + ?Sized>(
    words: &W,
    terms: Terms,
    sequence: u64,
    image: &mut WordBuffer,
) -> Result<(u64, Head), SlotInvalid> {
    let first = terms.slot(sequence);
    let mut head_words = [0; HEAD_WORDS];
    words.load_run(first, &mut head_words);
    let len = (head_words[LENGTH_FLAGS] & u64::from(u32::MAX)) as usize;
    let flags = head_words[LENGTH_FLAGS] >> 32 << 32;
    if len > PAYLOAD_LEN_MAX || flags & !FLAG_NILEXT != 0 {
        return Err(SlotInvalid);
    }
    let summed_words = HEAD_WORDS - SUMMED;
    let copy = image.prepare(summed_words * 8 + len.next_multiple_of(8));
    let (copied_head, copied_payload) = copy.split_at_mut(summed_words);
    copied_head.copy_from_slice(&head_words[SUMMED..]);
    words.load_run(first + HEAD_WORDS, copied_payload);
    let position = head_words[POSITION];
    let checksum = bind(
        XxHash3_64::oneshot(image.bytes()),
        terms.epoch,
        sequence,
        position,
    );
    let head = Head {
        sequence: head_words[SEQUENCE],
        client_id: head_words[CLIENT_ID],
        request_id: head_words[REQUEST_ID],
        len,
        nilext: flags & FLAG_NILEXT != 0,
    };
    let is_own = head.sequence == sequence && head.client_id == terms.client_id;
    let is_whole = checksum == head_words[CHECKSUM];
    if (is_own && is_whole) || crate::mutants::is(crate::mutants::Mutant::SumIgnored) {
        Ok((position, head))
    } else {
        Err(SlotInvalid)
    }
}

/// The payload in what [`read`] has copied.
#[inline(always)]
pub fn payload(image: &WordBuffer, len: usize) -> &[u8] {
    &image.bytes()[(HEAD_WORDS - SUMMED) * 8..][..len]
}

/// Writes the answer to this sequence: the words of `answer`, `len` bytes of them.
#[inline]
pub fn write_answer<W: WordsMut + ?Sized>(
    words: &W,
    terms: Terms,
    sequence: u64,
    answer: &[u64],
    len: usize,
) {
    assert!(len <= ANSWER_LEN_MAX);
    let first = terms.answer(sequence);
    words.store(first + ANSWER_SEQUENCE, sequence);
    words.store(first + ANSWER_LENGTH, len as u64);
    words.store_run(first + ANSWER_BYTES, &answer[..len.div_ceil(8)]);
}

/// Copies the answer to this sequence, which is executed; `None` if none stands there.
#[inline]
pub fn read_answer<W: Words + ?Sized>(
    words: &W,
    terms: Terms,
    sequence: u64,
    into: &mut WordBuffer,
) -> Option<()> {
    let first = terms.answer(sequence);
    let len = words.load(first + ANSWER_LENGTH);
    if words.load(first + ANSWER_SEQUENCE) != sequence || len > ANSWER_LEN_MAX as u64 {
        return None;
    }
    words.load_run(first + ANSWER_BYTES, into.prepare(len as usize));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane;
    use crate::words::Mapped;
    use trefoil_region::Mapping;

    const TERMS: Terms = Terms {
        epoch: 9,
        client_id: 4,
        slot_count: 4,
    };

    fn written(payload: &[u8]) -> Mapped {
        let words = Mapped(Mapping::heap(TERMS.object_len()));
        lane::initialise(&words, TERMS);
        let head = Head {
            sequence: 6,
            client_id: TERMS.client_id,
            request_id: 77,
            len: payload.len(),
            nilext: true,
        };
        let sum = write(&words, TERMS, head, payload, &mut WordBuffer::default());
        give_position(&words, TERMS, 6, 31, sum);
        words
    }

    #[test]
    fn what_was_written_is_read() {
        for len in [0, 1, 7, 8, 100, 1024, PAYLOAD_LEN_MAX] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8 | 1).collect();
            let words = written(&bytes);
            let mut image = WordBuffer::default();
            let (position, head) = read(&words, TERMS, 6, &mut image).expect("valid");
            assert_eq!((position, head.request_id, head.nilext), (31, 77, true));
            assert_eq!(payload(&image, head.len), bytes);
        }
    }

    #[test]
    fn every_word_counts() {
        let used = HEAD_WORDS + 100usize.div_ceil(8);
        for word in CHECKSUM..used {
            let words = written(&[5; 100]);
            let at = TERMS.slot(6) + word;
            words.store(at, words.load(at) ^ 1 << 20);
            let found = read(&words, TERMS, 6, &mut WordBuffer::default());
            assert_eq!(found, Err(SlotInvalid), "word {word}");
        }
        let words = written(&[5; 100]);
        let other = Terms { epoch: 10, ..TERMS };
        let found = read(&words, other, 6, &mut WordBuffer::default());
        assert_eq!(found, Err(SlotInvalid), "another epoch");
        let found = read(&words, TERMS, 10, &mut WordBuffer::default());
        assert_eq!(found, Err(SlotInvalid), "a slot of the lap before");
    }

    #[test]
    fn answers_stand_beside_requests() {
        let words = written(&[5; 100]);
        let mut into = WordBuffer::default();
        assert_eq!(read_answer(&words, TERMS, 6, &mut into), None);
        write_answer(&words, TERMS, 6, &[u64::from_le_bytes(*b"answer--")], 6);
        assert_eq!(read_answer(&words, TERMS, 6, &mut into), Some(()));
        assert_eq!(into.bytes(), b"answer");
        assert!(read(&words, TERMS, 6, &mut into).is_ok());
    }
}
