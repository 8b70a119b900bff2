//! What is to happen, by time; of one time in the order in which it was asked for.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// When, in microseconds, before the number that says in which order it was asked for: one
/// word, since most of what a run does with its queue is to compare two of these.
#[derive(Clone, Copy)]
struct Queued {
    key: u64,
    /// Where the event lies, so that little is moved about.
    slot: u32,
}

/// More than there are events in a run; the rest is for more than a minute.
const NUMBER_BITS: u32 = 38;
const MICROS_MAX: u64 = u64::MAX >> NUMBER_BITS;

/// The first comes first.
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Queued {}

/// Events in virtual time.
pub(crate) struct Queue<E> {
    queued: BinaryHeap<Queued>,
    events: Vec<Option<E>>,
    free: Vec<u32>,
    numbers: u64,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Queue {
            queued: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            numbers: 0,
        }
    }

    pub(crate) fn push(&mut self, at: Duration, event: E) {
        self.numbers += 1;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.events[slot as usize] = Some(event);
                slot
            }
            None => {
                self.events.push(Some(event));
                self.events.len() as u32 - 1
            }
        };
        // What lies behind the end of all runs does not happen.
        let at = (at.as_micros() as u64).min(MICROS_MAX);
        let key = at << NUMBER_BITS | self.numbers;
        self.queued.push(Queued { key, slot });
    }

    /// The next one, and when it happens.
    pub(crate) fn pop(&mut self) -> Option<(Duration, E)> {
        let Queued { key, slot } = self.queued.pop()?;
        let event = self.events[slot as usize].take()?;
        self.free.push(slot);
        Some((Duration::from_micros(key >> NUMBER_BITS), event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_and_then_in_the_order_of_asking() {
        let mut queue = Queue::new();
        for (at, event) in [(7, 'c'), (3, 'a'), (7, 'd'), (3, 'b'), (9, 'e')] {
            queue.push(Duration::from_micros(at), event);
        }
        let next = |queue: &mut Queue<char>| queue.pop().map(|(at, event)| (at.as_micros(), event));
        assert_eq!(next(&mut queue), Some((3, 'a')));
        // One that comes later in a place that has become free is the last of its time.
        queue.push(Duration::from_micros(7), 'f');
        let rest: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        let expected = [(3, 'b'), (7, 'c'), (7, 'd'), (7, 'f'), (9, 'e')];
        assert_eq!(rest, expected);
    }
}
