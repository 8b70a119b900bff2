//! What nobody waits for: the rest of a move, and copies of whole ranges.
//!
//! It goes in chunks, one for each turn of the driver's ([`Core::tick`]), so that
//! nothing urgent waits for more than one to be made. The links keep a small share of
//! their windows for it ([`Config::bulk_bytes`](crate::Config::bulk_bytes)), which is what
//! anything urgent may find before it, wherever bytes queue: in the queue to a peer, in
//! its stream, at the receiver. All of it together keeps to one rate.

use crate::core::Core;
use crate::values::Values;
use std::time::Duration;
use trefoil_sharder::ServerId;

/// A turn that comes late by as much is made up for.
const LATE_MAX: Duration = Duration::from_millis(5);

/// Who is sent what. They take turns in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    /// Copies for who takes over: nobody serves these keys meanwhile, so that waits for
    /// no rate.
    Recover(ServerId),
    /// What it could not store before.
    Retry(ServerId),
    /// What it has claimed.
    Give(ServerId),
    /// Copies that it is to have.
    Fill(ServerId),
}

impl Turn {
    fn server(self) -> ServerId {
        match self {
            Turn::Recover(server)
            | Turn::Retry(server)
            | Turn::Give(server)
            | Turn::Fill(server) => server,
        }
    }
}

/// Whose turn it is, and when. It touches no other part; the [giver](crate::giver) and the
/// [followers](crate::followers) say what there is to send.
///
/// What is sent in turns, and at once, counts against one rate.
#[derive(Debug, Default)]
pub(crate) struct Bulk {
    /// Who had the last one.
    last: Option<Turn>,
    /// By the rate.
    at: Duration,
    /// Nothing could be sent when it was looked at last, and nothing has changed since.
    idle: bool,
}

impl Bulk {
    /// Something has changed: it is worth a look.
    pub(crate) fn look(&mut self) {
        self.idle = false;
    }

    /// Whoever may be sent something, in the order of their turns: behind who had the last one
    /// first.
    fn queue(&self, turns: Vec<Turn>) -> Vec<Turn> {
        let after = |turn: &Turn| self.last.is_none_or(|last| *turn > last);
        let (mut queue, before): (Vec<Turn>, Vec<Turn>) = turns.into_iter().partition(after);
        queue.extend(before);
        queue
    }

    /// Counts bytes against the rate.
    pub(crate) fn spend(&mut self, now: Duration, rate: u64, bytes: usize) {
        if rate != u64::MAX {
            let spent = Duration::from_secs_f64(bytes as f64 / rate as f64);
            self.at = self.at.max(now.saturating_sub(LATE_MAX)) + spent;
        }
    }
}

impl Core {
    /// When the next chunk may be sent, if there are any.
    pub(crate) fn bulk_at(&self) -> Option<Duration> {
        let bulk = &self.bulk;
        if !bulk.idle && self.giver.recovers() {
            return Some(self.ran_at);
        }
        let waits = self.giver.gives() || self.followers.fills();
        // What the rate holds back has its time, whatever there was to look at before.
        (waits && (!bulk.idle || bulk.at > self.ran_at)).then_some(bulk.at)
    }

    /// Sends a chunk to whose turn it is, if there is one and it may be sent by now.
    pub(crate) fn send_bulk(&mut self, now: Duration, values: &mut dyn Values) {
        if self.bulk_at().is_none_or(|at| now < at) {
            return;
        }
        for turn in self.bulk.queue(self.turns()) {
            let free = matches!(turn, Turn::Recover(_)) || now >= self.bulk.at;
            if !free || !self.peers.is_open_for_bulk(turn.server()) {
                continue;
            }
            let sent = match turn {
                Turn::Recover(to) => self.recover_next(now, values, to),
                Turn::Retry(to) => self.retry_next(now, values, to),
                Turn::Give(to) => self.give_next(now, values, to),
                Turn::Fill(to) => self.fill_next(now, values, to),
            };
            if sent {
                self.bulk.last = Some(turn);
                self.publish(values);
                return;
            }
        }
        self.bulk.idle = true;
    }

    /// All that there may be, in their order.
    fn turns(&self) -> Vec<Turn> {
        let recoveries = self.giver.recovering().map(Turn::Recover);
        let retries = self.giver.unmoved_due().map(Turn::Retry);
        let gives = self.giver.giving().map(Turn::Give);
        let fills = self.followers.filling().map(Turn::Fill);
        recoveries
            .chain(retries)
            .chain(gives)
            .chain(fills)
            .collect()
    }

    /// Counts bytes against the rate.
    pub(crate) fn spend(&mut self, now: Duration, bytes: usize) {
        let rate = self.config.bytes_per_second;
        self.bulk.spend(now, rate, bytes);
    }
}
