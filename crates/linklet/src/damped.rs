//! Lines for the log that would be there many times a second.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Not more often than this.
const EVERY: Duration = Duration::from_secs(60);

/// Counts what is told once a minute at most.
#[derive(Debug, Default)]
pub(crate) struct Damped(Mutex<(Option<Instant>, u64)>);

impl Damped {
    /// One more; how many since the last line, if it is time for another one.
    pub(crate) fn tell(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let (last, count) = &mut *state;
        *count += 1;
        if last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_minute_with_all_there_were() {
        let (damped, begin) = (Damped::default(), Instant::now());
        assert_eq!(damped.tell(begin), Some(1));
        for second in 1..60 {
            assert_eq!(damped.tell(begin + Duration::from_secs(second)), None);
        }
        assert_eq!(damped.tell(begin + EVERY), Some(60));
        assert_eq!(damped.tell(begin + EVERY), None);
    }
}
