//! Messages that wait for room on the way to one backend, in order: in its request
//! ring, or among the calls that may be under way to it.

use std::collections::VecDeque;

/// How a message goes to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By its ring.
    Near,
    /// By a call.
    Far,
}

impl Way {
    pub(crate) const ALL: [Way; 2] = [Way::Near, Way::Far];

    /// How long it is waited for while it does not move at all. A ring moves whenever
    /// its backend has a core; calls may be long values on a slow link.
    const fn patience_ns(self) -> u64 {
        match self {
            Way::Near => 20_000_000,
            Way::Far => 500_000_000,
        }
    }

    /// How often it is looked whether it has moved at last: third copies wait for it
    /// while its backend lives.
    const fn look_ns(self) -> u64 {
        match self {
            Way::Near => 5_000_000,
            Way::Far => 50_000_000,
        }
    }
}

/// What a message counts beside its value: its operation's place.
const WAITER_LEN: usize = 1024;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// The operation's place, and the replica that the message is for.
    pub(crate) at: u32,
    replica: u8,
    /// What it counts, in bytes.
    len: usize,
}

impl Waiter {
    pub(crate) fn new(at: u32, replica: usize, value_len: usize) -> Self {
        Waiter {
            at,
            replica: replica as u8,
            len: value_len + WAITER_LEN,
        }
    }

    /// Bytes that it counts.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn replica(&self) -> usize {
        usize::from(self.replica)
    }
}

/// How often an operation went on without a message that still waits: the way to its
/// replica did not move for long. Each of its attempts may do so, for another replica
/// may be well again; but less and less often, or they would use its retries up before
/// the way moves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lateness {
    count: u32,
    again_ns: u64,
}

impl Lateness {
    /// Whether it goes on without it now; that is counted then.
    pub(crate) fn is_due(&mut self, way: Way, now_ns: u64) -> bool {
        let is_due = now_ns >= self.again_ns;
        if is_due {
            self.again_ns = now_ns + (way.patience_ns() << self.count.min(16));
            self.count += 1;
        }
        is_due
    }

    /// Whether it ever did.
    pub(crate) fn is_any(&self) -> bool {
        self.count > 0
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Room {
    way: Way,
    waiters: VecDeque<Waiter>,
    len: usize,
    /// Since when it has not moved.
    full_since_ns: u64,
    look_at_ns: u64,
    /// Places of operations that are decided, and end when less is waiting here.
    held: Vec<u32>,
}

impl Room {
    pub(crate) fn new(way: Way) -> Self {
        Room {
            way,
            waiters: VecDeque::new(),
            len: 0,
            full_since_ns: 0,
            look_at_ns: 0,
            held: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Bytes that wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter()
    }

    pub(crate) fn front(&self) -> Option<Waiter> {
        self.waiters.front().copied()
    }

    pub(crate) fn push(&mut self, waiter: Waiter, now_ns: u64) {
        if self.waiters.is_empty() {
            self.full_since_ns = now_ns;
        }
        self.push_back(waiter);
    }

    /// One that was taken out goes on waiting.
    pub(crate) fn push_back(&mut self, waiter: Waiter) {
        self.len += waiter.len;
        self.waiters.push_back(waiter);
    }

    pub(crate) fn count(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn pop(&mut self) -> Option<Waiter> {
        let waiter = self.waiters.pop_front()?;
        self.len -= waiter.len;
        Some(waiter)
    }

    /// The first one was sent, or could be.
    pub(crate) fn has_moved(&mut self, now_ns: u64) {
        self.full_since_ns = now_ns;
    }

    /// Whether it has not moved for too long.
    pub(crate) fn is_stuck(&self, now_ns: u64) -> bool {
        !self.is_empty() && now_ns > self.full_since_ns + self.way.patience_ns()
    }

    /// When it is to be looked at next.
    pub(crate) fn look_at_ns(&self) -> u64 {
        match self.is_empty() {
            true => u64::MAX,
            false => (self.full_since_ns + self.way.patience_ns()).max(self.look_at_ns),
        }
    }

    /// Whether it is stuck and to be looked at; it counts as looked at then.
    pub(crate) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = self.is_stuck(now_ns) && now_ns >= self.look_at_ns;
        if is_due {
            self.look_at_ns = now_ns + self.way.look_ns();
        }
        is_due
    }

    /// The operation at this place goes on when less is waiting.
    pub(crate) fn hold(&mut self, at: u32) {
        if !self.held.contains(&at) {
            self.held.push(at);
        }
    }

    /// Those that were to go on then.
    pub(crate) fn take_held(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.held)
    }

    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }
}
