//! How long datagrams may be on the way to an engine and back. The client tries it out: a
//! probe is as long as the datagrams in question, is sealed as they are, and so is its answer,
//! which is as long again. Both have to arrive. (As RFC 8899 does it, for both directions at
//! once.)
//!
//! ```text
//!          usual ── a short one is answered ──► longer ones, the longest first, then by halves
//!   (1400, nothing         │                      │
//!    is asked for)         │ none is              │ what is long does not come any more
//!                          ▼                      ▼
//!                    an earlier release      the shortest (1200), and from there on as above
//! ```
//!
//! # Invariants
//! 1. **Nothing that an earlier release does not know is asked for** before a probe was
//!    answered, which such a release does not do.
//! 2. **A length is used once a probe of it was answered**; the usual one alone is taken on
//!    trust. What is lost by a length that passes no more costs a few attempts of a request,
//!    the last of which are made in the shortest datagrams anyway.
//! 3. **Probes go beside requests**, one at a time: whoever asks for nothing sends none.

use super::{DATAGRAM_LEN_MAX, DATAGRAM_LEN_MIN, DATAGRAM_LEN_USUAL, datagram_len, payload_len};

/// What links commonly carry, less the heads of IP and UDP, and rounded to whole words.
const LENS: [usize; 15] = [
    DATAGRAM_LEN_MIN,
    // IPv6's least, …
    1232,
    // … tunnels in Ethernet …
    1304,
    1352,
    DATAGRAM_LEN_USUAL,
    // … Ethernet by IPv6, by PPPoE, and by itself.
    1448,
    1464,
    1472,
    1968,
    4048,
    4320,
    8128,
    // Jumbo frames of some clouds, and of most others.
    8472,
    8944,
    8968,
];
/// Probes of one length before it is taken for too long. Each is waited for as an answer is,
/// and twice as long as the one before.
const TRIES_MAX: u32 = 3;
/// What was too long is tried again after so long: the way may be another one. So is an engine
/// that has answered no probe: they may have been lost.
const RAISE_NS: u64 = 60_000_000_000;
/// Long answers in a row that have not come, while no long datagram has: the way takes shorter
/// ones only.
const SUSPECTS_MAX: u32 = 3;
/// A request that was asked so often is answered in the shortest datagrams.
const TIMES_LONG_MAX: u32 = 2;

const _: () = {
    let mut at = 0;
    while at < LENS.len() {
        // What is tried is what will be sent.
        assert!(datagram_len(payload_len(LENS[at])) == LENS[at]);
        assert!(at == 0 || LENS[at - 1] < LENS[at]);
        at += 1;
    }
    assert!(LENS[LENS.len() - 1] <= DATAGRAM_LEN_MAX);
};

/// Whether the engine answers probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Unknown,
    Yes,
    /// Until it is asked again.
    No {
        until_ns: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    /// Of [`LENS`].
    at: usize,
    tries: u32,
    until_ns: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Path {
    speaks: Speaks,
    /// In use: the place in [`LENS`].
    at: usize,
    /// Lengths from here on are not tried: they are too long for the first link …
    end: usize,
    /// … and these did not pass, until some time.
    fails_at: usize,
    fails_until_ns: u64,
    probe: Option<Probe>,
    number: u64,
    /// Probes up to this one say nothing of the way as it is.
    void: u64,
    suspects: u32,
}

impl Path {
    /// Of which nothing is known but that datagrams of more than `len_max` bytes do not leave
    /// this host. Below the usual length nothing is tried out.
    pub fn new(len_max: usize) -> Self {
        let end = LENS.partition_point(|len| *len <= len_max);
        let usual = LENS.partition_point(|len| *len < DATAGRAM_LEN_USUAL);
        Path {
            speaks: Speaks::Unknown,
            at: usual,
            end: end.max(usual + 1),
            fails_at: LENS.len(),
            fails_until_ns: 0,
            probe: None,
            number: 0,
            void: 0,
            suspects: 0,
        }
    }

    /// Always the usual length.
    pub fn usual() -> Self {
        Path {
            speaks: Speaks::No { until_ns: u64::MAX },
            ..Path::new(0)
        }
    }

    /// Whether an engine was heard that cuts its answers to the length that it is told.
    pub fn is_spoken(&self) -> bool {
        self.speaks == Speaks::Yes
    }

    /// The longest datagrams that are known to pass, or are taken to.
    pub fn len(&self) -> usize {
        LENS[self.at]
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The longest datagram for what is asked the so manyeth time.
    pub fn len_for(&self, times: u32) -> usize {
        match self.is_spoken() && times > TIMES_LONG_MAX {
            true => self.len().min(DATAGRAM_LEN_MIN),
            false => self.len(),
        }
    }

    /// How long datagrams of requests may be, of which one is asked the so manyeth time: not
    /// longer than usual, however long their answers are.
    pub fn request_len_for(&self, times: u32) -> usize {
        match times > TIMES_LONG_MAX {
            true => DATAGRAM_LEN_MIN,
            false => self.len().min(DATAGRAM_LEN_USUAL),
        }
    }

    /// A datagram of this length has come.
    pub fn arrived(&mut self, len: usize) {
        if len > DATAGRAM_LEN_MIN {
            self.suspects = 0;
        }
    }

    /// An answer has not come, of which, or of whose request, a datagram may have been longer
    /// than the shortest one; asked for in datagrams of this length.
    pub fn lost(&mut self, len: usize) {
        if !self.is_spoken() || len <= DATAGRAM_LEN_MIN || len != self.len() {
            return;
        }
        self.suspects += 1;
        if self.suspects >= SUSPECTS_MAX {
            (self.at, self.suspects, self.probe) = (0, 0, None);
            self.void = self.number;
        }
    }

    /// The length that comes next, if there is one worth trying.
    fn next_at(&self) -> Option<usize> {
        match self.speaks {
            Speaks::No { .. } => None,
            Speaks::Unknown => Some(0),
            Speaks::Yes => {
                let end = self.end.min(self.fails_at);
                let longest = end.checked_sub(1).filter(|last| *last > self.at)?;
                // Before anything has failed the longest is the likeliest.
                Some(match self.fails_until_ns {
                    0 => longest,
                    _ => self.at + (end - self.at) / 2,
                })
            }
        }
    }

    /// Number and datagram's length of a probe that is to be sent now, beside requests, where
    /// answers are waited for so long.
    pub fn next_probe(&mut self, now_ns: u64, patience_ns: u64) -> Option<(u64, usize)> {
        if self.fails_until_ns > 0 && now_ns >= self.fails_until_ns {
            (self.fails_at, self.fails_until_ns) = (LENS.len(), 0);
        }
        if let Speaks::No { until_ns } = self.speaks
            && now_ns >= until_ns
        {
            self.speaks = Speaks::Unknown;
        }
        let last = match self.probe {
            Some(probe) if now_ns < probe.until_ns => return None,
            Some(probe) if probe.tries >= TRIES_MAX => {
                self.gave_up(probe.at, now_ns);
                None
            }
            last => last,
        };
        let at = self.next_at()?;
        let tries = last.map_or(0, |probe| probe.tries);
        self.number += 1;
        let patience_ns = patience_ns.saturating_mul(1 << tries);
        self.probe = Some(Probe {
            at,
            tries: tries + 1,
            until_ns: now_ns.saturating_add(patience_ns),
        });
        Some((self.number, LENS[at]))
    }

    fn gave_up(&mut self, at: usize, now_ns: u64) {
        self.probe = None;
        match self.speaks {
            Speaks::Yes => {
                self.fails_at = at;
                self.fails_until_ns = now_ns.saturating_add(RAISE_NS);
            }
            Speaks::Unknown | Speaks::No { .. } => {
                let until_ns = now_ns.saturating_add(RAISE_NS);
                self.speaks = Speaks::No { until_ns };
            }
        }
    }

    /// The number of a probe that somebody else sends.
    pub(super) fn number_probe(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// A probe with this number was answered by a datagram of this length.
    pub fn answered(&mut self, number: u64, len: usize) {
        // One that is late says as much as any other.
        let is_asked = number > self.void && number <= self.number;
        let Some(at) = LENS.iter().position(|of| *of == len).filter(|_| is_asked) else {
            return;
        };
        if self.probe.is_some_and(|probe| probe.at == at) {
            self.probe = None;
        }
        self.suspects = 0;
        match self.speaks {
            Speaks::Yes => {
                self.at = self.at.max(at);
                self.fails_at = self.fails_at.max(at + 1);
            }
            // The usual length, or longer ones, are tried next.
            Speaks::Unknown | Speaks::No { .. } => self.speaks = Speaks::Yes,
        }
    }

    /// When the next probe is due, if something is asked for; `u64::MAX` if none is.
    pub fn due_ns(&self) -> u64 {
        match (self.probe, self.next_at()) {
            (Some(probe), _) => probe.until_ns,
            (None, Some(_)) => 0,
            (None, None) => u64::MAX,
        }
    }
}
