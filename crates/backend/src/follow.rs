//! The thread that follows a configuration store on other machines.
//!
//! Nobody else of this process waits for that store, but for who changes something and
//! whoever starts. While it is away everything is served under the configuration that
//! is known; a store that has gone back is told of and not believed.

use crate::state::State;
use crate::stop::Stop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_cell::ConfigStoreError;

/// How long one wait takes at most: a server that stops waits for its end.
const WAIT: Duration = Duration::from_millis(250);
/// After something that waiting does not help against.
const PAUSE: Duration = Duration::from_secs(1);
/// While something else has to happen before a change can be followed: the commit of a
/// reload that is under way.
const HEED: Duration = Duration::from_millis(50);
/// What goes on is told again so often.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Something that keeps the store from being followed, and when it was told.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    text: String,
    since: Option<Instant>,
    told: Option<Instant>,
}

impl Trouble {
    /// Whether this is to be told: it is new, or old enough.
    pub(crate) fn is_news(&mut self, text: String, now: Instant) -> bool {
        self.since.get_or_insert(now);
        let is_new = text != self.text;
        self.text = text;
        let is_old = |told: Instant| now.saturating_duration_since(told) >= TELL_AGAIN;
        let is_news = is_new || self.told.is_none_or(is_old);
        if is_news {
            self.told = Some(now);
        }
        is_news
    }

    /// How long it has taken, if there was any.
    pub(crate) fn end(&mut self, now: Instant) -> Option<Duration> {
        let since = std::mem::take(self).since?;
        Some(now.saturating_duration_since(since))
    }
}

/// Follows until stopped.
pub(crate) fn run(state: &Arc<State>, stop: &Stop) {
    let (mut outage, mut refusal) = (Trouble::default(), Trouble::default());
    loop {
        let known = state.config().topology_id();
        let seen = state.config_store.wait_for_change(Some(known), WAIT);
        let now = Instant::now();
        let is_away = seen.as_ref().is_err_and(ConfigStoreError::is_outage);
        state.store_away.store(is_away, Ordering::Relaxed);
        let has_changed = matches!(seen, Ok(Some(_)));
        let refused = match seen {
            Ok(None) => None,
            Ok(Some(_)) => state.catch_up().err().map(|error| error.to_string()),
            Err(error) if error.is_outage() => {
                if outage.is_news(error.to_string(), now) {
                    tracing::warn!(%error, "the configuration store is away");
                }
                if stop.wait(WAIT) {
                    return;
                }
                continue;
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(took) = outage.end(now) {
            let seconds = took.as_secs();
            tracing::info!(seconds, "the configuration store is back");
        }
        state
            .store_refused
            .store(refused.is_some(), Ordering::Relaxed);
        let pause = match refused {
            None => {
                if let Some(took) = refusal.end(now) {
                    let seconds = took.as_secs();
                    tracing::info!(seconds, "the cell's configuration is followed again");
                }
                let is_followed = !has_changed || state.config().topology_id() != known;
                if is_followed { Duration::ZERO } else { HEED }
            }
            Some(error) => {
                if refusal.is_news(error.clone(), now) {
                    tracing::error!(error, "cannot follow the cell's configuration");
                }
                PAUSE
            }
        };
        if stop.wait(pause) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_told_once_a_minute() {
        let begin = Instant::now();
        let mut trouble = Trouble::default();
        let told: Vec<u64> = (0..150)
            .filter(|&second| {
                let text = if second < 10 { "one" } else { "other" };
                trouble.is_news(text.to_owned(), begin + Duration::from_secs(second))
            })
            .collect();
        assert_eq!(told, [0, 10, 70, 130]);
        let end = begin + Duration::from_secs(150);
        assert_eq!(trouble.end(end), Some(Duration::from_secs(150)));
        assert_eq!(trouble.end(end), None);
    }
}
