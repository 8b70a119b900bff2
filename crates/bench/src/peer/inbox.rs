//! Bytes received and not yet consumed.
//!
//! Positions stay valid from one [`Inbox::begin`] to the next: an answer may be
//! parsed while it arrives, and its value be handed out without a copy.

use std::ops::Range;

/// Room that is always offered to the socket: what arrives at once is taken at
/// once.
const ROOM_MIN: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Before a request: forgets the last answer. False when something is left of
    /// it, which means that the two sides no longer agree on where answers end.
    pub(super) fn begin(&mut self) -> bool {
        let is_clean = self.start == self.end;
        (self.start, self.end) = (0, 0);
        is_clean
    }

    /// Where the next bytes go.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.bytes.len() < self.end + ROOM_MIN {
            let len = (self.end + ROOM_MIN).next_power_of_two();
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// `len` bytes have been put into [`room`](Self::room).
    pub(super) fn received(&mut self, len: usize) {
        self.end = (self.end + len).min(self.bytes.len());
    }

    /// Consumes a line, without its end; nothing while it is incomplete.
    pub(super) fn take_line(&mut self) -> Option<Range<usize>> {
        let unread = &self.bytes[self.start..self.end];
        let at = unread.windows(2).position(|pair| pair == b"\r\n")?;
        let line = self.start..self.start + at;
        self.start = line.end + 2;
        Some(line)
    }

    /// Consumes `len` bytes and the line end behind them; nothing while they are
    /// incomplete. The line end is not looked at: a wrong one spoils the next line.
    pub(super) fn take_block(&mut self, len: usize) -> Option<Range<usize>> {
        let block = self.start..self.start.checked_add(len)?;
        let next = block.end.checked_add(2)?;
        (next <= self.end).then(|| {
            self.start = next;
            block
        })
    }

    pub(super) fn get(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// Everything unread, for error messages.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(inbox: &mut Inbox, bytes: &[u8]) {
        inbox.room()[..bytes.len()].copy_from_slice(bytes);
        inbox.received(bytes.len());
    }

    #[test]
    fn answers_may_arrive_in_any_pieces() {
        let answer = b"VALUE k 0 5\r\nab\r\nc\r\nEND\r\n";
        for cut in 0..answer.len() {
            let mut inbox = Inbox::default();
            assert!(inbox.begin());
            feed(&mut inbox, &answer[..cut]);
            let mut rest = Some(&answer[cut..]);
            let mut more = |inbox: &mut Inbox| feed(inbox, rest.take().unwrap());
            let line = inbox.take_line().unwrap_or_else(|| {
                more(&mut inbox);
                inbox.take_line().unwrap()
            });
            let block = inbox.take_block(5).unwrap_or_else(|| {
                more(&mut inbox);
                inbox.take_block(5).unwrap()
            });
            let end = inbox.take_line().unwrap_or_else(|| {
                more(&mut inbox);
                inbox.take_line().unwrap()
            });
            assert_eq!(inbox.get(line), b"VALUE k 0 5");
            assert_eq!(inbox.get(block), b"ab\r\nc");
            assert_eq!(inbox.get(end), b"END");
            assert!(inbox.begin());
        }
    }

    #[test]
    fn leftovers_are_noticed() {
        let mut inbox = Inbox::default();
        feed(&mut inbox, b"END\r\nrubbish");
        inbox.take_line().unwrap();
        assert_eq!(inbox.unread(), b"rubbish");
        assert!(!inbox.begin());
        assert!(inbox.begin());
        assert_eq!(inbox.take_block(usize::MAX), None);
    }
}
