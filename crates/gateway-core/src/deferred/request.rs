//! One connection's request under way: what its operations have come to so far.

use super::Ticket;
use super::operation::Outcome;
use super::update::{Jitter, Update};
use crate::keyspace::Pending;

/// One operation of a request.
#[derive(Debug)]
pub(super) enum Entry {
    /// It waits for room, and is asked for once more then.
    Held,
    /// In the executor's hands.
    Waiting,
    /// Done with.
    Outcome(Outcome),
    /// An update, wherever it has got to.
    Update(Box<Update>),
    /// Operations that are under way at the same time, each like a request's.
    Several(Vec<Request>),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// Its operations, in order; only the last one can be under way.
    pub(super) entries: Vec<Entry>,
    /// The operation that the session asks for next.
    next: usize,
    /// What the last one waits for.
    pub(super) ticket: Option<Ticket>,
    /// Bytes of keys and values that the last one was submitted with.
    pub(super) waiting_len: usize,
    /// What it is counted with while it is parked.
    pub(super) counted: usize,
    /// Room that is kept for it until its turn.
    pub(super) promised: usize,
}

impl Entry {
    fn held(&self) -> usize {
        match self {
            Entry::Held | Entry::Waiting => 0,
            Entry::Outcome(outcome) => outcome.held_len(),
            Entry::Update(update) => update.held(),
            Entry::Several(parts) => parts.iter().map(Request::held).sum(),
        }
    }

    /// The same without what can be had again.
    fn kept_for_good(&self) -> usize {
        match self {
            Entry::Update(update) if update.is_to_go_on() => 0,
            Entry::Several(parts) => parts.iter().map(Request::kept_for_good).sum(),
            other => other.held(),
        }
    }
}

impl Request {
    /// Whether the operation that is asked for next has been asked for before.
    #[inline]
    pub(super) fn is_replaying(&self) -> bool {
        self.next < self.entries.len()
    }

    /// The place of the next outcome, which is then told.
    pub(super) fn replay(&mut self) -> Result<usize, Pending> {
        match self.entries.get(self.next) {
            Some(Entry::Held | Entry::Waiting) | None => Err(Pending),
            Some(_) => {
                self.next += 1;
                Ok(self.next - 1)
            }
        }
    }

    /// The next operation if it is an update, without going on.
    pub(super) fn update(&mut self) -> Option<&mut Update> {
        match self.entries.get_mut(self.next) {
            Some(Entry::Update(update)) => Some(update),
            _ => None,
        }
    }

    /// Bytes of keys and values that are kept for it.
    pub(super) fn held(&self) -> usize {
        let submitted = self.ticket.map_or(0, |_| self.waiting_len);
        submitted + self.entries.iter().map(Entry::held).sum::<usize>()
    }

    /// The same without what it can have again: of several that all wait for room none
    /// keeps it from the others.
    pub(super) fn kept_for_good(&self) -> usize {
        self.entries.iter().map(Entry::kept_for_good).sum()
    }

    /// Whether something of it is held back while it keeps what others may wait for.
    pub(super) fn is_urgent(&self) -> bool {
        self.has_held() && self.held() > 0
    }

    fn has_held(&self) -> bool {
        match self.entries.last() {
            Some(Entry::Held) => true,
            Some(Entry::Update(update)) => update.is_held(),
            Some(Entry::Several(parts)) => parts.iter().any(Request::has_held),
            _ => false,
        }
    }

    /// There is room for what was held back.
    pub(super) fn let_in(&mut self) {
        match self.entries.last_mut() {
            Some(Entry::Held) => drop(self.entries.pop()),
            Some(Entry::Update(update)) => update.let_in(),
            Some(Entry::Several(parts)) => parts.iter_mut().for_each(Request::let_in),
            _ => {}
        }
    }

    /// The request is executed from its beginning next time.
    pub(super) fn rewind(&mut self) {
        self.next = 0;
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.next = 0;
    }

    /// Whether its last operation is under way.
    pub(super) fn is_waiting(&self) -> bool {
        match self.entries.last() {
            Some(Entry::Held | Entry::Waiting) => true,
            Some(Entry::Update(update)) => !update.is_done(),
            Some(Entry::Several(parts)) => parts.iter().any(Request::is_waiting),
            _ => false,
        }
    }

    /// Whether its session can do nothing for it.
    pub(super) fn is_stuck(&self) -> bool {
        match self.entries.last() {
            Some(Entry::Held | Entry::Waiting) => true,
            Some(Entry::Update(update)) => !update.is_done() && !update.is_to_go_on(),
            Some(Entry::Several(parts)) => parts.iter().any(Request::is_stuck),
            _ => false,
        }
    }

    /// The operations that it does at the same time, if that is what is asked for next.
    pub(super) fn parts(&mut self) -> Option<&mut Vec<Request>> {
        match self.entries.get_mut(self.next) {
            Some(Entry::Several(parts)) => Some(parts),
            _ => None,
        }
    }

    /// The same, if that was told last.
    pub(super) fn told_parts(&self) -> &[Request] {
        let told = self.next.checked_sub(1).and_then(|at| self.entries.get(at));
        match told {
            Some(Entry::Several(parts)) => parts,
            _ => &[],
        }
    }

    /// The one of those with this number; itself where there are none.
    pub(super) fn part(&mut self, part: Option<usize>) -> Option<&mut Request> {
        let Some(part) = part else {
            return Some(self);
        };
        match self.entries.last_mut() {
            Some(Entry::Several(parts)) => parts.get_mut(part),
            _ => None,
        }
    }

    /// Takes all tickets that it waits for.
    pub(super) fn take_tickets(&mut self) -> Vec<Ticket> {
        let mut tickets: Vec<Ticket> = self.ticket.take().into_iter().collect();
        if let Some(Entry::Several(parts)) = self.entries.last_mut() {
            tickets.extend(parts.iter_mut().filter_map(|part| part.ticket.take()));
        }
        tickets
    }

    /// Takes the outcome that it waits for. The time until which it has to pause,
    /// if the session is not to be told yet.
    pub(super) fn take(
        &mut self,
        outcome: Outcome,
        now_ns: u64,
        patience_ns: u64,
        jitter: &mut Jitter,
    ) -> Option<u64> {
        match self.entries.last_mut() {
            Some(Entry::Update(update)) => update.take(outcome, now_ns, patience_ns, jitter),
            Some(entry) => {
                *entry = Entry::Outcome(outcome);
                None
            }
            None => None,
        }
    }

    /// Ends the pause that lasts until then; whether it was in that one.
    pub(super) fn end_pause(&mut self, until_ns: u64) -> bool {
        match self.entries.last_mut() {
            Some(Entry::Update(update)) => update.end_pause(until_ns),
            Some(Entry::Several(parts)) => {
                // Two may have been told the same time.
                let ended = parts.iter_mut().map(|part| part.end_pause(until_ns));
                ended.fold(false, |any, ended| any | ended)
            }
            _ => false,
        }
    }
}
