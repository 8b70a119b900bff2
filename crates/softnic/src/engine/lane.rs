//! A lane of an ordered queue as a session's: the numbers of a producer's requests, and
//! where each stands.

use super::shares::Place;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use trefoil_ordered::slot::{ANSWER_LEN_MAX, PAYLOAD_LEN_MAX};
use trefoil_ordered::{CommitBy, Committed, Queue, Refused};
use trefoil_softnic_core::limits::REQUEST_LEN_MAX;
use trefoil_softnic_core::placing::{Lane, Placing};
use trefoil_softnic_core::wire::LaneEnd;

const _: () = assert!(REQUEST_LEN_MAX == PAYLOAD_LEN_MAX && REQUEST_LEN_MAX == ANSWER_LEN_MAX);

/// A request in the queue.
#[derive(Clone, Copy, Debug)]
struct Under {
    number: u64,
    stands: Committed,
    nilext: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct QueueLane {
    queue: Queue,
    /// Those that are not known to be executed, in order.
    under: VecDeque<Under>,
    /// So many of them are known to be committed.
    committed_count: usize,
    committed: u64,
    executed: u64,
    /// Executed, and their answers were not taken.
    answers: VecDeque<(u64, Committed)>,
    /// Among its owner's lanes.
    _place: Arc<Place>,
}

impl QueueLane {
    /// A fresh lane of a producer that has placed so many requests before.
    pub(super) fn new(mut queue: Queue, placed: u64, place: Arc<Place>) -> Self {
        // The server goes by these if another lane is asked for.
        queue.set_next_request_id(placed + 1);
        QueueLane {
            queue,
            under: VecDeque::new(),
            committed_count: 0,
            committed: placed,
            executed: placed,
            answers: VecDeque::new(),
            _place: place,
        }
    }

    /// Rings, or hangs up.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.queue.bell()
    }

    /// See [`Queue::set_waits`].
    pub(super) fn set_waits(&mut self, waits: bool) -> bool {
        self.queue.set_waits(waits)
    }

    /// What the server's end is called: one that has closed the lane has executed all of it.
    pub(super) fn end(&self) -> LaneEnd {
        match self.queue.is_closed() {
            true => LaneEnd::Closed,
            false => LaneEnd::ServerGone,
        }
    }
}

impl Lane for QueueLane {
    #[inline]
    fn place(&mut self, number: u64, request: &[u8], nilext: bool) -> Placing {
        match self.queue.submit(request, nilext) {
            Ok(stands) => {
                self.under.push_back(Under {
                    number,
                    stands,
                    nilext,
                });
                Placing::Placed
            }
            Err(Refused::Full | Refused::Skipped) => Placing::NoRoom,
            // An engine does not fork.
            Err(Refused::Closed | Refused::OtherProcess) => Placing::Over(LaneEnd::Closed),
            Err(Refused::OrderBroken { .. }) => Placing::Over(LaneEnd::OrderBroken),
            Err(Refused::TooLong { .. }) => Placing::Over(LaneEnd::TooLong),
        }
    }

    #[inline]
    fn committed(&mut self) -> u64 {
        while let Some(next) = self.under.get(self.committed_count)
            && self.queue.is_committed(next.stands)
        {
            self.committed = next.number;
            self.committed_count += 1;
        }
        self.committed
    }

    #[inline]
    fn executed(&mut self) -> u64 {
        while let Some(next) = self.under.front()
            && self.queue.is_executed(next.stands)
        {
            self.executed = next.number;
            if !next.nilext {
                self.answers.push_back((next.number, next.stands));
            }
            self.under.pop_front();
            self.committed_count = self.committed_count.saturating_sub(1);
        }
        self.executed
    }

    fn take_answer(&mut self, number: u64, into: &mut Vec<u8>) {
        while let Some((of, stands)) = self.answers.pop_front() {
            if of != number {
                self.queue.forget(stands);
                continue;
            }
            if let Ok(answer) = self.queue.answer(stands, Duration::ZERO) {
                into.extend_from_slice(answer);
            }
            return;
        }
    }
}

/// Whether such a lane's requests are committed by the server.
pub(super) fn server_commits(queue: &Queue) -> bool {
    queue.commit_by() == CommitBy::Acknowledgement
}
