//! Input that a connection keeps: a request of which the rest has yet to come, and
//! requests that wait until answers have left.

/// Of the room of a buffer this part at least is used, or it is given back once much of it
/// is done with.
const USED_SHARE_MIN: usize = 4;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Intake {
    bytes: Vec<u8>,
    /// What stands before is done with.
    begin: usize,
}

impl Intake {
    /// What is not done with.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.begin
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that it has.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether nothing can be appended without more memory, or a move.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() == self.bytes.capacity()
    }

    /// Makes it have memory for so many bytes, those that are there included.
    pub(super) fn make_room(&mut self, len: usize) {
        self.close_gap();
        if len > self.bytes.capacity() {
            self.bytes.reserve_exact(len - self.bytes.len());
        }
    }

    /// Where more is appended.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Takes these bytes in the place of all others.
    pub(super) fn replace(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return self.clear();
        }
        self.begin = 0;
        self.bytes.clear();
        self.bytes.reserve_exact(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// So many bytes at the front are done with. The others are moved only if they are
    /// no more than those, so a byte costs no more than a move, however many requests wait.
    pub(super) fn consume(&mut self, len: usize) {
        self.begin += len;
        let rest = self.len();
        if rest == 0 {
            self.clear();
        } else if self.begin >= rest {
            if rest * USED_SHARE_MIN < self.bytes.capacity() {
                self.bytes = self.bytes().to_vec();
                self.begin = 0;
            } else {
                self.close_gap();
            }
        }
    }

    /// Gives everything back.
    pub(super) fn clear(&mut self) {
        if self.bytes.capacity() > 0 {
            *self = Intake::default();
        }
    }

    fn close_gap(&mut self) {
        if self.begin > 0 {
            self.bytes.drain(..self.begin);
            self.begin = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_moved_seldom_and_its_room_is_given_back() {
        let mut intake = Intake::default();
        intake.make_room(1000);
        let all: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        intake.tail().extend_from_slice(&all);
        assert_eq!((intake.len(), intake.capacity()), (1000, 1000));
        assert!(intake.is_full());
        for done in 1..1000 {
            let at = intake.bytes().as_ptr();
            intake.consume(1);
            assert_eq!(intake.bytes(), &all[done..], "{done}");
            let is_moved = intake.bytes().as_ptr() != at.wrapping_add(1);
            // Half of what was left is done with each time.
            assert_eq!(
                is_moved,
                [500, 750, 875, 938, 969, 985, 993, 997, 999].contains(&done),
                "{done}"
            );
        }
        assert!(intake.capacity() < 250);
        intake.make_room(10);
        intake.tail().extend_from_slice(b"more");
        assert_eq!(intake.bytes(), [&all[999..], b"more"].concat());
        intake.consume(5);
        assert_eq!((intake.is_empty(), intake.capacity()), (true, 0));
        intake.replace(b"other");
        assert_eq!(intake.bytes(), b"other");
        intake.replace(b"");
        assert_eq!(intake.capacity(), 0);
    }
}
