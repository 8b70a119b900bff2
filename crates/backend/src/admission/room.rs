//! A number of bytes that callers share, each in its turn.
//!
//! Whoever came first goes first, however much it asks for: a long one is not
//! overtaken for ever by short ones.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// See the module.
#[derive(Debug)]
pub(super) struct Room(Mutex<Account>);

#[derive(Debug)]
struct Account {
    limit: u64,
    used: u64,
    waiting: VecDeque<(u64, oneshot::Sender<Permit>)>,
}

/// Bytes of a [`Room`], until this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    room: Arc<Room>,
    bytes: u64,
}

impl Room {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Room(Mutex::new(Account {
            limit,
            used: 0,
            waiting: VecDeque::new(),
        })))
    }

    /// Changes how much there is. What has been given stays given.
    pub(super) fn set_limit(self: &Arc<Self>, limit: u64) {
        self.account().limit = limit;
        self.serve();
    }

    /// Waits for `bytes`. Whoever asks for more than there is goes alone.
    pub(super) async fn enter(self: &Arc<Self>, bytes: u64) -> Permit {
        // Dropped after `turn`: whoever gives up makes way for those behind.
        let _leaving = Leaving(self);
        let (sender, turn) = oneshot::channel();
        self.account().waiting.push_back((bytes, sender));
        self.serve();
        turn.await
            .expect("a room outlives those who wait for it, for they hold it")
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets in those whose turn it is.
    fn serve(self: &Arc<Self>) {
        let mut account = self.account();
        while let Some((bytes, sender)) = account.waiting.front() {
            let bytes = *bytes;
            if sender.is_closed() {
                // It has given up, and may have asked for more than there will be for long.
                account.waiting.pop_front();
                continue;
            }
            if account.used > 0 && account.used + bytes > account.limit {
                return;
            }
            let Some((_, sender)) = account.waiting.pop_front() else {
                return;
            };
            let permit = Permit {
                room: Arc::clone(self),
                bytes,
            };
            match sender.send(permit) {
                Ok(()) => account.used += bytes,
                // It has given up; nothing was taken yet.
                Err(permit) => permit.forget(),
            }
        }
    }
}

/// Looks whose turn it is when somebody who waited does so no more.
struct Leaving<'a>(&'a Arc<Room>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.serve();
    }
}

impl Permit {
    /// Gives back all but `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.give_back(less);
    }

    fn forget(mut self) {
        self.bytes = 0;
    }

    fn give_back(&mut self, bytes: u64) {
        if bytes > 0 {
            self.bytes -= bytes;
            self.room.account().used -= bytes;
            self.room.serve();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
        let mut context = Context::from_waker(Waker::noop());
        future.as_mut().poll(&mut context)
    }

    fn given(polled: Poll<Permit>) -> Permit {
        match polled {
            Poll::Ready(permit) => permit,
            Poll::Pending => panic!("it waits"),
        }
    }

    #[test]
    fn each_waits_for_its_turn() {
        let room = Room::new(10);
        let mut first = given(poll(&mut pin!(room.enter(6))));
        let mut second = pin!(room.enter(6));
        assert!(poll(&mut second).is_pending(), "no room");
        let mut third = pin!(room.enter(1));
        assert!(poll(&mut third).is_pending(), "nobody is overtaken");
        first.shrink_to(4);
        let second = given(poll(&mut second));
        assert!(poll(&mut third).is_pending());
        room.set_limit(11);
        drop(given(poll(&mut third)));
        drop((first, second));
        assert_eq!(room.account().used, 0);
    }

    #[test]
    fn what_is_longer_than_all_goes_alone_and_who_gives_up_takes_nothing() {
        let room = Room::new(10);
        let first = given(poll(&mut pin!(room.enter(1))));
        let mut long = Box::pin(room.enter(99));
        assert!(poll(&mut long.as_mut()).is_pending());
        {
            let mut gives_up = Box::pin(room.enter(1));
            assert!(poll(&mut gives_up.as_mut()).is_pending());
        }
        drop(first);
        let long = given(poll(&mut long.as_mut()));
        let mut next = pin!(room.enter(1));
        assert!(poll(&mut next).is_pending());
        drop(long);
        drop(given(poll(&mut next)));
        // One that asks for more than there is, and gives up: it keeps nobody out.
        let hold = given(poll(&mut pin!(room.enter(6))));
        let mut gives_up = Box::pin(room.enter(6));
        assert!(poll(&mut gives_up.as_mut()).is_pending());
        let mut fits = pin!(room.enter(1));
        assert!(poll(&mut fits).is_pending());
        drop(gives_up);
        drop(given(poll(&mut fits)));
        drop(hold);
        // One that was let in and gives up before it has noticed.
        let mut unseen = Box::pin(room.enter(10));
        let hold = given(poll(&mut pin!(room.enter(10))));
        assert!(poll(&mut unseen.as_mut()).is_pending());
        drop(hold);
        drop(unseen);
        assert_eq!(room.account().used, 0);
    }
}
