//! Room for copies: what parked requests hold of keys and values is bounded before they
//! begin, not by closing connections afterwards.
//!
//! A request that holds nothing yet waits until its copies fit beside those of all others,
//! in the order in which requests came. One that holds something is let through: if it
//! waited for others, and they for it, nobody would go on. Small copies pass those that
//! wait. A request that does not fit at all goes alone.
//! One that has come to hold something while a part of it waits is let in at once.

use std::collections::VecDeque;

/// Copies up to this length do not wait: as much as a connection reads at a time. Of a
/// small limit it is such a share.
const SMALL_LEN: usize = 64 << 10;
const SMALL_SHARE: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Room {
    limit: usize,
    /// What parked requests hold.
    held: usize,
    /// What those need that were let in, and have not had their turn since.
    promised: usize,
    /// Connections that wait, and what they need.
    waiting: VecDeque<(u64, usize)>,
    /// Those that others wait for.
    urgent: Vec<u64>,
}

impl Room {
    /// For any number of bytes, until told otherwise.
    pub(super) fn new() -> Self {
        Room {
            limit: usize::MAX,
            held: 0,
            promised: 0,
            waiting: VecDeque::new(),
            urgent: Vec::new(),
        }
    }

    pub(super) fn limit(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    fn fits(&self, need: usize) -> bool {
        let taken = self.held + self.promised;
        taken == 0 || taken.saturating_add(need) <= self.limit
    }

    /// Whether a request that holds nothing may take so much now.
    pub(super) fn admits(&self, need: usize) -> bool {
        need <= SMALL_LEN.min(self.limit / SMALL_SHARE)
            || (self.waiting.is_empty() && self.fits(need))
    }

    /// It waits for its turn.
    pub(super) fn wait(&mut self, connection: u64, need: usize) {
        self.waiting.push_back((connection, need));
    }

    /// What a parked request holds has changed.
    pub(super) fn count(&mut self, before: usize, after: usize) {
        self.held = self.held - before + after;
    }

    /// Whether somebody's turn has come.
    pub(super) fn has_next(&self) -> bool {
        let mut next = self.waiting.front().into_iter();
        !self.urgent.is_empty() || next.any(|(_, need)| self.fits(*need))
    }

    /// Whose turn it is, and what it needs, which is kept for it.
    pub(super) fn next(&mut self) -> Option<(u64, usize)> {
        if let Some(connection) = self.urgent.pop() {
            return Some((connection, 0));
        }
        if !self.has_next() {
            return None;
        }
        let (connection, need) = self.waiting.pop_front()?;
        self.waiting.retain(|(other, _)| *other != connection);
        self.promised += need;
        Some((connection, need))
    }

    /// It has had its turn, and has not made use of that yet.
    pub(super) fn promise(&mut self, promised: usize) {
        self.promised += promised;
    }

    /// It has its turn, or has gone: what was kept for it is free.
    pub(super) fn take(&mut self, promised: usize) {
        self.promised -= promised;
    }

    /// It holds what others may wait for, and does not wait itself.
    pub(super) fn urge(&mut self, connection: u64) {
        self.forget(connection);
        self.urgent.push(connection);
    }

    /// It does not wait any more.
    pub(super) fn forget(&mut self, connection: u64) {
        self.waiting.retain(|(other, _)| *other != connection);
        self.urgent.retain(|other| *other != connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 1 << 20;

    #[test]
    fn requests_are_let_in_as_they_came_and_as_they_fit() {
        let mut room = Room::new();
        room.limit(3 * LEN);
        assert!(room.admits(10 * LEN), "alone");
        room.count(0, 2 * LEN);
        assert!(room.admits(LEN) && !room.admits(2 * LEN));
        room.wait(1, 2 * LEN);
        room.wait(2, LEN);
        room.wait(1, LEN);
        assert!(!room.admits(LEN), "others came first");
        assert!(room.admits(LEN / 32));
        assert_eq!(room.next(), None);
        room.count(2 * LEN, 0);
        assert_eq!(room.next(), Some((1, 2 * LEN)));
        assert_eq!(room.next(), Some((2, LEN)), "beside what is promised");
        assert!(!room.admits(2 * LEN));
        room.take(2 * LEN);
        room.take(LEN);
        assert!(room.admits(2 * LEN));
        room.count(0, 3 * LEN);
        room.wait(3, LEN);
        room.wait(4, LEN);
        assert_eq!(room.next(), None);
        room.urge(4);
        assert_eq!([room.next(), room.next()], [Some((4, 0)), None]);
    }
}
