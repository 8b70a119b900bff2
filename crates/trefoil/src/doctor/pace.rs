//! So many bytes in a second from one backend, and no more.

use std::time::{Duration, Instant};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// 0 sets no limit.
    bytes_per_s: u64,
    /// Before this nothing more is asked for.
    next: Instant,
}

impl Pace {
    pub(super) fn new(bytes_per_s: u64, now: Instant) -> Self {
        Pace {
            bytes_per_s,
            next: now,
        }
    }

    /// Bytes that have come.
    pub(super) fn took(&mut self, bytes: u64, now: Instant) {
        if self.bytes_per_s > 0 {
            let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
            self.next = self.next.max(now) + takes;
        }
    }

    /// When the next question may be asked.
    pub(super) fn next(&self) -> Instant {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_their_time() {
        let begin = Instant::now();
        let after = |pace: &Pace| pace.next().duration_since(begin).as_millis();
        let mut pace = Pace::new(1000, begin);
        assert_eq!(after(&pace), 0);
        pace.took(500, begin);
        pace.took(1000, begin);
        assert_eq!(after(&pace), 1500);
        // Time in which nothing was read is not made up for.
        pace.took(100, begin + Duration::from_secs(10));
        assert_eq!(after(&pace), 10_100);
        let mut free = Pace::new(0, begin);
        free.took(u64::MAX, begin);
        assert_eq!(after(&free), 0);
    }
}
