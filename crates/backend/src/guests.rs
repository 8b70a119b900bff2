//! Connections of which nobody knows yet whose they are.
//!
//! Whoever reaches the port may open connections and say nothing, or something
//! else than they should. Such a connection has a place until its time is over or
//! somebody newer needs the place: then the one goes that has been there longest.
//! A client that has shown its token is no guest any more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Guests at a time.
const COUNT_MAX: usize = 256;
/// Until a client must have made a call that was let in.
const PATIENCE: Duration = Duration::from_secs(5);

/// All of a socket's guests, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Guests(Mutex<VecDeque<Arc<Guest>>>);

/// One of them.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    is_known: AtomicBool,
    has_left: AtomicBool,
    /// Its place is needed.
    leave: Notify,
}

/// A guest's place, until its connection ends.
#[derive(Debug)]
pub(crate) struct Place(Arc<Guest>);

impl Guests {
    /// A new connection; the one that has been a guest for longest goes for it if
    /// need be.
    pub(crate) fn come_in(&self) -> Place {
        let guest = Arc::<Guest>::default();
        let mut guests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if guests.len() >= COUNT_MAX {
            guests.retain(|guest| guest.is_guest());
        }
        if guests.len() >= COUNT_MAX
            && let Some(first) = guests.pop_front()
        {
            first.leave.notify_one();
        }
        guests.push_back(Arc::clone(&guest));
        Place(guest)
    }
}

impl Guest {
    /// It has shown whose it is.
    pub(crate) fn is_introduced(&self) {
        // A load alone leaves the line shared: nearly every call finds it so.
        if !self.is_known.load(Ordering::Relaxed) {
            self.is_known.store(true, Ordering::Relaxed);
        }
    }

    fn is_guest(&self) -> bool {
        !self.is_known.load(Ordering::Relaxed) && !self.has_left.load(Ordering::Relaxed)
    }
}

impl Place {
    pub(crate) fn guest(&self) -> Arc<Guest> {
        Arc::clone(&self.0)
    }

    /// Ends when the connection has to go: never for one that is known.
    pub(crate) async fn ends(&self) {
        // Whoever needs the place later passes over one that is known.
        let _ = tokio::time::timeout(PATIENCE, self.0.leave.notified()).await;
        if !self.0.is_guest() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.has_left.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    fn must_go(place: &Place) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        std::pin::pin!(place.0.leave.notified()).poll(&mut context) == Poll::Ready(())
    }

    #[test]
    fn the_oldest_guest_goes_for_a_newer_one_and_nobody_who_is_known() {
        let guests = Guests::default();
        let known: Vec<Place> = (0..COUNT_MAX).map(|_| guests.come_in()).collect();
        known.iter().for_each(|place| place.guest().is_introduced());
        let first: Vec<Place> = (0..COUNT_MAX).map(|_| guests.come_in()).collect();
        assert!(!first.iter().any(must_go));
        // One that has left by itself has made room.
        let mut first = VecDeque::from(first);
        drop(first.pop_back());
        let newer = [(); 3].map(|()| guests.come_in());
        let gone: Vec<bool> = first.iter().map(must_go).collect();
        assert!(gone[..2].iter().all(|gone| *gone) && !gone[2..].contains(&true));
        assert!(!known.iter().chain(&newer).any(must_go));
    }
}
