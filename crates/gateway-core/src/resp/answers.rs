//! Answers that are collected before the first of them leaves, and then leave piece by
//! piece: to copy a long one, or to give its memory back, takes as long as to serve many
//! others.

use std::collections::VecDeque;

/// What is added to the output at a time, and what is collected in one piece at least.
const PIECE_LEN: usize = 64 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of those.
    pieces_len: usize,
    /// Of the first one, so many have left.
    left: usize,
    tail: Vec<u8>,
}

impl Answers {
    /// Where the next answer is appended.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// An answer is whole: what there is becomes a piece if that is worth it.
    pub(super) fn cut(&mut self) {
        if self.tail.len() >= PIECE_LEN {
            self.end();
        }
    }

    fn end(&mut self) {
        if !self.tail.is_empty() {
            self.pieces_len += self.tail.len();
            self.pieces.push_back(std::mem::take(&mut self.tail));
        }
    }

    /// Bytes that were collected.
    pub(super) fn len(&self) -> usize {
        self.pieces_len + self.tail.len()
    }

    /// Bytes that it keeps.
    pub(super) fn kept(&self) -> usize {
        self.pieces_len + self.tail.capacity()
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        (self.pieces_len, self.left) = (0, 0);
        self.tail.clear();
    }

    /// All of it, where it is a single answer, or short.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        if self.pieces.is_empty() {
            return self.tail;
        }
        self.end();
        let mut pieces = self.pieces.into_iter();
        let mut all = pieces.next().unwrap_or_default();
        pieces.for_each(|piece| all.extend_from_slice(&piece));
        all
    }

    /// Adds the next piece to the output; whether that was the last one.
    pub(super) fn give(&mut self, out: &mut Vec<u8>) -> bool {
        self.end();
        let Some(piece) = self.pieces.front() else {
            return true;
        };
        let end = piece.len().min(self.left + PIECE_LEN);
        out.extend_from_slice(&piece[self.left..end]);
        if end < piece.len() {
            self.left = end;
            return false;
        }
        self.left = 0;
        if let Some(piece) = self.pieces.pop_front() {
            self.pieces_len -= piece.len();
        }
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_collected_leaves_in_order_and_in_pieces() {
        let mut answers = Answers::default();
        let mut all = Vec::new();
        for len in [1, PIECE_LEN, 5, 3 * PIECE_LEN + 7, 0, 9] {
            let answer: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
            answers.tail().extend_from_slice(&answer);
            answers.cut();
            all.extend_from_slice(&answer);
        }
        assert_eq!(answers.len(), all.len());
        let (mut out, mut gives) = (Vec::new(), 0);
        loop {
            let before = (out.len(), answers.kept());
            let is_over = answers.give(&mut out);
            gives += 1;
            assert!(out.len() - before.0 <= PIECE_LEN);
            // Memory goes with what has left.
            assert!(is_over || answers.kept() <= before.1);
            if is_over {
                break;
            }
        }
        assert_eq!((out == all, answers.len()), (true, 0));
        assert!(gives >= 7, "{gives}");
        assert!(Answers::default().give(&mut out));
    }
}
