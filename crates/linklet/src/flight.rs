//! Loads under way: concurrent misses of one key run the loader once. Whether
//! what was loaded may be kept, and told to those who came later, is the matter of
//! `fresh`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;

/// What a finished load left: `None` until then, and if its leader went away.
type Slot<T> = Option<T>;

struct Flight<T> {
    done: watch::Receiver<Slot<T>>,
    id: u64,
}

struct Board<T> {
    flights: HashMap<Arc<[u8]>, Flight<T>>,
    next: u64,
}

/// The loads of one linklet.
pub(crate) struct Flights<T> {
    board: Mutex<Board<T>>,
}

/// What a caller who misses a key has to do.
pub(crate) enum Turn<'a, T> {
    /// Load it: nobody else does.
    Lead(Lead<'a, T>),
    /// Wait for who does.
    Follow(watch::Receiver<Slot<T>>),
}

/// The right and duty to load a key. Dropped before it has landed (the caller
/// went away), it lets one of those who wait try instead.
pub(crate) struct Lead<'a, T> {
    flights: &'a Flights<T>,
    key: Arc<[u8]>,
    id: u64,
    done: watch::Sender<Slot<T>>,
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Flights {
            board: Mutex::new(Board {
                flights: HashMap::new(),
                next: 0,
            }),
        }
    }
}

impl<T> Flights<T> {
    fn board(&self) -> MutexGuard<'_, Board<T>> {
        self.board.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Leads the load of a key or follows it.
    pub(crate) fn join(&self, key: &[u8]) -> Turn<'_, T> {
        let mut board = self.board();
        let id = board.next + 1;
        match board.flights.entry(key.into()) {
            Entry::Occupied(found) => Turn::Follow(found.get().done.clone()),
            Entry::Vacant(place) => {
                let (done, waiting) = watch::channel(None);
                let key = Arc::clone(place.key());
                place.insert(Flight { done: waiting, id });
                board.next = id;
                Turn::Lead(Lead {
                    flights: self,
                    key,
                    id,
                    done,
                })
            }
        }
    }

    /// Loads under way.
    pub(crate) fn len(&self) -> usize {
        self.board().flights.len()
    }
}

impl<T> Lead<'_, T> {
    /// Hands the outcome to everybody who waits.
    pub(crate) fn land(self, outcome: T) {
        // The flight ends first (when `self` is dropped): who comes later finds
        // the value, or loads again.
        let done = self.done.clone();
        drop(self);
        let _ = done.send(Some(outcome));
    }
}

impl<T> Drop for Lead<'_, T> {
    fn drop(&mut self) {
        let mut board = self.flights.board();
        if board
            .flights
            .get(&self.key)
            .is_some_and(|flight| flight.id == self.id)
        {
            board.flights.remove(&self.key);
        }
    }
}

/// Waits for a flight's outcome; `None` if its leader went away.
pub(crate) async fn outcome<T: Clone>(mut done: watch::Receiver<Slot<T>>) -> Option<T> {
    done.wait_for(Option::is_some)
        .await
        .ok()
        .and_then(|slot| slot.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lead<'a>(flights: &'a Flights<u32>, key: &[u8]) -> Lead<'a, u32> {
        match flights.join(key) {
            Turn::Lead(lead) => lead,
            Turn::Follow(_) => panic!("somebody else loads it"),
        }
    }

    fn follow(flights: &Flights<u32>, key: &[u8]) -> watch::Receiver<Slot<u32>> {
        match flights.join(key) {
            Turn::Lead(_) => panic!("nobody loads it"),
            Turn::Follow(done) => done,
        }
    }

    #[tokio::test]
    async fn one_loads_and_everybody_gets_it() {
        let flights = Flights::default();
        let first = lead(&flights, b"k");
        let waiting = follow(&flights, b"k");
        let other = lead(&flights, b"other");
        assert_eq!(flights.len(), 2);
        first.land(7);
        assert_eq!(outcome(waiting).await, Some(7));
        drop(other);
        assert_eq!(flights.len(), 0);
        lead(&flights, b"k").land(8);
    }

    #[tokio::test]
    async fn a_leader_that_goes_away_is_followed_by_another() {
        let flights = Flights::default();
        let first = lead(&flights, b"k");
        let waiting = follow(&flights, b"k");
        drop(first);
        assert_eq!(outcome(waiting).await, None);
        lead(&flights, b"k").land(1);
    }
}
