//! Completions of a shared receive queue, brought into the order of its positions. Without I/O.
//!
//! A card takes buffers in order, but may report what came by several connections in another
//! one. What is reported early waits for what is before it, for [`PATIENCE_NS`] at most: if the
//! card never reports a buffer that it took (which a correct one does not do), the others go on
//! without it. Is it reported after all, it is next at once: a card reports before it
//! acknowledges, so nothing that was sent after that acknowledgement has been reported yet.

use std::collections::BTreeMap;

/// How long what was reported early waits.
pub const PATIENCE_NS: u64 = 100_000_000;

/// See the module. `T` is what came.
#[derive(Debug)]
pub struct Arrivals<T> {
    /// The position that is next.
    next: u64,
    /// What was reported and is not taken.
    ahead: BTreeMap<u64, T>,
    /// Since when `next` has been missing while later ones are there.
    missing_since: Option<u64>,
    skipped: u64,
}

impl<T> Arrivals<T> {
    /// Of a queue whose first position is this.
    pub fn new(first: u64) -> Self {
        Arrivals {
            next: first,
            ahead: BTreeMap::new(),
            missing_since: None,
            skipped: 0,
        }
    }

    /// The card has reported a position.
    pub fn arrived(&mut self, position: u64, what: T) {
        self.ahead.insert(position, what);
    }

    /// What is next by its position, if that is known.
    pub fn take(&mut self, now_ns: u64) -> Option<(u64, T)> {
        let (&position, _) = self.ahead.first_key_value()?;
        if position > self.next {
            let since = *self.missing_since.get_or_insert(now_ns);
            if now_ns.saturating_sub(since) < PATIENCE_NS {
                return None;
            }
            self.skipped += position - self.next;
        }
        self.missing_since = None;
        self.next = self.next.max(position + 1);
        self.ahead.pop_first()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.ahead.is_empty()
    }

    /// Positions that were not waited for any longer.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_the_order_whatever_order_they_are_reported_in() {
        let mut arrivals = Arrivals::new(1);
        for position in [2, 4, 3] {
            arrivals.arrived(position, position * 10);
            assert_eq!(arrivals.take(0), None, "1 is missing");
        }
        arrivals.arrived(1, 10);
        let taken: Vec<_> = std::iter::from_fn(|| arrivals.take(0)).collect();
        assert_eq!(taken, [(1, 10), (2, 20), (3, 30), (4, 40)]);
        assert_eq!(arrivals.skipped(), 0);
    }

    #[test]
    fn what_is_never_reported_is_waited_for_once_and_no_longer_than_that() {
        let mut arrivals = Arrivals::new(1);
        arrivals.arrived(1, ());
        arrivals.arrived(4, ());
        arrivals.arrived(5, ());
        assert_eq!(arrivals.take(0), Some((1, ())));
        assert_eq!(arrivals.take(10), None);
        assert_eq!(arrivals.take(9 + PATIENCE_NS), None);
        assert_eq!(arrivals.take(10 + PATIENCE_NS), Some((4, ())));
        assert_eq!(arrivals.take(10 + PATIENCE_NS), Some((5, ())));
        assert_eq!(arrivals.skipped(), 2);
        // Late, and not lost; and the next gap is waited for anew.
        arrivals.arrived(7, ());
        arrivals.arrived(2, ());
        assert_eq!(arrivals.take(20 + PATIENCE_NS), Some((2, ())));
        assert_eq!(arrivals.take(20 + PATIENCE_NS), None);
        arrivals.arrived(6, ());
        assert_eq!(arrivals.take(20 + PATIENCE_NS), Some((6, ())));
        assert_eq!(arrivals.take(20 + PATIENCE_NS), Some((7, ())));
        assert!(arrivals.is_empty());
    }
}
