//! A client for short measurements (*slices*), whatever carries its requests.

use crate::LoadError;
use crate::commits::MOST;
use crate::pauses::Pauses;
use crate::report::Latency;
use crate::session::System;
use crate::tape::Tape;
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use trefoil_ordered::{Committed, Refused};

/// Requests whose answers, or acknowledgements, are waited for when the peak is looked for.
const WINDOW: usize = 64;
/// Requests that were offered and not begun: the system is behind for good.
const BEHIND_MAX: Duration = Duration::from_secs(2);
/// What is measured at a time.
pub(crate) const SLICE: Duration = Duration::from_millis(20);
/// What is not measured, before that.
const WARM: Duration = Duration::from_millis(5);
/// What is rested, before that.
const REST: Duration = Duration::from_millis(50);

/// What carries a client's requests. Nothing of it sleeps.
pub trait Line {
    /// Whether a nilext request is committed as soon as it is submitted, where the place in
    /// the queue commits.
    fn is_committed_at_once(&self) -> bool;
    /// Puts a request on its way.
    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused>;
    /// Looks for what has come: after a look at requests in vain. An error: nothing more will.
    fn look(&mut self) -> Result<(), LoadError>;
    /// Whether a request is known to be committed.
    fn is_committed(&mut self, request: Committed) -> bool;
    /// Whether a request is known to be executed.
    fn is_executed(&mut self, request: Committed) -> bool;
    /// Takes the answer to a request that is executed.
    fn take_answer(&mut self, to: Committed) -> Result<(), LoadError>;
}

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// As much as the system takes, a window of requests under way.
    Window,
    /// Poisson arrivals, so many a second.
    PerSecond(f64),
}

/// One short measurement.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Requests done in its time, a second.
    pub per_s: f64,
    /// Their part of those that were due in its time.
    pub kept_up: f64,
    /// Of all that were due in its time, also of those that were done later.
    pub latency: Latency,
    /// Times that the machine stood still.
    pub pauses: usize,
    /// The longest of them.
    pub pause_max: Duration,
}

struct Pending {
    due: Instant,
    committed: Committed,
}

/// What an attempt at a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// It is done.
    Done,
    /// It is under way.
    Pending,
    /// No room: it is to be tried again.
    Full,
}

/// What was due in the time of a slice.
struct Tally {
    /// Until then it is in time.
    end: Instant,
    took: Histogram<u64>,
    offered: u64,
    in_time: u64,
}

impl Tally {
    fn new(end: Instant) -> Self {
        Tally {
            end,
            took: Histogram::new_with_max(MOST, 3).expect("valid bounds"),
            offered: 0,
            in_time: 0,
        }
    }

    #[inline]
    fn finish(&mut self, due: Instant, now: Instant) {
        self.took.saturating_record((now - due).as_nanos() as u64);
        self.in_time += u64::from(now <= self.end);
    }
}

/// Whoever can be offered a load.
pub trait Offered {
    /// Rests, warms caches with as much as the system takes, lets it finish that, and measures
    /// for the time of a slice: what is late because caches were cold would stay late for long
    /// near the peak.
    fn slice(&mut self, load: Load) -> Result<Slice, LoadError>;
}

/// The client.
pub struct Client<L> {
    line: L,
    system: System,
    tape: Tape,
    /// How long after the end of a slice a request may be done that counts as in time: about
    /// what one takes.
    late_max: Duration,
    /// Whose acknowledgements are waited for, in the queue's order.
    uncommitted: VecDeque<Pending>,
    /// Whose answers are, likewise.
    unanswered: VecDeque<Pending>,
}

impl<L: Line> Offered for Client<L> {
    fn slice(&mut self, load: Load) -> Result<Slice, LoadError> {
        std::thread::sleep(REST);
        self.offer(Load::Window, WARM)?;
        self.settle()?;
        self.offer(load, SLICE)
    }
}

impl<L: Line> Client<L> {
    /// Of a server of this system, which has what the tape asks for.
    pub fn new(line: L, system: System, tape: Tape, late_max: Duration) -> Self {
        Client {
            line,
            system,
            tape,
            late_max,
            uncommitted: VecDeque::with_capacity(1024),
            unanswered: VecDeque::with_capacity(1024),
        }
    }

    fn pending(&self) -> usize {
        self.uncommitted.len() + self.unanswered.len()
    }

    /// Waits until everything is executed: what is answered is behind all of it.
    fn settle(&mut self) -> Result<(), LoadError> {
        let last = loop {
            match self.line.submit(self.tape.get(), false) {
                Ok(last) => break last,
                Err(Refused::Full | Refused::Skipped) => self.line.look()?,
                Err(refused) => return Err(LoadError::Queue(refused.to_string())),
            }
        };
        while !self.line.is_executed(last) {
            self.line.look()?;
        }
        self.line.take_answer(last)
    }

    fn offer(&mut self, load: Load, time: Duration) -> Result<Slice, LoadError> {
        let mut pauses = Pauses::new();
        let start = pauses.now();
        let end = start + time;
        let mut tally = Tally::new(end + self.late_max);
        let mut due = start;
        let mut finished: Option<Instant> = None;
        let mut is_sends_turn = true;
        loop {
            // One look at the clock and one thing done in each turn. The look is also when
            // that was done which the last turn has done or found done.
            let now = pauses.now();
            if let Some(due) = finished.take() {
                tally.finish(due, now);
            }
            let (is_due, is_over) = match load {
                Load::PerSecond(_) => (due <= now && due < end, due >= end),
                Load::Window => {
                    due = now;
                    (now < end && self.pending() < WINDOW, now >= end)
                }
            };
            if is_due && (is_sends_turn || self.pending() == 0) {
                if now - due > BEHIND_MAX {
                    return Err(LoadError::Queue("the server is too slow for this".into()));
                }
                let sent = self.send(due)?;
                if sent == Sent::Done {
                    finished = Some(due);
                }
                if sent != Sent::Full {
                    tally.offered += 1;
                    if let Load::PerSecond(ops_per_s) = load {
                        let gap_ns = self.tape.gap_ns(1e9 / ops_per_s);
                        due += Duration::from_nanos(gap_ns as u64);
                    }
                }
                is_sends_turn = false;
            } else {
                finished = self.poll()?;
                is_sends_turn = true;
            }
            if is_over && self.pending() == 0 && finished.is_none() {
                break;
            }
        }
        Ok(Slice {
            per_s: tally.in_time as f64 / time.as_secs_f64(),
            kept_up: tally.in_time as f64 / tally.offered.max(1) as f64,
            latency: Latency::of(&tally.took),
            pauses: pauses.count,
            pause_max: pauses.longest,
        })
    }

    /// Tries to send the request that is next.
    #[inline]
    fn send(&mut self, due: Instant) -> Result<Sent, LoadError> {
        let (request, is_set) = self.tape.request();
        let nilext = is_set && self.system != System::RunToCompletion;
        let committed = match self.line.submit(request, nilext) {
            Ok(committed) => committed,
            Err(Refused::Full | Refused::Skipped) => {
                self.line.look()?;
                return Ok(Sent::Full);
            }
            Err(refused) => return Err(LoadError::Queue(refused.to_string())),
        };
        self.tape.advance();
        if nilext && self.system == System::OrderedQueue && self.line.is_committed_at_once() {
            return Ok(Sent::Done);
        }
        let pending = Pending { due, committed };
        match nilext {
            true => self.uncommitted.push_back(pending),
            false => self.unanswered.push_back(pending),
        }
        Ok(Sent::Pending)
    }

    /// When a request was due that is found done.
    #[inline]
    fn poll(&mut self) -> Result<Option<Instant>, LoadError> {
        if let Some(first) = self.unanswered.front()
            && self.line.is_executed(first.committed)
        {
            let (due, committed) = (first.due, first.committed);
            self.line.take_answer(committed)?;
            self.unanswered.pop_front();
            return Ok(Some(due));
        }
        if let Some(first) = self.uncommitted.front()
            && self.line.is_committed(first.committed)
        {
            let due = first.due;
            self.uncommitted.pop_front();
            return Ok(Some(due));
        }
        if self.pending() > 0 {
            self.line.look()?;
        }
        Ok(None)
    }
}
