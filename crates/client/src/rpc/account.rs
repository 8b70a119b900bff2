//! What calls cost while they are under way: so many of them and so many bytes
//! to one backend, and no more, whatever a backend that hangs does with them. Who
//! finds no room waits in a [`queue`](super::queue).
//!
//! A backend that does not answer is given up, and the places of its calls with it: a
//! client that finds it well again does not wait for what is lost. Lost questions end.
//! A lost mutation goes on, for the backend may have paused only and take it yet; as
//! many of these as of the others, and no more.

use super::queue::{Queue, RoomWatch};
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

/// Calls and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    calls: usize,
    bytes: usize,
}

impl Load {
    /// Whether there is room for one more, of `len` bytes.
    pub(super) fn takes(self, len: usize) -> bool {
        let fits = self.calls < CALL_COUNT_MAX && self.bytes.saturating_add(len) <= CALL_LEN_MAX;
        self.calls == 0 || fits
    }

    /// With one more.
    pub(super) fn and(self, len: usize) -> Load {
        Load {
            calls: self.calls + 1,
            bytes: self.bytes.saturating_add(len),
        }
    }

    /// With one less.
    fn without(self, len: usize) -> Load {
        Load {
            calls: self.calls - 1,
            bytes: self.bytes - len,
        }
    }
}

#[derive(Debug, Default)]
struct Backend {
    load: Load,
    /// Mutations that were lost with their backend and go on.
    lost: Load,
    /// Questions for which nobody waits any more, and that go on for a while.
    overdue: Load,
    touch_calls: usize,
    queue: Queue,
    /// Calls that it has answered.
    answered: u64,
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
    counts: Counts,
    is_answered: bool,
}

/// As what a call counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    UnderWay,
    Lost,
    Overdue,
}

impl Account {
    /// A place for a call of `bytes` to backend number `backend`; `None` if too
    /// much is under way to it: then `watch` is told when there is room.
    pub(crate) fn enter(
        self: &Arc<Self>,
        backend: u32,
        bytes: usize,
        purpose: Purpose,
        watch: Option<&Arc<RoomWatch>>,
    ) -> Option<Place> {
        let mut state = self.lock();
        let of = state.backend(backend);
        if purpose == Purpose::Touch {
            if of.touch_calls == TOUCH_CALL_COUNT_MAX {
                return None;
            }
            of.touch_calls += 1;
        } else {
            if !of.queue.load_ahead(of.load, watch).takes(bytes) {
                if let Some(watch) = watch {
                    of.queue.wait(watch, bytes);
                }
                return None;
            }
            of.load = of.load.and(bytes);
            if let Some(watch) = watch {
                of.queue.leave(watch);
            }
        }
        // It may be shorter than the one that room was kept for.
        let called = of.queue.call(of.load);
        state.mutations += usize::from(purpose == Purpose::Mutation);
        drop(state);
        tell(&called);
        Some(Place {
            account: Arc::clone(self),
            backend: backend as usize,
            bytes,
            purpose,
            counts: Counts::UnderWay,
            is_answered: false,
        })
    }

    /// A client waits no more.
    pub(crate) fn leave(&self, backend: u32, watch: &Arc<RoomWatch>) {
        let mut state = self.lock();
        let of = state.backend(backend);
        of.queue.leave(watch);
        let called = of.queue.call(of.load);
        drop(state);
        tell(&called);
    }

    /// How many calls backend number `backend` has answered.
    pub(crate) fn answered(&self, backend: u32) -> u64 {
        self.lock().backend(backend).answered
    }

    /// Bytes of the calls under way to backend number `backend`, those included that were lost
    /// or are overdue.
    pub(crate) fn len_under_way(&self, backend: u32) -> u64 {
        let mut state = self.lock();
        let of = state.backend(backend);
        let others = of.lost.bytes.saturating_add(of.overdue.bytes);
        of.load.bytes.saturating_add(others) as u64
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

impl State {
    fn backend(&mut self, number: u32) -> &mut Backend {
        let index = number as usize;
        if self.backends.len() <= index {
            self.backends.resize_with(index + 1, Backend::default);
        }
        &mut self.backends[index]
    }
}

impl Place {
    /// The call's backend was given up. Whether the call goes on: then others have its
    /// place; else it is to end now.
    pub(crate) fn lose(&mut self) -> bool {
        let mut state = self.account.lock();
        let of = &mut state.backends[self.backend];
        if self.purpose != Purpose::Mutation || !of.lost.takes(self.bytes) {
            return false;
        }
        of.lost = of.lost.and(self.bytes);
        of.load = of.load.without(self.bytes);
        let called = of.queue.call(of.load);
        drop(state);
        tell(&called);
        self.counts = Counts::Lost;
        true
    }

    /// Nobody waits for this question any more: while it goes on others have its place, unless
    /// as many go on already as have places.
    pub(crate) fn is_overdue(&mut self) {
        let mut state = self.account.lock();
        let of = &mut state.backends[self.backend];
        if self.counts != Counts::UnderWay || !of.overdue.takes(self.bytes) {
            return;
        }
        of.overdue = of.overdue.and(self.bytes);
        of.load = of.load.without(self.bytes);
        let called = of.queue.call(of.load);
        drop(state);
        tell(&called);
        self.counts = Counts::Overdue;
    }

    /// The backend has answered the call.
    pub(crate) fn has_answer(&mut self) {
        self.is_answered = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.account.lock();
        let of = &mut state.backends[self.backend];
        let mut called = Vec::new();
        of.answered += u64::from(self.is_answered);
        if self.purpose == Purpose::Touch {
            of.touch_calls -= 1;
        } else {
            match self.counts {
                Counts::Lost => of.lost = of.lost.without(self.bytes),
                Counts::Overdue => of.overdue = of.overdue.without(self.bytes),
                Counts::UnderWay => {
                    of.load = of.load.without(self.bytes);
                    called = of.queue.call(of.load);
                }
            }
        }
        if self.purpose == Purpose::Mutation {
            state.mutations -= 1;
            if state.mutations == 0 {
                self.account.changed.notify_all();
            }
        }
        drop(state);
        tell(&called);
    }
}

fn tell(called: &[Arc<RoomWatch>]) {
    for watch in called {
        watch.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::Bell;

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

    fn watch() -> Arc<RoomWatch> {
        Arc::new(RoomWatch::new(Arc::new(Bell::new())))
    }

    #[test]
    fn who_finds_no_room_hears_of_the_next_call_that_ends() {
        let (account, watch) = (Arc::new(Account::default()), watch());
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
        assert!(!watch.has_room(), "it was told, and nobody else waits");
    }

    /// A long value at one client's head, and others who always have a short one.
    #[test]
    fn what_is_long_gets_its_room_beside_any_number_of_short_calls() {
        const LONG: usize = CALL_LEN_MAX / 2;
        let (account, long, short) = (Arc::new(Account::default()), watch(), watch());
        let enter = |len, watch| account.enter(0, len, Purpose::Mutation, Some(watch));
        let mut under_way: Vec<_> = (0..4).map(|_| enter(LONG / 2, &short)).collect();
        assert!(under_way.iter().all(Option::is_some));
        assert!(enter(LONG, &long).is_none());
        assert!(enter(LONG / 2, &short).is_none());
        // Room for a short one, but not before its turn.
        under_way.pop();
        assert!(enter(LONG / 2, &short).is_none());
        assert!(!long.has_room() && !short.has_room());
        under_way.pop();
        assert!(long.has_room() && !short.has_room());
        let whole = enter(LONG, &long);
        assert!(whole.is_some());
        drop(under_way);
        assert!(short.has_room() && enter(LONG / 2, &short).is_some());
    }

    #[test]
    fn who_does_not_come_is_passed_and_keeps_its_place() {
        let (account, absent, other) = (Arc::new(Account::default()), watch(), watch());
        let enter = |len, watch| account.enter(0, len, Purpose::Mutation, Some(watch));
        let whole = enter(CALL_LEN_MAX, &other);
        assert!(enter(CALL_LEN_MAX, &absent).is_none());
        assert!(enter(1, &other).is_none());
        drop(whole);
        assert!(absent.has_room());
        let begin = Instant::now();
        let passed = loop {
            if let Some(place) = enter(1, &other) {
                break place;
            }
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        };
        // Now it comes, and is the first again.
        assert!(enter(CALL_LEN_MAX, &absent).is_none());
        assert!(enter(1, &other).is_none());
        drop(passed);
        assert!(enter(CALL_LEN_MAX, &absent).is_some());
        // One that is no more is waited for by nobody.
        other.clear();
        let whole = enter(CALL_LEN_MAX, &other);
        assert!(enter(CALL_LEN_MAX, &absent).is_none() && enter(1, &other).is_none());
        drop(whole);
        account.leave(0, &absent);
        assert!(other.has_room() && enter(1, &other).is_some());
    }

    /// Room that was kept for a long value, whose client comes with a short one.
    #[test]
    fn room_that_is_not_taken_is_the_next_ones() {
        let (account, first, next) = (Arc::new(Account::default()), watch(), watch());
        let enter = |len, watch| account.enter(0, len, Purpose::Mutation, Some(watch));
        let whole = enter(CALL_LEN_MAX, &first);
        assert!(enter(CALL_LEN_MAX, &first).is_none() && enter(1, &next).is_none());
        drop(whole);
        assert!(first.has_room() && !next.has_room());
        let short = enter(1, &first);
        assert!(short.is_some() && next.has_room());
    }

    #[test]
    fn what_is_lost_gives_its_place_back() {
        let (account, watch) = (Arc::new(Account::default()), watch());
        let enter = |purpose| account.enter(0, 10, purpose, Some(&watch));
        let fill = || {
            let places: Vec<_> = (0..CALL_COUNT_MAX)
                .map(|_| enter(Purpose::Mutation).unwrap())
                .collect();
            assert!(enter(Purpose::Question).is_none());
            places
        };
        let mut lost = fill();
        assert!(lost.iter_mut().all(Place::lose));
        assert!(watch.has_room());
        // As many again, and those end when they are lost.
        let mut more = fill();
        assert!(!more.iter_mut().any(Place::lose));
        lost.pop();
        assert!(more[0].lose());
        let mut question = enter(Purpose::Question).unwrap();
        assert!(!question.lose());
        drop((lost, more, question));
        assert!(account.is_finished());
        let load = account.lock().backends[0].load;
        assert_eq!((load.calls, load.bytes), (0, 0));
    }

    #[test]
    fn what_nobody_waits_for_gives_its_place_back_and_not_without_end() {
        let (account, watch) = (Arc::new(Account::default()), watch());
        let enter = || account.enter(0, 10, Purpose::Question, Some(&watch));
        let fill = || -> Vec<_> { std::iter::from_fn(enter).collect() };
        let mut overdue = fill();
        assert_eq!(overdue.len(), CALL_COUNT_MAX);
        overdue.iter_mut().for_each(Place::is_overdue);
        assert!(watch.has_room());
        let mut more = fill();
        assert_eq!(more.len(), CALL_COUNT_MAX);
        // They keep their places, until one of the others has ended.
        more.iter_mut().for_each(Place::is_overdue);
        assert!(enter().is_none());
        overdue.pop();
        assert!(enter().is_none());
        more[0].is_overdue();
        assert!(enter().is_some());
        let bytes = 10 * (2 * CALL_COUNT_MAX - 1) as u64;
        assert_eq!(account.len_under_way(0), bytes);
        drop((overdue, more));
        assert_eq!(account.len_under_way(0), 0);
        let of = &account.lock().backends[0];
        assert_eq!((of.load.calls, of.overdue.calls), (0, 0));
    }

    #[test]
    fn answers_are_counted_and_nothing_else() {
        let account = Arc::new(Account::default());
        let mut place = account.enter(1, 1, Purpose::Question, None).unwrap();
        drop(account.enter(1, 1, Purpose::Question, None));
        assert_eq!(account.answered(1), 0);
        place.has_answer();
        drop(place);
        assert_eq!((account.answered(1), account.answered(0)), (1, 0));
    }
}
