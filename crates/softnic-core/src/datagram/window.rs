//! How many solicited bytes may be under way, by how long answers take (as Swift does it:
//! Kumar et al., SIGCOMM 2020). Answers that take longer than the way itself have stood in a
//! queue: less is asked for. So many clients that ask one engine, or one client that asks
//! many, share what there is and lose little.
//!
//! ```text
//!            no queue, below the threshold:   + what was answered   (twice as much a round trip)
//! 16 KiB ──► no queue, above it:              + 4 KiB a round trip
//!            a queue:                         - up to half, by how long it is   ┐ once a round trip;
//!            an answer that has not come:     - half                            ┘ the threshold is here
//! ```
//!
//! # Invariants
//! 1. **Only a window that is used grows**: what a client of few requests has not tried, it does
//!    not ask for at once when it has many.
//! 2. **It is doubled only where nothing has spoken against it**: at the beginning, and after
//!    nothing came for long, up to half of what was right before.
//! 3. **A queue of its own is no part of the way**: when the way is to be looked at anew, a
//!    window that is used closes until what is under way has come, and a few answers have been
//!    alone. That costs a loaded client two or three round trips in ten seconds: 0.3 % of its time on
//!    ways of 10 ms, 3 % on those of 100 ms. [`crate::way`] says what is believed then.

use crate::way::Way;

/// A change of the window, at most once for each round trip.
const DECREASE_MAX: f64 = 0.5;
/// How strongly a delay beyond the target counts.
const BETA: f64 = 0.8;
/// Bytes that a round trip without a queue adds, above the threshold.
const INCREASE_LEN: f64 = 4096.0;
/// Answers that take so many times the way itself have stood in a queue …
const TARGET: f64 = 2.0;
/// … or twice as many where the window is so short, and more where it is shorter: it fills no
/// queue, and what is late has met others, or a host that is busy. (Swift scales by flows.)
const SHORT_LEN: f64 = 8192.0;
/// At the beginning.
const FIRST_LEN: f64 = 16_384.0;
/// The least: one answer is always under way.
const LEN_MIN: f64 = 2048.0;
/// Answers in a row that have not come: the way is another one, or there is none.
const LOSSES_IN_A_ROW_MAX: u32 = 8;
/// A delay of so much more than the way is none: wake-ups, other processes.
const SLACK_NS: u64 = 100_000;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    len: f64,
    len_max: f64,
    /// Below it the window is doubled in a round trip.
    threshold: f64,
    /// The most that was under way in this round trip, and in the one before.
    used: [usize; 2],
    used_since_ns: u64,
    /// The round trip without a queue.
    way: Way,
    /// What was asked for then was alone.
    begun_ns: u64,
    /// Closed since then: what was asked for later was alone.
    closed_ns: Option<u64>,
    srtt_ns: u64,
    deviation_ns: u64,
    decreased_ns: u64,
    losses_in_a_row: u32,
    /// What the last loss has changed.
    loss: Option<Loss>,
    is_fixed: bool,
}

/// What it was before a loss, and how many of those that were taken for lost since then have
/// not come.
#[derive(Clone, Copy, Debug)]
struct Loss {
    len: f64,
    threshold: f64,
    count: u32,
}

impl Window {
    /// Always `len` bytes, whatever answers take: for comparison.
    pub fn fixed(len: u32) -> Self {
        Window {
            len: f64::from(len),
            is_fixed: true,
            ..Window::new(len)
        }
    }

    /// At most `len_max` bytes.
    pub fn new(len_max: u32) -> Self {
        Window {
            len: f64::from(len_max).min(FIRST_LEN),
            len_max: f64::from(len_max),
            threshold: f64::INFINITY,
            used: [0; 2],
            used_since_ns: 0,
            way: Way::UNKNOWN,
            begun_ns: 0,
            closed_ns: None,
            srtt_ns: 0,
            deviation_ns: 0,
            decreased_ns: 0,
            losses_in_a_row: 0,
            loss: None,
            is_fixed: false,
        }
    }

    /// One of the same kind that knows nothing yet.
    pub fn renewed(&self) -> Self {
        Window {
            len: match self.is_fixed {
                true => self.len_max,
                false => self.len_max.min(FIRST_LEN),
            },
            is_fixed: self.is_fixed,
            ..Window::new(self.len_max as u32)
        }
    }

    /// Bytes that may be under way.
    pub fn len(&self) -> usize {
        match self.closed_ns {
            Some(_) => LEN_MIN as usize,
            None => self.len as usize,
        }
    }

    /// Never: one answer is always allowed.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// How long answers take lately, and the shortest time that one has taken, in nanoseconds;
    /// 0 and the longest before the first.
    pub fn round_trips_ns(&self) -> (u64, u64) {
        (self.srtt_ns, self.way.ns())
    }

    /// Something is asked for now, and nothing else is under way.
    pub fn begins(&mut self, now_ns: u64) {
        self.begun_ns = now_ns;
    }

    /// So many bytes are under way, the last of them since now.
    pub fn sent(&mut self, used: usize, now_ns: u64) {
        if now_ns.saturating_sub(self.used_since_ns) >= self.srtt_ns {
            self.used = [0, self.used[0]];
            self.used_since_ns = now_ns;
        }
        self.used[0] = self.used[0].max(used);
    }

    /// An answer that takes `len` bytes of the window began to come after so long.
    pub fn answered(&mut self, rtt_ns: u64, len: usize, now_ns: u64) {
        self.losses_in_a_row = 0;
        self.look_at_way(rtt_ns, now_ns);
        match self.srtt_ns {
            0 => (self.srtt_ns, self.deviation_ns) = (rtt_ns, rtt_ns / 2),
            srtt_ns => {
                let error_ns = srtt_ns.abs_diff(rtt_ns);
                self.deviation_ns = (self.deviation_ns * 3 + error_ns) / 4;
                self.srtt_ns = (srtt_ns * 7 + rtt_ns) / 8;
            }
        }
        if self.is_fixed {
            return;
        }
        let target_ns = self.target_ns();
        if rtt_ns > target_ns {
            let late = (rtt_ns - target_ns) as f64 / rtt_ns as f64;
            self.decrease(1.0 - BETA * late, now_ns);
        } else if self.is_used() && self.closed_ns.is_none() {
            // A window's bytes are answered in a round trip; of a longer answer alone, no more.
            let len = (len as f64).min(self.len);
            let more = match self.len < self.threshold {
                true => len,
                false => INCREASE_LEN * len / self.len,
            };
            self.len = (self.len + more).min(self.len_max);
        }
    }

    /// Whether more than half of it was under way lately.
    fn is_used(&self) -> bool {
        let [now, before] = self.used;
        now.max(before) * 2 > self.len as usize
    }

    /// Whether what was under way lately may have stood in a queue of its own.
    fn may_fill_queue(&self) -> bool {
        let [now, before] = self.used;
        self.is_used() || now.max(before) > FIRST_LEN as usize
    }

    fn look_at_way(&mut self, rtt_ns: u64, now_ns: u64) {
        let sent_ns = now_ns.saturating_sub(rtt_ns);
        let is_alone = match self.closed_ns {
            _ if sent_ns == self.begun_ns => true,
            Some(closed_ns) => sent_ns >= closed_ns,
            None => !self.may_fill_queue(),
        };
        self.way.took(rtt_ns, is_alone, now_ns);
        self.closed_ns = match (self.way.is_due(now_ns), self.closed_ns) {
            (true, None) if self.may_fill_queue() && !self.is_fixed => Some(now_ns),
            (true, closed_ns) => closed_ns,
            (false, _) => None,
        };
    }

    /// An answer has not come in time.
    pub fn lost(&mut self, now_ns: u64) {
        // Before the first answer it is not known what in time is.
        if self.is_fixed || self.srtt_ns == 0 {
            return;
        }
        let Window { len, threshold, .. } = *self;
        if self.decrease(DECREASE_MAX, now_ns) {
            let count = 0;
            self.loss = Some(Loss {
                len,
                threshold,
                count,
            });
        }
        if let Some(loss) = &mut self.loss {
            loss.count += 1;
        }
        self.losses_in_a_row += 1;
        if self.losses_in_a_row > LOSSES_IN_A_ROW_MAX && self.len > LEN_MIN {
            self.threshold = self.len * DECREASE_MAX;
            self.len = LEN_MIN;
        }
    }

    /// One that was taken for lost has come after all. If all of them have, nothing was lost,
    /// and how late they came says whether there is a queue.
    pub fn was_not_lost(&mut self) {
        let Some(loss) = &mut self.loss else {
            return;
        };
        loss.count -= 1;
        if loss.count == 0 {
            (self.len, self.threshold) = (loss.len, loss.threshold);
            (self.loss, self.decreased_ns) = (None, 0);
        }
    }

    /// Whether it was: at most once in a round trip.
    fn decrease(&mut self, to: f64, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.decreased_ns) < self.srtt_ns {
            return false;
        }
        self.decreased_ns = now_ns;
        self.loss = None;
        self.len = (self.len * to.max(DECREASE_MAX)).max(LEN_MIN);
        self.threshold = self.len;
        true
    }

    fn target_ns(&self) -> u64 {
        let short = (SHORT_LEN / self.len).sqrt() * TARGET;
        let times = TARGET + short;
        (self.way.ns() as f64 * times) as u64 + SLACK_NS
    }

    /// After how long without an answer one is asked again.
    pub fn patience_ns(&self) -> u64 {
        const FIRST_NS: u64 = 20_000_000;
        const MIN_NS: u64 = 500_000;
        // The longest of many is later than a steady way's deviations say.
        const MORE: u64 = 8;
        match self.srtt_ns {
            0 => FIRST_NS,
            srtt_ns => (srtt_ns + (4 * self.deviation_ns).max(srtt_ns / MORE)).max(MIN_NS),
        }
    }
}
