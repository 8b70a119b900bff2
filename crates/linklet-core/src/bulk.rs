//! What nobody waits for: the rest of a move, and copies of whole ranges.
//!
//! It goes in chunks, one for each turn of the driver's ([`Core::tick`]), so that
//! nothing urgent waits for more than one to be made. The links keep a small share of
//! their windows for it ([`Config::bulk_bytes`](crate::Config::bulk_bytes)), which is what
//! anything urgent may find before it, wherever bytes queue: in the queue to a peer, in
//! its stream, at the receiver. All of it together keeps to one rate.

use crate::core::Core;
use crate::link::Link;
use crate::mutants::{self, Mutant};
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

/// Whose turn it is, and when.
#[derive(Debug, Default)]
pub(crate) struct Bulk {
    /// Who had the last one.
    last: Option<Turn>,
    /// By the rate.
    at: Duration,
    /// Nothing could be sent when it was looked at last, and nothing has changed since.
    idle: bool,
}

impl Core {
    /// When the next chunk may be sent, if there are any.
    pub(crate) fn bulk_at(&self) -> Option<Duration> {
        if !self.bulk.idle && !self.recoveries.is_empty() {
            return Some(self.ran_at);
        }
        let waits = !self.giving.is_empty()
            || !self.fill_waiting.is_empty()
            || self.unmoved_due().next().is_some();
        // What the rate holds back has its time, whatever there was to look at before.
        (waits && (!self.bulk.idle || self.bulk.at > self.ran_at)).then_some(self.bulk.at)
    }

    /// Something has changed: it is worth a look.
    pub(crate) fn look_for_bulk(&mut self) {
        self.bulk.idle = false;
    }

    /// Sends a chunk to whose turn it is, if there is one and it may be sent by now.
    pub(crate) fn send_bulk(&mut self, now: Duration, values: &mut dyn Values) {
        if self.bulk_at().is_none_or(|at| now < at) {
            return;
        }
        let turns = self.turns();
        let after = |turn: &Turn| self.bulk.last.is_none_or(|last| *turn > last);
        let (mut queue, before): (Vec<Turn>, Vec<Turn>) = turns.into_iter().partition(after);
        queue.extend(before);
        for turn in queue {
            let free = matches!(turn, Turn::Recover(_)) || now >= self.bulk.at;
            if !free || !self.is_open_for_bulk(turn.server()) {
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
        let recoveries = self.recoveries.keys().copied().map(Turn::Recover);
        let retries = self.unmoved_due().map(Turn::Retry);
        let gives = self.giving.iter().copied().map(Turn::Give);
        let fills = self.fill_waiting.keys().copied().map(Turn::Fill);
        recoveries
            .chain(retries)
            .chain(gives)
            .chain(fills)
            .collect()
    }

    /// Counts bytes against the rate.
    pub(crate) fn spend(&mut self, now: Duration, bytes: usize) {
        let rate = self.config.bytes_per_second;
        if rate != u64::MAX {
            let spent = Duration::from_secs_f64(bytes as f64 / rate as f64);
            self.bulk.at = self.bulk.at.max(now.saturating_sub(LATE_MAX)) + spent;
        }
    }

    /// Whether a chunk may be sent to this server that nobody waits for.
    fn is_open_for_bulk(&self, server: ServerId) -> bool {
        if mutants::is(Mutant::WindowIgnored) {
            return true;
        }
        let (window, share) = (self.config.window_bytes, self.config.bulk_bytes);
        let link = self.links.get(&server);
        link.is_none_or(|link: &Link| link.is_open_for_bulk(window, share))
    }
}
