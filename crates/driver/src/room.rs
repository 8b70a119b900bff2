//! Messages that wait for room in one backend's request ring, in order.

use std::collections::VecDeque;

/// How long a ring is waited for while it does not move at all.
const PATIENCE_NS: u64 = 20_000_000;
/// How often it is looked whether it has moved at last: third copies wait for it
/// while its backend lives.
const LOOK_NS: u64 = 5_000_000;
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

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Room {
    waiters: VecDeque<Waiter>,
    len: usize,
    /// Since when the ring has not moved.
    full_since_ns: u64,
    look_at_ns: u64,
    /// Places of operations that are decided, and end when less is waiting here.
    held: Vec<u32>,
}

impl Room {
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

    /// The first one was sent.
    pub(crate) fn has_moved(&mut self, now_ns: u64) {
        self.full_since_ns = now_ns;
    }

    /// Whether the ring has not moved for too long.
    pub(crate) fn is_stuck(&self, now_ns: u64) -> bool {
        !self.is_empty() && now_ns > self.full_since_ns + PATIENCE_NS
    }

    /// When it is to be looked at next.
    pub(crate) fn look_at_ns(&self) -> u64 {
        match self.is_empty() {
            true => u64::MAX,
            false => (self.full_since_ns + PATIENCE_NS).max(self.look_at_ns),
        }
    }

    /// Whether a ring that is stuck is to be looked at; it counts as looked at then.
    pub(crate) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = self.is_stuck(now_ns) && now_ns >= self.look_at_ns;
        if is_due {
            self.look_at_ns = now_ns + LOOK_NS;
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
