//! Where answers are collected, and where some wait for each other.
//!
//! To receive and to send are long ways through the kernel, each with more code
//! than the nearest cache holds. Of connections that are ready at the same time,
//! some requests are received and executed one after the other, then their
//! answers are sent one after the other, or all by one call.

use std::ops::Range;
use trefoil_layout::copied;

/// Connections whose answers wait for each other: those leave by one call.
const HELD_MAX: usize = trefoil_sockets::BATCH_MAX;
/// Bytes of theirs, after which all leave.
const HELD_LEN_MAX: usize = 32 << 10;
/// Room that it has from the beginning.
const LEN: usize = super::desk::OUTPUT_LEN + super::desk::OUTPUT_LEN / 4;
/// What one long answer has made larger than this is given back. Shorter ones serve for
/// the next long answer: each page of fresh memory costs a fault.
const KEPT_MAX: usize = (2 << 20) + LEN;

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Held answers, then that of the connection whose turn it is.
    bytes: Vec<u8>,
    held_len: usize,
    held_count: usize,
    is_open: bool,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Outbox {
            bytes: Vec::with_capacity(LEN),
            held_len: 0,
            held_count: 0,
            is_open: false,
        }
    }

    /// Whether answers are held from now on: others come soon.
    pub(super) fn open(&mut self, others_come: bool) {
        self.is_open = others_come;
    }

    /// Begins an answer: to be appended to this, behind so many bytes.
    pub(super) fn begin(&mut self) -> (&mut Vec<u8>, usize) {
        self.bytes.truncate(self.held_len);
        if self.held_len == 0 && !(LEN..=KEPT_MAX).contains(&self.bytes.capacity()) {
            self.bytes = Vec::with_capacity(LEN);
        }
        (&mut self.bytes, self.held_len)
    }

    /// The answer that was begun last.
    pub(super) fn answer(&self) -> &[u8] {
        &self.bytes[self.held_len..]
    }

    /// Keeps that answer until the outbox is emptied, unless it should leave at
    /// once.
    pub(super) fn hold(&mut self) -> Option<Range<usize>> {
        if !self.is_open || self.is_full() || self.bytes.len() > HELD_LEN_MAX {
            return None;
        }
        let begin = std::mem::replace(&mut self.held_len, self.bytes.len());
        self.held_count += 1;
        Some(begin..self.held_len)
    }

    pub(super) fn is_full(&self) -> bool {
        self.held_count >= HELD_MAX
    }

    pub(super) fn held(&self, at: Range<usize>) -> &[u8] {
        &self.bytes[at]
    }

    /// Hands over the answer that was begun last, of which so much was sent: bytes, and
    /// where in these the rest begins. Most of a long answer is not copied.
    pub(super) fn take_rest(&mut self, sent: usize) -> (Vec<u8>, usize) {
        let len = self.bytes.len();
        let is_most_left = 2 * sent <= len;
        if self.held_len == 0 && is_most_left && self.bytes.capacity() < len + len / 2 {
            return (std::mem::take(&mut self.bytes), sent);
        }
        (copied::owned(&self.answer()[sent..]), 0)
    }

    /// Takes back what it handed over, once that has left.
    pub(super) fn take_back(&mut self, bytes: Vec<u8>) {
        let is_longer = bytes.capacity() > self.bytes.capacity().max(LEN);
        if is_longer && bytes.capacity() <= KEPT_MAX && self.held_len == 0 {
            self.bytes = bytes;
            self.bytes.clear();
        }
    }

    /// Forgets the answers that were held: they were sent.
    pub(super) fn empty(&mut self) {
        self.bytes.clear();
        self.held_len = 0;
        self.held_count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(outbox: &mut Outbox, answer: &[u8]) {
        outbox.begin().0.extend_from_slice(answer);
        assert_eq!(outbox.answer(), answer);
    }

    #[test]
    fn most_of_a_long_answer_is_not_copied() {
        let mut outbox = Outbox::new();
        let long = vec![b'x'; 2 * LEN];
        for (sent, rest_at) in [(0, 0), (5, 5), (LEN, LEN), (LEN + 1, 0)] {
            write(&mut outbox, &long);
            outbox.bytes.shrink_to_fit();
            let place = outbox.bytes.as_ptr();
            let (bytes, at) = outbox.take_rest(sent);
            assert_eq!((bytes.len() - at, at), (long.len() - sent, rest_at));
            assert_eq!(bytes.as_ptr() == place, sent <= LEN);
        }
    }

    #[test]
    fn the_memory_of_a_long_answer_serves_for_the_next_one() {
        let mut outbox = Outbox::new();
        let long = |outbox: &mut Outbox, len: usize| {
            write(outbox, &vec![b'x'; len]);
            outbox.take_rest(0).0
        };
        let first = long(&mut outbox, 2 * LEN);
        let place = first.as_ptr();
        write(&mut outbox, b"short");
        outbox.take_back(first);
        let next = long(&mut outbox, 2 * LEN);
        assert_eq!(next.as_ptr(), place);
        // Not while answers are held, and not what is longer than is kept.
        outbox.open(true);
        write(&mut outbox, b"held");
        let held = outbox.hold().unwrap();
        outbox.take_back(next);
        assert_eq!(outbox.held(held), b"held");
        outbox.empty();
        let large = long(&mut outbox, KEPT_MAX + 1);
        outbox.take_back(large);
        assert!(outbox.bytes.capacity() <= KEPT_MAX);
    }

    #[test]
    fn answers_are_held_apart_until_it_is_emptied() {
        let mut outbox = Outbox::new();
        write(&mut outbox, b"alone");
        assert_eq!(outbox.hold(), None);
        outbox.open(true);
        write(&mut outbox, b"one");
        let one = outbox.hold().unwrap();
        write(&mut outbox, b"sent at once");
        write(&mut outbox, b"three");
        assert_eq!(outbox.take_rest(2), (b"ree".to_vec(), 0));
        let three = outbox.hold().unwrap();
        assert_eq!(outbox.held(one), b"one");
        assert_eq!(outbox.held(three), b"three");
        write(&mut outbox, &vec![0; HELD_LEN_MAX]);
        assert_eq!(outbox.hold(), None, "too long");
        for _ in 2..HELD_MAX {
            write(&mut outbox, b"x");
            assert!(outbox.hold().is_some());
        }
        write(&mut outbox, b"x");
        assert!(outbox.is_full() && outbox.hold().is_none());
        outbox.empty();
        write(&mut outbox, b"x");
        assert_eq!(outbox.hold(), Some(0..1));
    }
}
