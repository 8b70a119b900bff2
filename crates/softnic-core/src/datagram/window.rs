//! How many solicited bytes may be under way, by how long answers take (as Swift does it:
//! Kumar et al., SIGCOMM 2020). Answers that take longer than the way itself have stood in a
//! queue: less is asked for. So many clients that ask one engine, or one client that asks
//! many, share what there is and lose little.

/// A change of the window, at most once for each round trip.
const DECREASE_MAX: f64 = 0.5;
/// How strongly a delay beyond the target counts.
const BETA: f64 = 0.8;
/// Bytes that a round trip without a queue adds.
const INCREASE_LEN: f64 = 4096.0;
/// At the beginning.
const FIRST_LEN: f64 = 16_384.0;
/// The least: one answer is always under way.
const LEN_MIN: f64 = 2048.0;
/// A delay of so much more than the shortest one is none: wake-ups, other processes.
const SLACK_NS: u64 = 100_000;
/// The shortest delay is forgotten after so long: the way may have changed.
const BASE_FOR_NS: u64 = 10_000_000_000;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    len: f64,
    len_max: f64,
    /// Shortest round trip lately, and since when.
    base_ns: u64,
    base_since_ns: u64,
    srtt_ns: u64,
    deviation_ns: u64,
    decreased_ns: u64,
    losses_in_a_row: u32,
    is_fixed: bool,
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
            base_ns: u64::MAX,
            base_since_ns: 0,
            srtt_ns: 0,
            deviation_ns: 0,
            decreased_ns: 0,
            losses_in_a_row: 0,
            is_fixed: false,
        }
    }

    /// Bytes that may be under way.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Never: one answer is always allowed.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// An answer of `len` bytes began to come after so long.
    pub fn answered(&mut self, rtt_ns: u64, len: usize, now_ns: u64) {
        self.losses_in_a_row = 0;
        let is_old = now_ns.saturating_sub(self.base_since_ns) > BASE_FOR_NS;
        if rtt_ns <= self.base_ns || is_old {
            (self.base_ns, self.base_since_ns) = (rtt_ns, now_ns);
        }
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
        if rtt_ns <= target_ns {
            // So much for a window's bytes: for each round trip.
            let len = self.len + INCREASE_LEN * len as f64 / self.len;
            self.len = len.min(self.len_max);
        } else {
            let late = (rtt_ns - target_ns) as f64 / rtt_ns as f64;
            self.decrease(1.0 - BETA * late, now_ns);
        }
    }

    /// An answer has not come.
    pub fn lost(&mut self, now_ns: u64) {
        if self.is_fixed {
            return;
        }
        self.losses_in_a_row += 1;
        if self.losses_in_a_row > 8 {
            self.len = LEN_MIN;
        }
        self.decrease(DECREASE_MAX, now_ns);
    }

    fn decrease(&mut self, to: f64, now_ns: u64) {
        if now_ns.saturating_sub(self.decreased_ns) >= self.srtt_ns {
            self.decreased_ns = now_ns;
            self.len = (self.len * to.max(DECREASE_MAX)).max(LEN_MIN);
        }
    }

    fn target_ns(&self) -> u64 {
        self.base_ns.saturating_mul(2).saturating_add(SLACK_NS)
    }

    /// After how long without an answer one is asked again.
    pub fn patience_ns(&self) -> u64 {
        const FIRST_NS: u64 = 20_000_000;
        const MIN_NS: u64 = 500_000;
        match self.srtt_ns {
            0 => FIRST_NS,
            srtt_ns => (srtt_ns + 4 * self.deviation_ns).max(MIN_NS),
        }
    }
}
