//! What tasks hand to the client's thread, and how they get their results.
//!
//! ```text
//! Queued ──begin──► Begun ──complete──► Done ──► the future has it
//!    └── its future is dropped, or its deadline passes: it never happens
//! ```
//!
//! What waits is in its future's own slot, so the queue needs no bound of its own: a
//! future that is dropped takes its operation with it.

use crate::client::forked;
use crate::commit::Commit;
use crate::error::{Mutated, OpError};
use crate::mutate::SetOptions;
use crate::owned::OwnedLookup;
use crate::rpc::Bell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use trefoil_client_core::fill::FillTicket;
use trefoil_layout::op::Expected;
use trefoil_region::ForkMark;

/// Dropped futures whose places are swept together.
const SWEEP_COUNT_MIN: usize = 64;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Command {
    Get(Vec<u8>),
    Set(Vec<u8>, Vec<u8>, SetOptions, Commit),
    Fill(FillTicket, Vec<u8>, Vec<u8>, SetOptions),
    Erase(Vec<u8>, Commit),
    Cas(Vec<u8>, Expected, Vec<u8>, SetOptions),
    /// Completes when everything that was begun before it has been sent and heard
    /// of.
    Finish,
}

/// What it came to.
#[derive(Debug)]
pub(super) enum Answer {
    Lookup(Result<OwnedLookup, OpError>),
    Mutated(Result<Mutated, OpError>),
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lookup,
    Mutation,
    Finish,
}

impl Command {
    fn kind(&self) -> Kind {
        match self {
            Command::Get(_) => Kind::Lookup,
            Command::Finish => Kind::Finish,
            _ => Kind::Mutation,
        }
    }
}

impl Kind {
    fn failure(self, error: OpError) -> Answer {
        match self {
            Kind::Lookup => Answer::Lookup(Err(error)),
            Kind::Mutation => Answer::Mutated(Err(error)),
            Kind::Finish => Answer::Finished,
        }
    }
}

#[derive(Debug)]
enum State {
    Queued(Command, Waker),
    /// The thread has it under way, under this token.
    Begun(u64, Waker),
    Done(Answer),
    /// Its future was dropped, or has the answer.
    Over,
}

/// One operation of one future.
#[derive(Debug)]
pub(super) struct Slot {
    state: Mutex<State>,
    kind: Kind,
    /// On the monotonic clock, from when it was submitted.
    pub(super) deadline_ns: u64,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the operation out of the queue; `None` if nobody wants it any more.
    fn begin(&self, token: u64) -> Option<Command> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Queued(command, waker) => {
                *state = State::Begun(token, waker);
                Some(command)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    pub(super) fn complete(&self, answer: Answer) {
        let mut state = self.lock();
        if matches!(*state, State::Queued(..) | State::Begun(..)) {
            let before = std::mem::replace(&mut *state, State::Done(answer));
            drop(state);
            if let State::Queued(_, waker) | State::Begun(_, waker) = before {
                waker.wake();
            }
        }
    }

    /// Ends it without an answer.
    pub(super) fn fail(&self, why: &str) {
        let is_begun = matches!(*self.lock(), State::Begun(..));
        self.complete(self.kind.failure(match self.kind {
            Kind::Mutation if is_begun => OpError::Indeterminate(why.to_owned()),
            _ => OpError::Failed(why.to_owned()),
        }));
    }
}

#[derive(Default)]
struct Inner {
    /// In the order in which they came.
    queued: VecDeque<Arc<Slot>>,
    /// Some of the queued whose futures were dropped.
    stale: usize,
    /// Lookups that were begun and whose futures were dropped, with their tokens.
    dropped: Vec<(u64, Arc<Slot>)>,
    is_closed: bool,
}

/// What makes the thread's client ready.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Operations in the queue.
    pub(crate) queued: AtomicUsize,
    /// Futures that were dropped and whose lookups are to be given up.
    pub(crate) dropped: AtomicUsize,
}

/// Between the tasks and the thread.
pub(super) struct Queue {
    inner: Mutex<Inner>,
    pub(super) signals: Arc<Signals>,
    /// Operations that have a place at the thread's client, and its places.
    pub(super) under_way: AtomicUsize,
    pub(super) places: AtomicUsize,
    /// The thread's, once it runs.
    bell: Mutex<Option<Arc<Bell>>>,
    /// A fork's child has no such thread.
    process: ForkMark,
}

impl Queue {
    pub(super) fn new() -> Self {
        Queue {
            inner: Mutex::default(),
            signals: Arc::default(),
            under_way: AtomicUsize::new(0),
            places: AtomicUsize::new(0),
            bell: Mutex::default(),
            process: ForkMark::new(),
        }
    }

    /// Whether the thread is in another process. Nothing may be locked then.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.process.is_child()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_bell(&self, bell: Arc<Bell>) {
        *self.bell.lock().unwrap_or_else(PoisonError::into_inner) = Some(bell);
    }

    fn ring(&self) {
        let bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = &*bell {
            bell.ring();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.signals.queued.load(Ordering::SeqCst)
    }

    fn note_len(&self, inner: &Inner) {
        self.signals
            .queued
            .store(inner.queued.len(), Ordering::SeqCst);
    }

    /// The next operation that a future still waits for, begun under `token`.
    pub(super) fn pop(&self, token: u64) -> Option<(Command, Arc<Slot>)> {
        if self.len() == 0 {
            return None;
        }
        let mut inner = self.lock();
        let mut found = None;
        while found.is_none()
            && let Some(slot) = inner.queued.pop_front()
        {
            found = slot.begin(token).map(|command| (command, slot));
            if found.is_none() {
                inner.stale = inner.stale.saturating_sub(1);
            }
        }
        self.note_len(&inner);
        found
    }

    /// Ends what has waited in the queue until its deadline; returns when the next
    /// one's comes.
    pub(super) fn expire(&self, now_ns: u64) -> u64 {
        if self.len() == 0 {
            return u64::MAX;
        }
        let mut late = Vec::new();
        let mut next_ns = u64::MAX;
        let mut inner = self.lock();
        // The deadlines are in the order of the queue, but for those without one.
        let mut at = 0;
        while let Some(slot) = inner.queued.get(at) {
            if slot.kind == Kind::Finish {
                at += 1;
            } else if slot.deadline_ns <= now_ns {
                late.extend(inner.queued.remove(at));
            } else {
                next_ns = slot.deadline_ns;
                break;
            }
        }
        self.note_len(&inner);
        drop(inner);
        for slot in late {
            slot.fail("the deadline passed before it was begun");
        }
        next_ns
    }

    /// Lookups that nobody waits for any more, by token.
    pub(super) fn take_dropped(&self) -> Vec<(u64, Arc<Slot>)> {
        if self.signals.dropped.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut inner = self.lock();
        self.signals.dropped.store(0, Ordering::SeqCst);
        std::mem::take(&mut inner.dropped)
    }

    /// No task will come any more.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.ring();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// The thread ends: whoever still waits hears of it.
    pub(super) fn end(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        let queued = std::mem::take(&mut inner.queued);
        inner.dropped.clear();
        self.note_len(&inner);
        drop(inner);
        for slot in queued {
            slot.fail(NO_THREAD);
        }
    }

    fn push(&self, command: Command, deadline_ns: u64, waker: Waker) -> Result<Arc<Slot>, Answer> {
        let kind = command.kind();
        let mut inner = self.lock();
        if inner.is_closed {
            return Err(kind.failure(OpError::Failed(NO_THREAD.to_owned())));
        }
        let slot = Arc::new(Slot {
            state: Mutex::new(State::Queued(command, waker)),
            kind,
            deadline_ns,
        });
        inner.queued.push_back(Arc::clone(&slot));
        self.note_len(&inner);
        drop(inner);
        self.ring();
        Ok(slot)
    }

    /// The slot's future is dropped.
    fn abandon(&self, slot: &Arc<Slot>) {
        let before = std::mem::replace(&mut *slot.lock(), State::Over);
        match before {
            State::Queued(..) => {
                let mut inner = self.lock();
                inner.stale += 1;
                if inner.stale >= SWEEP_COUNT_MIN && 2 * inner.stale >= inner.queued.len() {
                    inner.stale = 0;
                    let is_wanted = |slot: &Arc<Slot>| !matches!(*slot.lock(), State::Over);
                    inner.queued.retain(is_wanted);
                    self.note_len(&inner);
                }
            }
            State::Begun(token, _) if slot.kind == Kind::Lookup => {
                self.lock().dropped.push((token, Arc::clone(slot)));
                self.signals.dropped.fetch_add(1, Ordering::SeqCst);
                self.ring();
            }
            _ => {}
        }
    }
}

const NO_THREAD: &str = "the client's thread has ended, or could not be started";

/// One operation as a future. Dropped before it was begun it never is. Dropped
/// later, a lookup is over; a mutation goes on, and its answer is nobody's.
pub(super) struct Submission<'a> {
    queue: &'a Queue,
    deadline_ns: u64,
    command: Option<Command>,
    slot: Option<Arc<Slot>>,
}

impl<'a> Submission<'a> {
    pub(super) fn new(queue: &'a Queue, command: Command, deadline_ns: u64) -> Self {
        Submission {
            queue,
            deadline_ns,
            command: Some(command),
            slot: None,
        }
    }
}

impl Future for Submission<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        if let Some(command) = self.command.take() {
            if self.queue.is_forked() {
                return Poll::Ready(command.kind().failure(forked()));
            }
            let waker = context.waker().clone();
            return match self.queue.push(command, self.deadline_ns, waker) {
                Ok(slot) => {
                    self.slot = Some(slot);
                    Poll::Pending
                }
                Err(answer) => Poll::Ready(answer),
            };
        }
        let Some(slot) = &self.slot else {
            return Poll::Pending;
        };
        let mut state = slot.lock();
        match &mut *state {
            State::Queued(_, waker) | State::Begun(_, waker) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            State::Done(_) => match std::mem::replace(&mut *state, State::Over) {
                State::Done(answer) => Poll::Ready(answer),
                _ => Poll::Pending,
            },
            State::Over => Poll::Pending,
        }
    }
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take()
            && !self.queue.is_forked()
        {
            self.queue.abandon(&slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Wake;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll(submission: &mut Submission<'_>, counter: &Arc<Counter>) -> Poll<Answer> {
        let waker = Waker::from(Arc::clone(counter));
        Pin::new(submission).poll(&mut Context::from_waker(&waker))
    }

    fn get(queue: &Queue, deadline_ns: u64) -> Submission<'_> {
        Submission::new(queue, Command::Get(b"key".to_vec()), deadline_ns)
    }

    fn is_failure(polled: &Poll<Answer>) -> bool {
        matches!(polled, Poll::Ready(Answer::Lookup(Err(OpError::Failed(_)))))
    }

    #[test]
    fn the_waker_of_the_latest_poll_is_woken() {
        let queue = Queue::new();
        let (first, second) = (Arc::<Counter>::default(), Arc::<Counter>::default());
        for is_begun in [false, true] {
            let mut one = get(&queue, u64::MAX);
            assert!(poll(&mut one, &first).is_pending());
            let begun = is_begun.then(|| queue.pop(3).unwrap());
            assert!(poll(&mut one, &second).is_pending());
            match begun {
                Some((_, slot)) => slot.fail("enough"),
                None => assert_eq!(queue.expire(u64::MAX), u64::MAX),
            }
            assert!(is_failure(&poll(&mut one, &first)));
        }
        assert_eq!(first.0.load(Ordering::SeqCst), 0);
        assert_eq!(second.0.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn what_waits_in_the_queue_has_a_deadline() {
        let queue = Queue::new();
        let counter = Arc::<Counter>::default();
        let mut finish = Submission::new(&queue, Command::Finish, u64::MAX);
        let (mut early, mut late) = (get(&queue, 10), get(&queue, 20));
        for submission in [&mut finish, &mut early, &mut late] {
            assert!(poll(submission, &counter).is_pending());
        }
        assert_eq!(queue.expire(9), 10);
        assert_eq!(queue.expire(10), 20);
        assert!(is_failure(&poll(&mut early, &counter)));
        assert!(poll(&mut late, &counter).is_pending());
        assert!(matches!(queue.pop(0), Some((Command::Finish, _))));
        assert_eq!((queue.expire(20), queue.len()), (u64::MAX, 0));
        assert!(is_failure(&poll(&mut late, &counter)));
    }

    #[test]
    fn dropped_futures_take_their_operations_with_them() {
        let queue = Queue::new();
        let counter = Arc::<Counter>::default();
        let mut kept = get(&queue, 10);
        assert!(poll(&mut kept, &counter).is_pending());
        for _ in 0..100_000 {
            let mut gone = get(&queue, 10);
            assert!(poll(&mut gone, &counter).is_pending());
        }
        assert!(queue.len() <= 2 * SWEEP_COUNT_MIN, "{}", queue.len());
        let (_, slot) = queue.pop(7).unwrap();
        assert!(queue.pop(8).is_none() && queue.len() == 0);
        assert!(queue.take_dropped().is_empty());
        drop(kept);
        let dropped = queue.take_dropped();
        assert!(dropped.len() == 1 && dropped[0].0 == 7);
        assert!(Arc::ptr_eq(&dropped[0].1, &slot));
    }

    #[test]
    fn the_end_of_the_thread_is_told_to_all() {
        let queue = Queue::new();
        let counter = Arc::<Counter>::default();
        let (mut waits, mut comes_late) = (get(&queue, u64::MAX), get(&queue, u64::MAX));
        assert!(poll(&mut waits, &counter).is_pending());
        queue.end();
        assert!(is_failure(&poll(&mut waits, &counter)));
        assert!(is_failure(&poll(&mut comes_late, &counter)));
    }
}
