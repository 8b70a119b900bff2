//! The link between two servers: what one says arrives at the other once and
//! in order, for as long as both live.
//!
//! A server's id is one life, so numbers never start again on one link. What
//! is not confirmed is sent again after a while, and after a broken
//! connection; what arrives ahead of its turn is kept up to a bound.

use crate::message::{Frame, Message};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Messages sent again at once when nothing was confirmed in time. What gets
/// through doubles it: what was lost with a broken connection is there again after
/// some round trips, and a peer that is gone for good costs little.
const RESEND_MIN: usize = 32;
/// So many times in a row they are sent again before that counts as in vain.
pub(crate) const VAIN_MAX: u32 = 8;
/// Messages on their way at most, but for those that cannot wait.
const UNCONFIRMED_MAX: usize = 1_024;
/// Messages kept that arrived ahead of their turn: all that may be on their way,
/// and room for those that cannot wait.
const AHEAD_MAX: u64 = 4 * UNCONFIRMED_MAX as u64;
/// Messages after which a confirmation is said at once.
const CONFIRM_EVERY: u32 = 16;
/// And bytes: who sends bulk waits for it, and has few messages on the way.
const CONFIRM_BYTES: usize = 16 << 10;
/// A confirmation is owed for this part of the time after which messages are
/// sent again.
const CONFIRM_PART: u32 = 4;

/// Whether somebody waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// A commit, a key, a claim or an answer: whatever waits is not far behind.
    Urgent,
    /// A part of a move or of copies that nobody waits for.
    Bulk,
}

#[derive(Debug)]
struct Sent {
    sequence: u64,
    bytes: usize,
    haste: Haste,
    message: Message,
}

/// This server's end.
#[derive(Debug, Default)]
pub(crate) struct Link {
    sent: u64,
    unconfirmed: VecDeque<Sent>,
    unconfirmed_bytes: usize,
    /// Of these, what nobody waits for.
    bulk_bytes: usize,
    /// When to send again.
    resend_at: Option<Duration>,
    /// How often that was done since anything was confirmed.
    vain: u32,
    /// What is being sent again, as confirmations come.
    again: Option<Again>,
    /// Everything up to this one has arrived.
    arrived: u64,
    ahead: BTreeMap<u64, Message>,
    /// Something arrived, and the other does not know yet: when to say so at
    /// the latest. Most answers say so by the way.
    confirm_at: Option<Duration>,
    /// How much that is.
    unsaid: u32,
    unsaid_bytes: usize,
}

/// A pass over what was not confirmed in time.
#[derive(Clone, Copy, Debug)]
struct Again {
    /// Next to be sent.
    next: u64,
    /// The last one that was sent before the pass began.
    last: u64,
    /// How many at once.
    count: usize,
}

impl Link {
    /// Bytes on their way.
    pub(crate) fn unconfirmed_bytes(&self) -> usize {
        self.unconfirmed_bytes
    }

    /// Whether more may be sent that can wait.
    pub(crate) fn is_open(&self, window_bytes: usize) -> bool {
        self.unconfirmed_bytes < window_bytes && self.unconfirmed.len() < UNCONFIRMED_MAX
    }

    /// Whether more may be sent that nobody waits for. Messages arrive in order, so this
    /// is what anything urgent may have before it.
    pub(crate) fn is_open_for_bulk(&self, window_bytes: usize, bulk_bytes: usize) -> bool {
        self.is_open(window_bytes) && self.bulk_bytes < bulk_bytes
    }

    /// Whether everything that was said has arrived.
    pub(crate) fn is_settled(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    /// Whether it was sent again and again, and nothing is confirmed.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.vain >= VAIN_MAX
    }

    /// There is another way by now: what is not confirmed is sent again at once.
    pub(crate) fn try_anew(&mut self, now: Duration) {
        self.vain = 0;
        if !self.unconfirmed.is_empty() {
            self.resend_at = Some(now);
        }
    }

    /// Whether anything was ever said here.
    pub(crate) fn is_unused(&self) -> bool {
        self.sent == 0
    }

    /// A frame that only says what has arrived.
    pub(crate) fn bare(&self) -> Frame {
        Frame {
            sequence: 0,
            confirmed: self.arrived,
            message: None,
        }
    }

    /// When there is something to send without being asked.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        match (self.resend_at, self.confirm_at) {
            (Some(resend), Some(confirm)) => Some(resend.min(confirm)),
            (resend, confirm) => resend.or(confirm),
        }
    }

    /// Takes a message; returns the frame to send.
    pub(crate) fn send(
        &mut self,
        now: Duration,
        every: Duration,
        haste: Haste,
        message: Message,
    ) -> Frame {
        self.sent += 1;
        let bytes = message.bytes();
        self.unconfirmed_bytes += bytes;
        if haste == Haste::Bulk {
            self.bulk_bytes += bytes;
        }
        self.unconfirmed.push_back(Sent {
            sequence: self.sent,
            bytes,
            haste,
            message: message.clone(),
        });
        self.resend_at.get_or_insert(now + every);
        self.said();
        Frame {
            sequence: self.sent,
            confirmed: self.arrived,
            message: Some(message),
        }
    }

    /// Takes a frame. The messages whose turn has come are then fetched with
    /// `next`.
    pub(crate) fn receive(&mut self, now: Duration, every: Duration, frame: Frame) {
        if frame.confirmed > self.sent {
            // Said by nobody who had it from here.
            return;
        }
        let before = self.unconfirmed.len();
        while self
            .unconfirmed
            .front()
            .is_some_and(|sent| sent.sequence <= frame.confirmed)
        {
            if let Some(sent) = self.unconfirmed.pop_front() {
                self.unconfirmed_bytes -= sent.bytes;
                if sent.haste == Haste::Bulk {
                    self.bulk_bytes -= sent.bytes;
                }
            }
        }
        if self.unconfirmed.len() != before {
            self.resend_at = (!self.unconfirmed.is_empty()).then(|| now + every);
            self.vain = 0;
            // It gets through: what was sent again meanwhile is not the loss.
            if let Some(again) = &mut self.again {
                again.count = (2 * again.count).min(UNCONFIRMED_MAX);
                if frame.confirmed >= again.last {
                    self.again = None;
                }
            }
        }
        let Some(message) = frame.message else {
            return;
        };
        self.confirm_at.get_or_insert(now + every / CONFIRM_PART);
        self.unsaid += 1;
        self.unsaid_bytes = self.unsaid_bytes.saturating_add(message.bytes());
        let much = self.unsaid >= CONFIRM_EVERY || self.unsaid_bytes >= CONFIRM_BYTES;
        if much || frame.sequence <= self.arrived {
            // Many, or one that was sent again: the other side waits.
            self.confirm_at = Some(now);
        }
        if frame.sequence > self.arrived && frame.sequence <= self.arrived + AHEAD_MAX {
            self.ahead.insert(frame.sequence, message);
        }
    }

    /// The next message in order.
    pub(crate) fn next(&mut self) -> Option<Message> {
        let message = self.ahead.remove(&(self.arrived + 1))?;
        self.arrived += 1;
        Some(message)
    }

    /// A bare confirmation, if one has been owed for long enough.
    pub(crate) fn confirm(&mut self, now: Duration) -> Option<Frame> {
        self.confirm_at.filter(|at| *at <= now)?;
        self.said();
        Some(self.bare())
    }

    /// What has to be sent again by now.
    pub(crate) fn resend(&mut self, now: Duration, every: Duration) -> Vec<Frame> {
        if self.resend_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.resend_at = Some(now + every);
        self.vain = self.vain.saturating_add(1);
        self.again = self.unconfirmed.front().map(|first| Again {
            next: first.sequence,
            last: self.sent,
            count: RESEND_MIN,
        });
        self.go_on()
    }

    /// What may be sent again by now, after something was confirmed.
    pub(crate) fn go_on(&mut self) -> Vec<Frame> {
        let Some(again) = &mut self.again else {
            return Vec::new();
        };
        let Some(first) = self.unconfirmed.front().map(|sent| sent.sequence) else {
            return Vec::new();
        };
        // Not more than that on its way at a time.
        let end = (first + again.count as u64).min(again.last + 1);
        let from = again.next.max(first);
        if from >= end {
            return Vec::new();
        }
        again.next = end;
        let frames = self
            .unconfirmed
            .range((from - first) as usize..(end - first) as usize)
            .map(|sent| Frame {
                sequence: sent.sequence,
                confirmed: self.arrived,
                message: Some(sent.message.clone()),
            })
            .collect();
        self.said();
        frames
    }

    /// A frame says what has arrived.
    fn said(&mut self) {
        self.confirm_at = None;
        self.unsaid = 0;
        self.unsaid_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVERY: Duration = Duration::from_millis(10);

    proptest! {
        /// Whatever is lost, repeated and reordered: once and in order.
        #[test]
        fn once_and_in_order(choices in prop::collection::vec(0u8..8, 0..400)) {
            let mut now = Duration::ZERO;
            let (mut a, mut b) = (Link::default(), Link::default());
            let (mut there, mut back): (Vec<Frame>, Vec<Frame>) = Default::default();
            let (mut said, mut heard) = (0, Vec::new());
            let mut hear = |b: &mut Link, now, frame| {
                b.receive(now, EVERY, frame);
                while let Some(message) = b.next() {
                    match message {
                        Message::Taken { chunk } => heard.push(chunk),
                        other => panic!("{other:?}"),
                    }
                }
            };
            for choice in choices {
                now += Duration::from_millis(1);
                match choice {
                    0 | 1 => {
                        said += 1;
                        there.push(a.send(now, EVERY, Haste::Urgent, Message::Taken { chunk: said }));
                    }
                    2 if !there.is_empty() => { there.swap_remove(0); }
                    3 if !there.is_empty() => {
                        let frame = there[there.len() / 2].clone();
                        hear(&mut b, now, frame);
                    }
                    4 | 5 if !there.is_empty() => {
                        let frame = there.pop().unwrap();
                        hear(&mut b, now, frame);
                    }
                    6 => back.extend(b.confirm(now)),
                    _ => {
                        there.extend(a.resend(now, EVERY));
                        if let Some(frame) = back.pop() { a.receive(now, EVERY, frame); }
                    }
                }
            }
            for _ in 0..said + 2 {
                now += EVERY;
                for frame in a.resend(now, EVERY) { hear(&mut b, now, frame); }
                if let Some(frame) = b.confirm(now + EVERY) { a.receive(now, EVERY, frame); }
            }
            prop_assert_eq!(heard, (1..=said).collect::<Vec<_>>());
            prop_assert!(a.is_settled() && a.unconfirmed_bytes() == 0);
        }
    }
}
