//! What calls cost while they are under way: so many of them and so many bytes
//! to one backend, and no more, whatever a backend that hangs does with them. Who
//! finds no room is told when a call has ended, whosever it was.

use super::bell::Bell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Calls under way to one backend, of all clients of a process.
pub(crate) const CALL_COUNT_MAX: usize = 512;
/// Bytes of their requests. A single longer one goes alone.
pub(crate) const CALL_LEN_MAX: usize = 128 << 20;
/// Reports of reads under way to one backend; further ones are dropped. They
/// must not take the room of lookups and mutations.
const TOUCH_CALL_COUNT_MAX: usize = 2;

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Nobody needs its answer once its operation is over.
    Question,
    /// It has to arrive, whatever becomes of who started it.
    Mutation,
    /// May be lost.
    Touch,
}

/// Where a client hears of room for its calls to one backend.
#[derive(Debug)]
pub(crate) struct RoomWatch {
    has_room: AtomicBool,
    bell: Arc<Bell>,
}

impl RoomWatch {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        RoomWatch {
            has_room: AtomicBool::new(false),
            bell,
        }
    }

    /// Whether a call has ended since room was refused.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.has_room.load(Ordering::SeqCst)
    }

    /// Its client has noticed.
    pub(crate) fn clear(&self) {
        self.has_room.store(false, Ordering::SeqCst);
    }

    fn tell(&self) {
        self.has_room.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

#[derive(Debug, Default)]
struct Backend {
    calls: usize,
    bytes: usize,
    touch_calls: usize,
    /// Told, and forgotten, when a call has ended.
    waiting: Vec<Arc<RoomWatch>>,
}

#[derive(Debug, Default)]
struct State {
    backends: Vec<Backend>,
    mutations: usize,
}

/// The account of one cell's calls.
#[derive(Debug, Default)]
pub(crate) struct Account {
    state: Mutex<State>,
    changed: Condvar,
}

/// Holds a call's place until it has ended.
#[derive(Debug)]
pub(crate) struct Place {
    account: Arc<Account>,
    backend: usize,
    bytes: usize,
    purpose: Purpose,
}

impl Account {
    /// A place for a call of `bytes` to backend number `backend`; `None` if too
    /// much is under way to it: then `watch` is told when there may be room.
    pub(crate) fn enter(
        self: &Arc<Self>,
        backend: u32,
        bytes: usize,
        purpose: Purpose,
        watch: Option<&Arc<RoomWatch>>,
    ) -> Option<Place> {
        let backend = backend as usize;
        let mut state = self.lock();
        if state.backends.len() <= backend {
            state.backends.resize_with(backend + 1, Backend::default);
        }
        let of = &mut state.backends[backend];
        if purpose == Purpose::Touch {
            if of.touch_calls == TOUCH_CALL_COUNT_MAX {
                return None;
            }
            of.touch_calls += 1;
        } else {
            let is_full = of.calls == CALL_COUNT_MAX
                || (of.calls > 0 && of.bytes.saturating_add(bytes) > CALL_LEN_MAX);
            if is_full {
                if let Some(watch) = watch
                    && !of.waiting.iter().any(|known| Arc::ptr_eq(known, watch))
                {
                    of.waiting.push(Arc::clone(watch));
                }
                return None;
            }
            of.calls += 1;
            of.bytes += bytes;
        }
        state.mutations += usize::from(purpose == Purpose::Mutation);
        Some(Place {
            account: Arc::clone(self),
            backend,
            bytes,
            purpose,
        })
    }

    /// Waits until no mutation is under way; `false` if some still are after
    /// `patience`.
    pub(crate) fn finish(&self, patience: Duration) -> bool {
        let begin = Instant::now();
        let mut state = self.lock();
        while state.mutations > 0 {
            let Some(left) = patience.checked_sub(begin.elapsed()) else {
                return false;
            };
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    /// Whether nothing that has to arrive is under way.
    pub(crate) fn is_finished(&self) -> bool {
        self.lock().mutations == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.account.lock();
        let of = &mut state.backends[self.backend];
        let mut waiting = Vec::new();
        if self.purpose == Purpose::Touch {
            of.touch_calls -= 1;
        } else {
            of.calls -= 1;
            of.bytes -= self.bytes;
            waiting = std::mem::take(&mut of.waiting);
        }
        if self.purpose == Purpose::Mutation {
            state.mutations -= 1;
            if state.mutations == 0 {
                self.account.changed.notify_all();
            }
        }
        drop(state);
        for watch in waiting {
            watch.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_hangs_takes_so_much_and_no_more() {
        let account = Arc::new(Account::default());
        let mut places = Vec::new();
        while let Some(place) = account.enter(1, 10, Purpose::Question, None) {
            places.push(place);
        }
        assert_eq!(places.len(), CALL_COUNT_MAX);
        assert!(account.enter(2, 10, Purpose::Question, None).is_some());
        assert!(account.enter(1, 10, Purpose::Touch, None).is_some());
        places.pop();
        assert!(account.enter(1, 10, Purpose::Question, None).is_some());
    }

    #[test]
    fn bytes_are_bounded_but_one_call_always_goes() {
        let account = Arc::new(Account::default());
        let whole = account.enter(0, CALL_LEN_MAX + 1, Purpose::Mutation, None);
        assert!(whole.is_some());
        assert!(account.enter(0, 1, Purpose::Mutation, None).is_none());
        assert!(!account.finish(Duration::from_millis(1)));
        drop(whole);
        assert!(account.finish(Duration::ZERO));
        let half = account.enter(0, CALL_LEN_MAX / 2, Purpose::Question, None);
        assert!(half.is_some() && account.is_finished());
        assert!(
            account
                .enter(0, CALL_LEN_MAX, Purpose::Mutation, None)
                .is_none()
        );
    }

    #[test]
    fn touches_have_a_budget_of_their_own() {
        let account = Arc::new(Account::default());
        let places: Vec<_> = (0..TOUCH_CALL_COUNT_MAX)
            .map(|_| account.enter(0, 1, Purpose::Touch, None).unwrap())
            .collect();
        assert!(account.enter(0, 1, Purpose::Touch, None).is_none());
        assert!(account.enter(0, 1, Purpose::Mutation, None).is_some());
        drop(places);
        assert!(account.enter(0, 1, Purpose::Touch, None).is_some());
    }

    #[test]
    fn who_finds_no_room_hears_of_the_next_call_that_ends() {
        let account = Arc::new(Account::default());
        let watch = Arc::new(RoomWatch::new(Arc::new(Bell::new())));
        let enter = |len| account.enter(0, len, Purpose::Mutation, Some(&watch));
        let (first, second) = (enter(1).unwrap(), enter(CALL_LEN_MAX - 1).unwrap());
        assert!(enter(1).is_none() && enter(1).is_none());
        assert!(!watch.has_room());
        drop(first);
        assert!(watch.has_room());
        watch.clear();
        // It has to ask again, and is told again.
        let third = enter(1).unwrap();
        assert!(enter(1).is_none() && !watch.has_room());
        drop(second);
        assert!(watch.has_room());
        watch.clear();
        drop(third);
        assert!(!watch.has_room(), "nobody waits any more");
    }
}
