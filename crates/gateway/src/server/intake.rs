//! Input that a connection keeps: a request of which the rest has yet to come, and
//! requests that wait until answers have left.

/// Of the room of a buffer this part at least is used, or it is given back once much of it
/// is done with.
const USED_SHARE_MIN: usize = 4;

/// Longest buffer that is kept for the next long request.
const SPARE_LEN_MAX: usize = 2 << 20;

/// The spare buffer is at most so many times as long as what is needed at once.
const SPARE_STEP: usize = 8;

/// The buffer of the last long request, for the next one of an event loop's connections:
/// each page of fresh memory costs a fault, together as much as the request itself.
#[derive(Debug, Default)]
pub(super) struct Spare(Vec<u8>);

impl Spare {
    fn keep(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() <= SPARE_LEN_MAX && bytes.capacity() > self.0.capacity() {
            bytes.clear();
            self.0 = bytes;
        }
    }

    /// It if it has memory for so many bytes, and for no more than may be had. Only for a
    /// request of which a part has come: one that is announced costs next to nothing.
    fn take(&mut self, len: usize, len_max: usize) -> Option<Vec<u8>> {
        let len_max = len_max.min(SPARE_STEP * len);
        let fits = (len..=len_max).contains(&self.0.capacity());
        fits.then(|| std::mem::take(&mut self.0))
    }
}

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

    /// The same for a long request: the spare buffer is taken if it is long enough, and
    /// no longer than `len_max`.
    pub(super) fn make_much_room(&mut self, len: usize, len_max: usize, spare: &mut Spare) {
        if len > self.bytes.capacity()
            && let Some(mut bytes) = spare.take(len, len_max)
        {
            bytes.extend_from_slice(self.bytes());
            *self = Intake { bytes, begin: 0 };
        }
        self.make_room(len);
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
    pub(super) fn consume(&mut self, len: usize, spare: &mut Spare) {
        self.begin += len;
        let rest = self.len();
        if rest == 0 {
            spare.keep(std::mem::take(self).bytes);
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
        let (mut intake, mut spare) = (Intake::default(), Spare::default());
        intake.make_room(1000);
        let all: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        intake.tail().extend_from_slice(&all);
        assert_eq!((intake.len(), intake.capacity()), (1000, 1000));
        assert!(intake.is_full());
        for done in 1..1000 {
            let at = intake.bytes().as_ptr();
            intake.consume(1, &mut spare);
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
        intake.consume(5, &mut spare);
        assert_eq!((intake.is_empty(), intake.capacity()), (true, 0));
        intake.replace(b"other");
        assert_eq!(intake.bytes(), b"other");
        intake.replace(b"");
        assert_eq!(intake.capacity(), 0);
    }

    #[test]
    fn the_buffer_of_a_long_request_serves_the_next_one() {
        let mut spare = Spare::default();
        let begun = |len: usize, len_max: usize, spare: &mut Spare| {
            let mut intake = Intake::default();
            intake.replace(b"head");
            intake.make_much_room(len, len_max, spare);
            assert_eq!(intake.bytes(), b"head");
            intake
        };
        let mut first = begun(100_000, 1 << 20, &mut spare);
        let place = first.bytes.as_ptr();
        first.consume(4, &mut spare);
        assert_eq!(first.capacity(), 0);
        // Too short, and more than may be had.
        assert_eq!(begun(200_000, 1 << 20, &mut spare).capacity(), 200_000);
        assert_eq!(begun(50_000, 90_000, &mut spare).capacity(), 50_000);
        let mut next = begun(50_000, 100_000, &mut spare);
        assert_eq!((next.bytes.as_ptr(), next.capacity()), (place, 100_000));
        assert_eq!(begun(12_000, 100_000, &mut spare).capacity(), 12_000);
        // Meanwhile there is none, and the longer one of two is kept.
        let mut other = begun(60_000, 100_000, &mut spare);
        assert_eq!(other.capacity(), 60_000);
        next.consume(4, &mut spare);
        other.consume(4, &mut spare);
        assert_eq!(spare.0.capacity(), 100_000);
        begun(SPARE_LEN_MAX + 1, usize::MAX, &mut spare).consume(4, &mut spare);
        assert_eq!(spare.0.capacity(), 100_000);
    }
}
