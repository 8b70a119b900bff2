//! What has come of one answer.

use super::piece::Piece;
use crate::wire::{ANSWER_LEN, Answer, Ask, Region, Request, Status};
use std::ops::Range;
use trefoil_client_core::vote::IndexVote;

/// An answer that comes in pieces, all of one attempt but for ranges that were read by
/// themselves.
#[derive(Debug)]
pub(super) struct Coming {
    /// Which attempt its head is of.
    pub(super) attempt: u32,
    bytes: Vec<u8>,
    /// A bit for each word that has come.
    seen: Box<[u64]>,
    /// Words that have not.
    left: usize,
    /// Its last word has.
    has_end: bool,
}

impl Coming {
    pub(super) fn new(attempt: u32, total_len: usize) -> Self {
        let words = total_len / 8;
        Coming {
            attempt,
            bytes: vec![0; total_len],
            seen: vec![0; words.div_ceil(64)].into(),
            left: words,
            has_end: false,
        }
    }

    pub(super) fn total_len(&self) -> usize {
        self.bytes.len()
    }

    /// The whole answer, once it is.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        (self.left == 0).then_some(&self.bytes)
    }

    /// Whether the end has come and something before it has not: that was most likely lost.
    pub(super) fn has_gaps(&self) -> bool {
        self.has_end && self.left > 0
    }

    fn has(&self, word: usize) -> bool {
        self.seen[word / 64] & 1 << (word % 64) != 0
    }

    /// Takes these bytes in, which belong there: whole words of the answer.
    pub(super) fn take(&mut self, offset: usize, bytes: &[u8]) {
        let words = offset / 8..(offset + bytes.len()) / 8;
        self.has_end |= words.end * 8 == self.bytes.len();
        for word in words {
            let bit = 1 << (word % 64);
            if self.seen[word / 64] & bit == 0 {
                self.seen[word / 64] |= bit;
                self.left -= 1;
                let at = word * 8;
                self.bytes[at..at + 8].copy_from_slice(&bytes[at - offset..at - offset + 8]);
            }
        }
    }

    /// From the first byte of its data that is missing to the last one; `None` if something
    /// of its head is.
    fn missing(&self) -> Option<Range<u32>> {
        let words = self.bytes.len() / 8;
        let first = (0..words).find(|word| !self.has(*word))?;
        let last = (0..words).rfind(|word| !self.has(*word))?;
        let begin = (first * 8).checked_sub(ANSWER_LEN)?;
        // An answer is shorter than such a number says.
        Some(begin as u32..((last + 1) * 8 - ANSWER_LEN) as u32)
    }

    /// A read of what is missing, and which of the answer's data that is. `None` if the
    /// whole has to be asked for again: where nobody validates it as a whole, pieces of two
    /// looks do not go together.
    pub(super) fn rest_of(&self, ask: &Ask) -> Option<(Ask, Range<u32>)> {
        let missing = self.missing()?;
        let from = match ask.request {
            Request::Scan { .. } => self.points_at()?,
            Request::Read {
                region: Region::Data,
                offset,
                ..
            } => offset,
            Request::Read { .. } | Request::Touch { .. } => return None,
        };
        let request = Request::Read {
            region: Region::Data,
            partition: 0,
            window_id: 0,
            offset: from.checked_add(missing.start.into())?,
            len: missing.end - missing.start,
        };
        Some((Ask { request, ..*ask }, missing))
    }

    /// Where the data of a scan's answer stand, whose head has come.
    fn points_at(&self) -> Option<u64> {
        let head = self.bytes.first_chunk::<ANSWER_LEN>()?;
        let answer = head_of(head)?;
        let follow = self.bytes.len() - ANSWER_LEN;
        match answer.vote {
            Some(IndexVote::Present { entry, .. }) => {
                let pointer = entry.pointer;
                let is_whole = pointer.len() == follow && pointer.offset().is_multiple_of(8);
                is_whole.then(|| pointer.offset())
            }
            _ => None,
        }
    }
}

/// The answer with this head, if it was carried out.
fn head_of(head: &[u8; ANSWER_LEN]) -> Option<Answer> {
    let answer = Answer::decode_head(head).ok()?;
    (answer.status == Status::Done).then_some(answer)
}

/// Some of an answer's data, read by themselves.
#[derive(Clone, Debug)]
pub(super) struct Patch {
    /// The attempt that asks for them …
    pub(super) attempt: u32,
    /// … and the one that brought the others.
    pub(super) of: u32,
    /// Which data these are.
    pub(super) range: Range<u32>,
}

impl Patch {
    /// Puts a piece of this one's answer where it belongs. `false` if nothing was read: the
    /// handle is gone, the lease has ended, the window is another one.
    pub(super) fn put(&self, piece: &Piece<'_>, coming: &mut Coming) -> bool {
        if piece.total_len != ANSWER_LEN + self.range.len() {
            return false;
        }
        let head_len = ANSWER_LEN.saturating_sub(piece.offset);
        let Some((head, data)) = piece.bytes.split_at_checked(head_len) else {
            // Shorter than a head: nobody cuts so.
            return false;
        };
        if piece.offset == 0
            && let Some(head) = head.first_chunk()
            && head_of(head).is_none()
        {
            return false;
        }
        let at = self.range.start as usize + (piece.offset + head_len).max(ANSWER_LEN);
        if at + data.len() > coming.total_len() {
            return false;
        }
        coming.take(at, data);
        true
    }
}
