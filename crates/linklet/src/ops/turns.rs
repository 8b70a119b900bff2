//! One change at a time of a key whose replicas confirm, so that each sees what
//! the one before it has done.
//!
//! A turn belongs to the commit, not to the call that began it: the call may be
//! given up, or dropped, while the commit is on its way to the replicas. So the
//! turn goes along with the proposal and ends with it; until then nobody computes
//! anything from a value that is about to be replaced.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::oneshot;

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<oneshot::Sender<Turn>>,
    /// Who has the turn runs code of the application's that may wait.
    busy: bool,
}

/// The keys that are being changed, and who waits for each. A key of its own
/// has a turn of its own: one that is stuck keeps nobody else waiting.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    taken: Mutex<HashMap<Arc<[u8]>, Queue>>,
}

/// The right to change one key. Passed on when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    /// `None` once it was passed on.
    key: Option<Arc<[u8]>>,
}

impl Turns {
    fn taken(&self) -> MutexGuard<'_, HashMap<Arc<[u8]>, Queue>> {
        self.taken.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits for the turn of a key: first come, first served.
    pub(crate) async fn take(self: &Arc<Self>, key: &[u8]) -> Turn {
        loop {
            let waiting = {
                let mut taken = self.taken();
                match taken.get_mut(key) {
                    None => {
                        let key: Arc<[u8]> = key.into();
                        taken.insert(Arc::clone(&key), Queue::default());
                        return Turn {
                            turns: Arc::clone(self),
                            key: Some(key),
                        };
                    }
                    Some(queue) => {
                        // Those that were given up go when their turn comes, or
                        // here where many wait for one that does not end.
                        queue.waiting.retain(|waiting| !waiting.is_closed());
                        let (pass, passed) = oneshot::channel();
                        queue.waiting.push_back(pass);
                        passed
                    }
                }
            };
            if let Ok(turn) = waiting.await {
                return turn;
            }
        }
    }
}

impl Turns {
    /// Whether somebody changes the key.
    pub(crate) fn is_taken(&self, key: &[u8]) -> bool {
        self.taken().contains_key(key)
    }

    /// Whether that is code of the application's, and no commit yet.
    pub(crate) fn is_busy(&self, key: &[u8]) -> bool {
        self.taken().get(key).is_some_and(|queue| queue.busy)
    }
}

impl Turn {
    /// Whether code of the application's runs now.
    pub(crate) fn set_busy(&self, busy: bool) {
        if let Some(key) = &self.key
            && let Some(queue) = self.turns.taken().get_mut(key)
        {
            queue.busy = busy;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else {
            return;
        };
        let turns = Arc::clone(&self.turns);
        let mut taken = turns.taken();
        let next = |queue: &mut Queue| {
            queue.busy = false;
            queue.waiting.pop_front()
        };
        while let Some(next) = taken.get_mut(&key).and_then(next) {
            let turn = Turn {
                turns: Arc::clone(&turns),
                key: Some(Arc::clone(&key)),
            };
            match next.send(turn) {
                Ok(()) => return,
                // Given up: it goes to the next one, without being dropped.
                Err(mut turn) => turn.key = None,
            }
        }
        taken.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn now<F: Future>(future: F) -> F::Output {
        match poll(pin!(future)) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it has to wait"),
        }
    }

    #[test]
    fn a_turn_goes_to_who_waits_longest_and_is_still_there() {
        let turns = Arc::new(Turns::default());
        let first = now(turns.take(b"k"));
        now(turns.take(b"other"));
        let mut second = pin!(turns.take(b"k"));
        assert!(poll(second.as_mut()).is_pending());
        let mut fourth = pin!(turns.take(b"k"));
        {
            let mut third = Box::pin(turns.take(b"k"));
            assert!(poll(third.as_mut()).is_pending());
            assert!(poll(fourth.as_mut()).is_pending());
            drop(first);
            // Passed to it, and given up before it has looked.
            let Poll::Ready(turn) = poll(second.as_mut()) else {
                panic!("it is its turn");
            };
            drop(turn);
        }
        let Poll::Ready(turn) = poll(fourth.as_mut()) else {
            panic!("it is its turn");
        };
        drop(turn);
        assert!(turns.taken().is_empty());
    }
}
