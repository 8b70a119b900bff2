//! Datagrams that do not get through any more: a firewall that drops them from now on, a way
//! that takes shorter ones only than any that are used. The stream carries what they would,
//! and now and then a copy of a request is sent by them: nobody waits for it, and its answer
//! says that they get through again.
//!
//! ```text
//!            nothing has come for as long as a request waits,
//!            or three in a row never came that may be long, and nothing long has
//!  works ────────────────────────────────────────────────────────────────────► silent
//!    ◄───────────────────────────────────────────────────────────────────────
//!            the copy of a request is answered, or a probe, whichever it takes
//! ```

/// It is tried after so long, then twice as long each time, …
const PAUSE_FIRST_NS: u64 = 100_000_000;
/// … up to this.
const PAUSE_MAX_NS: u64 = 30_000_000_000;
/// Who was silent again so soon is tried as if it had never spoken.
const RELAPSE_NS: u64 = 10_000_000_000;

/// What was sent to try.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Of the request whose copy it is.
    id: u64,
    /// Of the probe beside it.
    probe: u64,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    is_silent: bool,
    /// Short datagrams got through: only a long one says that all do.
    takes_long: bool,
    /// When the next trial is due.
    until_ns: u64,
    pause_ns: u64,
    trial: Option<Trial>,
    ended_ns: u64,
}

impl Silence {
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Whether to try now.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.is_silent && now_ns >= self.until_ns
    }

    /// Whether only a long datagram says that it is over.
    pub(super) fn takes_long(&self) -> bool {
        self.takes_long
    }

    /// It begins.
    pub(super) fn begin(&mut self, takes_long: bool, now_ns: u64) {
        let is_relapse = self.pause_ns > 0 && now_ns.saturating_sub(self.ended_ns) < RELAPSE_NS;
        let pause_ns = match is_relapse {
            true => (2 * self.pause_ns).min(PAUSE_MAX_NS),
            false => PAUSE_FIRST_NS,
        };
        *self = Silence {
            is_silent: true,
            takes_long,
            until_ns: now_ns.saturating_add(pause_ns),
            pause_ns,
            trial: None,
            ended_ns: self.ended_ns,
        };
    }

    /// A copy of this request was sent, and a probe.
    pub(super) fn tried(&mut self, id: u64, probe: u64, now_ns: u64) {
        self.pause_ns = (2 * self.pause_ns).min(PAUSE_MAX_NS);
        self.until_ns = now_ns.saturating_add(self.pause_ns);
        self.trial = Some(Trial { id, probe });
    }

    /// Something of an answer to this request has come, or the answer to a probe; `is_long` if
    /// by a long datagram. Whether that ends the silence. How long it took is not known: nobody
    /// waits for it, and so nobody may have looked for long.
    pub(super) fn heard(&mut self, of: Heard, is_long: bool, now_ns: u64) -> bool {
        let Some(trial) = self.trial else {
            return false;
        };
        let is_ours = match of {
            Heard::Request(id) => id == trial.id,
            Heard::Probe(number) => number == trial.probe,
        };
        if !is_ours || self.takes_long && !is_long {
            return false;
        }
        (self.is_silent, self.trial, self.ended_ns) = (false, None, now_ns);
        true
    }
}

/// What was heard.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    Request(u64),
    Probe(u64),
}
