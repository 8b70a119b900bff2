//! Whether a long request comes on: one that hardly does keeps its room from others.

/// Over how long it is looked how fast it comes.
const WINDOW_NS: u64 = 10_000_000_000;

/// How an unfinished request comes. Times are of a monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Since when it is looked at, and bytes that had come by then.
    began: Option<(u64, u64)>,
}

impl Pace {
    /// No request is coming.
    pub(super) fn end(&mut self) {
        self.began = None;
    }

    /// Whether it has come at less than so many bytes a second, now that so many bytes
    /// have come in all.
    pub(super) fn is_too_slow(&mut self, now_ns: u64, come: u64, rate_min: u64) -> bool {
        let (since_ns, before) = *self.began.get_or_insert((now_ns, come));
        let elapsed_ns = now_ns.saturating_sub(since_ns);
        if elapsed_ns < WINDOW_NS {
            return false;
        }
        self.began = Some((now_ns, come));
        let least = u128::from(rate_min) * u128::from(elapsed_ns) / 1_000_000_000;
        u128::from(come.saturating_sub(before)) < least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_to_come_on() {
        let mut pace = Pace::default();
        let (second, rate) = (1_000_000_000, 1000);
        assert!(!pace.is_too_slow(5 * second, 0, rate));
        assert!(!pace.is_too_slow(14 * second, 0, rate), "it may pause");
        assert!(!pace.is_too_slow(15 * second, 10_000, rate));
        assert!(pace.is_too_slow(25 * second, 19_999, rate));
        // What comes after it begins anew.
        pace.end();
        assert!(!pace.is_too_slow(60 * second, 20_000, rate));
        assert!(pace.is_too_slow(80 * second, 20_000, rate));
        assert!(!pace.is_too_slow(100 * second, 20_000, 0));
    }
}
