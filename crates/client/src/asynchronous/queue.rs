//! What tasks hand to the client's thread, and how they get their results.

use crate::error::{Mutated, OpError};
use crate::mutate::{FillTicket, SetOptions};
use crate::owned::OwnedLookup;
use crate::rpc::Bell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use trefoil_layout::op::Expected;

/// Operations that wait for the thread. Further tasks wait until some have begun,
/// in the order in which they came.
const QUEUE_LEN_MAX: usize = 4096;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Command {
    Get(Vec<u8>),
    Set(Vec<u8>, Vec<u8>, SetOptions),
    Fill(FillTicket, Vec<u8>, Vec<u8>, SetOptions),
    Erase(Vec<u8>),
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

#[derive(Debug)]
enum State {
    Waiting(Option<Waker>),
    Done(Option<Answer>),
    /// Its future was dropped.
    Abandoned,
}

/// Where the thread leaves an answer.
#[derive(Debug)]
pub(super) struct Slot(Mutex<State>);

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_abandoned(&self) -> bool {
        matches!(*self.lock(), State::Abandoned)
    }

    pub(super) fn complete(&self, answer: Answer) {
        let mut state = self.lock();
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Done(Some(answer));
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

#[derive(Default)]
struct Inner {
    commands: VecDeque<(Command, Arc<Slot>)>,
    /// Tasks that found the queue full, in the order in which they came.
    waiting: VecDeque<Waker>,
    is_closed: bool,
}

/// Between the tasks and the thread.
pub(super) struct Queue {
    inner: Mutex<Inner>,
    /// Commands in it: what makes the client ready.
    pub(super) count: Arc<AtomicUsize>,
    /// Operations that have a place at the thread's client.
    pub(super) under_way: AtomicUsize,
    /// The thread's, once it runs.
    bell: Mutex<Option<Arc<Bell>>>,
}

impl Queue {
    pub(super) fn new() -> Self {
        Queue {
            inner: Mutex::default(),
            count: Arc::default(),
            under_way: AtomicUsize::new(0),
            bell: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_bell(&self, bell: Arc<Bell>) {
        *self.bell.lock().unwrap_or_else(PoisonError::into_inner) = Some(bell);
    }

    pub(super) fn ring(&self) {
        let bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = &*bell {
            bell.ring();
        }
    }

    /// The next command whose task still wants it.
    pub(super) fn pop(&self) -> Option<(Command, Arc<Slot>)> {
        loop {
            if self.count.load(Ordering::SeqCst) == 0 {
                return None;
            }
            let mut inner = self.lock();
            let command = inner.commands.pop_front()?;
            self.count.fetch_sub(1, Ordering::SeqCst);
            let waker = inner.waiting.pop_front();
            drop(inner);
            if let Some(waker) = waker {
                waker.wake();
            }
            if !command.1.is_abandoned() {
                return Some(command);
            }
        }
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
        let commands = std::mem::take(&mut inner.commands);
        let waiting = std::mem::take(&mut inner.waiting);
        self.count.store(0, Ordering::SeqCst);
        drop(inner);
        for (command, slot) in commands {
            slot.complete(refusal(&command));
        }
        waiting.into_iter().for_each(Waker::wake);
    }
}

fn refusal(command: &Command) -> Answer {
    let error =
        OpError::Failed("the client's thread has ended, or could not be started".to_owned());
    match command {
        Command::Get(_) => Answer::Lookup(Err(error)),
        Command::Finish => Answer::Finished,
        _ => Answer::Mutated(Err(error)),
    }
}

/// One operation as a future. Dropped before it was begun it never is; dropped
/// later, its answer is nobody's.
pub(super) struct Submission<'a> {
    queue: &'a Queue,
    command: Option<Command>,
    slot: Option<Arc<Slot>>,
}

impl<'a> Submission<'a> {
    pub(super) fn new(queue: &'a Queue, command: Command) -> Self {
        Submission {
            queue,
            command: Some(command),
            slot: None,
        }
    }

    fn submit(&mut self, waker: &Waker) -> Option<Answer> {
        let command = self.command.take()?;
        let mut inner = self.queue.lock();
        if inner.is_closed {
            return Some(refusal(&command));
        }
        if inner.commands.len() >= QUEUE_LEN_MAX {
            inner.waiting.push_back(waker.clone());
            self.command = Some(command);
            return None;
        }
        let slot = Arc::new(Slot(Mutex::new(State::Waiting(Some(waker.clone())))));
        self.slot = Some(Arc::clone(&slot));
        inner.commands.push_back((command, slot));
        self.queue.count.fetch_add(1, Ordering::SeqCst);
        drop(inner);
        self.queue.ring();
        None
    }
}

impl Future for Submission<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let Some(slot) = &self.slot else {
            return match self.submit(context.waker()) {
                Some(answer) => Poll::Ready(answer),
                None => Poll::Pending,
            };
        };
        let mut state = slot.lock();
        match &mut *state {
            State::Waiting(waker) => {
                match waker {
                    Some(known) => known.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            State::Done(answer) => match answer.take() {
                Some(answer) => Poll::Ready(answer),
                None => Poll::Pending,
            },
            State::Abandoned => Poll::Pending,
        }
    }
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            *slot.lock() = State::Abandoned;
        } else if self.command.is_some() {
            // It may have been woken to take a place that the next one can have.
            let next = {
                let mut inner = self.queue.lock();
                match inner.commands.len() < QUEUE_LEN_MAX {
                    true => inner.waiting.pop_front(),
                    false => None,
                }
            };
            if let Some(waker) = next {
                waker.wake();
            }
        }
    }
}
