//! How a spare waits for what may pass: it asks again, ever more seldom, and says why it
//! waits, once a minute.

use std::time::{Duration, Instant};

/// Pauses begin with this, and double.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// A cell that waits for a spare has lost a backend: not much longer than etcd needs to
/// come back.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// What goes on is told again so often.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// The pause before this one.
    pause: Duration,
    /// What was told last, and when.
    told: Option<(String, Instant)>,
}

impl Patience {
    /// Says why, if that is news, and waits.
    pub(super) fn wait(&mut self, why: &str) {
        if self.is_news(why, Instant::now()) {
            tracing::error!(why, "the spare waits");
        }
        std::thread::sleep(self.next());
    }

    /// It goes on.
    pub(super) fn end(&mut self) {
        self.pause = Duration::ZERO;
        if self.told.take().is_some() {
            tracing::info!("the spare goes on");
        }
    }

    fn next(&mut self) -> Duration {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pause
    }

    fn is_news(&mut self, why: &str, now: Instant) -> bool {
        let is_old = |at: Instant| now.saturating_duration_since(at) >= TELL_AGAIN;
        let is_told = self
            .told
            .as_ref()
            .is_some_and(|(told, at)| told == why && !is_old(*at));
        if !is_told {
            self.told = Some((why.to_owned(), now));
        }
        !is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_begin_anew() {
        let mut patience = Patience::default();
        let pauses: Vec<u128> = (0..7).map(|_| patience.next().as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 5000, 5000]);
        patience.end();
        assert_eq!(patience.next(), PAUSE_MIN);
    }

    #[test]
    fn what_goes_on_is_told_once_a_minute() {
        let mut patience = Patience::default();
        let begin = Instant::now();
        let told: Vec<u64> = (0..150)
            .filter(|&second| {
                let why = if second < 10 { "one" } else { "other" };
                patience.is_news(why, begin + Duration::from_secs(second))
            })
            .collect();
        assert_eq!(told, [0, 10, 70, 130]);
    }
}
