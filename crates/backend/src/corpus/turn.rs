//! Who changes a member's corpus: one at a time, and a fetch gives way to a reload.
//!
//! A reload brings what somebody wants now; a fetch brings back what was, and may wait for
//! long: for the other replica, for a file on a disk that is slow, for the configuration
//! store. If it kept reloads away meanwhile, a cell that has lost its corpus could not be
//! mended by loading another one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    holder: Mutex<Holder>,
    /// Rung when a fetch is asked to give way, and when a turn ends.
    changed: Notify,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Holder {
    #[default]
    Nobody,
    Fetch {
        gives_way: bool,
    },
    Reload,
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the turn for a fetch; `false` if somebody else has it.
    pub(super) fn take_to_fetch(&self) -> bool {
        let mut holder = self.lock();
        let is_free = *holder == Holder::Nobody;
        if is_free {
            *holder = Holder::Fetch { gives_way: false };
        }
        is_free
    }

    /// Takes the turn for a reload, from a fetch as soon as that has given way; `false` if
    /// another reload has it.
    pub(super) async fn take_to_reload(&self) -> bool {
        loop {
            // Before looking: whatever rings from now on is heard.
            let changed = self.changed.notified();
            let is_first = match &mut *self.lock() {
                Holder::Reload => return false,
                Holder::Fetch { gives_way } => !std::mem::replace(gives_way, true),
                nobody => {
                    *nobody = Holder::Reload;
                    return true;
                }
            };
            match is_first {
                // It rings for this one, too: look again before waiting.
                true => self.changed.notify_waiters(),
                false => changed.await,
            }
        }
    }

    /// Gives it back.
    pub(super) fn end(&self) {
        *self.lock() = Holder::Nobody;
        self.changed.notify_waiters();
    }

    /// Whether a reload has the turn.
    pub(crate) fn is_reload(&self) -> bool {
        *self.lock() == Holder::Reload
    }

    /// Whether the fetch that has the turn was asked to give way.
    pub(super) fn must_give_way(&self) -> bool {
        *self.lock() == Holder::Fetch { gives_way: true }
    }

    /// Waits until it is.
    pub(super) async fn asked_to_give_way(&self) {
        loop {
            let changed = self.changed.notified();
            if self.must_give_way() {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn a_fetch_gives_way_to_a_reload_and_a_reload_to_nobody() {
        let turn = Turn::default();
        let mut context = Context::from_waker(Waker::noop());
        assert!(turn.take_to_fetch() && !turn.take_to_fetch());
        assert!(!turn.is_reload() && !turn.must_give_way());
        let mut asked = pin!(turn.asked_to_give_way());
        assert!(asked.as_mut().poll(&mut context).is_pending());
        let mut reload = pin!(turn.take_to_reload());
        assert!(reload.as_mut().poll(&mut context).is_pending());
        // The fetch hears of it, and still has the turn until it gives it back.
        assert!(turn.must_give_way() && !turn.is_reload());
        assert!(asked.as_mut().poll(&mut context).is_ready());
        turn.end();
        assert_eq!(reload.as_mut().poll(&mut context), Poll::Ready(true));
        assert!(turn.is_reload() && !turn.take_to_fetch());
        let mut other = pin!(turn.take_to_reload());
        assert_eq!(other.as_mut().poll(&mut context), Poll::Ready(false));
        turn.end();
        assert!(turn.take_to_fetch());
    }
}
