//! What every carrier of the ordered queue offers to a client, once it is set up: one
//! suite of tests runs over all of them (`tests/all/conformance.rs`).

use crate::producer::{Committed, Refused};
use crate::queue::{NoAnswer, Queue};
use std::time::Duration;

/// One client's connection to a queue.
pub trait Carrier {
    /// Puts a request into its place, or refuses it: then it is never executed. An error
    /// other than [`Refused::Full`] and [`Refused::Skipped`] stays.
    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused>;

    /// Waits until a request is committed. From then on it is executed, before every request
    /// that anybody submits afterwards. After an error nobody knows.
    fn committed(&mut self, request: Committed, timeout: Duration) -> Result<(), NoAnswer>;

    /// Waits for the answer to a request that was not nilext.
    fn answer(
        &mut self,
        to: Committed,
        into: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<(), NoAnswer>;

    /// Does without the answer to a request that was not nilext: its slot is free when it is
    /// executed.
    fn forget(&mut self, to: Committed);

    /// Waits until a request may be submitted again, as after [`Refused::Full`]. Answers
    /// that are neither taken nor forgotten hold their slots.
    fn wait_for_room(&mut self, timeout: Duration) -> Result<(), NoAnswer>;
}

impl Carrier for Queue {
    #[inline]
    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused> {
        Queue::submit(self, request, nilext)
    }

    #[inline]
    fn committed(&mut self, request: Committed, timeout: Duration) -> Result<(), NoAnswer> {
        Queue::committed(self, request, timeout)
    }

    fn answer(
        &mut self,
        to: Committed,
        into: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<(), NoAnswer> {
        let answer = Queue::answer(self, to, timeout)?;
        into.clear();
        into.extend_from_slice(answer);
        Ok(())
    }

    fn forget(&mut self, to: Committed) {
        Queue::forget(self, to);
    }

    fn wait_for_room(&mut self, timeout: Duration) -> Result<(), NoAnswer> {
        Queue::wait_for_room(self, timeout)
    }
}

impl<C: Carrier + ?Sized> Carrier for Box<C> {
    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused> {
        (**self).submit(request, nilext)
    }

    fn committed(&mut self, request: Committed, timeout: Duration) -> Result<(), NoAnswer> {
        (**self).committed(request, timeout)
    }

    fn answer(
        &mut self,
        to: Committed,
        into: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<(), NoAnswer> {
        (**self).answer(to, into, timeout)
    }

    fn forget(&mut self, to: Committed) {
        (**self).forget(to);
    }

    fn wait_for_room(&mut self, timeout: Duration) -> Result<(), NoAnswer> {
        (**self).wait_for_room(timeout)
    }
}
