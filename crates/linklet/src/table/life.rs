//! When objects end by themselves.
//!
//! An object that has ended counts as absent at once, for whoever asks; it is taken
//! out by the next sweep.

use super::part::Entry;
use std::time::{Duration, SystemTime};

/// When an object ends by its own word.
pub(crate) type Ends<V> = dyn Fn(&V) -> Option<SystemTime> + Send + Sync;

/// The steps of the clock by which objects are idle.
pub(crate) const STEP: Duration = Duration::from_millis(100);

/// A look at a million objects takes some ten milliseconds.
const SWEEP_MAX: Duration = Duration::from_secs(1);

/// What ends objects. With neither nothing ends, and nobody looks.
pub(crate) struct Lifetimes<V> {
    pub(crate) ends: Option<Box<Ends<V>>>,
    /// After so many steps in which nobody has asked for it.
    pub(crate) idle_steps: Option<u32>,
}

impl<V> Default for Lifetimes<V> {
    fn default() -> Self {
        Lifetimes {
            ends: None,
            idle_steps: None,
        }
    }
}

impl<V> Lifetimes<V> {
    /// Whether anything ends by itself.
    pub(crate) fn limited(&self) -> bool {
        self.ends.is_some() || self.idle_steps.is_some()
    }

    /// How often to look for what has ended: as often as idleness has to be known, and
    /// not so often that it costs anything.
    pub(crate) fn sweep_every(&self) -> Option<Duration> {
        let idle = self.idle_steps.map(|steps| STEP * (steps / 8));
        let often = idle.unwrap_or(SWEEP_MAX);
        self.limited().then(|| often.clamp(STEP, SWEEP_MAX))
    }

    /// Whether an object has ended, at this step of the clock and this time.
    pub(super) fn is_over(
        &self,
        entry: &Entry<V>,
        step: u32,
        now: impl FnOnce() -> SystemTime,
    ) -> bool {
        let idle = step.saturating_sub(entry.used_step);
        if self.idle_steps.is_some_and(|steps| idle > steps) {
            return true;
        }
        let end = self.ends.as_ref().and_then(|ends| ends(&entry.value));
        end.is_some_and(|end| end <= now())
    }
}
